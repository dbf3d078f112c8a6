"""Runs and judgements as files: TREC, BEIR's TSV and the CheckThat! labs' TSV, in and out."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from claim2source.core.errors import InputError, Problems
from claim2source.core.files import atomic_path
from claim2source.core.records import Qrels
from claim2source.core.run import Run

CLAIM_COLUMNS = ("post_id", "index")
GOLD_COLUMNS = ("cord_uid", "pubkey")
PREDICTIONS_COLUMN = "preds"
BEIR_COLUMNS = ("query-id", "corpus-id", "score")

# From here on a number rounds to an infinite float32.
_TOO_LARGE = (2 - 2.0**-24) * 2.0**127


@dataclass(frozen=True)
class RunFile:
    """A run as read: `repeated` counts the rows dropped since their source came before."""

    path: Path
    run: Run
    repeated: int


def read_run(path: str | Path) -> RunFile:
    """Read a TREC run or a lab's TSV; which of them is seen from the content.

    A source that repeats for a claim keeps its first position and is counted. The lab's TSV
    has no scores: a list of n sources gets n, n - 1, ..., 1. Raises `InputError` with a line
    for each problem.
    """
    path = Path(path)
    lines = _lines(path)
    problems = Problems()
    header = _cells(lines)
    if PREDICTIONS_COLUMN in header or header[0] in CLAIM_COLUMNS:
        read = _read_lab_run(path, lines, problems)
    else:
        read = _read_trec_run(path, lines, problems)
    problems.raise_if_any()
    return read


def read_qrels(path: str | Path) -> Qrels:
    """Read TREC qrels, BEIR's TSV or a lab's gold TSV; which is seen from the content.

    A row that repeats is read once; one that repeats with another grade is a problem. Raises
    `InputError` with a line for each problem.
    """
    path = Path(path)
    lines = _lines(path)
    problems = Problems()
    header = _cells(lines)
    if set(BEIR_COLUMNS[:2]) & set(header):
        rows = _table_rows(path, lines, BEIR_COLUMNS, problems)
    elif set(GOLD_COLUMNS) & set(header) or header[0] in CLAIM_COLUMNS:
        columns = (_present(header, CLAIM_COLUMNS), _present(header, GOLD_COLUMNS))
        rows = ((n, (*cells, "1")) for n, cells in _table_rows(path, lines, columns, problems))
    else:
        rows = _trec_qrels_rows(path, lines, problems)
    grades: dict[str, dict[str, int]] = {}
    for number, (claim, source, grade) in rows:
        _note_empty(path, number, {"claim id": claim, "source id": source}, problems)
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", grade):
            problems.add(path, number, "score", f"{grade!r} is not a whole number")
        elif grades.setdefault(claim, {}).setdefault(source, int(grade)) != int(grade):
            why = f"{claim!r} {source!r} again, with another grade than before"
            problems.add(path, number, "score", why)
    problems.raise_if_any()
    if not grades:
        raise InputError.at(path, None, None, "no judgements, only a header")
    return Qrels(grades)


def write_trec_run(run: Run, path: str | Path, tag: str = "claim2source") -> None:
    """Write a TREC run; claims without sources have no line in this format.

    Every float32 score comes back as it was. Within a tie the written numbers decrease by less
    than float32 can tell, so a tool that compares in float64 or has a tie rule of its own
    still ranks as we do. Raises `InputError` on ids with white space and infinite scores.
    """
    path = Path(path)
    problems = Problems()
    words = [str(run.vocabulary[code]) for code in np.unique(run.codes)]
    for kind, ids in (("claim id", run.claim_ids), ("source id", words), ("tag", [tag])):
        _note_unwritable(path, kind, ids, problems)
    owners = np.repeat(np.arange(len(run.claim_ids)), np.diff(run.offsets))
    for row in np.flatnonzero(~np.isfinite(run.scores)):
        claim, source = run.claim_ids[owners[row]], run.vocabulary[run.codes[row]]
        problems.add(path, None, "score", f"infinite for claim {claim!r}, source {source!r}")
    problems.raise_if_any()
    claims = (run.claim_ids[owner] for owner in owners)
    sources = run.vocabulary[run.codes]
    columns = zip(claims, sources, run.ranks(), _score_texts(run), strict=True)
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as out:
        out.writelines(f"{c} Q0 {s} {rank} {score} {tag}\n" for c, s, rank, score in columns)


def write_trec_qrels(qrels: Qrels, path: str | Path) -> None:
    """Write TREC qrels. Raises `InputError` on ids with white space."""
    path = Path(path)
    problems = Problems()
    _note_unwritable(path, "claim id", qrels.claim_ids, problems)
    sources = dict.fromkeys(source for _, source, _ in _judgements(qrels))
    _note_unwritable(path, "source id", sources, problems)
    problems.raise_if_any()
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as out:
        for claim, source, grade in _judgements(qrels):
            out.write(f"{claim} 0 {source} {grade}\n")


def write_beir_qrels(qrels: Qrels, path: str | Path) -> None:
    """Write judgements as BEIR's `qrels/<split>.tsv`."""
    _write_tsv(path, BEIR_COLUMNS, _judgements(qrels))


