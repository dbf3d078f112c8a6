"""What llama.cpp says in its own way, as it was recorded (tests/data/llama): see `LLMServer`.

It passes over vLLM's choices and a model's name, keeps to grammars, counts its time, refuses a
prompt that exceeds the context or a schema that it does not know, and gives no reply to a schema
if the model's text is not UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

# Of JSON schemas; the recorded server refused another one.
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
SPOILT = "The model produced output that does not match the expected peg-native format"
# What a text holds in place of bytes that are not UTF-8.
_NO_TEXT = "\ufffd"


def grammar_choices(grammar: str) -> list[str]:
    """Read the choices of a grammar such as `root ::= "A" | "B"`."""
    choices: list[str] = []
    for text in re.findall(r'"(?:[^"\\]|\\.)*"', grammar.partition("::=")[2]):
        choices.append(json.loads(text))
    return choices


def error(status: int, message: str, kind: str, **more: int) -> dict[str, Any]:
    return {"error": {"code": status, "message": message, "type": kind, **more}}


def refusal(body: Mapping[str, Any], tokens: int, context: int) -> dict[str, Any] | None:
    """Return the error with which a request is refused; None if it is not."""
    if tokens > context:
        message = (
            f"request ({tokens} tokens) exceeds the available context size ({context} tokens), "
            "try increasing it"
        )
        kind = "exceed_context_size_error"
        return error(400, message, kind, n_prompt_tokens=tokens, n_ctx=context)
    form = body.get("response_format")
    kind = form["json_schema"]["schema"].get("type", "object") if form else "object"
    if kind not in TYPES:
        message = (
            "Unable to generate parser for this template. Automatic parser generation failed: "
            f"JSON schema error at #: unrecognized type {kind}"
        )
        return error(400, message, "invalid_request_error")
    if "grammar" in body and not grammar_choices(body["grammar"]):
        message = "Failed to initialize samplers: failed to parse grammar"
        return error(400, message, "invalid_request_error")
    return None


def spoilt(body: Mapping[str, Any], text: str) -> dict[str, Any] | None:
    """Return the error in place of a reply in JSON that is not UTF-8; None if it is."""
    if "response_format" not in body or _NO_TEXT not in text:
        return None
    return error(500, SPOILT, "server_error")


def with_timings(completion: dict[str, Any]) -> dict[str, Any]:
    """Add what llama.cpp counts to a completion."""
    usage = completion["usage"]
    usage.setdefault("prompt_tokens_details", {"cached_tokens": 0})
    read, written = usage["prompt_tokens"], usage["completion_tokens"]
    timings = {
        "cache_n": 0,
        "prompt_n": read,
        "prompt_ms": 1.0 * read,
        "prompt_per_token_ms": 1.0,
        "prompt_per_second": 1000.0,
        "predicted_n": written,
        "predicted_ms": 2.0 * written,
        "predicted_per_token_ms": 2.0,
        "predicted_per_second": 500.0,
    }
    for choice in completion["choices"]:
        # It has no field where there are none.
        if choice.get("logprobs") is None:
            choice.pop("logprobs", None)
    return {"created": 0, "system_fingerprint": "b0-unknown"} | completion | {"timings": timings}


def model_list(names: Sequence[str], context: int) -> dict[str, Any]:
    data = []
    for name in names:
        meta = {"n_ctx": context, "n_ctx_train": context, "n_vocab": 3000}
        entry = {"id": name, "object": "model", "owned_by": "llamacpp", "meta": meta}
        data.append({**entry, "aliases": [name], "created": 0})
    models = [{"name": name, "model": name, "type": "model"} for name in names]
    return {"models": models, "object": "list", "data": data}
