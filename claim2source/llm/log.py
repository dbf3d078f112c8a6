"""Log the answers that programs and stages request, and the tokens that they cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from claim2source.llm.work import Answer, Usage


@dataclass
class AnswerLog:
    """Answers in the order of their requests, and the tokens of all replies, bad ones too."""

    answers: list[Answer] = field(default_factory=list)
    usage: Usage = Usage()


_LOG: ContextVar[AnswerLog | None] = ContextVar("answers", default=None)


@contextmanager
def logged_answers() -> Iterator[AnswerLog]:
    """Log what every `LLM` answers in this block."""
    log = AnswerLog()
    token = _LOG.set(log)
    try:
        yield log
    finally:
        _LOG.reset(token)


def log_answers(answers: Sequence[Answer], usage: Usage) -> None:
    """Add answers and tokens to the log of the block, if there is one."""
    log = _LOG.get()
    if log is not None:
        log.answers += answers
        log.usage += usage
