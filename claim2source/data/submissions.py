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
_COLUMN_OF: dict[Year, str] = {2025: "post_id", 2026: "index"}
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
    return next((name for name in names if name in header), " or ".join(names))


def read_submission(
    lines: Sequence[str], problems: FileProblems, *, keep_places: bool = False
) -> Ranked:
    """Read predictions: a list of n sources gets the scores n, n - 1, ..., 1.

    A repeated source of a claim is dropped. With `keep_places` a placeholder, which is not the id
    of a source, keeps its position, because the labs' scorer does not drop it.
    """
    claim_column = column_among(first_cells(lines), CLAIM_COLUMNS)
    ranked: dict[str, dict[str, float]] = {}
    repeated = 0
    columns = (claim_column, PREDICTIONS_COLUMN)
    for number, cells in tsv_rows(problems.file, columns, problems.collected, lines=lines):
        claim = cells[0].strip()
        if not claim:
            problems.add(number, claim_column, "empty")
        ids = _id_list(number, cells[1].strip(), problems)
        listed = [str(item).strip() for item in ids]
        # The first row of a claim is used, and the first position of a source.
        distinct = [] if claim in ranked else list(dict.fromkeys(listed))
        repeated += len(listed) - len(distinct)
        if keep_places and distinct:
            distinct = _with_stand_ins(listed)
        ranked.setdefault(claim, {s: float(len(distinct) - i) for i, s in enumerate(distinct)})
    if not ranked and not len(problems.collected):
        problems.add(None, None, "no predictions, only a header")
    return ranked, repeated


def _with_stand_ins(listed: Sequence[str]) -> list[str]:
    """Replace repeated sources by names with white space, which no id contains."""
    seen: set[str] = set()
    places: list[str] = []
    for place, source in enumerate(listed, start=1):
        places.append(f"{source} again at {place}" if source in seen else source)
        seen.add(source)
    # A placeholder after the last distinct source has no effect.
    last = max(listed.index(source) for source in seen)
    return places[: last + 1]


def _id_list(number: int, cell: str, problems: FileProblems) -> list[SourceId]:
    try:
        ids = json.loads(cell)
    except (ValueError, RecursionError):
        try:
            ids = ast.literal_eval(cell)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            ids = None
        # Python would join 'a' 'b' (numpy's way to print a list) into the single id 'ab'.
        if re.search(r"""['"]\s+['"]""", cell):
            ids = None
    if not isinstance(ids, list):
        problems.add(number, PREDICTIONS_COLUMN, f"{cell[:60]!r} is not a list of ids")
        return []
    for item in ids:
        if isinstance(item, bool) or not isinstance(item, str | int) or not str(item).strip():
            problems.add(number, PREDICTIONS_COLUMN, f"{str(item)[:60]!r} is not an id")
            return []
    return ids


def submission_year(dataset: Dataset) -> Year:
    """Determine the lab of a split: that of 2026 has several languages.

    Its claim ids are `<split>-<language>-<index>`, those of 2025 are `<split>-<post_id>`.
    """
    is_2026 = all(c.id.startswith(f"{dataset.split}-{c.lang}-") for c in dataset.claims)
    return 2026 if is_2026 or dataset.languages != ("en",) else 2025


def lab_ids(dataset: Dataset, year: Year) -> dict[str, dict[str, str]]:
    """Map the claims in each of a lab's files to its own ids: "dev-16" -> "16", "dev-de-7" -> "7".

    The lab of 2026 wants a file per language, `predictions_<lang>.tsv`. An id without a language
    loses only its split. Raises `InputError` if two claims of a file get the same id.
    """
    files: dict[str, dict[str, str]] = {}
    for language in dataset.languages if year == 2026 else ("",):
        prefixes = [f"{dataset.split}-{language}-"] if language else []
        prefixes.append(f"{dataset.split}-")
        claim_of: dict[str, str] = {}
        for claim in dataset.claims:
            if language in ("", claim.lang):
                prefix = next(filter(claim.id.startswith, prefixes), "")
                name = claim.id.removeprefix(prefix)
                if claim_of.setdefault(name, claim.id) != claim.id:
                    reason = f"{name!r} would be the id of both {claim_of[name]!r} and {claim.id!r}"
                    raise InputError("submission", field=_COLUMN_OF[year], reason=reason)
        file = f"predictions_{language}.tsv" if language else "predictions.tsv"
        files[file] = {claim: name for name, claim in claim_of.items()}
    return files


def lab_source_ids(dataset: Dataset) -> dict[str, SourceId]:
    """Map sources to their ids with the type in the lab's own files, where 9444 is not "9444".

    A data set does not record the type if it was not prepared, or prepared by version 1.0. Then
    ids are numbers if the claims are named like those of 2026, and all ids are integers.
    """
    ids = [source.id for source in dataset.sources]
    numeric = dataset.numeric_ids or frozenset()
    if dataset.numeric_ids is None and _has_claims_of_2026(dataset):
        numeric = frozenset(ids if all(map(is_integer_text, ids)) else ())
    return {key: int(key) if key in numeric else key for key in ids}


def _has_claims_of_2026(dataset: Dataset) -> bool:
    """Whether all claim ids have the form `<split>-<language>-<index>`, for any split."""
    parts = ((claim.lang, claim.id.split("-", 2)) for claim in dataset.claims)
    return all(len(names) == 3 and names[1] == lang for lang, names in parts)


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
    ids = {claim: claim for claim in run.claim_ids} if ids is None else ids
    lab = sources or {}
    rows: list[tuple[str, list[SourceId]]] = []
    for claim, name in ids.items():
        ranked = [lab.get(source, source) for source in run.sources(claim, k)]
        rows.append((name, ranked))
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, delimiter="\t", lineterminator="\n")
        writer.writerow((_COLUMN_OF[year], PREDICTIONS_COLUMN))
        writer.writerows(rows)


def check_submission(
    path: Path, year: Year, claims: Collection[str], sources: Collection[SourceId], k: int = 5
) -> None:
    """Check that a lab's TSV has every claim once, each with `k` distinct, known sources.

    `claims` and `sources` are the lab's own ids. Their types matter: a text is refused if the lab
    has numbers, and a number if it has texts. Raises `InputError`, with a line per problem.
    """
    problems, column = FileProblems(path), _COLUMN_OF[year]
    line_of: dict[str, int] = {}
    columns = (column, PREDICTIONS_COLUMN)
    for number, (claim, listed) in tsv_rows(path, columns, problems.collected, only=True):
        if line_of.setdefault(claim, number) != number:
            problems.add(number, column, f"{claim!r} is already on line {line_of[claim]}")
        elif claim not in claims:
            problems.add(number, column, f"{claim!r} is not a claim of this split")
        before = len(problems.collected)
        ids = _id_list(number, listed, problems)
        if len(problems.collected) > before:
            continue
        if len(ids) != k or len(set(ids)) != k:
            reason = f"{len(set(ids))} distinct sources, not {k}"
            problems.add(number, PREDICTIONS_COLUMN, reason)
        if unknown_ids := [key for key in ids if key not in sources]:
            problems.add(number, PREDICTIONS_COLUMN, _unknown_id_error(unknown_ids[0], sources))
    for claim in claims:
        if claim not in line_of:
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
    with atomic_path(target) as temporary, zipfile.ZipFile(temporary, "w") as packed:
        for file in files:
            entry = zipfile.ZipInfo(file.name)
            entry.external_attr = 0o644 << 16
            packed.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)


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
    return bool(names) and all(_OF_LABS.fullmatch(name) for name in names)
