"""Clean posts for retrieval by words: links, handles, emojis and hash signs."""

from __future__ import annotations

import re

LINK = re.compile(r"(?:https?://|www\.|pic\.twitter\.com/)\S+")
# Pictographs, flags, arrows and dingbats, with what joins and colours them.
EMOJI = re.compile(
    "[\u2190-\u21ff\u2300-\u23ff\u2460-\u27bf\u2900-\u297f\u2b00-\u2bff\ufe0e\ufe0f\u200d\u20e3"
    "\U0001f000-\U0001faff\U000e0020-\U000e007f]+"
)
_HANDLE = re.compile(r"(?<![\w@])@\w+")
_HASH = re.compile(r"[#\uff03](?=\w)")


def clean_post(text: str) -> str:
    """Remove links, handles, emojis and the sign of hashtags, whose words stay.

    ADMA 2023 paper, section 4.1; links are not in its posts at all (section 3.1).

    Example:
        >>> clean_post("@WHO says masks work \\U0001f637 #COVID19 https://t.co/a")
        'says masks work COVID19'
    """
    for pattern, by in ((LINK, " "), (_HANDLE, " "), (EMOJI, " "), (_HASH, "")):
        text = pattern.sub(by, text)
    return " ".join(text.split())
