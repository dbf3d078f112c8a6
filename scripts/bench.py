"""Measure one case, compared with a peer if there is one: `python scripts/bench.py CASE`.

Both sides run in turn. `ratio` is the median over the repeats of the peer's time divided by ours:
above 1, ours is faster. The last line is JSON, with `ratio` first, its `spread` (lowest and
highest), the settings, the versions and the machine's load. `bench.py CASE --help` explains a case
and its keys.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from pathlib import Path
from platform import python_version
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import as_plain, read_config
from claim2source.core.errors import UserError, did_you_mean, run_program

CASES = (
    "bm25 mining training encode architectures chunks rerank cascade statistics find lexical gpu"
).split()
PEERS = "rank-bm25 sentence-transformers torch transformers peft scipy lancedb bm25s".split()


def read_options(argv: Sequence[str] | None) -> tuple[Any, Any]:
    options = sys.argv[1:] if argv is None else argv
    case, *words = options or [""]
    cases = ", ".join(CASES)
    if case in ("-h", "--help"):
        print(f"{__doc__}\nCASE is one of: {cases}")
        sys.exit(0)
    if case not in CASES:
        near = did_you_mean(case, CASES)
        raise UserError(f"{case!r} is not a case; {near}allowed: {cases}")
    module = import_module(f"scripts.benches.{case}")
    config = read_config(
        module.Config,
        words,
        program=f"scripts/bench.py {case}",
        description=module.__doc__,
    )
    return module, config


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the case and print it as JSON, indented and in one line."""
    module, config = read_options(argv)
    measured = module.run(config) | {"settings": as_plain(config)}
    measured["load_average"] = [round(load, 2) for load in os.getloadavg()]
    versions = {"python": python_version()}
    for distribution in metadata.distributions():
        if distribution.name in PEERS:
            versions[distribution.name] = distribution.version
    measured["versions"] = versions
    indented = json.dumps(measured, indent=2)
    in_one_line = json.dumps(measured)
    print(indented, in_one_line, sep="\n")


if __name__ == "__main__":
    run_program(main)
