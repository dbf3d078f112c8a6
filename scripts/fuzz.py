"""Run programs on damaged inputs: `python scripts/fuzz.py --examples 3000 --seed 1`.

Every case is a command over valid inputs, some of which are damaged. It must end in time with exit
code 0, or with 2 and short printable lines, must not change an input, and must leave nothing
half-written. The first case of each kind of failure is printed and written to a folder, where
`running.json` is the case in which the process died. `--case FILE` runs one again. Needs the extra
`dev`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# Before torch or tokenizers are imported: both read these only once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from hypothesis import HealthCheck, Phase, given, seed, settings

from claim2source.core.config import Number, Settings, list_field, read_config, require
from claim2source.core.errors import run_program
from claim2source.core.tables import Cell, TextTable, render
from tests.fuzzing.cases import Case, cases
from tests.fuzzing.judge import Fuzzer
from tests.fuzzing.world import PROGRAMS


@dataclass(frozen=True)
class Config(Settings):
    """Settings of `scripts/fuzz.py`.

    Args:
        examples: number of cases to run.
        seed: seed of the cases.
        kept: folder of failing cases.
        case: run only this case.
    """

    examples: Number = 3000
    seed: int = 0
    kept: Path = Path("out/fuzz")
    case: Path | None = None
    program: list[str] | None = list_field(help="run only these programs, such as score")

    def check(self) -> None:
        for name in self.program or ():
            require(name in PROGRAMS, "program", name, ", ".join(PROGRAMS))


def main(argv: Sequence[str] | None = None) -> None:
    config = read_config(Config, argv, program="scripts/fuzz.py", description=__doc__ or "")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        fuzzer = Fuzzer(Path(folder) / "fuzz")
        if config.case is not None:
            sys.exit(run_one(fuzzer, config.case))
        counts, failing = hunt(fuzzer, config)
    ends = ["exit 0", "exit 2", "wrong"]
    names = []
    for name in PROGRAMS:
        if any(counts[name, end] for end in ends):
            names.append(name)
    rows: list[list[Cell]] = []
    for name in names:
        rows.append([name, *(counts[name, end] for end in ends)])
    print(render([TextTable(["program", *ends], rows)]))
    if failing:
        print(f"{len(failing)} kinds of failure; the cases are in {config.kept}")
        sys.exit(1)


def hunt(fuzzer: Fuzzer, config: Config) -> tuple[Counter[tuple[str, str]], list[Path]]:
    """Run cases; return how those of each program ended, and the files of new kinds of failure."""
    counts: Counter[tuple[str, str]] = Counter()
    failing: dict[str, Path] = {}
    config.kept.mkdir(parents=True, exist_ok=True)
    running = config.kept / "running.json"

    # Hypothesis's database and health checks are for tests.
    @seed(config.seed)
    @settings(
        max_examples=config.examples,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(config.program or ()))
    def run_case(case: Case) -> None:
        running.write_text(case.to_json())
        outcome = fuzzer.run(case)
        counts[case.program, "wrong" if outcome.wrong else f"exit {outcome.code}"] += 1
        signature = f"{case.program}: {outcome.signature}"
        if outcome.wrong and signature not in failing:
            file = config.kept / f"{case.program}-{config.seed}-{len(failing)}.json"
            failing[signature] = running.rename(file)
            print(f"{file}: exit {outcome.code}", *outcome.wrong[:8], sep="\n  ", flush=True)

    run_case()
    running.unlink(missing_ok=True)
    return counts, [*failing.values()]


def run_one(fuzzer: Fuzzer, path: Path) -> int:
    """Run one saved case and show everything; return the exit code."""
    case = Case.from_json(path.read_text(encoding="utf-8"))
    outcome = fuzzer.run(case)
    print(f"{case.to_json()}\nexit {outcome.code}\n{outcome.printed}\n{outcome.errors}")
    print("\n".join(outcome.wrong) or "no failure")
    return int(bool(outcome.wrong))


if __name__ == "__main__":
    run_program(main)
