"""Load the split that a program reports on, and submit a system's ranking of it to the labs."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.files import require_writable
from claim2source.core.records import Dataset
from claim2source.core.run import Run
from claim2source.datasets import load
from claim2source.datasets.checkthat import LANGUAGES, written_index
from claim2source.io.submissions import (
    IdWriter,
    Year,
    check_submission,
    is_submission_zip,
    write_submission,
    zip_submission,
)
from claim2source.pipeline.evaluate import SUBMITTED, by_language, unjudged

log = logging.getLogger(__name__)


def load_reported(
    dataset: str, split: str, languages: Sequence[str] | None = None, *, lenient: bool = False
) -> Dataset:
    """Load the split to report on; warn of its unscorable claims before anything runs."""
    reported = load(dataset, split, languages, lenient=lenient)
    for note in unjudged(reported):
        log.warning("%s", note)
    return reported


def year_of(dataset: Dataset) -> Year:
    """Tell whose files a split is submitted in: the lab of 2026 has several languages.

    Its claims are called `<split>-<language>-<index>`, those of 2025 `<split>-<post_id>`.
    """
    is_2026 = all(c.id.startswith(f"{dataset.split}-{c.lang}-") for c in dataset.claims)
    return 2026 if is_2026 or dataset.languages != ("en",) else 2025


def require_submittable(
    file: Path | None, dataset: Dataset, rows: Sequence[str], how: str = ""
) -> None:
    """Raise `UserError` where a submission could not be written, before anything is run.

    `rows` are the systems and claim forms of the report, of which there must be one; `how` says
    how to choose one.
    """
    if file is None:
        return
    require_zip(file, rows, how)
    year = year_of(dataset)
    foreign = [lang for lang in dataset.languages if year == 2026 and lang not in LANGUAGES]
    for good, allowed in (
        (not foreign, f"claims in {', '.join(LANGUAGES)}, as the lab has; some are in {foreign}"),
        (
            len(dataset.sources) >= SUBMITTED,
            f"{SUBMITTED} sources a claim; the pool has {len(dataset.sources)}",
        ),
    ):
        if not good:
            raise ConfigError("submit", str(file), allowed)
    for ids in _ids_by_file(dataset, year).values():
        _claims_by_id(ids, year)


def require_zip(file: Path, rows: Sequence[str], how: str = "") -> None:
    """Raise `UserError` unless one row is submitted, to a zip that may be written."""
    names = ", ".join(rows[:5]) + (", .." if len(rows) > 5 else "")
    for good, allowed in (
        (file.suffix.casefold() == ".zip", "a file whose name ends in .zip"),
        (len(rows) == 1, f"one system and claim form; here are {len(rows)} ({names}): {how}"),
    ):
        if not good:
            raise ConfigError("submit", str(file), allowed)
    require_writable(file, "file")
    if file.exists() and not is_submission_zip(file):
        raise InputError(file, why="would be replaced, but is not a submission of this program")


def submit(file: Path | None, run: Run, dataset: Dataset) -> list[str]:
    """Write a ranking as a lab's files, check them, zip them; return notes on them.

    A claim with fewer sources than the lab wants gets further ones of the pool, behind its own.
    Nothing is written where the files are not as the lab wants them.
    """
    if file is None:
        return []
    year, pool = year_of(dataset), [source.id for source in dataset.sources]
    runs = dict(by_language(run, dataset)) if year == 2026 else {"": run}
    paths, short = [], 0
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for part, ids in _ids_by_file(dataset, year).items():
            path = Path(folder) / (f"predictions_{part}.tsv" if part else "predictions.tsv")
            claim_of = _claims_by_id(ids, year)
            own = runs[part]
            short += sum(len(own.sources(claim, SUBMITTED)) < SUBMITTED for claim in ids)
            whole = Run.from_lists(
                {claim: _fill_up(own, claim, pool) for claim in ids}, pool=run.pool
            )
            write_submission(whole, path, year, SUBMITTED, written_id=ids.__getitem__)
            check_submission(path, year, claim_of, set(pool), SUBMITTED)
            files.append(path)
            paths.append(f"{path.name} ({len(ids)} claims)")
        zip_submission(files, file)
    notes = [f"Submission in the form of CheckThat! {year}: {file}: {', '.join(paths)}."]
    if short:
        notes.append(
            f"{short} claims have fewer than {SUBMITTED} ranked sources: others of the pool stand "
            "behind them in the submission, and in no run."
        )
    return notes


def _ids_by_file(dataset: Dataset, year: Year) -> dict[str, dict[str, str]]:
    """Map the claims of each file, by its language, to the lab's own ids."""
    if year == 2025:
        prefix = f"{dataset.split}-"
        return {"": {claim.id: claim.id.removeprefix(prefix) for claim in dataset.claims}}
    parts: dict[str, dict[str, str]] = {}
    for lang in dataset.languages:
        own: IdWriter = written_index(dataset.split, lang)
        parts[lang] = {c.id: own(c.id) for c in dataset.claims if c.lang == lang}
    return parts


def _claims_by_id(ids: dict[str, str], year: Year) -> dict[str, str]:
    """Invert claim -> id. Raises `InputError` where two claims have the same id."""
    claims: dict[str, str] = {}
    for claim, name in ids.items():
        if claims.setdefault(name, claim) != claim:
            why = f"{name!r} would stand for both {claims[name]!r} and {claim!r}"
            raise InputError("submission", field="index" if year == 2026 else "post_id", why=why)
    return claims


def _fill_up(run: Run, claim: str, pool: Sequence[str]) -> list[tuple[str, float]]:
    ids = run.sources(claim, SUBMITTED)
    others = (source for source in pool if source not in ids)
    ids = [*ids, *(next(others) for _ in range(SUBMITTED - len(ids)))]
    return [(source, float(-rank)) for rank, source in enumerate(ids)]