IdWriter = Callable[[str], str]


def write_submission_2025(
    run: Run, path: str | Path, k: int = 5, split: str = "", written_id: IdWriter | None = None
) -> int:
    """Write CheckThat! 2025's TSV (`post_id`, `preds`), the first `k` sources of every claim.

    The lab wants its bare id: with `split` a leading "<split>-" of the claim id is dropped
    ("dev-16" -> "16"); `written_id` overrides that. Returns the number of claims with fewer
    than `k` sources. Raises `InputError` when two claims would get the same id.
    """
    return _write_submission(run, path, "post_id", k, split, written_id)


def write_submission_2026(
    run: Run, path: str | Path, k: int = 5, split: str = "", written_id: IdWriter | None = None
) -> int:
    """Write CheckThat! 2026's TSV (`index`, `preds`), to be named `predictions_<lang>.tsv`.

    Give a run with the claims of that language only. The rest is as for 2025.
    """
    return _write_submission(run, path, "index", k, split, written_id)


def run_names(paths: Sequence[str | Path]) -> list[str]:
    """A distinct name for every file: its stem; where stems collide, with the folder."""
    files = list(dict.fromkeys(Path(path) for path in paths))
    names = [file.stem for file in files]
    folder_names = [f"{file.resolve().parent.name}/{file.stem}" for file in files]
    for longer in (folder_names, [str(file) for file in files]):
        pairs = list(zip(names, longer, strict=True))
        names = [long if names.count(short) > 1 else short for short, long in pairs]
    name_of = dict(zip(files, names, strict=True))
    # The same file twice is still two runs.
    given = [name_of[Path(path)] for path in paths]
    times = [given[: i + 1].count(name) for i, name in enumerate(given)]
    return [f"{name} #{n}" if n > 1 else name for name, n in zip(given, times, strict=True)]


