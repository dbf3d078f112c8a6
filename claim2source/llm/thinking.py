"""Switch a model's thinking on or off, by the keys of its chat template or its server.

A chat template ignores unknown keys, so the model's own key must be sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from claim2source.llm.config import LLMConfig

TEMPLATE = "chat_template_kwargs"
EFFORT = "reasoning_effort"
SWITCH = "thinking"
# The parts of a request that set whether a model thinks.
PARTS = (TEMPLATE, EFFORT, SWITCH)
NOTHING = "nothing"
# Fields of servers for a model's thoughts.
_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
_THOUGHT_PARTS = ("thinking", "reasoning", "reasoning_content", "redacted_thinking")


@dataclass(frozen=True)
class _Family:
    """Chat template's key, and its values for off and on."""

    key: str
    off: object = False
    on: object = True


# By a part of the model's name. The first that matches counts.
_FAMILIES = (
    (re.compile(r"kimi"), _Family("thinking")),
    (re.compile(r"deepseek[-_ ]?v(?:3[._p][1-9]|[4-9]|[1-9]\d)"), _Family("thinking")),
    (re.compile(r"granite-?[34]|holo-?2"), _Family("thinking")),
    # Thinking cannot be switched off; low is the minimum.
    (re.compile(r"gpt-?oss"), _Family(EFFORT, "low", "medium")),
    (re.compile(r"minimax-?m3"), _Family("thinking_mode", "disabled", "enabled")),
)
# Qwen3, GLM, Gemma, Hunyuan, and the key that most other templates use.
_OTHERS = _Family("enable_thinking")
# Vendors' own servers accept {"thinking": {"type": ..}} instead of a template's key.
_HOSTS = (
    "moonshot.ai",
    "moonshot.cn",
    "kimi.com",
    "kimi.ai",
    "deepseek.com",
    "z.ai",
    "bigmodel.cn",
)


def thinking_parts(config: LLMConfig) -> dict[str, object]:
    """Return the parts of a request that set whether the model thinks, and its template's keys."""
    parts: dict[str, object] = {}
    keys: dict[str, object] = {}
    if config.thinking is not None and _is_makers_server(config.url):
        parts[SWITCH] = {"type": "enabled" if config.thinking else "disabled"}
    elif config.thinking is not None:
        family = family_for(config.model)
        keys[family.key] = family.on if config.thinking else family.off
    keys |= config.chat_template_kwargs
    if keys:
        parts[TEMPLATE] = keys
    # vLLM expects gpt-oss' effort outside the template's keys, llama.cpp within them.
    if EFFORT in keys and family_for(config.model).key == EFFORT:
        parts[EFFORT] = keys[EFFORT]
    return parts


def family_for(model: str) -> _Family:
    """Return the family of a model by its name."""
    name = model.casefold()
    for pattern, family in _FAMILIES:
        if pattern.search(name):
            return family
    return _OTHERS


def _is_makers_server(url: str) -> bool:
    host = (urlsplit(url.strip()).hostname or "").removesuffix(".")
    return any(host == name or host.endswith(f".{name}") for name in _HOSTS)


def sent_text(body: Mapping[str, object]) -> str:
    """Describe a request's thinking settings: `enable_thinking=false`, or `nothing`."""
    pairs: dict[str, str] = {}
    for part in PARTS:
        value = body.get(part)
        if part == TEMPLATE and isinstance(value, Mapping):
            pairs |= {str(key): _value_text(item) for key, item in value.items()}
        elif isinstance(value, Mapping):
            pairs |= {f"{part}.{key}": _value_text(item) for key, item in value.items()}
        elif value is not None:
            pairs[part] = _value_text(value)
    return ", ".join(f"{key}={value}" for key, value in pairs.items()) or NOTHING


def _value_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def key_part(config: LLMConfig) -> object:
    """Return the part about thinking in a stored answer's key.

    If only `enable_thinking` is sent, it is the setting itself, as in older stores.
    """
    parts = thinking_parts(config)
    plain: dict[str, object] = {}
    if config.thinking is not None:
        plain[TEMPLATE] = {_OTHERS.key: config.thinking}
    if json.dumps(parts) == json.dumps(plain):
        return config.thinking
    return parts


def holds_reasoning(message: Mapping[str, object], usage: Mapping[str, object]) -> bool:
    """Whether a reply has the model's thoughts in a separate field, or counts their tokens."""
    if any(_is_filled(message.get(field)) for field in _FIELDS):
        return True
    content = message.get("content")
    if isinstance(content, list) and any(map(_is_thought, content)):
        return True
    details = usage.get("completion_tokens_details")
    if not isinstance(details, Mapping):
        return False
    count = details.get("reasoning_tokens")
    return isinstance(count, int | float) and count > 0


def _is_thought(part: object) -> bool:
    """Whether a part of a reply's content is a thought."""
    if not isinstance(part, Mapping):
        return False
    return part.get("type") in _THOUGHT_PARTS or bool(part.get("thought"))


def _is_filled(value: object) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return bool(value)
