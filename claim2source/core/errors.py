"""Report a user's mistakes in one clear line each; programs end with exit code 2."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

EXIT_CODE = 2
MOST_SHOWN = 20


class UserError(Exception):
    """Report what the user can correct; a program prints only its text."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Describe what is wrong at one place of an input: file, line (1-based), field, why."""

    file: str
    line: int | None
    field: str | None
    why: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        text = f"{place}: {self.field}: {self.why}" if self.field else f"{place}: {self.why}"
        return " ".join(text.splitlines())


class InputError(UserError):
    """Report bad input: one line per problem, at most 20, then the count of the others."""

    def __init__(self, problems: Iterable[Problem], total: int | None = None) -> None:
        self.problems = tuple(problems)
        self.total = len(self.problems) if total is None else total
        lines = [str(problem) for problem in self.problems[:MOST_SHOWN]]
        if self.total > len(lines):
            lines.append(f"... and {self.total - len(lines)} more problems")
        super().__init__("\n".join(lines))

    @classmethod
    def at(
        cls,
        file: str | Path,
        line: int | None = None,
        field: str | None = None,
        why: str = "",
    ) -> InputError:
        """Make an error of a single problem."""
        return cls([Problem(str(file), line, field, why)])


class ConfigError(UserError):
    """Report a setting that is not allowed: the key, the value and what is allowed."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key, self.value, self.allowed = key, value, allowed
        super().__init__(f"config: {key}: {value!r} is not allowed; allowed: {allowed}")


class Problems:
    """Collect problems while a file is read; only those that will be shown are stored."""

    def __init__(self) -> None:
        self._kept: list[Problem] = []
        self._total = 0

    def add(self, file: str | Path, line: int | None, field: str | None, why: str) -> None:
        """Add one problem; the first 20 are stored, the others counted."""
        self._total += 1
        if len(self._kept) < MOST_SHOWN:
            self._kept.append(Problem(str(file), line, field, why))

    def __len__(self) -> int:
        return self._total

    def raise_if_any(self) -> None:
        """Raise `InputError` when anything was added."""
        if self._total:
            raise InputError(self._kept, self._total)


def run_program(
    main: Callable[[Sequence[str] | None], Any], argv: Sequence[str] | None = None
) -> NoReturn:
    """Run a program's `main`; a `UserError` is printed to stderr and gives exit code 2."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)  # on the handler: some libraries lower their loggers' level
    logging.basicConfig(handlers=[handler], format="%(levelname)s: %(message)s")
    try:
        main(argv)
    except UserError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(EXIT_CODE)
    except OSError as error:
        # The user can correct a file that cannot be read or written, but not other causes.
        if error.filename is None or error.strerror is None:
            raise
        print(f"error: {error.filename}: {error.strerror.lower()}", file=sys.stderr)
        sys.exit(EXIT_CODE)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)