def _lines(path: Path) -> list[bytes]:
    """The lines of a UTF-8 file, without BOM; raises when it can't be read or holds nothing."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError.at(path, None, None, "no such file") from None
    except OSError as error:
        raise InputError.at(path, None, None, f"cannot be read: {error.strerror}") from None
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    problems = Problems()
    for number, line in enumerate(lines, 1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            problems.add(path, number, None, f"not UTF-8: {error.reason} at byte {error.start + 1}")
    problems.raise_if_any()
    if not any(line.strip() for line in lines):
        raise InputError.at(path, None, None, "the file is empty")
    return lines


def _cells(lines: Sequence[bytes]) -> list[str]:
    """The tab-separated cells of the first line that is not blank."""
    first = next(line for line in lines if line.strip())
    return [cell.strip().strip('"') for cell in first.decode("utf-8").split("\t")]


def _present(header: Sequence[str], names: Sequence[str]) -> str:
    return next((name for name in names if name in header), " or ".join(names))


def _read_trec_run(path: Path, lines: Sequence[bytes], problems: Problems) -> RunFile:
    best: dict[str, dict[str, float]] = {}
    repeated = 0
    for number, line in enumerate(lines, 1):
        # bytes.split knows ASCII white space only, as the C tools do: a no-break space stays.
        cells = line.split()
        if not cells:
            continue
        if len(cells) != 6:
            why = f"{len(cells)} columns; a TREC run has 6: claim Q0 source rank score tag"
            problems.add(path, number, None, why)
            continue
        score = _score(path, number, cells[4], problems)
        ranked = best.setdefault(cells[0].decode("utf-8"), {})
        source = cells[2].decode("utf-8")
        if source in ranked:
            # Its first position is the best-scored one, whatever the order of the lines.
            repeated += 1
            score = max(score, ranked[source])
        ranked[source] = score
    if len(problems):
        return RunFile(path, Run.from_rows([], [], []), 0)
    return RunFile(path, Run.from_lists({c: list(r.items()) for c, r in best.items()}), repeated)


def _score(path: Path, number: int, cell: bytes, problems: Problems) -> float:
    text = cell.decode("utf-8")
    try:
        # float() takes "1_000" and Arabic digits, which no other tool does.
        score = float(text if text.isascii() and "_" not in text else "not a number")
    except ValueError:
        problems.add(path, number, "score", f"{text!r} is not a number")
        return 0.0
    if not abs(score) < _TOO_LARGE:
        problems.add(path, number, "score", f"{text!r} is not a finite float32")
        return 0.0
    return score


def _read_lab_run(path: Path, lines: Sequence[bytes], problems: Problems) -> RunFile:
    claim_column = _present(_cells(lines), CLAIM_COLUMNS)
    ranked: dict[str, list[tuple[str, float]]] = {}
    repeated = 0
    columns = (claim_column, PREDICTIONS_COLUMN)
    for number, (claim, cell) in _table_rows(path, lines, columns, problems):
        _note_empty(path, number, {claim_column: claim}, problems)
        listed = _id_list(path, number, cell, problems)
        if claim in ranked:  # its first row counts, as a source's first place does
            repeated += len(listed)
            continue
        distinct = list(dict.fromkeys(listed))
        repeated += len(listed) - len(distinct)
        ranked[claim] = [(s, float(len(distinct) - i)) for i, s in enumerate(distinct)]
    if not ranked and not len(problems):
        problems.add(path, None, None, "no predictions, only a header")
    return RunFile(path, Run.from_lists(ranked), repeated)


def _id_list(path: Path, number: int, cell: str, problems: Problems) -> list[str]:
    """The ids of a `preds` cell: a JSON or Python list; never evaluated."""
    try:
        ids = json.loads(cell)
    except (ValueError, RecursionError):
        try:
            ids = ast.literal_eval(cell)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            ids = None
        # Python joins 'a' 'b' (numpy's way to print a list) into the one id 'ab'.
        if re.search(r"""['"]\s+['"]""", cell):
            ids = None
    if not isinstance(ids, list):
        problems.add(path, number, PREDICTIONS_COLUMN, f"{cell[:60]!r} is not a list of ids")
        return []
    for item in ids:
        if isinstance(item, bool) or not isinstance(item, str | int) or not str(item).strip():
            problems.add(path, number, PREDICTIONS_COLUMN, f"{str(item)[:60]!r} is not an id")
            return []
    return [str(item).strip() for item in ids]


def _trec_qrels_rows(
    path: Path, lines: Sequence[bytes], problems: Problems
) -> Iterator[tuple[int, tuple[str, ...]]]:
    for number, line in enumerate(lines, 1):
        cells = [cell.decode("utf-8") for cell in line.split()]
        if len(cells) == 4:
            yield number, (cells[0], cells[2], cells[3])
        elif cells:
            why = f"{len(cells)} columns; TREC qrels have 4: claim 0 source grade"
            problems.add(path, number, None, why)


