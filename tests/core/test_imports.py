"""Classes in configs come from installed modules and PYTHONPATH, not from the current folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared_data import REPOSITORY

STAGE = """
open("ran", "w").close()
from dataclasses import dataclass
@dataclass(frozen=True)
class Same:
    def apply(self, claims, sources, run): ...
"""
# As `read_stage` imports it, without the time that the systems take to import.
SYSTEM = """
from claim2source.core.imports import import_dataclass
print(import_dataclass("rerank", "%s.Same", "apply", "a stage")())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own_stage.py").write_text(STAGE)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inner.py").write_text(STAGE)
    return tmp_path


def run(folder: Path, code: str, pythonpath: str, *how: str) -> tuple[int, str, bool]:
    """Run code in a folder; return exit status, last line, and whether the module ran."""
    (folder / "ran").unlink(missing_ok=True)
    words = how or ("-c", code)
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{pythonpath}"}
    process = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    last = (process.stdout + process.stderr).strip().splitlines()[-1]
    return process.returncode, last, (folder / "ran").exists()


@pytest.mark.parametrize("module", ["own_stage", "package.inner"])
def test_a_stage_of_the_current_folder_is_not_imported_by_accident(
    folder: Path, module: str
) -> None:
    code = SYSTEM % module
    for accident in ("", os.pathsep):
        status, output, ran = run(folder, code, accident)
        assert (status, ran) == (1, False)
        assert module.partition(".")[0] in output and "PYTHONPATH=." in output
    (folder / "main.py").write_text(code)
    assert run(folder, "", "", "-m", "main")[::2] == (1, False)
    for on_purpose in (".", str(folder), f"{folder}/."):
        status, output, ran = run(folder, code, on_purpose)
        assert (status, ran) == (0, True) and "Same()" in output


def test_installed_modules_and_other_folders_are_imported(folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "own_stage.py").write_text(STAGE)
    # Not the module in the current folder, although that is first on the path.
    code = (SYSTEM % "own_stage") + "import own_stage; print(own_stage.__file__)"
    assert run(folder, code, str(elsewhere)) == (0, str(elsewhere / "own_stage.py"), True)
    pth = f"import site, sys; sys.path.remove(''); site.addsitedir({str(elsewhere)!r})"
    (elsewhere / "here.pth").write_text(f"{folder}\n")
    # Like an editable install in the current folder, before Python adds that folder.
    code = f"{pth}; sys.path.insert(0, ''); site.getsitepackages = lambda: [{str(elsewhere)!r}]\n{SYSTEM % 'package.inner'}"
    status, output, ran = run(folder, code, str(REPOSITORY))
    assert (status, ran) == (0, True), output
