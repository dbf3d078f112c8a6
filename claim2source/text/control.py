"""Break up control tokens of chat templates in foreign texts; remove reasoning from replies.

A server treats `<|im_end|>` in a post as if the template had written it. A model's reasoning, and
the tokens around its turn, are not part of its reply. All scans here are linear.
"""

from __future__ import annotations

import re

_NAMES = (
    r"s|(?:\w{1,20}:)?(?:bos|eos|pad|unk|eod)|sep|cls|mask(?::\d+)?|sop|eop|eoh|eoa|turn|ai|用户"
    r"|(?:start|begin|beginning|end)_of_\w{1,20}|im_(?:start|end)|\w{1,20}_token|_(?:user|bot|end)"
    r"|system|assistant|image|video|(?:audio_)?soft_token|(?:start|end)_function_\w{1,20}"
    r"|(?:\w{1,20}:)?tool_\w+|tools?|toolcall|available_tools|functions?|function_\w{1,20}"
    r"|longcat_\w{1,20}|invoke(?: name=[^<>]{1,60})?|function=[^<>\s]+"
    r"|parameter(?:=[^<>\s]+| name=[^<>]{1,60})"
    r"|arg_key|arg_value|fim_\w+|(?:unused|special_|ctrl|reserved_|extra_id_)\d+"
)
_THOUGHTS = (
    r"(?:(?:start|begin|end)(?:_?of)?_?)?(?:\w{1,20}:)?(?:\w{1,20}_)?(?:think(?:ing)?|thoughts?|cot"
    r"|chain_of_thought|reason(?:ing)?|reflection|analysis|scratchpad|monologue)(?:[_:]\w{1,40})?"
    r"|seed:cot_\w{1,40}"
)
_BRACKETS = (
    r"INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|(?:BEGIN_|END_)?TOOL_\w{1,20}|THINK(?:ING)?|REASONING|ARGS"
    r"|CALL_ID|MODEL_SETTINGS|IMG(?:_BREAK|_END)?|PREFIX|SUFFIX|MIDDLE|gMASK|sMASK|BOS|EOS|EOT|PAD"
    r"|UNK|SEP|CLS|MASK|UNUSED_TOKEN_\d+|(?:BEGIN|END) FINAL RESPONSE"
    r"|(?:start|end)_header_id|extra_id_\d+"
)
# Names such as <start_think>, <endofthink> or <think_end>.
_AROUND = re.compile(r"(?:(start|begin|end)(?:_?of)?_?)?(.+?)(?:_(start|begin|end))?")
# Qwen, Llama, Gemma, Mistral, DeepSeek, Kimi, GLM, MiniMax, Seed, Cohere, gpt-oss: the beginning
# and the end of a token are separated from its rest.
_CONTROL = re.compile(
    rf"<(?=[|｜]|/?(?:{_NAMES}|{_THOUGHTS})\s?/?>|</?SYS>>)|(?<=[|｜])(?=>)|\[(?=\|\w{{1,20}}\|\])"
    rf"|◁(?=/?\w{{1,20}}▷)|\[(?=/?INST\])|(?-i:\[(?=/?(?:{_BRACKETS})\]))"
    r"|\](?=~!?b[\[\]])|\[(?=e~\[)",
    re.IGNORECASE,
)

