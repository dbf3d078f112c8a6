"""Run programs on spoilt inputs: `python scripts/fuzz.py --examples 3000 --seed 1`.

Every case is a command over valid inputs of which some are spoilt. It must end with exit code 0, or
2 and short printable lines, in time, with no input changed and nothing half-written. Failing cases
are made small, printed and kept in a folder; the next start runs them again first. `--case FILE`
runs one, and `--into DIR` leaves its inputs to be looked at. Needs the extra `dev`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# Before anything imports torch or tokenizers: both read these once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from claim2source.core.config import Number, Settings, list_field, read_config, require
from claim2source.core.errors import run_program
from claim2source.core.tables import Cell, plain_table
from tests.fuzzing.cases import Case
from tests.fuzzing.hunt import Hunt
from tests.fuzzing.judge import Fuzzer
from tests.fuzzing.world import PROGRAMS


@dataclass(frozen=True)
class Config(Settings):
    """Settings of `scripts/fuzz.py`.

    Args:
        examples: cases to run.
        seed: decides which cases.
        kept: folder of failing cases.
        case: run this case only.
        shrinking: seconds in which a failing case is made smaller.
        into: folder to leave the spoilt inputs of `case` in.
    """

    examples: Number = 3000
    seed: int = 0
    kept: Path = Path("out/fuzz")
    case: Path | None = None
    shrinking: float = 30.0
    into: Path | None = None
    program: list[str] | None = list_field(help="these programs only, such as score")

    def check(self) -> None:
        """Check that the programs are those that can be run."""
        for name in self.program or ():
            require(name in PROGRAMS, "program", name, ", ".join(PROGRAMS))


def main(argv: Sequence[str] | None = None) -> None:
    """Run kept cases, then new ones; print the counts; exit with 1 where any fails."""
    config = read_config(Config, argv, program="scripts/fuzz.py", description=__doc__ or "")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        fuzzer = Fuzzer(Path(folder) / "fuzz")
        if config.case is not None:
            sys.exit(run_one(fuzzer, config.case, config.into))
        config.kept.mkdir(parents=True, exist_ok=True)
        hunt = Hunt(fuzzer, config.kept, config.shrinking)
        print("\n".join(hunt.again()), flush=True)
        hunt.run(config.examples, config.seed, config.program or ())
    print(table(hunt))
    if hunt.failures:
        print(f"{len(hunt.failures)} ways to fail; the cases are in {config.kept}")
        sys.exit(1)


def run_one(fuzzer: Fuzzer, path: Path, into: Path | None) -> int:
    """Run one kept case and show everything; returns the exit code."""
    case = Case.from_json(json.dumps(json.loads(path.read_text(encoding="utf-8"))["case"]))
    if into is not None:
        fuzzer.leave(case, into)
        print(f"cd {into}; python {PROGRAMS[case.program].path}.py {shlex.join(case.argv)}")
    outcome = fuzzer.run(case)
    print(f"{case.to_json()}\nexit {outcome.code}\n{outcome.printed}\n{outcome.errors}")
    print("\n".join(outcome.wrong) or "nothing is wrong")
    return int(bool(outcome.wrong))


def table(hunt: Hunt) -> str:
    """Tabulate how the cases of each program ended."""
    ends = ["exit 0", "exit 2", "wrong"]
    rows: list[list[Cell]] = [
        [
            name,
            *(hunt.counts[name, end] for end in ends),
            sum(failure.case.program == name for failure in hunt.failures),
            f"{hunt.seconds[name]:.0f}",
        ]
        for name in PROGRAMS
        if any(hunt.counts[name, end] for end in ends)
    ]
    return plain_table(["program", *ends, "defects", "seconds"], rows)


if __name__ == "__main__":
    run_program(main)
