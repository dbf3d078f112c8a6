"""Record what a real llama.cpp answers: `python -m tests.llama.record`, into tests/data/llama.

The tiny Qwen3 of `vllm/model` chats and ranks; with CLAIM2SOURCE_WEIGHTS the first model of that
folder that chats translates a post and chooses a paper, too.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from claim2source.llm.config import LLMConfig
from claim2source.llm.server import Server
from claim2source.llm.work import Request, object_schema
from claim2source.stages.yes_no import RELEASED
from claim2source.text.prompts import Message, read_prompt
from tests.llama import LlamaServer
from tests.llama.gguf import write_tiny_qwen
from tests.shared_data import REPOSITORY, data_folder

FOLDER = REPOSITORY / "tests" / "data" / "llama"
MODEL = data_folder("vllm/model")
TEXT = "Masks cut outbreaks 3.7x in primary schools, says a new study."
SCHEMA = object_schema(
    reasoning={"type": "string"},
    selected_paper={"type": "integer", "minimum": 1, "maximum": 3},
)
LETTERS = ("A", "B", "C", "D")
QUERY = "masks cut covid spread by half #science @who"
DOCUMENTS = [
    "Face masks reduced transmission in villages by 9 percent.",
    "Vaccines and myocarditis in young men.",
    "",
    "Bats as the origin of coronaviruses. " * 4,
]
Body = Mapping[str, Any]


def exchange(server: LlamaServer, name: str, path: str, body: Body | None = None) -> dict[str, Any]:
    """Send a request as it is, and keep what came back and how long it took."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data)
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=1800) as reply:
            status, content = reply.status, reply.read()
    except urllib.error.HTTPError as error:
        status, content = error.code, error.read()
    seconds = round(time.perf_counter() - began, 3)
    method = "GET" if body is None else "POST"
    entry = {"name": name, "method": method, "path": path, "request": body}
    return {**entry, "status": status, "seconds": seconds, "response": json.loads(content)}


def our_body(request: Request, **settings: Any) -> dict[str, Any]:
    """Return the body that our client sends to llama.cpp."""
    server = Server(LLMConfig(**{"model": "tiny"} | settings))
    server.is_llama_cpp = True
    return server._body(request, True, False, ())


def record_chat(server: LlamaServer) -> list[dict[str, Any]]:
    message = (Message("user", TEXT),)
    plain = our_body(Request("0", message, max_tokens=12))
    chat = "/v1/chat/completions"
    long = {**plain, "messages": [{"role": "user", "content": TEXT * 200}]}
    wrong = {"type": "json_schema", "json_schema": {"name": "reply", "schema": {"type": "no"}}}
    choices = Request("0", message, choices=LETTERS, logprobs=20, max_tokens=1)
    vllm = {"structured_outputs": {"choice": list(LETTERS)}}
    bodies = {
        "plain": plain,
        "the same again, from its cache": plain,
        "cut off by max_tokens": {**plain, "max_tokens": 3},
        "response_format json_schema": our_body(Request("0", message, schema=SCHEMA)),
        "choice by grammar, with logprobs": our_body(choices),
        "vLLM's choice is ignored, status 200": {**plain, "max_tokens": 1, **vllm},
        "thinking off by template argument": our_body(Request("0", message, max_tokens=4)),
        "another model's name is ignored, status 200": {**plain, "model": "nope", "max_tokens": 1},
        "bad schema": {**plain, "response_format": wrong},
        "bad grammar": {**plain, "grammar": "root ::= ("},
        "prompt too long": long,
        "no messages": {"model": "tiny"},
    }
    exchanges = [exchange(server, "models", "/v1/models"), exchange(server, "health", "/health")]
    for name, body in bodies.items():
        exchanges.append(exchange(server, name, chat, body))
    embed = {"model": "tiny", "input": ["masks", "bats"], "dimensions": 4}
    others = {
        "embeddings": ("/v1/embeddings", embed),
        "a model that chats does not rank": ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        "no such path": ("/score", {}),
    }
    for name, (path, body) in others.items():
        exchanges.append(exchange(server, name, path, body))
    for entry in exchanges:
        if entry["name"] == "embeddings":
            for item in entry["response"]["data"]:
                item["embedding"] = item["embedding"][:4]
    return exchanges


def record_rerank(server: LlamaServer) -> list[dict[str, Any]]:
    ours = {"model": "tiny-rank", "documents": DOCUMENTS, "query": QUERY, "top_n": len(DOCUMENTS)}
    ours |= {"return_documents": False, "instruction": RELEASED, "use_activation": False}
    path = "/v1/rerank"
    bodies = {
        "rerank": ours,
        "rerank, top_n": {**ours, "top_n": 2},
        "TEI's shape": {"query": QUERY, "texts": DOCUMENTS[:2]},
        "no documents": {**ours, "documents": []},
        "one document too long: the whole request fails": {
            **ours,
            "documents": [DOCUMENTS[0], DOCUMENTS[3] * 80],
        },
    }
    exchanges = [exchange(server, "models", "/v1/models")]
    for name, body in bodies.items():
        exchanges.append(exchange(server, name, path, body))
    return exchanges


def record_real(server: LlamaServer) -> list[dict[str, Any]]:
    """Translate a post and choose one of two papers, by a model that understands them."""
    values = {"language": "German", "text": "Masken halbieren Ausbrüche in Grundschulen, 3,7-fach!"}
    translate = Request.of(read_prompt("translate_generic"), "0", values, max_tokens=60)
    papers = (
        "Paper 1\n  Title: Bats as hosts of coronaviruses\n\n"
        "Paper 2\n  Title: Masks and school outbreaks: 3.7 times fewer in primary schools"
    )
    shown = {"count": "2", "post": TEXT, "translation": "", "papers": papers}
    select = Request.of(read_prompt("verify_structured"), "0", shown, schema=SCHEMA, max_tokens=200)
    path = "/v1/chat/completions"
    exchanges = []
    for name, request in (("translate", translate), ("select", select)):
        exchanges.append(exchange(server, name, path, our_body(request, model=server.model)))
    return exchanges


def write(name: str, exchanges: list[dict[str, Any]], server: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps({"server": server, "exchanges": exchanges}, ensure_ascii=False, indent=1)
    (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    version = "llama.cpp of xllamacpp 2026.10.11549, on a CPU; the tiny Qwen3 of vllm/model"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        write_tiny_qwen(MODEL, path)
        with LlamaServer(path, "--context", "512") as server:
            write("chat", record_chat(server), version)
        path = Path(folder) / "tiny-rank.gguf"
        write_tiny_qwen(MODEL, path, ranks=True)
        with LlamaServer(path) as server:
            write("rerank", record_rerank(server), version)
    weights = os.environ.get("CLAIM2SOURCE_WEIGHTS")
    for path in sorted(Path(weights or ".").glob("*nstruct*.gguf")):
        with LlamaServer(path) as server:
            write("real", record_real(server), f"llama.cpp of xllamacpp 2026.10.11549; {path.stem}")
        break


if __name__ == "__main__":
    main()
