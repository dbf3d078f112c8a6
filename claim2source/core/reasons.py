"""Give the reasons of failures a kind, so that programs count kinds and people read sentences."""

from __future__ import annotations

from typing import Literal, Self, get_args

# `schema`: another form than the one requested; `server`: no reply, or one to a part of the prompt;
# `doubtful`: a text that is used although it lost something.
FailureKind = Literal[
    "cut",
    "refused",
    "language",
    "schema",
    "echo",
    "empty",
    "long",
    "server",
    "doubtful",
    "other",
]
KINDS: tuple[FailureKind, ...] = get_args(FailureKind)


class Reason(str):
    """Describe a failure in words, and name its kind.

    Example:
        >>> reason = Reason("in German, not English", "language")
        >>> f"claim 7: {reason}", reason.kind
        ('claim 7: in German, not English', 'language')
    """

    kind: FailureKind

    def __new__(cls, text: str, kind: FailureKind = "other") -> Self:
        reason = super().__new__(cls, text)
        reason.kind = kind
        return reason


def failure_kind(reason: str) -> FailureKind:
    """Return the kind of a reason; `other` for words without one."""
    return reason.kind if isinstance(reason, Reason) else "other"
