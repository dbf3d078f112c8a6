"""Read and write runs and judgements: TREC, BEIR's TSV and the labs' gold TSV."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from claim2source.core.arguments import require_kind, require_path
from claim2source.core.errors import FileProblems, InputError, Problems
from claim2source.core.files import atomic_path, real_path
from claim2source.core.records import Qrels
from claim2source.core.run import Run
from claim2source.data.released import RankedBy, is_json, read_scores
from claim2source.data.submissions import (
    CLAIM_COLUMNS,
    Ranked,
    column_among,
    is_submission,
    read_submission,
)
from claim2source.data.text_files import first_cells, read_lines, tsv_rows

GOLD_COLUMNS = ("cord_uid", "pubkey")
BEIR_COLUMNS = ("query-id", "corpus-id", "score")

# Number of claims in a run whose ids are searched at the end of known ids.
FRONTS_ASKED = 10
# A number from here on rounds to an infinite float32.
TOO_LARGE = (2 - 2.0**-24) * 2.0**127
# Only ASCII white space, as in C tools: a no-break space is part of an id.
_words = re.compile(r"\S+", re.ASCII).findall
_COLUMNS = 6  # of a TREC run
# What `str.split` takes for white space besides that.
_splits_else = re.compile(r"[\x1c-\x1f]").search
is_grade = re.compile(r"[+-]?[0-9]{1,9}").fullmatch
_is_integer = re.compile(r"[+-]?[0-9]+").fullmatch


@dataclass(frozen=True)
class RunFile:
    """Run from a file; `repeated` counts the rows dropped as repeated sources.

    `golds` are the golds in the file itself, by claim; `complete` is whether it has every claim, in
    the order of the task's file; `front` is the prefix that `named_as` added to its claims' ids;
    `has_places` is whether repeated sources left their positions empty.
    """

    path: Path
    run: Run
    repeated: int
    golds: Mapping[str, str] = field(default_factory=dict)
    complete: bool = False
    front: str = ""
    has_places: bool = False

    def language_among(self, languages: Sequence[str]) -> str:
        """Return the language of the run's claims: the only one, or the one in their ids.

        Raises `InputError` if it is ambiguous.
        """
        if len(languages) == 1:
            return languages[0]
        matching = [lang for lang in languages if self.front.endswith(f"-{lang}-")]
        if len(matching) == 1:
            return matching[0]
        listed = ", ".join(languages)
        reason = (
            f"has one of the languages {listed}, but its ids do not show which: "
            "name the language in a systems file"
        )
        raise InputError(self.path, reason=reason)


def read_run(
    path: str | Path,
    ranked_by: RankedBy = "reranker",
    *,
    keep_places: bool = False,
) -> RunFile:
    """Read a TREC run, a lab's prediction TSV or a score JSON, recognised by its content.

    A repeated source of a claim keeps its first position and is counted. The lab's TSV has no
    scores: a list of n sources gets n, n - 1, ..., 1; with `keep_places` a repeated source leaves
    its other positions empty, as in the lab's scorer. The 2026 paper's score JSON has two
    rankings: `ranked_by` its re-ranker, if one ran, or its embeddings. Raises `InputError`, with a
    line per problem.

    Example:
        >>> import tempfile
        >>> import claim2source as c2s
        >>> path = tempfile.mkdtemp() + "/en.trec"
        >>> c2s.write_trec_run(c2s.Run.from_lists({"c1": [("a", 2.0)]}), path)
        >>> c2s.read_run(path).run.sources("c1")
        ['a']
    """
    require_path(path, "path", "the path of a run")
    path = Path(path)
    lines = read_lines(path)
    problems = FileProblems(path)
    golds: Mapping[str, str] = {}
    complete = True
    is_scores = is_json(lines)
    is_lab = not is_scores and is_submission(lines)

    if is_scores:
        ranked, golds, repeated = read_scores(lines, problems, ranked_by)
    elif is_lab:
        ranked, repeated = read_submission(lines, problems, keep_places=keep_places)
    else:
        plain_run = _plain_trec_run(lines)
        if plain_run is not None:
            return RunFile(path, plain_run, repeated=0)
        ranked, repeated = _read_trec_run(lines, problems)
        complete = False  # claims without results have no line
    problems.collected.raise_if_any()

    results = {claim: list(scores.items()) for claim, scores in ranked.items()}
    run = Run.from_lists(results)
    has_places = keep_places and is_lab
    return RunFile(
        path,
        run,
        repeated,
        golds,
        complete,
        has_places=has_places,
    )


def named_as(file: RunFile, golds: Mapping[str, Collection[str]]) -> RunFile:
    """Rename a run's claims to known ids: the labs' "7" may be our "dev-de-7".

    `golds` are the golds of the known claims. A prefix is used if it is the only one with which
    most claims are known, and the golds in the file do not contradict theirs. A file that shares
    nothing with the claims is unchanged. Raises `InputError` if several prefixes fit, or if golds
    contradict, because the file has another language or split.
    """
    ids = file.run.claim_ids
    for claim in ids:
        if claim in golds and not _agrees(file, claim, golds[claim]):
            gold = file.golds[claim]
            reason = f"{gold!r} is not gold for claim {claim!r}: another split?"
            raise InputError(file.path, field="ground_truth_pubkey", reason=reason)
    if any(claim in golds for claim in ids):
        return file

    asked = set(ids[:FRONTS_ASKED])
    fronts = _fronts(asked, golds)
    fitting = [front for front in sorted(fronts) if _fits(file, front, golds)]
    if len(fitting) > 1:
        first_id = ids[0]
        names = [repr(front + first_id) for front in fitting[:3]]
        listed = " or ".join(names)
        reason = f"claim {first_id!r} could be {listed}: name the run's language in a systems file"
        raise InputError(file.path, reason=reason)
    if not fitting:
        return file

    (front,) = fitting
    ids_named = tuple(front + claim for claim in ids)
    run = replace(file.run, claim_ids=ids_named)
    golds_named = {front + claim: gold for claim, gold in file.golds.items()}
    return replace(file, run=run, golds=golds_named, front=front)


def _fronts(tails: Collection[str], known: Iterable[str]) -> set[str]:
    """Collect the prefixes of known ids that end with a hyphen and one of the tails."""
    fronts: set[str] = set()
    for claim_id in known:
        parts = claim_id.split("-")
        for start in range(1, len(parts)):
            tail = "-".join(parts[start:])
            if tail in tails:
                front = claim_id.removesuffix(tail)
                fronts.add(front)
    return fronts


def _fits(
    file: RunFile,
    front: str,
    golds: Mapping[str, Collection[str]],
) -> bool:
    """Whether most claims are known with a prefix, and no gold contradicts theirs."""
    ids = file.run.claim_ids
    met = [claim for claim in ids if front + claim in golds]
    if 2 * len(met) <= len(ids):
        return False
    return all(_agrees(file, claim, golds[front + claim]) for claim in met)


def _agrees(
    file: RunFile,
    claim: str,
    golds: Collection[str],
) -> bool:
    """Whether a claim's gold in the file is one of its known golds, or one of these is unknown."""
    if claim not in file.golds or not golds:
        return True
    return file.golds[claim] in golds


