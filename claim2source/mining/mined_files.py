"""Mined negatives as JSONL: {"claim", "positive", "negatives": [{"source", "score", "origin"}]}."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from claim2source.errors import InputError, Problems
from claim2source.files import atomic_path
from claim2source.mining.mine import MinedRow, Negative, Origin
from claim2source.records import Dataset


def write_mined(rows: Iterable[MinedRow], path: str | Path) -> int:
    """Write rows one by one, atomically; returns their number."""
    count = 0
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
            count += 1
    return count


def read_mined(path: str | Path, dataset: Dataset) -> list[MinedRow]:
    """Read rows and check them against the claims and sources they name.

    Raises `InputError` with one problem a line: broken JSON, a missing field, a claim or
    source that the data set does not have, a negative that is gold for the claim.
    """
    problems = Problems()
    claims = {claim.id: claim for claim in dataset.claims}
    sources = {source.id for source in dataset.sources}
    rows: list[MinedRow] = []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InputError.at(path, why="no such file") from None
    except UnicodeDecodeError as error:
        raise InputError.at(path, why=f"not UTF-8: {error.reason}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
            row = MinedRow(raw["claim"], raw["positive"], tuple(map(_negative, raw["negatives"])))
        except json.JSONDecodeError as error:
            problems.add(path, number, None, f"not JSON: {error.msg}")
            continue
        except (KeyError, TypeError, ValueError) as error:
            problems.add(path, number, None, f"a field is missing or wrong: {error}")
            continue
        if row.claim not in claims:
            problems.add(path, number, "claim", f"{row.claim!r} is no training claim")
            continue
        if row.positive not in claims[row.claim].golds:
            problems.add(path, number, "positive", f"{row.positive!r} is not gold for the claim")
        for negative in row.negatives:
            if negative.source not in sources:
                problems.add(path, number, "negatives", f"{negative.source!r} is not in the corpus")
            elif negative.source in claims[row.claim].golds:
                problems.add(path, number, "negatives", f"{negative.source!r} is gold")
        rows.append(row)
    problems.raise_if_any()
    if not rows:
        raise InputError.at(path, why="no rows")
    return rows


def _negative(raw: dict[str, Any]) -> Negative:
    if raw["origin"] not in get_args(Origin):
        raise ValueError(f"origin {raw['origin']!r}")
    return Negative(str(raw["source"]), float(raw["score"]), raw["origin"])
