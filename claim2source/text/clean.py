"""Clean and analyse posts: links, emojis, hashtags, Arabic spelling, lemmas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from claim2source.core.errors import UserError
from claim2source.core.progress import track

LINK = re.compile(r"(?:https?://|www\.|pic\.twitter\.com/)\S+")
# Pictographs, flags, arrows and dingbats, with their joiners and colours.
EMOJI = re.compile(
    "[\u2190-\u21ff\u2300-\u23ff\u2460-\u27bf\u2900-\u297f\u2b00-\u2bff\ufe0e\ufe0f\u200d\u20e3"
    "\U0001f000-\U0001faff\U000e0020-\U000e007f]+"
)
_HANDLE = re.compile(r"(?<![\w@])@\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^\W_a-zß-ÿ]|[\"'“(\[])")
_HASH = re.compile(r"[#\uff03](?=\w)")


# Characters without width: spaces, joiners, direction marks and byte order marks.
INVISIBLE = "\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
SOFT_HYPHEN = "\u00ad"
_INVISIBLE = re.compile(f"[{INVISIBLE}]+")
# A soft hyphen between digits, or a letter and a digit, means a hyphen.
_SOFT_HYPHEN = re.compile(rf"(?<=[^\W\d_]){SOFT_HYPHEN}+(?=[^\W\d_])")
_UNSEEN = re.compile(f"[{INVISIBLE}{SOFT_HYPHEN}]")


def has_unseen(text: str) -> bool:
    """Whether a text contains soft hyphens or characters without width."""
    return not text.isascii() and _UNSEEN.search(text) is not None


def without_unseen(text: str) -> str:
    """Remove soft hyphens in words, and characters without width.

    Example:
        >>> without_unseen("vac\\u00adcine\\u200b-19")
        'vaccine-19'
    """
    if not has_unseen(text):
        return text
    return _SOFT_HYPHEN.sub("", _INVISIBLE.sub("", text))


def clean_post(text: str) -> str:
    """Remove links, handles, emojis and the hash signs of hashtags, but keep their words.

    ADMA 2023 paper, section 4.1; its posts have no links (section 3.1).

    Example:
        >>> clean_post("@WHO says masks work \\U0001f637 #COVID19 https://t.co/a")
        'says masks work COVID19'
    """
    for pattern in (LINK, _HANDLE, EMOJI):
        text = pattern.sub(" ", text)
    text = _HASH.sub("", text)
    return " ".join(text.split())


# Tags may follow each other without a space; `&#39;` is not a tag.
_HASHTAG = re.compile(r"(?<!&)#(\w+)")


def tweet_fields(
    tweet: str, *, keep_words: bool = True, shortest: int = 1
) -> tuple[str, tuple[str, ...]]:
    """Return a tweet's text without addresses and emojis, and its hashtags without #.

    With `keep_words` the words of a tag, separated at `_`, also stay in the text; words of fewer
    than `shortest` characters are removed. Texts must be in NFKC, and Arabic texts must be
    normalised by `normalise_arabic`, because separate accents and vowel signs end words here.
    """
    without_links = LINK.sub(" ", tweet)
    cleaned = EMOJI.sub(" ", without_links)
    hashtags = tuple(_HASHTAG.findall(cleaned))

    def tag_text(tag: re.Match[str]) -> str:
        if not keep_words:
            return " "
        words = tag[1].replace("_", " ")
        return f" {words} "

    text = _HASHTAG.sub(tag_text, cleaned)
    if shortest > 1:
        text = re.sub(rf"\b\w{{1,{shortest - 1}}}\b", " ", text)
    return " ".join(text.split()), hashtags


# Vowel signs and other marks above and below letters, and the tatweel that widens a word.
_MARKS = re.compile(
    "[\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed]"
)
# Alef with hamza above, below, with madda and wasla; Arabic and Persian digits.
_LETTERS = {ord(alef): "\u0627" for alef in "\u0623\u0625\u0622\u0671"} | {
    zero + digit: str(digit) for zero in (0x660, 0x6F0) for digit in range(10)
}

_WORDS = """
في من إلى على عن مع حتى منذ خلال بين بعد قبل عند لدى ضد دون حول نحو فوق تحت أمام خلف و ف
ب ك ل أو ثم أم بل لكن لكنه لكنها أن إن أنه إنه أنها إنها أنهم كأن لأن لأنه لأنها هو هي
هم هن هما أنا نحن أنت أنتم هذا هذه هذان هؤلاء ذلك تلك أولئك هنا هناك هنالك الذي التي
الذين اللذين اللتين اللواتي ما ماذا متى أين كيف كم أي أية هل لا لم لن ليس ليست لو لولا
إذا إذ إذن قد لقد سوف كما كل كلا كلها بعض جميع غير سوى عدم كان كانت كانوا يكون تكون
ليكون وكان وكانت ومن وفي وعلى وإلى وعن ومع وأن وإن وهو وهي وهذا وهذه وذلك ولا ولم ولن
وما وقد وكل وبعد وقبل بها به بهم له لها لهم لنا لي لك فيه فيها فيهم منه منها منهم عليه
عليها عليهم عنه عنها إليه إليها معه معها أيضا فقط حيث حين عندما بينما بعدما أما إما إلا
أكثر مما عما ممن بأن بما كذلك لذلك ضمن عبر أثناء تم يتم
"""


def split_sentences(abstract: str) -> list[str]:
    """Split an abstract at ends of sentences before a capital, a digit or a bracket."""
    line = " ".join(abstract.split())
    return [text for text in _SENTENCE_END.split(line) if text]


# Shorter sentences are headings and parts of citations.
_FEWEST_WORDS = 3
# In shorter abstracts every sentence may be a finding.
_SHORTEST = 4
# From the first share of an abstract on most sentences are findings, from the second those with a
# sign of a result.
_LATER, _EARLIER = 0.5, 0.25
_SIGNS = re.compile(
    r"\d ?%|\bp ?[<=>]|\bCI\b|\b(?:found|show(?:ed|s|n)?|observed|reveal(?:ed|s)|demonstrated?"
    r"|significant(?:ly)?|associated|zeigten?|fanden|signifikant\w*|montr\w+|significati\w+"
    r"|associée?s?)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?<![\w.,])\d+(?:[.,]\d+)*")


def findings(sentences: Sequence[str]) -> list[int]:
    """List the positions of an abstract's findings; of all sentences if there are none.

    Findings are in its later half or show a result. In structured abstracts, 92 % of them are
    results or conclusions, and 92 % of these are found (`tests/text/test_findings.py`).
    """
    everything = list(range(len(sentences)))
    long = [i for i in everything if len(sentences[i].split()) >= _FEWEST_WORDS]
    if len(sentences) < _SHORTEST:
        return long or everything
    last = len(sentences) - 1
    found: list[int] = []
    for i in long:
        is_late = i >= _LATER * last
        may_have_sign = _EARLIER * last <= i
        if is_late or (may_have_sign and _SIGNS.search(sentences[i])):
            found.append(i)
    return found or long or everything


def keep_numbers(text: str, sentences: Sequence[str], positions: Sequence[int]) -> list[int]:
    """Keep those of these sentences that share most numbers with a text; all if none shares any.

    A decimal comma equals a point. Single digits are ignored, because every abstract has some.
    """
    numbers = _numbers(text)
    shared: dict[int, int] = {}
    for position in positions:
        shared[position] = len(numbers & _numbers(sentences[position]))
    most = max(shared.values(), default=0)
    return [position for position, count in shared.items() if count == most]


def _numbers(text: str) -> set[str]:
    numbers: set[str] = set()
    for number in _NUMBER.findall(text):
        if len(number) > 1:
            numbers.add(number.replace(",", "."))
    return numbers


def normalise_arabic(text: str) -> str:
    """Remove vowel signs and tatweel, and write every alef as a plain one and digits as 0 to 9.

    These are the normalisations of Lucene's Arabic analyser that Snowball's stemmer does not do,
    or does only after a text was split into words.
    """
    return _MARKS.sub("", text).translate(_LETTERS)


STOP_WORDS = frozenset(normalise_arabic(word) for word in _WORDS.split())


SPACY_MODEL = "en_core_web_sm"
_LEMMA = "token.lemma"
# Components that lemmas do not need are not loaded.
_UNUSED = ("parser", "ner", "senter", "entity_ruler", "entity_linker")


def lemma_texts(texts: Sequence[str], model: str = SPACY_MODEL) -> list[str]:
    """Reduce texts to the lemmas of their content words, lower case, between spaces.

    Like the ADMA 2023 paper's released script, remove commas, then stop words and tokens with other
    characters than letters and digits, such as handles, emojis and hash signs. Raises `UserError`
    if spaCy or its pipeline is missing.
    """
    pipeline = load_pipeline(model)
    unused = [name for name in _UNUSED if name in pipeline.pipe_names]
    lines = (text.replace(",", "") for text in texts)
    docs = pipeline.pipe(lines, disable=unused, batch_size=256)
    lemmas: list[str] = []
    for doc in track(docs, "lemmas", len(texts)):
        words = [token.lemma_ for token in doc if not token.is_stop and token.text.isalnum()]
        lemmas.append(" ".join(words).lower())
    return lemmas


def pipeline_identity(model: str = SPACY_MODEL) -> dict[str, str]:
    """Identify spaCy and a pipeline, for the key of their lemmas. Raises as `lemma_texts`."""
    meta = load_pipeline(model).meta
    return {
        "spacy": str(meta.get("spacy_version", "")),
        "pipeline": f"{meta.get('lang')}_{meta.get('name')}-{meta.get('version')}",
    }


@lru_cache(maxsize=2)
def load_pipeline(model: str) -> Any:
    """Load a spaCy pipeline by its package's name, or from a folder.

    Raises `UserError` if spaCy or the pipeline is missing, or has no lemmatizer.
    """
    try:
        import spacy
    except ImportError:
        raise UserError("spaCy is not installed: pip install 'claim2source[spacy]'") from None
    try:
        pipeline = spacy.load(model)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        advice = f"run `python -m spacy download {model}`, or pass the folder of a pipeline"
        raise UserError(f"spaCy has no pipeline {model!r}: {advice} ({reason[:120]})") from None
    for name in pipeline.pipe_names:
        if _LEMMA in pipeline.get_pipe_meta(name).assigns:
            return pipeline
    raise UserError(f"spaCy's pipeline {model!r} has no lemmatizer")
