"""The released fine-tuning format: one golden line, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.core.errors import InputError
from claim2source.core.records import Claim, Dataset, Source
from claim2source.mining import MinedRow, Negative
from claim2source.mining.files import INSTRUCTION, sign, write_gritlm
from claim2source.text import Rendering
from tests.mining.tables import data_of
from tests.refusals import refused

CLAIM = Claim("c1", 'Masken helfen\u2028"sehr"', "de", "Masks help a lot", golds=("g",))
SOURCES = [
    Source("g", "Masks", "They help.", ("Ada Lo",), "Lancet"),
    Source("n1", "Tea", "It warms."),
    Source("n2", "Seals", "They swim."),
    Source("blank"),
]
RENDERING = Rendering("bilingual", "metadata")


def data() -> Dataset:
    return data_of([CLAIM, Claim("c2", " ", golds=("g",))], SOURCES)


def row(claim: str, positive: str, *negatives: str) -> MinedRow:
    return MinedRow(claim, positive, tuple(Negative(name, 0.5, "dense") for name in negatives))


def test_a_golden_line(tmp_path: Path) -> None:
    """Texts with their instruction, as GritLM's own samples have them; sources have none."""
    out = tmp_path / "train.jsonl"
    rows = [row("c1", "g", "n1", "n2"), row("c1", "n2")]
    assert write_gritlm(rows, out, data(), RENDERING) == (1, 1)
    text = out.read_text(encoding="utf-8")
    assert text == (
        '{"query": ["Given a scientific claim from a social media post, retrieve the source '
        'paper", "Masken helfen\u2028\\"sehr\\"\\nMasks help a lot"], "pos": [["", '
        '"Title: Masks\\nVenue: Lancet\\nAuthors: Ada Lo\\nAbstract: They help."]], "neg": [["", '
        '"Title: Tea\\nAbstract: It warms."], ["", "Title: Seals\\nAbstract: They swim."]]}\n'
    )
    assert text.startswith(sign(INSTRUCTION))
    # Nothing that looks like GritLM's tags: its collator adds them.
    assert "<|" not in text


@pytest.mark.parametrize(
    ("rows", "fact"),
    [
        ([row("c1", "g", "n1"), row("c2", "g", "n1")], ": claim: 'c2' "),
        ([row("c1", "g", "blank")], ": source: 'blank' "),
        ([row("c1", "g")], "train.jsonl: "),
    ],
)
def test_what_cannot_be_trained_on_leaves_the_old_file(
    tmp_path: Path, rows: list[MinedRow], fact: str
) -> None:
    out = tmp_path / "train.jsonl"
    out.write_text("old")
    with refused(InputError, out, fact):
        write_gritlm(rows, out, data(), RENDERING)
    assert out.read_text() == "old" and list(tmp_path.iterdir()) == [out]
