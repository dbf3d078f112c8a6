"""Read and write mined negatives as JSONL, one training pair a line: ids, or texts for GritLM.

{"claim", "positive", "negatives": [{"source", "score", "origin"}]}; as texts, as GritLM and the
2026 paper's script train on, {"query": [instruction, claim], "pos": [["", gold]], "neg": [..]}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from claim2source.core.errors import InputError, Problems
from claim2source.core.files import atomic_path
from claim2source.core.records import Claim, Dataset
from claim2source.io.text_files import text_lines
from claim2source.mining.mine import MinedRow, Negative, Origin
from claim2source.text import Rendering

# What the 2026 paper's code tells GritLM to do with a claim; sources get no instruction.
INSTRUCTION = "Given a scientific claim from a social media post, retrieve the source paper"
_LARGEST = sys.float_info.max
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
    negatives = ", ".join(
        f'{{"source": {_quoted(source)}, "score": {score!r}, "origin": "{origin}"}}'
        for source, score, origin in row.negatives
    )
    claim, positive = _quoted(row.claim), _quoted(row.positive)
    return f'{{"claim": {claim}, "positive": {positive}, "negatives": [{negatives}]}}\n'


def read_mined(path: str | Path, dataset: Dataset) -> list[MinedRow]:
    """Read rows and check them against the claims and sources they name.

    Raises `InputError` with file, line and field of every problem: broken JSON, a missing or
    wrong field, a claim or source that the data set does not have, a negative that is gold for
    the claim or repeats, a pair that repeats.
    """
    path, problems = Path(path), Problems()
    claims = {claim.id: claim for claim in dataset.claims}
    sources = {source.id for source in dataset.sources}
    rows: list[MinedRow] = []
    pairs: dict[tuple[str, str], int] = {}
    for number, line in text_lines(path, problems):
        if line is None or not line.strip():
            continue
        try:
            row = _row(line)
            _check_row(row, claims, sources)
            first = pairs.setdefault((row.claim, row.positive), number)
            if first != number:
                raise _LineProblem("positive", f"this pair is already on line {first}")
            rows.append(row)
        except _LineProblem as wrong:
            problems.add(path, number, wrong.field, wrong.why)
    problems.raise_if_any()
    if not rows:
        raise InputError(path, why="no rows")
    return rows


class _LineProblem(Exception):
    def __init__(self, field: str | None, why: str) -> None:
        super().__init__(why)
        self.field, self.why = field, why


def _row(line: str) -> MinedRow:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise _LineProblem(None, f"not JSON: {why}") from None
    negatives = _field(raw, "negatives", list)
    return MinedRow(
        _field(raw, "claim", str),
        _field(raw, "positive", str),
        tuple(_negative(negative, f"negatives[{i}]") for i, negative in enumerate(negatives)),
    )


def _negative(raw: Any, within: str) -> Negative:
    source, origin = _field(raw, "source", str, within), _field(raw, "origin", str, within)
    score = _field(raw, "score", (int, float), within)
    # An integer may be too large for a float, but it still compares.
    if isinstance(score, bool) or not -_LARGEST <= score <= _LARGEST:
        raise _LineProblem(f"{within}.score", "is not a finite number")
    if origin not in get_args(Origin):
        raise _LineProblem(
            f"{within}.origin", f"{origin!r} is not one of {', '.join(get_args(Origin))}"
        )
    return Negative(source, float(score), cast(Origin, origin))


def _field(raw: Any, name: str, kind: type | tuple[type, ...], within: str = "") -> Any:
    if not isinstance(raw, dict):
        raise _LineProblem(within or None, "is not a JSON object")
    full = f"{within}.{name}" if within else name
    if name not in raw:
        raise _LineProblem(full, "is missing")
    if not isinstance(raw[name], kind):
        expected = "text" if kind is str else "a list" if kind is list else "a number"
        raise _LineProblem(full, f"{raw[name]!r} is not {expected}")
    return raw[name]


def _check_row(row: MinedRow, claims: Mapping[str, Claim], sources: Container[str]) -> None:
    if row.claim not in claims:
        raise _LineProblem("claim", f"{row.claim!r} is not a training claim")
    golds = claims[row.claim].golds
    if row.positive not in golds:
        raise _LineProblem("positive", f"{row.positive!r} is not gold for the claim")
    seen: set[str] = set()
    for i, negative in enumerate(row.negatives):
        field, source = f"negatives[{i}].source", negative.source
        if source not in sources:
            raise _LineProblem(field, f"{source!r} is not in the corpus")
        if source in golds:
            raise _LineProblem(field, f"{source!r} is gold for the claim")
        if source in seen:
            raise _LineProblem(field, f"{source!r} is listed twice")
        seen.add(source)


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