# Marks that open or close a model's reasoning.
_MARK = re.compile(
    rf"[<◁]\s?(?P<end>/?)\s?[|｜]?(?P<end_c>/?)(?P<name>{_THOUGHTS})[|｜]?"
    r"(?:\s|\s\w{1,20}=[^<>]{1,60})?(?P<empty>/?)[>▷]"
    r"|(?-i:\[(?P<end_b>/?)(?P<name_b>THINK(?:ING)?|REASONING)\])"
    # Apriel; s1.
    r"|(?P<end_steps>\[BEGIN FINAL RESPONSE\])"
    r"|(?P<turn><\|im_start\|>think\s)|(?P<end_turn><\|im_start\|>answer\s)"
    r"|(?P<prefix><\|inner_prefix\|>)|(?P<end_prefix><\|inner_suffix\|>)"
    r"|(?P<unused><unused94>)|(?P<end_unused><unused95>)"
    # Gemma 4.
    r"|(?P<channel><\|channel>)|(?P<end_channel><channel\|>)",
    re.IGNORECASE,
)
# Reasoning without marks: the beginning of such a reply, and the end of the last thought. Harmony,
# also if a server removes control tokens, Gemma, Granite and Apriel.
_WITHOUT_TEXT = tuple(
    (re.compile(rf"\s*+{begins}"), re.compile(ends))
    for begins, ends in (
        (
            r"(?s:.*?)<\|channel\|>",
            r"<\|channel\|>\s{0,9}final\b[^<]{0,99}(?:<\|constrain\|>[^<]{0,99})?<\|message\|>",
        ),
        (
            r"(?:assistant)?(?:analysis|commentary)(?=[A-Z]|(?s:.*)assistantfinal)",
            r"assistantfinal",
        ),
        (r"(?:assistant)?final(?=[A-Z{])", r"\A\s*(?:assistant)?final"),
        (r"thought\n", r"<channel\|>|<unused95>"),
        (r"Here(?:'s| is) my thought process:", r"Here(?:'s| is) my response:"),
        (r"Here are my reasoning steps:", r"\[BEGIN FINAL RESPONSE\]"),
    )
)
# Tokens of a template around a turn. A tool call is not part of the text.
_TOKEN = (
    r"(?:<[|｜][^\s<>|｜]{0,60}[|｜]?>|<[^\s<>|｜]{1,60}[|｜]>|\[\|\w{1,20}\|\]"
    r"|</?(?i:s|(?:\w{1,20}:)?(?:bos|eos|pad|eod)|unk|sop|eop|eoa|im_(?:start|end)|turn|_end"
    r"|(?:start|beginning|end)_of_(?:turn|text|utterance|sentence)|(?:\w{1,20}[:_])?tool_calls?"
    r"|function_calls?|\w{1,20}_token|(?:unused|extra_id_|reserved_)\d{1,4})>"
    r"|<</?SYS>>|\[/?(?:INST|TOOL_CALLS|gMASK|BOS|EOS|EOT)\]|\]~!?b[\[\]]|\[e~\["
    r"|\[(?:BEGIN|END) FINAL RESPONSE\])"
)
_TOKENS = re.compile(_TOKEN)
_BEFORE = re.compile(rf"\s*({_TOKEN})(?:(?:assistant|model|ai)(?=[\s<]))?")
_BEGINS = re.compile(
    r"start|begin|bos|<s>|sop|gMASK|assistant|chatbot|header|turn|response|message|content|~b",
    re.IGNORECASE,
)
# Tokens that some models write around their entire reply.
_ANSWER = re.compile(r"<((?:final_)?answer|response|output|solution)>")
# The beginning of a reply that has only a final part.
_LEAD = re.compile(r"\A\s*(?:<\|channel\|>)?(?:assistant)?final(?=[A-Z{<])")
# Quotes around a mentioned mark; limits on the number of quoted marks, and their distance.
_QUOTES = (
    *(('"', '"'), ("'", "'"), ("`", "`"), ("“", "”")),
    *(("„", "“"), ("„", "”"), ("«", "»"), ("‘", "’")),
)
_MOST_QUOTED = 20
_LONGEST_QUOTE = 500
_ENDS = re.compile(r"/|tool|return|<turn\||end(?!_header)", re.IGNORECASE)


