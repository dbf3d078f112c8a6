"""Serve a GGUF file with llama.cpp, only on this machine: `scripts/serve_llm.sh --local FILE.gguf`.

It runs in an environment with `xllamacpp`, and imports nothing else. The file determines the kind
of server: a chat model (chat, JSON schemas, embeddings), an encoder (embeddings) or a re-ranker
(`/v1/rerank`). When the server is ready, it prints the flag for our programs. The flag's file of
settings and llama.cpp's log are in the folder of `--out`. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

HOST = "127.0.0.1"
# Sizes of GGUF's types of values; 8 is a text, 9 a list.
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_FORMATS[12] = "d"
_TEXT, _LIST = 8, 9
_MOST_ENTRIES, _LONGEST_TEXT = 2**24, 2**26
# Numbers of llama.cpp's kinds of pooling.
_LAST, _RANK = 3, 4
# Numbers of its types of files and of values, and of flash attention's switch.
_ALL_FLOAT32, _FLOAT32, _OFF = 0, 0, 0
# Encoders embed a whole text at once.
_LONGEST_BATCH = 2048
# A CPU takes minutes for a long prompt.
_TIMEOUT = 900
_PATIENCE = 60.0
_PART = re.compile(r"-00001-of-\d{5}$")
_ERROR = re.compile(r"^\S+ E (?:\S+ )?\s*(.*)$", re.MULTILINE)


class BadInput(Exception):
    """Report a file, port or package that keeps the server from starting."""


@dataclass(frozen=True)
class Model:
    """Metadata of a GGUF file."""

    name: str
    kind: str  # chat, embeddings or rerank
    context: int | None
    is_float32: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(message)


def main() -> int:
    """Serve until Ctrl-C; return the exit code."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        options = _options()
        model = read_model(options.file)
        require_free(options.port)
        serve(options, model)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _options() -> argparse.Namespace:
    parser = _Parser(prog="serve_llm.sh --local", description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="a GGUF file, or the first one of several parts")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--context", type=int, default=8192, help="tokens of prompt and reply")
    parser.add_argument("--parallel", type=int, default=1, help="requests answered at once")
    parser.add_argument("--threads", type=int, help="none: as many as there are cores")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of settings and log")
    options = parser.parse_args()
    for name, most in (("port", 65_535), ("context", 10**7), ("parallel", 64), ("threads", 1024)):
        value = getattr(options, name)
        if value is not None and not 1 <= value <= most:
            raise BadInput(f"--{name}: {value} is not allowed; allowed: 1 to {most}")
    return options


def read_model(path: Path) -> Model:
    """Read a GGUF file's metadata. Raises `BadInput` if it is not one, or its head is cut."""
    try:
        with path.open("rb") as file:
            metadata, tensors = _head(file)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from None
    except (struct.error, ValueError, UnicodeDecodeError):
        raise BadInput(f"{path}: is not a GGUF file, or is damaged") from None
    architecture = str(metadata.get("general.architecture", ""))
    pooling = metadata.get(f"{architecture}.pooling_type")
    context = metadata.get(f"{architecture}.context_length")
    kind = "chat"
    if pooling == _RANK or any(name.startswith("cls.") for name in tensors):
        kind = "rerank"
    elif pooling is not None or "token_types.weight" in tensors:
        kind = "embeddings"
    name = re.sub(r"[^\w.-]+", "-", _PART.sub("", path.stem))
    is_float32 = metadata.get("general.file_type") == _ALL_FLOAT32
    return Model(name, kind, context if isinstance(context, int) else None, is_float32)


def _head(file: BinaryIO) -> tuple[dict[str, Any], list[str]]:
    """Read the metadata, except its lists, and the names of the tensors."""
    if file.read(4) != b"GGUF":
        raise ValueError("no GGUF")
    version, tensor_count, count = _unpack(file, "IQQ")
    if version not in (2, 3) or max(tensor_count, count) > _MOST_ENTRIES:
        raise ValueError("another version")
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = _read_text(file)
        (kind,) = _unpack(file, "I")
        metadata[key] = _read_value(file, kind)
    tensors: list[str] = []
    for _ in range(tensor_count):
        tensors.append(_read_text(file))
        (dimensions,) = _unpack(file, "I")
        if dimensions > 8:
            raise ValueError("no shape")
        _unpack(file, f"{dimensions}QIQ")
    return metadata, tensors


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    form = f"<{form}"
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _read_text(file: BinaryIO) -> str:
    (size,) = _unpack(file, "Q")
    if size > _LONGEST_TEXT:
        raise ValueError("no text")
    data = file.read(size)
    if len(data) < size:
        raise ValueError("cut")
    return data.decode()


