"""Judge by the terms of many servers how a reply ended and if its prompt was truncated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from claim2source.core.reasons import Reason
from claim2source.llm.work import Request, prompt_tokens

# A model that declines does so in a separate field, or by this reason.
MODEL_REFUSED = "refusal"
Ending = Literal["whole", "cut", "refused", "unfinished"]
# Reasons of OpenAI, TGI, Anthropic, Gemini, Cohere and others for a reply that is complete.
_WHOLE = frozenset(
    "stop eos eos_token end_turn stop_sequence stop_token complete completed end finished".split()
)
_CUT = re.compile(r"length|max_?(?:\w+_)?tokens?|token_?limit|context|truncat|incomplete")
_REFUSED = re.compile(
    r"refus|filter|safety|block|prohibit|recitation|spii|sensitive|policy|moderat|guardrail"
)
_UNFINISHED = re.compile(r"error|malformed|tool|function|cancel|abort|pause|other|unexpected|fail")
# Identifies Ollama, which silently truncates long prompts at their beginning.
_CUTS_PROMPTS = "fp_ollama"
# Shorter prompts fit any context.
_FEWEST_WORDS = 500
_CONTEXTS = frozenset(2**power for power in range(11, 21))
# Bytes per token above those of any language, as a multiple of our estimate of four.
_SPARSE = 1.25
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def ending(finish: str | None, native: str | None = None) -> str | None:
    """Return why a reply ended: by the provider's own reason `native` if it contradicts `finish`.

    A router may write `stop` for replies that its provider truncated or filtered.
    """
    if native is None or ending_kind(finish) != "whole":
        return finish
    return native if _native_kind(native) != "whole" else finish


def ending_kind(finish: str | None) -> Ending:
    """Classify the end of a reply: complete, truncated, refused or other."""
    name = (finish or "").strip().casefold()
    if name in _WHOLE:
        return "whole"
    if _REFUSED.search(name):
        return "refused"
    return "cut" if _CUT.search(name) else "unfinished"


def _native_kind(native: str) -> Ending:
    """Classify a provider's own reason; an unknown one counts as no contradiction."""
    kind = ending_kind(native)
    is_known = _UNFINISHED.search(native.casefold()) is not None
    return "whole" if kind == "unfinished" and not is_known else kind


def cut_prompt_reason(
    request: Request, tokens: int, reply: Mapping[str, object] | None = None
) -> str | None:
    """Explain that a server truncated the prompt; None if its token count is plausible.

    `tokens` is the server's count for the prompt, 0 if unknown. A token never spans two words. If
    the count is the size of a context and our estimate is larger, the prompt was truncated.
    `reply` is the whole reply, if known; Ollama's names the server.
    """
    text = " ".join(message.content for message in request.messages)
    words = len(text.split()) + len(_CJK.findall(text)) // 4
    if tokens <= 0 or words < _FEWEST_WORDS:
        return None
    estimate = prompt_tokens(request)
    if tokens == estimate:  # our own estimate, stored if the server's count is missing
        return None
    is_far_below = tokens < words
    is_context = tokens in _CONTEXTS and estimate > _SPARSE * tokens
    if reply is not None and reply.get("system_fingerprint") == _CUTS_PROMPTS:
        is_context = tokens % 256 == 0 and estimate > tokens
    if not (is_far_below or is_context):
        return None
    return Reason(
        f"the server cut the prompt: it read {tokens} of about {estimate} tokens; "
        "give the model a larger context",
        "server",
    )
