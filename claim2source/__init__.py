"""Find the scientific paper that a social media post refers to: retrieve, fuse, evaluate, compare.

    import claim2source as c2s

    dev = c2s.load("demo", "dev")
    bm25 = c2s.BM25().index(dev.sources)
    dense = c2s.Dense("sentence-transformers/all-MiniLM-L6-v2").index(dev.sources)
    hybrid = c2s.fuse(bm25.search(dev.claims), dense.search(dev.claims), alpha=0.5)
    print(c2s.evaluate(hybrid, dev))
    print(c2s.compare({"bm25": bm25.search(dev.claims), "hybrid": hybrid}, dev))

Heavy packages are imported only when they are used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from claim2source.core.records import Claim as Claim
    from claim2source.core.records import Dataset as Dataset
    from claim2source.core.records import Qrels as Qrels
    from claim2source.core.records import Source as Source
    from claim2source.core.report import Report as Report
    from claim2source.core.run import Result as Result
    from claim2source.core.run import Run as Run
    from claim2source.data.loading import load as load
    from claim2source.data.trec import read_run as read_run
    from claim2source.data.trec import write_trec_run as write_trec_run
    from claim2source.evaluation.compare import compare as compare
    from claim2source.evaluation.evaluate import evaluate as evaluate
    from claim2source.evaluation.evaluator import Evaluator as Evaluator
    from claim2source.evaluation.groups import groups as groups
    from claim2source.evaluation.table import evaluate_systems as evaluate_systems
    from claim2source.search.bm25 import BM25 as BM25
    from claim2source.search.dense import Dense as Dense
    from claim2source.search.engine import open_index as open_index
    from claim2source.search.fielded import Fielded as Fielded
    from claim2source.search.fuse import Hybrid as Hybrid
    from claim2source.search.fuse import fuse as fuse
    from claim2source.search.routes import Routes as Routes
    from claim2source.search.saved import Saved as Saved
    from claim2source.systems.read import make_system as make_system
    from claim2source.systems.system import System as System
    from claim2source.systems.system import run_system as run_system

__version__ = "1.1.0"

# NumPy's threads busy-wait for work, by default for 0.1 s; NumPy reads this at import.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")

# The packages of programs are in this folder in a wheel, and next to it in a checkout.
_PROGRAMS = ("claim2source.train", "claim2source.eval")
_CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class _ProgramFinder:
    """Find the programs that belong to this package, not those of another checkout."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _PROGRAMS:
            return None
        return PathFinder.find_spec(name, [*__path__, _CHECKOUT])


sys.meta_path.insert(0, _ProgramFinder)

_MODULES = {
    "Claim": "core.records",
    "Dataset": "core.records",
    "Qrels": "core.records",
    "Source": "core.records",
    "Report": "core.report",
    "Result": "core.run",
    "Run": "core.run",
    "open_index": "search.engine",
    "load": "data.loading",
    "read_run": "data.trec",
    "write_trec_run": "data.trec",
    "BM25": "search.bm25",
    "Dense": "search.dense",
    "Fielded": "search.fielded",
    "Hybrid": "search.fuse",
    "Routes": "search.routes",
    "Saved": "search.saved",
    "fuse": "search.fuse",
    "compare": "evaluation.compare",
    "evaluate": "evaluation.evaluate",
    "Evaluator": "evaluation.evaluator",
    "groups": "evaluation.groups",
    "evaluate_systems": "evaluation.table",
    "run_system": "systems.system",
    "System": "systems.system",
    "make_system": "systems.read",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'claim2source' has no attribute {name!r}")
    value = getattr(import_module(f"claim2source.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*globals(), *_MODULES])
