"""The wheel holds the library and its data, and nothing else; it works away from the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.shared_data import REPOSITORY

CHECK = """
import claim2source, pathlib, sys
from claim2source.datasets import load
assert pathlib.Path(claim2source.__file__).is_relative_to(sys.argv[1]), claim2source.__file__
data = load("demo", "test")
assert len(data.sources) >= 400 and data.languages == ("en", "de", "fr")
from claim2source.pipeline.systems import SYSTEMS_FOLDER
assert len(list(SYSTEMS_FOLDER.glob("*.yaml"))) == 4, SYSTEMS_FOLDER
print("works")
"""


@pytest.mark.slow
def test_wheel_builds_installs_and_works(tmp_path: Path) -> None:
    def pip(*arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "pip", "--quiet", *arguments], check=True, timeout=300
        )

    # A copy: setuptools builds in the source folder, and what an older build left there counts.
    source = tmp_path / "source"
    shutil.copytree(REPOSITORY / "claim2source", source / "claim2source", symlinks=True)
    shutil.copytree(REPOSITORY / "configs", source / "configs")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(REPOSITORY / name, source / name)
    (source / "tests").mkdir()
    pip("wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(source))
    (wheel,) = tmp_path.glob("claim2source-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"claim2source"}
    assert "claim2source/datasets/demo/qrels/test.tsv" in names
    assert "claim2source/py.typed" in names
    for name in ("published/checkthat2025.yaml", "html/report.html", "html/report.js"):
        assert f"claim2source/evaluation/{name}" in names
    for path in (REPOSITORY / "configs").glob("*/*.yaml"):
        assert f"claim2source/configs/{path.parent.name}/{path.name}" in names
    pip("install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel))
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(tmp_path / "site")],
        cwd=tmp_path,
        timeout=300,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "works", done.stderr
