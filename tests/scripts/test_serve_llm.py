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
    """If the environment exists, its `vllm` gets the arguments and is not installed again."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    proc = run("Qwen/Qwen3-8B", "--seed", "1", GPUS="1", VLLM_ENVIRONMENT=str(tmp_path))
    assert proc.stdout.splitlines()[:2] == ["serve", "Qwen/Qwen3-8B"]
    assert proc.stdout.splitlines()[-2:] == ["--seed", "1"]


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("model", "parser", "code"),
    [
        ("Qwen/Qwen3-8B", "qwen3", False),
        ("Qwen/Qwen3.5-27B", "qwen3", False),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", None, False),
        ("moonshotai/Kimi-K2.6", "kimi_k2", True),
        ("moonshotai/Kimi-K2-Thinking", "kimi_k2", True),
        ("moonshotai/Kimi-K2-Instruct", None, True),
        ("MiniMaxAI/MiniMax-M2.5", "minimax_m2", True),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek_v3", False),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek_r1", False),
        ("zai-org/GLM-4.6", "glm45", False),
        ("google/gemma-4-31B-it", "gemma4", False),
        ("openai/gpt-oss-120b", None, False),
        ("meta-llama/Llama-3.3-70B-Instruct", None, False),
    ],
)
def test_a_model_has_the_flags_of_its_recipe(model: str, parser: str | None, code: bool) -> None:
    proc = run(model, "--dry-run", GPUS="8")
    command = shlex.split(proc.stdout)
    found = [command[i + 1] for i, word in enumerate(command) if word == "--reasoning-parser"]
    assert proc.returncode == 0 and found == ([] if parser is None else [parser])
    assert ("--trust-remote-code" in command) == code == ("--allow-remote-code" in proc.stderr)


def test_code_of_a_models_own_runs_only_where_it_is_allowed(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    place = {"GPUS": "1", "VLLM_ENVIRONMENT": str(tmp_path)}
    pinned = ["--revision", COMMIT]
    refused = ([], pinned, ["--allow-remote-code"], ["--allow-remote-code", "--revision", "main"])
    for words in refused:
        proc = run("moonshotai/Kimi-K2.6", *words, **place)
        assert (proc.returncode, proc.stdout) == (2, "") and len(proc.stderr.splitlines()) == 1
    for allowed in ("--allow-remote-code", "--trust-remote-code"):
        proc = run("moonshotai/Kimi-K2.6", allowed, *pinned, **place)
        given = proc.stdout.splitlines()
        assert proc.returncode == 0 and "--trust-remote-code" in given
        for name in ("--revision", "--code-revision", "--tokenizer-revision"):
            assert given[given.index(name) + 1] == COMMIT
    # A model that has none needs no word.
    assert "--trust-remote-code" not in run("Qwen/Qwen3-8B", **place).stdout
