"""Spell Arabic in one way, so that words match however they are written; its stop words."""

from __future__ import annotations

import re

# Vowel signs and other marks above and below letters, and the stroke that widens a word.
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


def spelled(text: str) -> str:
    """Remove vowel signs and tatweel, write every alef as a plain one and digits as 0 to 9.

    Of the normalisations of Lucene's Arabic analyser these are what Snowball's stemmer does not
    do, or does only after a text was cut into words.
    """
    return _MARKS.sub("", text).translate(_LETTERS)


STOP_WORDS = frozenset(spelled(word) for word in _WORDS.split())
