"""Write mined negatives as texts, in the format that GritLM and the 2026 paper's script train on.

One pair a line: {"query": [instruction, claim], "pos": [["", gold]], "neg": [["", negative], ...]}.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from claim2source.core.errors import InputError
from claim2source.core.files import atomic_path
from claim2source.core.records import Dataset
from claim2source.mining.mine import MinedRow
from claim2source.text import Rendering

# What the 2026 paper's code tells GritLM to do with a claim; sources get no instruction.
INSTRUCTION = "Given a scientific claim from a social media post, retrieve the source paper"


class GritLMCounts(NamedTuple):
    """Count the rows written, and the pairs left out since they have no negative."""

    rows: int
    left_out: int


def sign(instruction: str) -> str:
    """Write the beginning of every file with this instruction."""
    return f'{{"query": [{json.dumps(instruction, ensure_ascii=False)}, '


def write_gritlm(
    rows: Iterable[MinedRow],
    path: str | Path,
    dataset: Dataset,
    rendering: Rendering,
    instruction: str = INSTRUCTION,
) -> GritLMCounts:
    """Write the texts of mined rows one by one, atomically.

    A pair without negatives is left out: their trainer divides by the number of negatives.
    Raises `InputError` for a claim or source whose text is blank, which it cannot embed, and where
    no pair is left.
    """
    claims = {claim.id: claim for claim in dataset.claims}
    sources = {source.id: source for source in dataset.sources}
    encoder = json.JSONEncoder(ensure_ascii=False)

    def text_of(kind: str, name: str, texts: list[str]) -> str:
        if not texts[0].strip():
            raise InputError(path, field=kind, why=f"{name!r} has no text to embed")
        return texts[0]

    def source(name: str) -> list[str]:
        return ["", text_of("source", name, rendering.source_texts([sources[name]]))]

    count = left_out = 0
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for row in rows:
            if not row.negatives:
                left_out += 1
                continue
            text = text_of("claim", row.claim, rendering.claim_texts([claims[row.claim]]))
            line = {
                "query": [instruction, text],
                "pos": [source(row.positive)],
                "neg": [source(negative.source) for negative in row.negatives],
            }
            file.write(encoder.encode(line) + "\n")
            count += 1
        if not count:
            raise InputError(path, why="no pair has a negative: nothing to write")
    return GritLMCounts(count, left_out)
