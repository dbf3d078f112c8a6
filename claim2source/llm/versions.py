"""Have a language model write several versions of texts, each checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from claim2source.llm.client import LLM
from claim2source.llm.work import Answer, Request
from claim2source.text.prompts import Prompt
from claim2source.text.replies import why_bad_reply

# A version may be this many times as long as its text, or LONGEST characters.
TIMES, LONGEST = 3, 600


@dataclass(frozen=True)
class Versions:
    """Hold the good versions of texts, and why others failed, by text.

    A text whose versions all failed stands for itself.
    """

    of: Mapping[str, Sequence[str]]
    failures: Mapping[str, Sequence[str]]
    answers: Sequence[Answer] = ()


def write_versions(
    llm: LLM, prompt: Prompt, texts: Sequence[str], count: int, what: str
) -> Versions:
    """Write `count` versions of every distinct text by a prompt with the variable post."""
    named = {f"text {number}": text for number, text in enumerate(dict.fromkeys(texts), 1)}
    made = f"{prompt.name} {prompt.version}"
    requests = [
        Request(name, prompt.messages({"post": text}), made, sample=sample)
        for name, text in named.items()
        for sample in range(count)
    ]

    def check(request: Request, answer: Answer) -> str | None:
        text = named[request.id]
        longest = max(LONGEST, TIMES * len(text))
        return why_bad_reply(answer.text, text, language=None, longest=longest, may_repeat=True)

    answers = llm.answer(requests, check, what)
    good: dict[str, list[str]] = {text: [] for text in named.values()}
    failures: dict[str, list[str]] = {text: [] for text in named.values()}
    for answer in answers:
        text = named[answer.id]
        if answer.failure is None:
            good[text].append(answer.text)
        else:
            failures[text].append(f"{what}: {answer.failure}")
    return Versions({text: own or [text] for text, own in good.items()}, failures, answers)