def _table_rows(
    path: Path, lines: Sequence[bytes], columns: Sequence[str], problems: Problems
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line number and cells of these columns, for every row below a TSV's header line."""
    rows = _tsv_rows(path, lines, problems)
    number, header = next(rows, (1, []))
    header = [cell.strip() for cell in header]
    absent = [column for column in columns if column not in header]
    for column in absent:
        problems.add(path, number, column, f"no such column; there are: {', '.join(header)}")
    if absent:
        return
    places = [header.index(column) for column in columns]
    for number, cells in rows:
        if len(cells) == len(header):
            yield number, tuple(cells[place].strip() for place in places)
        else:
            why = f"{len(cells)} columns; the header has {len(header)}"
            problems.add(path, number, None, why)


def _tsv_rows(
    path: Path, lines: Sequence[bytes], problems: Problems
) -> Iterator[tuple[int, list[str]]]:
    """First line and cells of each row; a quoted cell may hold line breaks."""
    texts = (line.decode("utf-8") + "\n" for line in lines)
    reader = csv.reader(texts, delimiter="\t", strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # What follows a quote left open can't be told apart: stop here.
            problems.add(path, number, None, f"broken quoting: {error}")
            return
        if any(cell.strip() for cell in cells):
            yield number, cells


def _note_empty(path: Path, number: int, cells: dict[str, str], problems: Problems) -> None:
    for field, cell in cells.items():
        if not cell:
            problems.add(path, number, field, "empty")


def _note_unwritable(path: Path, kind: str, ids: Iterable[str], problems: Problems) -> None:
    for word in ids:
        if word.split() != [word]:
            problems.add(
                path, None, kind, f"{word!r} can't be in a TREC file: white space or empty"
            )


def _score_texts(run: Run) -> Iterator[str]:
    """Decimal scores, strictly decreasing within a claim, that round to the float32 scores."""
    scores = run.scores
    if not len(scores):
        return
    starts = np.ones(len(scores), dtype=bool)
    starts[1:] = scores[1:] != scores[:-1]
    starts[run.offsets[:-1][run.offsets[:-1] < len(scores)]] = True
    tie = np.cumsum(starts) - 1
    sizes = np.bincount(tie)[tie]
    places = np.arange(len(scores)) - np.flatnonzero(starts)[tie]
    # An eighth of float32's spacing: safely within what rounds back, also at powers of two.
    exponents = np.where(scores == 0, -149, np.frexp(scores)[1] - 24)
    step = np.ldexp(0.125, np.maximum(exponents, -149))
    values = scores.astype(np.float64) - step * (places / sizes)
    for value, size in zip(values.tolist(), sizes.tolist(), strict=True):
        # Nine digits tell every float32 from its neighbours; tied ones need float64's.
        yield f"{value:.9g}" if size == 1 else repr(value)


def _judgements(qrels: Qrels) -> Iterator[tuple[str, str, int]]:
    for claim, grades in qrels.grades.items():
        for source, grade in grades.items():
            yield claim, source, grade


def _write_submission(
    run: Run, path: str | Path, column: str, k: int, split: str, written_id: IdWriter | None
) -> int:
    prefix = f"{split}-" if split else ""
    written: dict[str, str] = {}
    for claim in run.claim_ids:
        name = written_id(claim) if written_id else claim.removeprefix(prefix)
        if written.setdefault(name, claim) != claim:
            why = f"{name!r} for both {written[name]!r} and {claim!r}"
            raise InputError.at(path, None, column, why)
    lists = {name: run.sources(claim, k) for name, claim in written.items()}
    _write_tsv(path, (column, PREDICTIONS_COLUMN), lists.items())
    return sum(len(ids) < k for ids in lists.values())


def _write_tsv(path: str | Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    with atomic_path(path) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8", newline="")
