"""Judge how a reply ended and whether its prompt was read whole, in the words of many servers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from claim2source.core.reasons import Reason
from claim2source.llm.work import Request, prompt_tokens

# A model that declines says so in a field of its own, or by this reason.
MODEL_REFUSED = "refusal"
Ending = Literal["whole", "cut", "refused", "unfinished"]
# What OpenAI, TGI, Anthropic, Gemini, Cohere and others call a reply that ended by itself.
_WHOLE = frozenset(
    "stop eos eos_token end_turn stop_sequence stop_token complete completed end finished".split()
)
_CUT = re.compile(r"length|max_?(?:\w+_)?tokens?|token_?limit|context|truncat|incomplete")
_REFUSED = re.compile(
    r"refus|filter|safety|block|prohibit|recitation|spii|sensitive|policy|moderat|guardrail"
)
_UNFINISHED = re.compile(r"error|malformed|tool|function|cancel|abort|pause|other|unexpected|fail")
# Ollama's own reply says so; it cuts what does not fit, from the front and without a word.
_CUTS_PROMPTS = "fp_ollama"
# Shorter prompts fit into any context.
_FEWEST_WORDS = 500
_CONTEXTS = frozenset(2**power for power in range(11, 21))
# Bytes of a text's token that are more than any language has, as a share of our estimate of four.
_SPARSE = 1.25
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def ending(finish: str | None, native: str | None = None) -> str | None:
    """Return the reason why a reply ended: `native`, a provider's own, if it contradicts `finish`.

    A router writes `stop` for replies that its provider cut or filtered.
    """
    if native is None or ending_kind(finish) != "whole":
        return finish
    return native if _native_kind(native) != "whole" else finish


def ending_kind(finish: str | None) -> Ending:
    """Tell a reply that ended by itself from one that was cut, refused or ended otherwise."""
    name = (finish or "").strip().casefold()
    if name in _WHOLE:
        return "whole"
    if _REFUSED.search(name):
        return "refused"
    return "cut" if _CUT.search(name) else "unfinished"


def _native_kind(native: str) -> Ending:
    """Judge a provider's own word; one that is not known contradicts nothing."""
    kind = ending_kind(native)
    is_known = _UNFINISHED.search(native.casefold()) is not None
    return "whole" if kind == "unfinished" and not is_known else kind


def cut_prompt_reason(
    request: Request, tokens: int, reply: Mapping[str, object] | None = None
) -> str | None:
    """Explain that a server read only a part of the prompt; None if its count may be whole.

    `tokens` are those of the prompt by the server's count, 0 if it has none. A token holds no two
    words. A count that is the size of a context, for a prompt that is longer by our estimate, is
    what is left of it. `reply` is the whole reply, if it is there: Ollama's names itself.
    """
    text = " ".join(message.content for message in request.messages)
    words = len(text.split()) + len(_CJK.findall(text)) // 4
    if tokens <= 0 or words < _FEWEST_WORDS:
        return None
    estimate = prompt_tokens(request)
    if tokens == estimate:  # our own, stored in place of a count that is missing
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
