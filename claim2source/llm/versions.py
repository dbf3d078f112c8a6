"""Have a language model judge several versions of texts, which it writes itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from claim2source.core.config import Between, require
from claim2source.llm.client import LLM
from claim2source.llm.stage import LLMStage
from claim2source.llm.work import Answer, Request
from claim2source.text.language import why_bad_reply
from claim2source.text.prompts import Prompt, read_prompt

MOST_VERSIONS = 20
Rewrites = Annotated[int, Between(0, MOST_VERSIONS)]
Heat = Annotated[float, Between(0, 2)]  # of sampling
# A version may be this many times as long as its text, or LONGEST characters.
TIMES, LONGEST = 3, 600


def require_versions(group: str, rewrites: int, temperature: float) -> None:
    """Raise `ConfigError` unless so many versions can be written; keys begin with `group`."""
    good = rewrites < 2 or temperature > 0
    require(good, f"{group}rewrites", rewrites, "1: at temperature 0 all versions are the same")


@dataclass(frozen=True)
class Versions:
    """Hold the good versions of texts, and why others failed, by text.

    A text whose versions all failed stands for itself.
    """

    of: Mapping[str, Sequence[str]]
    failures: Mapping[str, Sequence[str]]
    answers: Sequence[Answer] = ()


@dataclass(frozen=True, kw_only=True)
class RewritingStage(LLMStage):
    """Judge versions of texts in their place, so that one wording has less weight.

    Args:
        rewrites: versions of a text; 0: the text itself.
        temperature: of writing them; judging is as `llm` says.
        rewrite_prompt: a prompt's name or YAML file with the variable post.
    """

    rewrites: Rewrites = 0
    temperature: Heat = 0.7
    rewrite_prompt: str = "rumor_rewrite"

    def check(self) -> None:
        super().check()
        require_versions("", self.rewrites, self.temperature)

    def versions(
        self, texts: Sequence[str], prompt: str | None = None, what: str = "rewrites"
    ) -> Versions:
        """Write the versions of every distinct text, by `rewrite_prompt` or another."""
        if not self.rewrites:
            return Versions({text: [text] for text in texts}, {})
        with self.asking(replace(self.llm, temperature=self.temperature)) as llm:
            read = read_prompt(prompt or self.rewrite_prompt)
            return write_versions(llm, read, texts, self.rewrites, what)


def write_versions(
    llm: LLM, prompt: Prompt, texts: Sequence[str], count: int, what: str
) -> Versions:
    """Write `count` versions of every distinct text by a prompt with the variable post."""
    named = {f"text {number}": text for number, text in enumerate(dict.fromkeys(texts), 1)}
    requests = [
        Request.of(prompt, name, {"post": text}, sample=sample)
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