def escape_control_tokens(text: str) -> str:
    """Escape the control tokens in a text: `<|im_end|>` becomes `< |im_end| >`."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return _CONTROL.sub(lambda match: f"{match[0]} ", text)


def strip_reasoning(text: str) -> str:
    """Remove a model's reasoning; nothing is left if it does not end.

    Text before the end of a thought is removed too, because a template may have opened the thought.
    A mark that the text only quotes neither begins nor ends a thought.
    """
    for begins, end in _WITHOUT_TEXT:
        if begins.match(text):
            ends = [match.end() for match in end.finditer(text)]
            text = text[ends[-1] :] if ends else ""
    marks = []
    for mark in _MARK.finditer(text):
        if not _is_enclosed(text, mark):
            marks.append(mark)
    for _ in range(_MOST_QUOTED):
        rest, opened = _outside_thoughts(text, marks)
        if opened is None or not _is_within_quotes(text, opened):
            break
        marks.remove(opened)
    return rest


def held_thoughts(text: str, rest: str) -> bool:
    """Whether a text contained reasoning; `rest` is the result of `strip_reasoning`."""
    if rest == text:
        return False
    return _letters(_LEAD.sub("", _MARK.sub(" ", text))) > _letters(rest)


def _letters(text: str) -> int:
    return sum(map(str.isalnum, _TOKENS.sub(" ", text)))


def _outside_thoughts(text: str, marks: list[re.Match[str]]) -> tuple[str, re.Match[str] | None]:
    """Return the text outside thoughts, and the mark of a thought that does not end."""
    parts: list[str] = []
    start = 0
    open_tag = ""
    opened: re.Match[str] | None = None
    for mark in marks:
        kind, closes = _thought_kind(mark)
        if not open_tag and closes:
            parts.clear()
        elif not open_tag:
            parts.append(text[start : mark.start()])
            open_tag = "" if mark["empty"] else kind
            opened = mark
        elif closes and kind == open_tag:
            open_tag = ""
        else:
            continue
        start = mark.end()
    if open_tag:
        return "", opened
    return "".join([*parts, text[start:]]), None


def _is_enclosed(text: str, mark: re.Match[str]) -> bool:
    """Whether a mark is directly enclosed in quotes, because the text mentions it."""
    before = text[mark.start() - 1 : mark.start()]
    after = text[mark.end() : mark.end() + 1]
    return (before, after) in _QUOTES


def _is_within_quotes(text: str, mark: re.Match[str]) -> bool:
    """Whether a mark is within a quotation on its line, with text before the quotation."""
    start = text.rfind("\n", 0, mark.start()) + 1
    end = text.find("\n", mark.end())
    line = text[max(start, mark.start() - _LONGEST_QUOTE) : mark.start()]
    rest = text[mark.end() : end if end >= 0 else None][:_LONGEST_QUOTE]
    for left, right in _QUOTES:
        # An apostrophe does not open a quotation.
        if left in "'‘" or right not in rest:
            continue
        if left == right:
            is_open = line.count(left) % 2 == 1
        else:
            is_open = line.rfind(left) > line.rfind(right)
        if is_open and text[: mark.start()].strip(left + " \n"):
            return True
    return False


def _thought_kind(mark: re.Match[str]) -> tuple[str, bool]:
    """Return the kind of thought of a mark, and whether the mark ends it."""
    groups = {group: text for group, text in mark.groupdict().items() if text}
    name = (groups.get("name") or groups.get("name_b") or "").casefold()
    around = _AROUND.fullmatch(name)
    if around:
        kind = around[2]
    else:
        kind = next(iter(groups)).removeprefix("end_")
    is_end = around is not None and "end" in (around[1], around[3])
    return mark[0][0] + kind, is_end or any(group.startswith("end") for group in groups)


def without_control(text: str) -> str:
    """Remove control tokens before a reply, and everything from the first one after it."""
    start = 0
    while before := _BEFORE.match(text, start):
        if not _BEGINS.search(before[1]) or _ENDS.search(before[1]):
            break
        start = before.end()
    tokens = _TOKENS.finditer(text, start)
    end = len(text)
    for token in tokens:
        if not _is_enclosed(text, token):
            end = token.start()
            break
    reply = text[start:end].strip()
    tag = _ANSWER.match(reply)
    if tag is None:
        return reply
    closing = f"</{tag[1]}>"
    if not reply.endswith(closing):
        return reply
    return reply[tag.end() : -len(closing)].strip()
