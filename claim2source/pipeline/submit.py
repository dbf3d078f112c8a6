"""Submit a system's ranking to the labs: check what they want, fill up, write, zip."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from claim2source.core.errors import ConfigError
from claim2source.core.records import Dataset
from claim2source.core.run import Run
from claim2source.datasets.checkthat import LANGUAGES
from claim2source.io.submissions import (
    check_submission,
    lab_ids,
    require_zip,
    write_submission,
    year_of,
    zip_submission,
)
from claim2source.pipeline.evaluate import SUBMITTED


def require_submittable(
    file: Path | None, dataset: Dataset, rows: Sequence[str], how: str = ""
) -> None:
    """Raise `UserError` where a submission could not be written, before anything is run.

    `rows` are the systems and claim forms of the report, of which there must be one; `how` says
    how to choose one.
    """
    if file is None:
        return
    require_one_row(file, rows, how)
    year = year_of(dataset)
    foreign = [lang for lang in dataset.languages if year == 2026 and lang not in LANGUAGES]
    if foreign:
        allowed = f"claims in {', '.join(LANGUAGES)}, as the lab has; some are in {foreign}"
        raise ConfigError("submit", str(file), allowed)
    if len(dataset.sources) < SUBMITTED:
        allowed = f"{SUBMITTED} sources a claim; the pool has {len(dataset.sources)}"
        raise ConfigError("submit", str(file), allowed)
    lab_ids(dataset, year)
    require_zip(file)


def require_one_row(file: Path, rows: Sequence[str], how: str = "") -> None:
    """Raise `ConfigError` unless one row is submitted; `how` says how to choose one."""
    if len(rows) != 1:
        names = ", ".join(rows[:5]) + (", .." if len(rows) > 5 else "")
        allowed = f"one system and claim form; here are {len(rows)} ({names}): {how}"
        raise ConfigError("submit", str(file), allowed)


def submit(file: Path | None, run: Run, dataset: Dataset) -> list[str]:
    """Write a ranking as a lab's files, check them, zip them; return notes on them.

    A claim with fewer sources than the lab wants gets further ones of the pool, behind its own.
    Nothing is written where the files are not as the lab wants them.
    """
    if file is None:
        return []
    year, pool = year_of(dataset), [source.id for source in dataset.sources]
    ranked = {claim.id: run.sources(claim.id, SUBMITTED) for claim in dataset.claims}
    whole = Run.from_lists(
        {claim: _filled_up(own, pool) for claim, own in ranked.items()}, pool=run.pool
    )
    paths, parts = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, ids in lab_ids(dataset, year).items():
            paths.append(Path(folder, name))
            write_submission(whole, paths[-1], year, SUBMITTED, ids)
            check_submission(paths[-1], year, dict.fromkeys(ids.values()), set(pool), SUBMITTED)
            parts.append(f"{name} ({len(ids)} claims)")
        zip_submission(paths, file)
    notes = [f"Submission in the form of CheckThat! {year}: {file}: {', '.join(parts)}."]
    if short := sum(len(own) < SUBMITTED for own in ranked.values()):
        notes.append(
            f"{short} claims have fewer than {SUBMITTED} ranked sources: others of the pool stand "
            "behind them in the submission, and in no run."
        )
    return notes


def _filled_up(ranked: Sequence[str], pool: Sequence[str]) -> list[tuple[str, float]]:
    others = (source for source in pool if source not in ranked)
    ids = [*ranked, *(next(others) for _ in range(SUBMITTED - len(ranked)))]
    return [(source, float(-rank)) for rank, source in enumerate(ids)]
