"""Write a system's ranking as files: TREC runs, and the labs' submissions, checked and zipped."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from claim2source.core.errors import ConfigError
from claim2source.core.records import Dataset
from claim2source.core.run import Run
from claim2source.data.checkthat import LANGUAGES
from claim2source.data.submissions import (
    SourceId,
    Year,
    check_submission,
    lab_ids,
    lab_source_ids,
    require_zip,
    submission_year,
    write_submission,
    zip_submission,
)
from claim2source.data.trec import write_trec_run
from claim2source.models.trained_on import TRAINED_ON, TrainedOn, is_trained_on

SUBMITTED = 5
_YEARS: tuple[Year, ...] = (2026, 2025)


def write_runs(
    run: Run,
    dataset: Dataset,
    folder: Path,
    trained_on: TrainedOn | None = None,
) -> None:
    """Write a TREC run for each language into a folder; remove earlier ones of other languages.

    `trained_on` are the claims that the system was trained on. They are noted next to the runs, so
    that nothing is chosen on them if the runs serve as a first stage.
    """
    if trained_on:
        trained_on.write(folder)
    elif is_trained_on(folder):
        (folder / TRAINED_ON).unlink()
    _remove_old_languages(folder, "{}.trec", dataset, " claim2source\n")
    for language in dataset.languages:
        claims = []
        for claim in dataset.claims:
            if claim.lang == language:
                claims.append(claim.id)
        write_trec_run(run.restricted(claims), folder / f"{language}.trec")


def write_submissions(run: Run, dataset: Dataset, folder: Path) -> None:
    """Write the labs' submission files: 2026's by language, and 2025's.

    Earlier files of other languages are removed.
    """
    _remove_old_languages(
        folder / "submission_2026",
        "predictions_{}.tsv",
        dataset,
        "index\tpreds\n",
    )
    sources = lab_source_ids(dataset)
    for year in _YEARS:
        for name, ids in lab_ids(dataset, year).items():
            file = folder / f"submission_{year}" / name
            write_submission(run, file, year, SUBMITTED, ids, sources)


def _remove_old_languages(folder: Path, name: str, dataset: Dataset, ending: str) -> None:
    """Remove files of languages that the evaluation lacks, if their first line is ours."""
    names = set()
    for language in dataset.languages:
        names.add(name.format(language))
    for path in sorted(folder.glob(name.format("*"))):
        if path.name in names or not re.fullmatch(name.format("[a-z]{2,3}"), path.name):
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            if file.readline().endswith(ending):
                path.unlink()


def require_submittable(
    file: Path | None,
    dataset: Dataset,
    rows: Sequence[str],
    how: str = "",
) -> None:
    """Raise `UserError` before anything is run if a submission could not be written.

    `rows` are the systems and claim forms of the report; there must be exactly one. `how` tells
    users how to choose one.
    """
    if file is None:
        return
    require_one_row(file, rows, how)
    if mixed := [claim.id for claim in dataset.claims if _is_mixed(claim.id, dataset.split)]:
        allowed = f"claims of one lab's data set; {mixed[0]!r} is a claim of `prepare mixed`"
        raise ConfigError("submit", str(file), allowed)
    year = submission_year(dataset)
    foreign = []
    for lang in dataset.languages:
        if year == 2026 and lang not in LANGUAGES:
            foreign.append(lang)
    if foreign:
        allowed = f"claims in the lab's languages {', '.join(LANGUAGES)}; some are in {foreign}"
        raise ConfigError("submit", str(file), allowed)
    if len(dataset.sources) < SUBMITTED:
        allowed = f"{SUBMITTED} sources a claim; the pool has {len(dataset.sources)}"
        raise ConfigError("submit", str(file), allowed)
    lab_ids(dataset, year)
    require_zip(file)


def _is_mixed(claim_id: str, split: str) -> bool:
    """Whether a claim's id is `<name of a set>/<split>-..`, as `prepare mixed` writes it."""
    return claim_id.partition("/")[2].startswith(f"{split}-")


def require_one_row(file: Path, rows: Sequence[str], how: str = "") -> None:
    """Raise `ConfigError` unless there is one row; `how` tells users how to choose one."""
    if len(rows) != 1:
        names = ", ".join(rows[:5]) + (", .." if len(rows) > 5 else "")
        allowed = f"one system and claim form; there are {len(rows)} ({names}): {how}"
        raise ConfigError("submit", str(file), allowed)


def submit(file: Path | None, run: Run, dataset: Dataset) -> list[str]:
    """Write a ranking as a lab's files, check them, zip them; return notes on them.

    If a claim has fewer sources than the lab requires, others of the pool are appended. Nothing is
    written if the files do not pass the lab's checks.
    """
    if file is None:
        return []
    year = submission_year(dataset)
    pool = [source.id for source in dataset.sources]
    ranked = {}
    for claim in dataset.claims:
        ranked[claim.id] = run.sources(claim.id, SUBMITTED)
    full_run = Run.from_lists(
        {claim: _filled_up(own, pool) for claim, own in ranked.items()}, pool=run.pool
    )
    sources = lab_source_ids(dataset)
    known = set(sources.values())
    paths = []
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for name, ids in lab_ids(dataset, year).items():
            paths.append(Path(folder, name))
            write_submission(full_run, paths[-1], year, SUBMITTED, ids, sources)
            check_submission(paths[-1], year, dict.fromkeys(ids.values()), known, SUBMITTED)
            parts.append(f"{name} ({len(ids)} claims)")
        zip_submission(paths, file)
    notes = [f"Submission in the form of CheckThat! {year}: {file}: {', '.join(parts)}."]
    if year == 2026 and dataset.numeric_ids is None:
        notes.append(_unnoted_ids_note(known))
    if short := sum(len(own) < SUBMITTED for own in ranked.values()):
        notes.append(
            f"{short} claims have fewer than {SUBMITTED} ranked sources: others of the pool are "
            "appended in the submission, but not in the runs."
        )
    return notes


def _unnoted_ids_note(sources: Collection[SourceId]) -> str:
    """Note how ids were written if the data set has no record of their form in the lab's files."""
    is_numeric = all(isinstance(source, int) for source in sources)
    kind = "numbers, because all are integers" if is_numeric else "texts"
    return (
        f"Ids of papers are written as {kind}: the data set does not record their form in the "
        "lab's files. `claim2source prepare checkthat2026 --overwrite` records it."
    )


def _filled_up(ranked: Sequence[str], pool: Sequence[str]) -> list[tuple[str, float]]:
    unranked = (source for source in pool if source not in ranked)
    ids = [*ranked, *(next(unranked) for _ in range(SUBMITTED - len(ranked)))]
    return [(source, float(-rank)) for rank, source in enumerate(ids)]
