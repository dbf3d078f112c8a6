"""Time work, compare it with a peer's, and report ratios: what all benchmarks share."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import inspect
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np

from claim2source.core.config import require
from claim2source.core.errors import UserError

Config = TypeVar("Config")
Done = TypeVar("Done")
Clock = Literal["wall", "cpu"]
# `cpu`: the seconds of all threads of this process, for a busy machine.
# Words of an abstract and of a tweet, least and most.
ABSTRACT, TWEET = (120, 280), (15, 35)


class _Parser(argparse.ArgumentParser):
    """Raise `UserError` instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"config: {message}")


def read_flat(
    kind: type[Config], argv: Sequence[str] | None, program: str, description: str
) -> Config:
    """Parse flags as `read_config` does, but without jsonargparse and config files.

    `kind` is a dataclass of numbers, lists and flags. Raises `UserError` naming the key.
    """
    parser = _Parser(
        prog=program,
        description=description,
        epilog=inspect.getdoc(kind),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for spec in dataclasses.fields(kind):  # type: ignore[arg-type]
        name, meta = f"--{spec.name}", spec.metadata
        if "flag" in meta:
            parser.add_argument(name, action="store_true", default=spec.default, help=meta["flag"])
            parser.add_argument(f"--no_{spec.name}", action="store_false", dest=spec.name)
        elif "list_of" in meta:
            assert spec.default_factory is not dataclasses.MISSING
            parser.add_argument(
                name,
                nargs="+",
                type=meta["list_of"],
                default=spec.default_factory(),
                help=meta["help"],
            )
        else:
            parser.add_argument(name, type=type(spec.default), default=spec.default)
    return kind(**vars(parser.parse_args(argv)))


def require_positive(config: object, *keys: str) -> None:
    """Raise `ConfigError` for the first of these fields that is below 1."""
    for key in keys:
        require(getattr(config, key) >= 1, key, getattr(config, key), "1 or more")


def seconds_by(clock: Clock) -> float:
    """Read a clock, in seconds."""
    return time.perf_counter() if clock == "wall" else time.process_time()


def timed(work: Callable[[], Done], clock: Clock = "wall") -> tuple[float, Done]:
    """Run `work`; give its seconds and its result."""
    started = seconds_by(clock)
    done = work()
    return seconds_by(clock) - started, done


def take_turns(runs: Sequence[Callable[[], None]], repeats: int) -> None:
    """Call every function once a repeat, starting each repeat with the next one."""
    for repeat in range(repeats):
        first = repeat % len(runs)
        for run in [*runs[first:], *runs[:first]]:
            gc.collect()
            run()


def median(values: Sequence[float] | np.ndarray, digits: int = 4) -> float:
    """Compute the rounded median."""
    return round(float(statistics.median(values)), digits)


def spread(values: Sequence[float] | np.ndarray, digits: int = 4) -> list[float]:
    """Compute the rounded lowest and highest value."""
    return [round(float(end), digits) for end in (min(values), max(values))]


def ratio_and_spread(
    values: Sequence[float] | np.ndarray, prefix: str = "", digits: int = 2
) -> dict[str, Any]:
    """Compute median and spread of a ratio as entries of the last line's JSON."""
    return {f"{prefix}ratio": median(values, digits), f"{prefix}spread": spread(values, digits)}


def circumstances(*packages: str) -> dict[str, Any]:
    """Report versions of Python and of the installed packages, and the load of the machine."""
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    load = [round(value, 2) for value in os.getloadavg()]
    return {"versions": versions, "load_average": load}


def run_again(script: str, options: Sequence[str], what: str) -> Any:
    """Run a script in a fresh process; give the JSON of its last line.

    Raises `UserError` with the last line of its errors.
    """
    command = [sys.executable, str(Path(script).resolve()), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{what}: {last}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def zipf_texts(
    draw: np.random.Generator, words: np.ndarray, count: int, length: tuple[int, int]
) -> list[str]:
    """Draw texts of `length` (least and most) words, the words distributed by Zipf's law."""
    weights = 1 / np.arange(1, len(words) + 1)
    lengths = draw.integers(length[0], length[1] + 1, count)
    drawn = draw.choice(len(words), size=int(lengths.sum()), p=weights / weights.sum())
    return [" ".join(part) for part in np.split(words[drawn], np.cumsum(lengths)[:-1])]


def vocabulary(size: int, common: Sequence[str] = ()) -> np.ndarray:
    """Make `size` distinct words, most frequent first: `common` ones, then invented ones."""
    words = np.array([f"w{i:x}" for i in range(size)], dtype=object)
    words[: len(common)] = list(common)[:size]
    return words
