"""Take tweets apart: their text without addresses and emojis, and their hashtags."""

from __future__ import annotations

import re
from typing import NamedTuple

from claim2source.text.clean import EMOJI, LINK

# Tags may follow each other without a space; `&#39;` is none.
_HASHTAG = re.compile(r"(?<!&)#(\w+)")


class TweetFields(NamedTuple):
    """Hold what a tweet says, and its hashtags without #, in order."""

    text: str
    hashtags: tuple[str, ...]


def tweet_fields(tweet: str, *, keep_words: bool = True, shortest: int = 1) -> TweetFields:
    """Remove addresses and emojis from a tweet, and part its hashtags from its text.

    With `keep_words` the words of a tag also stay in the text, `_` parting them; words of fewer
    than `shortest` characters leave it. Texts must be in NFKC, and Arabic `spelled`: accents apart
    and vowel signs end words here.
    """
    plain = EMOJI.sub(" ", LINK.sub(" ", tweet))
    hashtags = tuple(_HASHTAG.findall(plain))

    def kept(tag: re.Match[str]) -> str:
        return f" {tag[1].replace('_', ' ')} " if keep_words else " "

    text = _HASHTAG.sub(kept, plain)
    if shortest > 1:
        text = re.sub(rf"\b\w{{1,{shortest - 1}}}\b", " ", text)
    return TweetFields(" ".join(text.split()), hashtags)
