"""Read, write, check and zip prediction files for the CheckThat! labs 2025 and 2026."""

from __future__ import annotations

import ast
import csv
import json
import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

from claim2source.core.errors import ConfigError, FileProblems, InputError
from claim2source.core.files import atomic_path, require_writable
from claim2source.core.records import Dataset, is_integer_text
from claim2source.core.run import Run
from claim2source.data.text_files import first_cells, tsv_rows

Year = Literal[2025, 2026]
CLAIM_COLUMNS = ("post_id", "index")
_COLUMN_OF: dict[Year, str] = {
    2025: "post_id",
    2026: "index",
}
PREDICTIONS_COLUMN = "preds"
# Files in a zip for source retrieval, and for rumour verification.
_OF_LABS = re.compile(r"predictions(_[a-z]{2,3})?\.tsv|evidence\.trec|verification\.json")

# A source's id as in a lab's own files: some have numbers, and compare them as numbers.
SourceId = str | int

# Claim id -> source id -> score, and the number of rows dropped as repeated sources.
Ranked = tuple[dict[str, dict[str, float]], int]


def is_submission(lines: Sequence[str]) -> bool:
    """Whether a file has the header of a lab's TSV."""
    header = first_cells(lines)
    return PREDICTIONS_COLUMN in header or header[0] in CLAIM_COLUMNS


def column_among(header: Sequence[str], names: Sequence[str]) -> str:
    """Return the first of `names` in a header; if there is none, join them for an error."""
    for name in names:
        if name in header:
            return name
    return " or ".join(names)


def read_submission(
    lines: Sequence[str],
    problems: FileProblems,
    *,
    keep_places: bool = False,
) -> Ranked:
    """Read predictions: a list of n sources gets the scores n, n - 1, ..., 1.

    A repeated source of a claim is dropped. With `keep_places` a placeholder, which is not the id
    of a source, keeps its position, because the labs' scorer does not drop it.
    """
    header = first_cells(lines)
    claim_column = column_among(header, CLAIM_COLUMNS)
    columns = (claim_column, PREDICTIONS_COLUMN)
    rows = tsv_rows(problems.file, columns, problems.collected, lines=lines)
    ranked: dict[str, dict[str, float]] = {}
    repeated = 0
    for number, cells in rows:
        claim = cells[0].strip()
        predictions = cells[1].strip()
        if not claim:
            problems.add(number, claim_column, "empty")
        ids = _id_list(number, predictions, problems)
        listed = [str(item).strip() for item in ids]

        # The first row of a claim is used, and the first position of a source.
        if claim in ranked:
            repeated += len(listed)
            continue
        distinct = list(dict.fromkeys(listed))
        repeated += len(listed) - len(distinct)
        if keep_places and distinct:
            distinct = _with_stand_ins(listed)
        count = len(distinct)
        ranked[claim] = {source: float(count - place) for place, source in enumerate(distinct)}
    if not ranked and not len(problems.collected):
        problems.add(None, None, "no predictions, only a header")
    return ranked, repeated


def _with_stand_ins(listed: Sequence[str]) -> list[str]:
    """Replace repeated sources by names with white space, which no id contains."""
    seen: set[str] = set()
    places: list[str] = []
    for place, source in enumerate(listed, start=1):
        is_repeated = source in seen
        places.append(f"{source} again at {place}" if is_repeated else source)
        seen.add(source)
    # A placeholder after the last distinct source has no effect.
    last = max(listed.index(source) for source in seen)
    return places[: last + 1]


def _id_list(
    number: int,
    cell: str,
    problems: FileProblems,
) -> list[SourceId]:
    ids = _parsed(cell)
    if not isinstance(ids, list):
        beginning = cell[:60]
        problems.add(number, PREDICTIONS_COLUMN, f"{beginning!r} is not a list of ids")
        return []
    for item in ids:
        has_type = isinstance(item, str | int) and not isinstance(item, bool)
        if not has_type or not str(item).strip():
            beginning = str(item)[:60]
            problems.add(number, PREDICTIONS_COLUMN, f"{beginning!r} is not an id")
            return []
    return ids


