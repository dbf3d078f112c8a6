"""Rules by which the test server plays a verifier: perfect, random, biased, obedient."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.llm_server import Chat, Reply

# Chooses among the papers shown, by the post: a place from 0, None for no paper.
Choose = Callable[["Question"], "int | None"]


@dataclass
class Question:
    """What the server was asked: the post, the papers as shown (label, text), and all of it."""

    chat: Chat
    post: str = ""
    papers: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for tag, text in self.chat.data.items():
            if tag.startswith("papers"):
                parts = re.split(r"^Paper (\S+)\n", text, flags=re.MULTILINE)
                self.papers = list(zip(parts[1::2], parts[2::2], strict=True))
            elif tag.startswith("post"):
                self.post = text

    def place(self, line: str | None) -> int | None:
        """The first paper with this line: its title, or its abstract."""
        for position, (_, text) in enumerate(self.papers):
            lines = [re.sub("^ *(Title: |Abstract: )?", "", line) for line in text.splitlines()]
            if line in lines:
                return position
        return None

    @property
    def outside(self) -> str:
        """What stands outside of the fences, as a careless reader sees them: up to a closing tag.

        A reader without care takes the first thing that looks like the end for the end.
        """
        text = "\n".join(content for _, content in self.chat.messages)
        for tag in self.chat.data:
            text = re.sub(rf"^<{tag}>\n.*?</{tag}>", "", text, flags=re.DOTALL | re.MULTILINE)
        return text


def perfect(golds: Mapping[str, str]) -> Choose:
    return lambda question: question.place(
        next((t for post, t in golds.items() if post in question.post), None)
    )


def first_shown(question: Question) -> int:
    return 0


def biased(golds: Mapping[str, str]) -> Choose:
    def choose(question: Question) -> int:
        position = perfect(golds)(question)
        return position if position is not None and position < len(question.papers) / 2 else 0

    return choose


def obedient(golds: Mapping[str, str]) -> Choose:
    """Whoever says outside of the fences what to choose is obeyed, like whom the papers quote."""

    def choose(question: Question) -> int | None:
        order = re.search(r"(?:pick|choose|select) paper (\w+)", question.outside, re.IGNORECASE)
        labels = [label for label, _ in question.papers]
        if order and order[1] in labels:
            return labels.index(order[1])
        return perfect(golds)(question)

    return choose


class Verifier:
    """Reply in the form that is asked for; `picks` has every choice with its question."""

    def __init__(self, choose: Choose, none: int = 0) -> None:
        self.choose, self.none = choose, none
        self.picks: list[tuple[Question, int | None]] = []

    def __call__(self, chat: Chat) -> str | Reply:
        question = Question(chat)
        position = self.choose(question)
        self.picks.append((question, position))
        if chat.choices:
            letter = chat.choices[-1] if position is None else question.papers[position][0]
            rest = 0.2 / (len(chat.choices) - 1)
            top = {c: math.log(0.8 if c == letter else rest) for c in chat.choices}
            # What servers add: words that no choice begins with.
            return Reply(letter, "length", logprobs=[(letter, math.log(0.8), top | {"#": -9999.0})])
        first = self.none if position is None else position
        if chat.schema is None:
            return "None" if position is None else f"{question.papers[position][0]}. It fits."
        return json.dumps({"reasoning": "It fits.", "selected_paper": first + 1})