def read_qrels(path: str | Path) -> Qrels:
    """Read TREC qrels, BEIR's TSV or a lab's gold TSV, recognised by its content.

    A repeated row is used once; a different grade is a problem. Raises `InputError`, with a line
    per problem.
    """
    path = Path(path)
    problems = Problems()
    grades: dict[str, dict[str, int]] = {}
    for number, cells in _judgement_rows(path, problems):
        claim, source, grade_text = map(str.strip, cells)
        if not claim:
            problems.add(path, number, "claim id", "empty")
        if not source:
            problems.add(path, number, "source id", "empty")

        reason = grade_error(grade_text)
        if reason:
            problems.add(path, number, "score", reason)
            continue
        grade = int(grade_text)
        claim_grades = grades.setdefault(claim, {})
        if claim_grades.setdefault(source, grade) != grade:
            reason = f"{claim!r} {source!r} is repeated with another grade"
            problems.add(path, number, "score", reason)
    problems.raise_if_any()
    if not grades:
        raise InputError(path, reason="no judgements, only a header")
    return Qrels(grades)


def _judgement_rows(path: Path, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    """Find the format of a file of judgements; return its lines' claims, sources and grades."""
    lines = read_lines(path)
    header = first_cells(lines)
    names = set(header)
    if names & set(BEIR_COLUMNS[:2]):
        return tsv_rows(path, BEIR_COLUMNS, problems, lines=lines)
    is_lab = names & set(GOLD_COLUMNS) or header[0] in CLAIM_COLUMNS
    if not is_lab:
        return _trec_qrels_rows(path, lines, problems)

    claim_column = column_among(header, CLAIM_COLUMNS)
    gold_column = column_among(header, GOLD_COLUMNS)
    columns = (claim_column, gold_column)
    golds = tsv_rows(path, columns, problems, lines=lines)
    return ((number, [*cells, "1"]) for number, cells in golds)


def grade_error(text: str) -> str | None:
    """Return the reason why a text is not a grade of a judgement; None if it is one."""
    if is_grade(text):
        return None
    reason = "not an integer"
    if _is_integer(text):
        reason = "too large: 9 digits at most"
    beginning = text[:40]
    return f"{beginning!r} is {reason}"


def write_trec_run(
    run: Run,
    path: str | Path,
    tag: str = "claim2source",
    separator: str = " ",
) -> None:
    """Write a TREC run; a claim without sources has no line in this format.

    Every float32 score is read back unchanged. Tied scores are written as numbers that decrease by
    less than float32's resolution, so that tools that compare in float64 or break ties differently
    have the same ranking. Raises `InputError` for ids with white space and infinite scores.

    Example:
        >>> import tempfile
        >>> import claim2source as c2s
        >>> path = tempfile.mkdtemp() + "/en.trec"
        >>> c2s.write_trec_run(c2s.Run.from_lists({"c1": [("a", 2.0)]}), path)
        >>> open(path).read()
        'c1 Q0 a 1 2 claim2source\\n'
    """
    require_path(path, "path")
    require_kind(run, Run, "run", "a Run, such as a result's `run`")
    path = Path(path)
    problems = Problems()
    codes_used = np.unique(run.codes)
    source_ids = [str(run.vocabulary[code]) for code in codes_used]
    _check_words(path, "claim id", run.claim_ids, problems)
    _check_words(path, "source id", source_ids, problems)
    _check_words(path, "tag", [tag], problems)

    claim_numbers = np.arange(len(run.claim_ids))
    counts = np.diff(run.offsets)
    owners = np.repeat(claim_numbers, counts)
    is_infinite = ~np.isfinite(run.scores)
    for row in np.flatnonzero(is_infinite):
        owner = owners[row]
        code = run.codes[row]
        claim = run.claim_ids[owner]
        source = run.vocabulary[code]
        reason = f"infinite for claim {claim!r}, source {source!r}"
        problems.add(path, None, "score", reason)
    problems.raise_if_any()

    claims = (run.claim_ids[owner] for owner in owners)
    sources = run.vocabulary[run.codes]
    ranks = run.ranks()
    score_texts = _score_texts(run)
    columns = zip(claims, sources, ranks, score_texts, strict=True)
    with (
        atomic_path(path) as temporary,
        open(temporary, "w", encoding="utf-8", newline="") as out,
    ):
        for claim, source, rank, score in columns:
            cells = (claim, "Q0", source, str(rank), score, tag)
            line = separator.join(cells)
            out.write(f"{line}\n")


def write_beir_qrels(qrels: Qrels, path: str | Path) -> None:
    """Write judgements as BEIR's `qrels/<split>.tsv`."""
    with (
        atomic_path(path) as temporary,
        open(temporary, "w", encoding="utf-8", newline="") as out,
    ):
        writer = csv.writer(out, delimiter="\t", lineterminator="\n")
        writer.writerow(BEIR_COLUMNS)
        for claim, grades in qrels.grades.items():
            for source, grade in grades.items():
                row = (claim, source, grade)
                writer.writerow(row)


def run_names(paths: Sequence[str | Path]) -> list[str]:
    """Name every file by its stem; where stems collide, with its folder or its whole path.

    A folder has its own name.
    """
    distinct = dict.fromkeys(Path(path) for path in paths)
    files = list(distinct)
    # A folder of runs has no suffix, whatever dots are in its name.
    names = [file.name if file.is_dir() else file.stem for file in files]
    fronts = [real_path(file).parent.name for file in files]
    folder_names = [f"{front}/{name}" for front, name in zip(fronts, names, strict=True)]
    whole_paths = [str(file) for file in files]
    for longer in (folder_names, whole_paths):
        pairs = list(zip(names, longer, strict=True))
        names = [long if names.count(short) > 1 else short for short, long in pairs]

    names_by_file = dict(zip(files, names, strict=True))
    numbered: list[str] = []
    times: Counter[str] = Counter()
    for path in paths:
        file = Path(path)
        name = names_by_file[file]
        times[name] += 1
        # The same file twice is two runs.
        if times[name] > 1:
            name = f"{name} #{times[name]}"
        numbered.append(name)
    return numbered


def _plain_trec_run(lines: Sequence[str]) -> Run | None:
    """Read a TREC run by columns; None if a line needs more care than that.

    It is what `_read_trec_run` reads, several times as fast.
    """
    text = "".join(lines)
    if not text.isascii() or _splits_else(text):
        return None
    if not _has_columns(text, len(lines)):
        return None

    words = text.split()
    scores = words[4::_COLUMNS]
    if "_" in "".join(scores):
        return None
    try:
        values = np.array([float(score) for score in scores])
    except ValueError:
        return None
    is_finite = np.abs(values) < TOO_LARGE
    if not is_finite.all():
        return None

    claims = words[0::_COLUMNS]
    sources = words[2::_COLUMNS]
    try:
        return Run.from_rows(claims, sources, values)
    except ValueError:  # a source repeats
        return None


def _has_columns(text: str, lines: int) -> bool:
    """Whether each of the lines of an ASCII text has as many words as a TREC run."""
    encoded = text.rstrip("\n").encode("ascii")
    raw = np.frombuffer(encoded, dtype=np.uint8)
    is_space = raw == ord(" ")
    is_space |= (raw >= ord("\t")) & (raw <= ord("\r"))
    begins = ~is_space
    begins[1:] &= is_space[:-1]
    line_ends = np.flatnonzero(raw == ord("\n"))
    text_end = len(raw) - 1
    ends = np.append(line_ends, text_end)
    beginnings = np.flatnonzero(begins)
    before = np.searchsorted(beginnings, ends, side="right")
    words = np.diff(before, prepend=0)
    if len(words) != lines:
        return False
    return bool((words == _COLUMNS).all())


def _read_trec_run(lines: Sequence[str], problems: FileProblems) -> Ranked:
    ranked: dict[str, dict[str, float]] = {}
    repeated = 0
    for number, line in enumerate(lines, 1):
        cells = _words(line)
        if len(cells) == _COLUMNS:
            claim = cells[0]
            source = cells[2]
            score = _score(number, cells[4], problems)
            scores = ranked.setdefault(claim, {})
            # A source's first position is that of its best score, whatever the order of lines.
            repeated += source in scores
            best_before = scores.get(source, score)
            scores[source] = max(score, best_before)
        elif cells:
            reason = f"{len(cells)} columns; a TREC run has 6: claim Q0 source rank score tag"
            problems.add(number, None, reason)
    return ranked, repeated


def _score(number: int, text: str, problems: FileProblems) -> float:
    # Unlike other tools, float() accepts "1_000" and Arabic digits.
    is_plain = text.isascii() and "_" not in text
    try:
        score = float(text if is_plain else "not a number")
    except ValueError:
        problems.add(number, "score", f"{text!r} is not a number")
        return 0.0
    if not abs(score) < TOO_LARGE:
        problems.add(number, "score", f"{text!r} is not a finite float32")
    return score


def _trec_qrels_rows(
    path: Path,
    lines: Sequence[str],
    problems: Problems,
) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, 1):
        cells = _words(line)
        if len(cells) == 4:
            claim, _, source, grade = cells
            yield number, [claim, source, grade]
        elif cells:
            reason = f"{len(cells)} columns; TREC qrels have 4: claim 0 source grade"
            problems.add(path, number, None, reason)