def _parsed(cell: str) -> object:
    """Parse a cell as JSON or else as Python; None if it is neither."""
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        try:
            ids = ast.literal_eval(cell)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None
        # Python would join 'a' 'b' (numpy's way to print a list) into the single id 'ab'.
        if re.search(r"""['"]\s+['"]""", cell):
            return None
        return ids


def submission_year(dataset: Dataset) -> Year:
    """Determine the lab of a split: that of 2026 has several languages.

    Its claim ids are `<split>-<language>-<index>`, those of 2025 are `<split>-<post_id>`.
    """
    for claim in dataset.claims:
        prefix = f"{dataset.split}-{claim.lang}-"
        if not claim.id.startswith(prefix):
            is_english = dataset.languages == ("en",)
            return 2025 if is_english else 2026
    return 2026


def lab_ids(dataset: Dataset, year: Year) -> dict[str, dict[str, str]]:
    """Map the claims in each of a lab's files to its own ids: "dev-16" -> "16", "dev-de-7" -> "7".

    The lab of 2026 wants a file per language, `predictions_<lang>.tsv`. An id without a language
    loses only its split. Raises `InputError` if two claims of a file get the same id.
    """
    files: dict[str, dict[str, str]] = {}
    languages = dataset.languages if year == 2026 else ("",)
    for language in languages:
        claims = _claims_by_name(dataset, year, language)
        file = f"predictions_{language}.tsv" if language else "predictions.tsv"
        files[file] = {claim: name for name, claim in claims.items()}
    return files


def _claims_by_name(
    dataset: Dataset,
    year: Year,
    language: str,
) -> dict[str, str]:
    """Map the lab's ids to the claims of a language, or to all claims if it is empty."""
    prefixes = [f"{dataset.split}-"]
    if language:
        prefixes = [f"{dataset.split}-{language}-", f"{dataset.split}-"]
    claims: dict[str, str] = {}
    for claim in dataset.claims:
        if language not in ("", claim.lang):
            continue
        prefix = next(filter(claim.id.startswith, prefixes), "")
        name = claim.id.removeprefix(prefix)
        first = claims.setdefault(name, claim.id)
        if first != claim.id:
            reason = f"{name!r} would be the id of both {first!r} and {claim.id!r}"
            raise InputError("submission", field=_COLUMN_OF[year], reason=reason)
    return claims


def lab_source_ids(dataset: Dataset) -> dict[str, SourceId]:
    """Map sources to their ids with the type in the lab's own files, where 9444 is not "9444".

    A data set does not record the type if it was not prepared, or prepared by version 1.0. Then
    ids are numbers if the claims are named like those of 2026, and all ids are integers.
    """
    ids = [source.id for source in dataset.sources]
    numeric = dataset.numeric_ids or frozenset()
    if dataset.numeric_ids is None and _has_claims_of_2026(dataset):
        are_integers = all(map(is_integer_text, ids))
        numeric = frozenset(ids if are_integers else ())
    source_ids: dict[str, SourceId] = {}
    for key in ids:
        source_ids[key] = int(key) if key in numeric else key
    return source_ids


def _has_claims_of_2026(dataset: Dataset) -> bool:
    """Whether all claim ids have the form `<split>-<language>-<index>`, for any split."""
    for claim in dataset.claims:
        parts = claim.id.split("-", 2)
        if len(parts) != 3 or parts[1] != claim.lang:
            return False
    return True


