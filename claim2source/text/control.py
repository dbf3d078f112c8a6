"""Part the control tokens of chat templates in texts of others; take a reply out of its thoughts.

A server reads `<|im_end|>` in a post as if the template had written it. What a model thinks, and
the tokens around its turn, are no part of what it says. Every scan here is linear.
"""

from __future__ import annotations

import re

_NAMES = (
    r"s|bos|eos|pad|unk|sop|eop|start_of_turn|end_of_turn|turn|system|assistant|image|start_of_image"
    r"|end_of_image|(?:\w+:)?tool_\w+|tools?|function_calls?|invoke|function=[^<>\s]+"
    r"|parameter=[^<>\s]+|arg_key|arg_value|fim_\w+|unused\d+|reserved_\d+|extra_id_\d+"
)
_THOUGHTS = (
    r"(?:\w{1,20}:)?(?:think\w{0,20}|\w{1,20}_think(?:ing)?|thoughts?|reason(?:ing)?|reflection"
    r"|analysis|scratchpad|inner_monologue)|seed:\w{1,40}"
)
_BRACKETS = (
    r"INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_\w{1,20}|THINK|ARGS|CALL_ID|MODEL_SETTINGS"
    r"|IMG(?:_BREAK|_END)?|PREFIX|SUFFIX|MIDDLE|gMASK|sMASK|BOS|EOS|EOT|PAD|UNK"
    r"|(?:start|end)_header_id|extra_id_\d+"
)
# Qwen, Llama, Gemma, Mistral, DeepSeek, Kimi, GLM, MiniMax, Seed, Cohere, gpt-oss: what begins a
# token is parted from its rest, and so is its end.
_CONTROL = re.compile(
    rf"<(?=[|｜]|/?(?:{_NAMES}|{_THOUGHTS})>|</?SYS>>)|(?<=[|｜])(?=>)"
    rf"|◁(?=/?\w{{1,20}}▷)|\[(?=/?INST\])|(?-i:\[(?=/?(?:{_BRACKETS})\]))"
    r"|\](?=~!?b[\[\]])|\[(?=e~\[)",
    re.IGNORECASE,
)

# What opens or closes a thought, of whatever model.
_MARK = re.compile(
    rf"[<◁](?P<end>/?)(?P<name>{_THOUGHTS})[>▷]"
    r"|(?-i:\[(?P<end_b>/?)(?P<name_b>THINK)\])"
    r"|<[|｜](?:(?P<end_c>/|end_(?:of_)?)|start_|begin_(?:of_)?)?(?P<name_c>think(?:ing)?|thought)"
    r"[|｜]>"
    r"|(?P<prefix><\|inner_prefix\|>)|(?P<end_prefix><\|inner_suffix\|>)"
    r"|(?P<unused><unused94>)|(?P<end_unused><unused95>)"
    # Gemma 4.
    r"|(?P<channel><\|channel>)|(?P<end_channel><channel\|>)",
    re.IGNORECASE,
)
# Harmony: what stands in the last final channel is said to the user.
_CHANNEL = "<|channel|>"
_FINAL = re.compile(
    r"<\|channel\|>\s{0,9}final\b[^<]{0,99}(?:<\|constrain\|>[^<]{0,99})?<\|message\|>"
)
# The same where a server leaves control tokens out, Gemma's likewise, and Granite's plain words:
# how a thought begins, and what ends it.
_BARE = (
    (re.compile(r"\s*(?:analysis|commentary)(?=[A-Z])"), "assistantfinal"),
    (re.compile(r"\s*thought\n"), None),
    (re.compile(r"\s*Here(?:'s| is) my thought process:"), "Here is my response:"),
)
# What a template writes around a turn. A tool's call is nothing that is said.
_TOKEN = (
    r"(?:<[|｜][^\s<>|｜]{0,60}[|｜]?>|<[^\s<>|｜]{1,60}[|｜]>|</?(?:s|bos|eos|pad|sop|eop"
    r"|start_of_turn|end_of_turn|turn|(?:\w{1,20}:)?tool_calls?|function_calls?|unused\d{1,4})>"
    r"|<</?SYS>>|\[/?(?:INST|TOOL_CALLS|gMASK|BOS|EOS|EOT)\]|\]~!?b[\[\]]|\[e~\[)"
)
_TOKENS = re.compile(_TOKEN)
_BEFORE = re.compile(rf"\s*({_TOKEN})(?:(?:assistant|model|ai)(?=[\s<]))?")
_BEGINS = re.compile(
    r"start|begin|bos|<s>|sop|gMASK|assistant|chatbot|header|turn|response|message|content|~b",
    re.IGNORECASE,
)
_ENDS = re.compile(r"/|tool|return|<turn\||end(?!_header)", re.IGNORECASE)


def defused(text: str) -> str:
    """Part the control tokens in a text: `<|im_end|>` becomes `< |im_end| >`."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return _CONTROL.sub(lambda found: f"{found[0]} ", text)


def without_thoughts(text: str) -> str:
    """Leave out what a model thought; nothing is left where a thought does not end.

    A template may have opened the thought: what stands before the end of one is left out, too.
    """
    if _CHANNEL in text:
        ends = [final.end() for final in _FINAL.finditer(text)]
        text = text[ends[-1] :] if ends else ""
    for begins, end in _BARE:
        if begins.match(text):
            text = "" if end is None or end not in text else text.rpartition(end)[2]
    kept, start, inside = list[str](), 0, ""
    for mark in _MARK.finditer(text):
        kind, closes = _kind(mark)
        if not inside and closes:
            kept.clear()
        elif not inside:
            kept.append(text[start : mark.start()])
            inside = kind
        elif closes and kind == inside:
            inside = ""
        else:
            continue
        start = mark.end()
    return "" if inside else "".join([*kept, text[start:]])


def _kind(mark: re.Match[str]) -> tuple[str, bool]:
    """Name the thought that a mark belongs to, and tell whether it ends it."""
    found = {group: text for group, text in mark.groupdict().items() if text}
    name = next((found[group] for group in ("name", "name_b", "name_c") if group in found), "")
    kind = name.casefold() or next(iter(found)).removeprefix("end_")
    return mark[0][0] + kind, any(group.startswith("end") for group in found)


def without_control(text: str) -> str:
    """Leave out the control tokens before a reply, and all from the first one after it."""
    start = 0
    while before := _BEFORE.match(text, start):
        if not _BEGINS.search(before[1]) or _ENDS.search(before[1]):
            break
        start = before.end()
    after = _TOKENS.search(text, start)
    return text[start : after.start() if after else None].strip()
