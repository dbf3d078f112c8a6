"""Findings of an abstract, by rules that are measured on structured abstracts."""

from __future__ import annotations

import json
import re

from claim2source.text.clean import findings, keep_numbers, split_sentences
from tests.shared_data import shared

_HEADING = re.compile(
    r"\b(BACKGROUND|OBJECTIVES?|INTRODUCTION|AIMS?|PURPOSE|METHODS?|DESIGN|SETTING|RESULTS?|FINDINGS"
    r"|CONCLUSIONS?|INTERPRETATION|DISCUSSION|FUNDING)\b ?:?\s+(?=[A-Z])"
)
_FINDINGS = ("RESULT", "FINDING", "CONCLUSION", "INTERPRETATION")


def test_findings_are_results_and_conclusions_and_never_a_heading() -> None:
    text = (
        "Sleep is short. Little is known. We found that 40 % slept less. Background. "
        "We asked 20 people. Methods were simple. Naps help. More naps help more. Conclusions ."
    )
    sentences = split_sentences(text)
    assert [sentences[i] for i in findings(sentences)] == [
        "We found that 40 % slept less.",
        "We asked 20 people.",
        "Methods were simple.",
        "More naps help more.",
    ]
    assert findings(["One sentence is enough.", "Short.", "And one more here."]) == [0, 2]
    assert findings(["Short.", "Too."]) == [0, 1] and findings([]) == []


def test_findings_with_the_post_s_numbers_come_first() -> None:
    sentences = [
        "Rates rose 3 %.",
        "The ratio was 3.7 (CI 2.8).",
        "Of 78,400 pupils 41 % fell ill.",
    ]
    assert keep_numbers("masks cut outbreaks 3.7x", sentences, [0, 1, 2]) == [1]
    assert keep_numbers("3,7-mal weniger", sentences, [0, 1, 2]) == [1]
    assert keep_numbers("41% of 78,400, ratio 3.7", sentences, [0, 1, 2]) == [2]
    assert keep_numbers("ratio 3.7", sentences, [0, 2]) == [0, 2]
    assert keep_numbers("3 of 4 pupils", sentences, [0, 1, 2]) == [0, 1, 2]
    assert keep_numbers("ratio 13.7, 3.71", sentences, [0, 1, 2]) == [0, 1, 2]
    assert keep_numbers("", [], []) == []


def test_findings_of_structured_abstracts_are_what_their_headings_say() -> None:
    right = finding_count = true = 0
    for name in ("ct25", "preprints"):
        for line in (shared(name) / "corpus.jsonl").open(encoding="utf-8"):
            headings = [*_HEADING.finditer(text := json.loads(line)["text"])]
            names = " ".join(heading[1] for heading in headings)
            if not all(heading_name in names for heading_name in ("METHOD", "CONCLUSION")) or (
                "RESULT" not in names and "FINDINGS" not in names
            ):
                continue
            ends = [heading.start() for heading in headings[1:]] + [len(text)]
            parts = [
                (sentence, heading[1].startswith(_FINDINGS))
                for heading, end in zip(headings, ends, strict=True)
                for sentence in split_sentences(text[heading.end() : end])
            ]
            positions = {*findings([sentence for sentence, _ in parts])}
            finding_count += len(positions)
            true += sum(is_one for _, is_one in parts)
            right += sum(parts[position][1] for position in positions)
    assert finding_count > 1_500 and right / finding_count > 0.9 and right / true > 0.88