def write_submission(
    run: Run,
    path: str | Path,
    year: Year,
    k: int = 5,
    ids: Mapping[str, str] | None = None,
    sources: Mapping[str, SourceId] | None = None,
) -> None:
    """Write a lab's TSV (2025: `post_id`, `preds`; 2026: `index`, `preds`), `k` sources a claim.

    `ids` maps the claims of the file to the lab's ids; by default all claims of the run keep their
    ids. `sources` maps sources to the lab's ids; other sources keep theirs.
    """
    if ids is None:
        ids = {claim: claim for claim in run.claim_ids}
    lab = sources or {}
    rows: list[tuple[str, list[SourceId]]] = []
    for claim, name in ids.items():
        best = run.sources(claim, k)
        ranked = [lab.get(source, source) for source in best]
        rows.append((name, ranked))
    with (
        atomic_path(path) as temporary,
        open(temporary, "w", encoding="utf-8", newline="") as out,
    ):
        writer = csv.writer(out, delimiter="\t", lineterminator="\n")
        header = (_COLUMN_OF[year], PREDICTIONS_COLUMN)
        writer.writerow(header)
        writer.writerows(rows)


def check_submission(
    path: Path,
    year: Year,
    claims: Collection[str],
    sources: Collection[SourceId],
    k: int = 5,
) -> None:
    """Check that a lab's TSV has every claim once, each with `k` distinct, known sources.

    `claims` and `sources` are the lab's own ids. Their types matter: a text is refused if the lab
    has numbers, and a number if it has texts. Raises `InputError`, with a line per problem.
    """
    problems = FileProblems(path)
    column = _COLUMN_OF[year]
    columns = (column, PREDICTIONS_COLUMN)
    first_lines: dict[str, int] = {}
    for number, (claim, listed) in tsv_rows(path, columns, problems.collected, only=True):
        first_line = first_lines.setdefault(claim, number)
        if first_line != number:
            problems.add(number, column, f"{claim!r} is already on line {first_line}")
        elif claim not in claims:
            problems.add(number, column, f"{claim!r} is not a claim of this split")

        before = len(problems.collected)
        ids = _id_list(number, listed, problems)
        if len(problems.collected) > before:
            continue
        distinct = set(ids)
        if len(ids) != k or len(distinct) != k:
            reason = f"{len(distinct)} distinct sources, not {k}"
            problems.add(number, PREDICTIONS_COLUMN, reason)
        unknown_ids = [key for key in ids if key not in sources]
        if unknown_ids:
            reason = _unknown_id_error(unknown_ids[0], sources)
            problems.add(number, PREDICTIONS_COLUMN, reason)

    for claim in claims:
        if claim not in first_lines:
            problems.add(None, column, f"{claim!r} is missing")
    problems.collected.raise_if_any()


def _unknown_id_error(key: SourceId, sources: Collection[SourceId]) -> str:
    """Describe an unknown id, in particular one that is known with the other type."""
    if isinstance(key, int) and str(key) in sources:
        return f"{key} is a number; the lab has the text {str(key)!r}"
    if isinstance(key, str) and is_integer_text(key) and int(key) in sources:
        return f"{key!r} is a text; the lab has the number {key}"
    return f"{key!r} is not a source of the collection"


def zip_submission(files: Sequence[Path], target: Path) -> None:
    """Write checked files to a zip, completely or not at all; equal files give equal bytes."""
    with (
        atomic_path(target) as temporary,
        zipfile.ZipFile(temporary, "w") as packed,
    ):
        for file in files:
            entry = zipfile.ZipInfo(file.name)
            entry.external_attr = 0o644 << 16
            content = file.read_bytes()
            packed.writestr(entry, content, zipfile.ZIP_DEFLATED)


def require_zip(file: Path) -> None:
    """Raise `UserError` if a zip cannot be written; only one with a lab's files may be replaced."""
    if file.suffix.casefold() != ".zip":
        raise ConfigError("submit", str(file), "a file whose name ends in .zip")
    if file.exists() and not _is_submission_zip(file):
        raise InputError(file, reason="would be replaced, but is not a submission of this program")
    require_writable(file, "file")


def _is_submission_zip(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as packed:
            names = packed.namelist()
    except (OSError, zipfile.BadZipFile):
        return False
    if not names:
        return False
    return all(_OF_LABS.fullmatch(name) for name in names)
