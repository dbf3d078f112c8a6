"""Turn a task's own files into the native data layout: prepare.py TASK --input DIR --output DIR."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from claim2source.datasets import checkthat2025
from claim2source.errors import run_program
from claim2source.records import Dataset

Prepare = Callable[[Path, Path], list[Dataset]]

TASKS: dict[str, tuple[Prepare, str]] = {
    "checkthat2025": (
        checkthat2025.prepare,
        "CheckThat! 2025 Task 4b (subtask4b_collection_data.pkl, subtask4b_query_tweets_*.tsv)",
    ),
}


def parser() -> argparse.ArgumentParser:
    """The command line: one sub-command a task."""
    program = argparse.ArgumentParser(
        prog="prepare.py", description="Turn a task's own files into the native data layout.",
        allow_abbrev=False,
    )  # fmt: skip
    tasks = program.add_subparsers(dest="task", metavar="TASK", required=True)
    for name, (_, what) in TASKS.items():
        task = tasks.add_parser(name, help=what, description=what, allow_abbrev=False)
        task.add_argument("--input", type=Path, required=True, metavar="DIR", help="task's files")
        task.add_argument(
            "--output", type=Path, required=True, metavar="DIR",
            help="folder to write; an older data folder there is replaced",
        )  # fmt: skip
    return program


def main(argv: Sequence[str] | None = None) -> None:
    """Prepare one task and say what was written."""
    options = parser().parse_args(argv)
    prepare, _ = TASKS[options.task]
    splits = prepare(options.input, options.output)
    print(f"{options.output}: {len(splits[0].sources)} sources")
    for split in splits:
        golds = "" if split.qrels.grades else ", no judgements"
        print(f"{options.output}: {split.split}: {len(split.claims)} claims{golds}")


if __name__ == "__main__":
    run_program(main)
