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
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
REQUIREMENTS = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
TORCH = next(requirement for requirement in REQUIREMENTS if requirement.name == "torch")
VERSIONS = [f"2.{minor}.0" for minor in range(30)]


def instructions(name: str) -> list[str]:
    """The words after an instruction of the Dockerfile, one for each, with their lines joined."""
    lines = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", lines, re.MULTILINE)


def argument(name: str) -> str:
    (value,) = (a.partition("=")[2] for a in instructions("ARG") if a.startswith(f"{name}="))
    return value


def require_torch_within_ours(text: str) -> None:
    """Require that a range allows only versions of PyTorch that the package allows too."""
    allowed = [v for v in VERSIONS if SpecifierSet(text.removeprefix("torch")).contains(v)]
    assert allowed and all(TORCH.specifier.contains(version) for version in allowed)


def test_the_image_has_what_the_wheel_is_built_from() -> None:
    copied = [word for line in instructions("COPY") for word in shlex.split(line)[:-1]]
    folders = {
        value.split("/")[0] for value in PROJECT["tool"]["setuptools"]["package-dir"].values()
    }
    files = {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "pyproject.toml"}
    assert {*copied} == {"claim2source", *folders, *files}
    ignored = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").split("\n")
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert "*" in ignored and {*kept} == {*copied}
    assert not [name for name in copied if not (REPOSITORY / name).exists()]


def test_the_image_is_for_a_cpu_or_a_gpu_and_starts_the_command() -> None:
    assert argument("DEVICE") == "cpu" and {"cpu", "gpu"} <= set(EXTRAS)
    assert set(argument("EXTRAS").split(",")) <= set(EXTRAS) - {"cpu", "gpu", "dev"}
    (torch,) = re.findall(r'"(torch[^"]+)"', DOCKERFILE)
    require_torch_within_ours(torch)
    (entry,) = instructions("ENTRYPOINT")
    assert yaml.safe_load(entry) == list(PROJECT["project"]["scripts"])
    (python,) = {*re.findall(r"^FROM python:([\d.]+)-slim", DOCKERFILE, re.MULTILINE)}
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(f"{python}.1")
    # As few rights as it needs.
    assert instructions("USER") == ["1000"]


@pytest.mark.parametrize(("device", "code"), [("cpu", 0), ("tpu", 1)])
def test_another_device_is_refused(device: str, code: int, tmp_path: Path) -> None:
    check = next(command for command in instructions("RUN") if command.startswith("case "))
    assert "apt-get" in check
    process = subprocess.run(
        ["sh", "-c", check], env={"DEVICE": device}, capture_output=True, cwd=tmp_path
    )
    assert process.returncode == code


def test_shell_of_the_image_is_valid() -> None:
    for command in instructions("RUN"):
        plain = re.sub(r"--mount=\S+", "", command)
        subprocess.run(["sh", "-nc", plain], check=True)


def test_the_conda_environment_is_installed_from_the_repository() -> None:
    environment = yaml.safe_load((REPOSITORY / "environment.yml").read_text(encoding="utf-8"))
    python, _, pip = environment["dependencies"]
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(f"{python.split('=')[1]}.1")
    index, torch, ours = pip["pip"]
    assert index.startswith("--extra-index-url https://")
    require_torch_within_ours(torch)
    extras = re.fullmatch(r"\.\[(.*)\]", ours)
    assert extras is not None and set(extras[1].split(",")) <= set(EXTRAS)
    assert environment["name"] == PROJECT["project"]["name"]