def _read_value(file: BinaryIO, kind: int) -> Any:
    """Read a value; a list is skipped."""
    if kind == _TEXT:
        return _read_text(file)
    if kind != _LIST:
        if kind not in _FORMATS:
            raise ValueError("no value")
        return _unpack(file, _FORMATS[kind])[0]
    item, count = _unpack(file, "IQ")
    if count > _MOST_ENTRIES:
        raise ValueError("no list")
    if item in _FORMATS:
        file.seek(count * struct.calcsize(f"<{_FORMATS[item]}"), os.SEEK_CUR)
        return None
    for _ in range(count):
        _read_value(file, item)
    return None


def require_free(port: int) -> None:
    """Raise `BadInput` if a program listens on a port of this machine."""
    with socket.socket() as listener:
        # Like llama.cpp: a port that a server has just closed is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            reason = "is taken" if error.errno == errno.EADDRINUSE else str(error.strerror)
            raise BadInput(f"port {port} {reason}; set PORT=.. to use another one") from None


def serve(options: argparse.Namespace, model: Model) -> None:
    """Start the server, print the flag when it is ready, and wait for Ctrl-C."""
    try:
        import xllamacpp
    except ImportError as error:
        raise BadInput(f"no package xllamacpp: {error}") from None
    options.out.mkdir(parents=True, exist_ok=True)
    log = options.out / f"{model.name}.log"
    parameters = _parameters(xllamacpp, options, model)
    # llama.cpp writes its log to stderr, hundreds of lines of it.
    terminal = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        _server = xllamacpp.Server(parameters)  # it serves while this name holds it
    except RuntimeError as error:
        os.dup2(terminal, 2)
        raise BadInput(
            f"{options.file}: llama.cpp cannot serve it: {_reason(log, error)}"
        ) from None
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    url = f"http://{HOST}:{options.port}"
    _wait_until_healthy(url, stopped)
    settings = options.out / f"{model.name}.yaml"
    settings.write_text(_settings(options, model, url), encoding="utf-8")
    print(_words(model, url, settings), flush=True)
    # In steps, because an endless wait cannot be interrupted on every system.
    while not stopped.wait(1.0):
        pass
    # llama.cpp itself would wait for the requests in flight, for ever. It has nothing to save.
    os._exit(0)


def _parameters(xllamacpp: Any, options: argparse.Namespace, model: Model) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(options.file)
    parameters.model_alias = {model.name}
    parameters.hostnames = [HOST]
    parameters.port = options.port
    parameters.verbosity = 2
    parameters.ui = False
    # Otherwise any page in a browser could send requests to this server.
    parameters.cors_origins = f"http://{HOST}:{options.port}"
    parameters.cors_origins_explicit = True
    parameters.endpoint_slots = False
    parameters.n_parallel = options.parallel
    context = options.context
    if model.context is not None:
        context = min(context, model.context)
    parameters.n_ctx = context * options.parallel
    if options.threads is not None:
        parameters.cpuparams.n_threads = options.threads
        parameters.cpuparams_batch.n_threads = options.threads
    # Neutral sampling, so that only requests set the sampling.
    parameters.sampling.top_k = 0
    parameters.sampling.top_p = 1.0
    parameters.sampling.min_p = 0.0
    # Load float32 weights in float32, so that scores equal those of other libraries.
    if model.is_float32:
        parameters.cache_type_k = parameters.cache_type_v = _FLOAT32
        parameters.flash_attn_type = _OFF
    parameters.embedding = True
    if model.kind == "chat":
        parameters.pooling_type = _LAST
    else:
        size = min(context, _LONGEST_BATCH)
        parameters.n_batch = parameters.n_ubatch = size
    if model.kind == "rerank":
        parameters.pooling_type = _RANK
    return parameters


def _reason(log: Path, error: Exception) -> str:
    """Return the first error of llama.cpp's log, or the exception's message."""
    found = _ERROR.search(log.read_text(encoding="utf-8", errors="replace"))
    return found[1] if found else str(error)


def _wait_until_healthy(url: str, stopped: threading.Event) -> None:
    end = time.monotonic() + _PATIENCE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while not stopped.is_set():
        try:
            with opener.open(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > end:
                raise BadInput(f"{url} does not become healthy") from None
            stopped.wait(0.1)


def _settings(options: argparse.Namespace, model: Model, url: str) -> str:
    """Return the settings for `--llm FILE` as YAML, with strings in JSON's form."""
    values: Mapping[str, object] = {
        "model": model.name,
        "url": f"{url}/v1",
        "concurrency": options.parallel,
        "timeout": _TIMEOUT,
    }
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items())


def _words(model: Model, url: str, settings: Path) -> str:
    """Describe the server, with the flag (for a re-ranker: the stage) for our programs."""
    if model.kind == "rerank":
        return f'{{rerank: http, dialect: rerank, url: "{url}", model: {model.name}}}'
    if model.kind == "embeddings":
        return f"{url}/v1/embeddings"
    return f"--llm {settings}"


if __name__ == "__main__":
    sys.exit(main())