def _check_words(
    path: Path,
    kind: str,
    ids: Iterable[str],
    problems: Problems,
) -> None:
    for word in ids:
        if word.split() != [word]:
            reason = f"{word!r} is not allowed in a TREC file: it has white space or is empty"
            problems.add(path, None, kind, reason)


def _score_texts(run: Run) -> Iterator[str]:
    """Write scores as decimals, strictly decreasing per claim, that round to the float32s."""
    scores = run.scores
    count = len(scores)
    if not count:
        return
    starts = np.ones(count, dtype=bool)
    starts[1:] = scores[1:] != scores[:-1]
    claim_starts = run.offsets[:-1]
    is_row = claim_starts < count
    starts[claim_starts[is_row]] = True
    tie = np.cumsum(starts) - 1
    tie_sizes = np.bincount(tie)
    sizes = tie_sizes[tie]
    first_rows = np.flatnonzero(starts)
    ranks = np.arange(count) - first_rows[tie]

    # An eighth of float32's spacing, which rounds back safely, even at powers of two.
    binary_exponents = np.frexp(scores)[1]
    exponents = np.where(scores == 0, -149, binary_exponents - 24)
    limited = np.maximum(exponents, -149)
    step = np.ldexp(0.125, limited)
    values = scores.astype(np.float64) - step * (ranks / sizes)
    for value, size in zip(values.tolist(), sizes.tolist(), strict=True):
        # Nine digits distinguish neighbouring float32s; ties need the digits of float64.
        yield f"{value:.9g}" if size == 1 else repr(value)
