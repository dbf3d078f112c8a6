"""Read and write mined negatives as JSONL, one training pair a line: ids, or texts for GritLM.

{"claim", "positive", "negatives": [{"source", "score", "origin", "dense", "lexical"}]}: `score` is
what a negative was ranked by, `dense` and `lexical` are the model's score and BM25's, if they
are known. The texts for GritLM and the 2026 paper's script are {"query": [instruction, claim],
"pos": [["", gold]], "neg": [..]}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from claim2source.core.errors import InputError, Problems
from claim2source.core.files import atomic_path
from claim2source.core.records import Claim, Dataset
from claim2source.core.validate import validated
from claim2source.data.text_files import text_lines
from claim2source.mining.mine import MinedRow, Negative
from claim2source.text import Rendering

# GritLM's instruction for claims in the 2026 paper's code; sources have no instruction.
INSTRUCTION = "Given a scientific claim from a social media post, retrieve the source paper"
_quoted = json.encoder.encode_basestring


def write_mined(rows: Iterable[MinedRow], path: str | Path) -> int:
    """Write rows one by one, atomically; return their number."""
    count = 0
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(_as_line(row))
            count += 1
    return count


def _as_line(row: MinedRow) -> str:
    # As json.dumps writes it, in less than half the time.
    negatives = ", ".join(map(_as_object, row.negatives))
    claim = _quoted(row.claim)
    positive = _quoted(row.positive)
    return f'{{"claim": {claim}, "positive": {positive}, "negatives": [{negatives}]}}\n'


def _as_object(negative: Negative) -> str:
    source, score, origin, dense, lexical = negative
    text = f'{{"source": {_quoted(source)}, "score": {score!r}, "origin": "{origin}"'
    if dense is not None:
        text += f', "dense": {dense!r}'
    if lexical is not None:
        text += f', "lexical": {lexical!r}'
    return f"{text}}}"


def read_mined(path: str | Path, dataset: Dataset) -> list[MinedRow]:
    """Read rows and check them against the claims and sources they name.

    Raises `InputError` with file, line and field of every problem: broken JSON, a missing or
    wrong field, a claim or source that the data set does not have, a negative that is gold for
    the claim or repeats, a pair that repeats.
    """
    path = Path(path)
    problems = Problems()
    claims = {claim.id: claim for claim in dataset.claims}
    sources = {source.id for source in dataset.sources}
    rows: list[MinedRow] = []
    pairs: dict[tuple[str, str], int] = {}
    for number, line in text_lines(path, problems):
        if line is None or not line.strip():
            continue
        try:
            row = validated(MinedRow, line, path)
        except InputError as error:
            (problem,) = error.problems
            problems.add(path, number, problem.field, problem.reason)
            continue
        wrong = list(_unknown(row, claims, sources))
        if wrong:
            first = number
        else:
            first = pairs.setdefault((row.claim, row.positive), number)
        if first != number:
            wrong.append(("positive", f"this pair is already on line {first}"))
        for field, reason in wrong:
            problems.add(path, number, field, reason)
        rows.append(row)
    problems.raise_if_any()
    if not rows:
        raise InputError(path, reason="no rows")
    return rows


def _unknown(
    row: MinedRow,
    claims: Mapping[str, Claim],
    sources: Container[str],
) -> Iterator[tuple[str, str]]:
    if row.claim not in claims:
        yield "claim", f"{row.claim!r} is not a training claim"
        return
    golds = claims[row.claim].golds
    if row.positive not in golds:
        yield "positive", f"{row.positive!r} is not gold for the claim"
    seen: set[str] = set()
    for i, negative in enumerate(row.negatives):
        field = f"negatives.{i}.source"
        source = negative.source
        for name in ("score", "dense", "lexical"):
            value = getattr(negative, name)
            if value is not None and not math.isfinite(value):
                yield f"negatives.{i}.{name}", "is not a finite number"
        if source not in sources:
            yield field, f"{source!r} is not in the corpus"
        elif source in golds:
            yield field, f"{source!r} is gold for the claim"
        elif source in seen:
            yield field, f"{source!r} is listed twice"
        seen.add(source)


class GritLMCounts(NamedTuple):
    """Count the rows written, and the pairs left out because they have no negative."""

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
    Raises `InputError` for a claim or source whose text is blank, which it cannot embed, and if
    no pair is left.
    """
    claims = {claim.id: claim for claim in dataset.claims}
    sources = {source.id: source for source in dataset.sources}
    encoder = json.JSONEncoder(ensure_ascii=False)

    def row_text(kind: str, name: str, texts: list[str]) -> str:
        if not texts[0].strip():
            raise InputError(path, field=kind, reason=f"{name!r} has no text to embed")
        return texts[0]

    def source(name: str) -> list[str]:
        return ["", row_text("source", name, rendering.source_texts([sources[name]]))]

    count = left_out = 0
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for row in rows:
            if not row.negatives:
                left_out += 1
                continue
            text = row_text("claim", row.claim, rendering.claim_texts([claims[row.claim]]))
            line = {
                "query": [instruction, text],
                "pos": [source(row.positive)],
                "neg": [source(negative.source) for negative in row.negatives],
            }
            file.write(encoder.encode(line) + "\n")
            count += 1
        if not count:
            raise InputError(path, reason="no pair has a negative, so there is nothing to write")
    return GritLMCounts(count, left_out)
