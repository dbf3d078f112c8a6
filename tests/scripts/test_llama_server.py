"""`scripts/serve_llm.sh --local` starts llama.cpp; every failure is one line."""

from __future__ import annotations

import os
import shlex
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
import yaml

from claim2source.core.config import read_config
from claim2source.find.finder import FinderOptions
from claim2source.llm.config import LLMConfig
from tests.llama import SCRIPT, LlamaServer, environment, free_port, require_llama
from tests.llama.gguf import write_gguf, write_tiny_qwen
from tests.shared_data import REPOSITORY, shared

PROGRAM = REPOSITORY / "scripts" / "llama_server.py"


def run_program(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the program itself, by a Python that has no llama.cpp."""
    command = [sys.executable, str(PROGRAM), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def refused(words: Sequence[str], *expected: str) -> None:
    done = run_program(*words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert len(done.stderr.splitlines()) == 1
    for part in expected:
        assert part in done.stderr


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    write_gguf(path, {"general.architecture": "qwen3", "a.list": ["a", "b"]}, {})
    return path


def test_a_bad_file_port_or_number_is_one_line(tmp_path: Path, small: Path) -> None:
    refused([str(tmp_path / "none.gguf")], "none.gguf")
    refused([str(tmp_path)], str(tmp_path))
    whole = small.read_bytes()
    for place, data in enumerate((b"", b"GGUF", b"PK\3\4" + whole[4:], whole[:40], whole[:-40])):
        path = tmp_path / f"{place}.gguf"
        path.write_bytes(data)
        refused([str(path)], path.name)
    # A number of entries, or a length, that no file holds.
    for place in (8, 16, 24):
        path = tmp_path / f"large{place}.gguf"
        path.write_bytes(whole[:place] + struct.pack("<Q", 2**62) + whole[place + 8 :])
        refused([str(path)], path.name)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused([str(small), "--port", port], port)
    for option, value in (("--port", "0"), ("--context", "x"), ("--parallel", "0")):
        refused([str(small), option, value], option, value)
    refused([str(small), "--temperature", "1"], "--temperature")


def test_a_package_that_is_absent_is_one_line(tmp_path: Path, small: Path) -> None:
    refused([str(small), "--port", str(free_port()), "--out", str(tmp_path)], "xllamacpp")


@pytest.mark.parametrize(
    ("metadata", "tensors", "kind"),
    [
        ({"general.architecture": "qwen2"}, [], "chat"),
        ({"general.architecture": "nomic-bert", "nomic-bert.pooling_type": 1}, [], "embeddings"),
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 4}, [], "rerank"),
        ({"general.architecture": "bert"}, ["cls.weight"], "rerank"),
        ({"general.architecture": "bert"}, ["token_types.weight"], "embeddings"),
    ],
)
def test_what_a_file_serves_stands_in_it(
    metadata: dict[str, str | int], tensors: list[str], kind: str, tmp_path: Path
) -> None:
    import importlib.util

    import numpy as np

    spec = importlib.util.spec_from_file_location("llama_server", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["llama_server"] = module
    spec.loader.exec_module(module)
    path = tmp_path / "my model-00001-of-00002.gguf"
    rest = {"general.tags": ["a", "b"], "a.scores": [1, 2], "a.scale": 0.5, "a.flag": True}
    zeros = {name: np.zeros((2, 3), np.float32) for name in tensors}
    write_gguf(path, {**rest, **metadata}, zeros)
    model = module.read_model(path)
    assert (model.name, model.kind, model.context) == ("my-model", kind, None)


def run_script(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), "--local", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=60,
    )


def test_the_script_installs_into_an_environment_of_its_own(small: Path, tmp_path: Path) -> None:
    own = tmp_path / "my env"
    done = run_script(str(small), "--context", "99", "--dry-run", LLAMA_ENVIRONMENT=str(own))
    command = shlex.split(done.stdout)
    assert command[:3] == [str(own / "bin" / "python"), str(PROGRAM), str(small)]
    assert command[-2:] == ["--context", "99"] and not own.exists()
    # An installation that fails: the last line names it.
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    broken.chmod(0o755)
    paths = f"{tmp_path}:/usr/bin:/bin"
    done = run_script(str(small), LLAMA_ENVIRONMENT=str(own), PYTHON=str(broken), PATH=paths)
    assert done.returncode == 2 and "no network" in done.stderr.splitlines()[-1]
    absent = run_script(str(tmp_path / "none.gguf"), LLAMA_ENVIRONMENT=str(tmp_path / "none"))
    opened = run_script(str(small), HOST="0.0.0.0", LLAMA_ENVIRONMENT=str(tmp_path / "none"))
    for done, word in ((absent, "none.gguf"), (opened, "HOST")):
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and word in done.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.llm
def test_ctrl_c_ends_the_server_while_requests_run(tmp_path: Path) -> None:
    """llama.cpp's own shutdown waits for the requests, for ever."""
    require_llama()
    path = tmp_path / "tiny-stop.gguf"
    write_tiny_qwen(shared("vllm/model"), path)
    with LlamaServer(path, "--parallel", "4") as server:
        body = {
            "model": server.model,
            "messages": [{"role": "user", "content": "Go on."}],
            "max_tokens": 3_000,
            "ignore_eos": True,
        }
        address = f"{server.url}/v1/chat/completions"

        def ask(_: int) -> bool:
            """Whether the server has answered before it ended."""
            try:
                return httpx2.post(address, json=body, timeout=60).is_success
            except httpx2.TransportError:
                return False

        with ThreadPoolExecutor(40) as pool:
            answers = pool.map(ask, range(40))
            time.sleep(1)
            assert server.stop() == 0
            assert not all(answers)


@pytest.mark.llm
def test_the_printed_flag_is_all_that_a_program_needs(tmp_path: Path) -> None:
    require_llama()
    path = tmp_path / "tiny-flag.gguf"
    write_tiny_qwen(shared("vllm/model"), path)
    with LlamaServer(path, "--parallel", "2") as server:
        flag, file = server.said.split(" ", 1)
        assert flag == "--llm" and Path(file).parent == environment()
        words = ["--index", "idx", "--pipeline", "p.yaml", flag, file]
        read = read_config(FinderOptions, words, program="t", description="t").llm
        assert read == LLMConfig(
            model="tiny-flag", url=f"{server.url}/v1", concurrency=2, timeout=900
        )
        assert yaml.safe_load(Path(file).read_text(encoding="utf-8"))["model"] == server.model
        # Only this machine, and no page of a browser.
        refused([str(path), "--port", str(server.port)], str(server.port))
        assert server.stop() == 0
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(path.read_bytes()[:400_000])
    done = run_script(str(cut), PORT=str(free_port()), LLAMA_ENVIRONMENT=str(environment()))
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
