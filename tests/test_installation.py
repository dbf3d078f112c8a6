"""Dockerfile and environment.yml install what pyproject.toml and the repository have."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.shared_data import REPOSITORY

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
PYPROJECT = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
SETTINGS = tomllib.loads(PYPROJECT)
PROJECT = SETTINGS["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [Requirement(text) for text in PROJECT["dependencies"]]
TORCH = next(requirement for requirement in REQUIREMENTS if requirement.name == "torch")
VERSIONS = [f"2.{minor}.0" for minor in range(30)]


def instructions(name: str) -> list[str]:
    """The words after an instruction of the Dockerfile, one for each, with their lines joined."""
    without_comments = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)
    lines = without_comments.replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", lines, re.MULTILINE)


def argument(name: str) -> str:
    start = f"{name}="
    (line,) = (words for words in instructions("ARG") if words.startswith(start))
    _, _, value = line.partition("=")
    return value


def require_torch_within_ours(text: str) -> None:
    """Require that a range allows only versions of PyTorch that the package allows too."""
    specifier = SpecifierSet(text.removeprefix("torch"))
    allowed = [version for version in VERSIONS if specifier.contains(version)]
    assert allowed
    for version in allowed:
        assert TORCH.specifier.contains(version)


def require_python_of_ours(version: str) -> None:
    """Require that the package allows a minor version of Python."""
    specifier = SpecifierSet(PROJECT["requires-python"])
    assert specifier.contains(f"{version}.1")


def test_the_image_has_what_the_wheel_is_built_from() -> None:
    copied: list[str] = []
    for line in instructions("COPY"):
        words = shlex.split(line)
        copied += words[:-1]
    package_folders = SETTINGS["tool"]["setuptools"]["package-dir"]
    folders = {value.split("/")[0] for value in package_folders.values()}
    files = {
        PROJECT["readme"],
        *PROJECT["license-files"],
        "pyproject.toml",
    }
    assert {*copied} == {"claim2source", *folders, *files}
    text = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8")
    ignored = text.split("\n")
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert "*" in ignored
    assert {*kept} == {*copied}
    missing = [name for name in copied if not (REPOSITORY / name).exists()]
    assert not missing


def test_the_image_is_for_a_cpu_or_a_gpu_and_starts_the_command() -> None:
    assert argument("DEVICE") == "cpu"
    assert {"cpu", "gpu"} <= set(EXTRAS)
    in_image = argument("EXTRAS").split(",")
    assert set(in_image) <= set(EXTRAS) - {"cpu", "gpu", "dev"}
    (torch,) = re.findall(r'"(torch[^"]+)"', DOCKERFILE)
    require_torch_within_ours(torch)
    (entry,) = instructions("ENTRYPOINT")
    scripts = list(PROJECT["scripts"])
    assert yaml.safe_load(entry) == scripts
    versions = re.findall(r"^FROM python:([\d.]+)-slim", DOCKERFILE, re.MULTILINE)
    (python,) = {*versions}
    require_python_of_ours(python)
    # As few rights as it needs.
    assert instructions("USER") == ["1000"]


@pytest.mark.parametrize(("device", "code"), [("cpu", 0), ("tpu", 1)])
def test_another_device_is_refused(device: str, code: int, tmp_path: Path) -> None:
    commands = instructions("RUN")
    check = next(command for command in commands if command.startswith("case "))
    assert "apt-get" in check
    process = subprocess.run(
        ["sh", "-c", check],
        env={"DEVICE": device},
        capture_output=True,
        cwd=tmp_path,
    )
    assert process.returncode == code


def test_shell_of_the_image_is_valid() -> None:
    for command in instructions("RUN"):
        plain = re.sub(r"--mount=\S+", "", command)
        subprocess.run(["sh", "-nc", plain], check=True)


def test_the_conda_environment_is_installed_from_the_repository() -> None:
    text = (REPOSITORY / "environment.yml").read_text(encoding="utf-8")
    environment = yaml.safe_load(text)
    python, _, pip = environment["dependencies"]
    version = python.split("=")[1]
    require_python_of_ours(version)
    index, torch, ours = pip["pip"]
    assert index.startswith("--extra-index-url https://")
    require_torch_within_ours(torch)
    match = re.fullmatch(r"\.\[(.*)\]", ours)
    assert match is not None
    extras = match[1].split(",")
    assert set(extras) <= set(EXTRAS)
    assert environment["name"] == PROJECT["name"]
