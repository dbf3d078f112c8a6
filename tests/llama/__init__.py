"""Start a real llama.cpp for tests, where its package is installed.

with LlamaServer(path, tmp_path) as server:
    LLMConfig(model=server.model, url=server.url)
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from functools import cache
from pathlib import Path
from typing import Self

import pytest

from tests.shared_data import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "serve_llm.sh"
# A small model's weights take seconds to read.
PATIENCE = 120


def environment() -> Path:
    """Return the folder of llama.cpp's environment, as scripts/serve_llm.sh takes it."""
    return Path(os.environ.get("LLAMA_ENVIRONMENT") or REPOSITORY / ".venv-llama")


@cache
def is_installed() -> bool:
    """Whether the environment can import llama.cpp."""
    python = environment() / "bin" / "python"
    if not python.exists():
        return False
    found = subprocess.run([python, "-c", "import xllamacpp"], capture_output=True, timeout=60)
    return found.returncode == 0


def require_llama() -> None:
    """Skip the test without llama.cpp."""
    if not is_installed():
        pytest.skip(f"no xllamacpp in {environment()} (LLAMA_ENVIRONMENT names another)")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


class LlamaServer:
    """Serve a GGUF file through scripts/serve_llm.sh until the `with` ends, by Ctrl-C.

    `said` is the line that it printed when it was ready.
    """

    def __init__(self, file: Path, *words: str) -> None:
        self.model = file.stem
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        variables = {"PORT": str(self.port), "LLAMA_ENVIRONMENT": str(environment())}
        self._process = subprocess.Popen(
            ["bash", str(SCRIPT), "--local", str(file), "--threads", "1", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self.said = self._process.stdout.readline().strip()
        if not self.said:
            raise AssertionError(self._process.stderr.read())

    def stop(self) -> int:
        """Press Ctrl-C; return the exit code."""
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=PATIENCE)
        return self._process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.stop()
