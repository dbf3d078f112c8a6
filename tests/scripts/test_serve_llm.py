"""`scripts/serve_llm.sh` starts vLLM with flags that fit the model; --dry-run only shows them."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.shared_data import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "serve_llm.sh"


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
    )


@pytest.mark.parametrize(
    ("model", "gpus", "options", "lacks"),
    [
        ("Qwen/Qwen3-8B", "1", ["--generation-config vllm", "--host 127.0.0.1"], "--trust"),
        ("meta-llama/Llama-3.3-70B-Instruct", "7", ["--tensor-parallel-size 4"], "--quantization"),
        ("meta-llama/Llama-3.3-70B-Instruct", "2", ["--quantization fp8"], "--language"),
    ],
)
def test_the_command_fits_model_and_machine(
    model: str, gpus: str, options: list[str], lacks: str, tmp_path: Path
) -> None:
    key = "sk-secret-of-the-server"
    words = [model, "--dry-run", "--max-model-len", "9000"]
    proc = run(*words, GPUS=gpus, VLLM_API_KEY=key, VLLM_ENVIRONMENT=str(tmp_path / "my env"))
    assert proc.returncode == 0 and key not in proc.stdout + proc.stderr
    command = shlex.split(proc.stdout)
    assert command[:3] == [str(tmp_path / "my env" / "bin" / "vllm"), "serve", model]
    assert command[-2:] == ["--max-model-len", "9000"]
    assert '{"backend": "xgrammar", "disable_any_whitespace": true}' in command
    for option in options:
        assert option in " ".join(command)
    assert lacks not in " ".join(command)
    assert not (tmp_path / "my env").exists()


def test_a_server_is_started_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """The environment is there: its `vllm` gets the words, and is not installed again."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    proc = run("Qwen/Qwen3-8B", "--seed", "1", GPUS="1", VLLM_ENVIRONMENT=str(tmp_path))
    assert proc.stdout.splitlines()[:2] == ["serve", "Qwen/Qwen3-8B"]
    assert proc.stdout.splitlines()[-2:] == ["--seed", "1"]
