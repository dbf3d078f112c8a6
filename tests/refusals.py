"""Check that a refusal has its type and names its facts, whatever its sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refused(
    kind: type[BaseException], *facts: object
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Require an exception of `kind` that names every fact: a key, a value, a file, a line."""
    with pytest.raises(kind) as info:
        yield info
    message = str(info.value)
    missing = [str(fact) for fact in facts if str(fact) not in message]
    assert not missing, f"{missing} not in {message!r}"
