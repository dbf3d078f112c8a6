"""Group systems that no paired test separates, and bound every system's rank."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from string import ascii_lowercase

import numpy as np

from claim2source.core.arguments import whole_number
from claim2source.core.config import require
from claim2source.core.errors import InputError, UserError
from claim2source.core.files import finite
from claim2source.core.languages import primary_language
from claim2source.core.records import Claim, Dataset
from claim2source.core.report import MACRO, MAIN_METRIC
from claim2source.core.run import Run
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import listed, one_line
from claim2source.data.grouping import gold_groups
from claim2source.data.loading import load
from claim2source.data.trec import named_as, read_qrels, read_run, run_names
from claim2source.evaluation.compare import ROUNDING, ScoredRuns, read_runs, read_scored
from claim2source.evaluation.rankings import Ranking
from claim2source.evaluation.reports import ReportConfig, join_runs, require_same_split
from claim2source.metrics.metrics import (
    coverage,
    language_masks,
    language_strata,
    without_themselves,
)
from claim2source.metrics.pairs import AllPairs, compare_pairs, rank_intervals, tied_groups
from claim2source.metrics.significance import enough_repeats

# The columns of the CSV that a file of ours begins with.
CSV_COLUMNS = ("system", "rank", "best_rank", "worst_rank", "groups", "p_first", "missing", "score")
TITLE = "Groups of systems"
# One system's file for each language: a report's runs, or a lab's submission.
_BY_LANGUAGE = re.compile(r"(?:predictions_)?([a-z]{2,3})\.(?:trec|tsv)")
_MOST_NAMED = 12
_ALL = "all"
_SPLIT = "dev"
_DIGITS = 12


@dataclass(frozen=True)
class Standing:
    """One system's place: its score, the ranks that it may have, and its groups.

    `languages` are the means by language if there are several, `score` is their mean. `best_rank`
    and `worst_rank` bound the true rank. `p_first` is that of its test against the first system,
    None for that itself. `missing` claims have no ranking, and count as 0.
    """

    system: str
    score: float
    languages: Mapping[str, float]
    rank: int
    best_rank: int
    worst_rank: int
    groups: tuple[str, ...]
    p_first: float | None
    missing: int


@dataclass(frozen=True)
class PairTest:
    """Test of one pair: the difference of its scores, and p after the correction."""

    system: str
    other: str
    difference: float
    p: float
    separated: bool


@dataclass(frozen=True)
class GroupsReport:
    """Systems by score, with intervals of ranks and the groups that no paired test separates.

    With a confidence of 1 - `alpha`, the true rank of every system is in its interval, all at
    once. Two systems share a group if no test separates them; `groups` are by letter, best first.
    `tied_with_first` are the systems that no test separates from the first. Printed, it is a text
    of tables; in a notebook, HTML.
    """

    dataset: str
    split: str
    metric: str
    alpha: float
    repeats: int
    seed: int
    claims: int
    papers: int
    first: str
    tied_with_first: tuple[str, ...]
    systems: tuple[Standing, ...]
    groups: Mapping[str, tuple[str, ...]]
    pairs: tuple[PairTest, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        tied = self.tied_with_first
        return one_line(self, metric=self.metric, first=self.first, tied_with_first=tied)

    @property
    def verdict(self) -> str:
        """State who is tied with the first."""
        if len(self.systems) == 1:
            return f"{self.first} is alone."
        if not self.tied_with_first:
            return f"{self.first} is first; no other system is tied with it."
        tied = listed(list(self.tied_with_first), _MOST_NAMED)
        return f"{self.first} is first; no test separates it from {tied}."

    @property
    def method(self) -> str:
        """State what the ranks, letters and p-values mean, and how they were computed."""
        percent = f"{100 * (1 - self.alpha):g} %"
        return (
            f"Ranks: with a confidence of {percent}, the true ranks of all systems are in their "
            "intervals. No test separates systems that share a letter. Tests: paired "
            f"randomisation by gold paper ({self.claims} claims of {self.papers} papers) for each "
            f"pair of systems ({len(self.pairs)}), with the same {self.repeats} flips, corrected "
            "together (max-T, step-down)."
        )

    def table(self) -> TextTable:
        """Tabulate the systems by score."""
        languages = [*self.systems[0].languages]
        scores = [*languages, MACRO] if languages else [self.metric]
        confidence = f"ranks ({100 * (1 - self.alpha):g} %)"
        columns = ["#", "system", *scores, confidence, "groups", "p (first)"]
        is_missing = any(system.missing for system in self.systems)
        rows: list[list[Cell]] = []
        for system in self.systems:
            row: list[Cell] = [system.rank, system.system, *system.languages.values()]
            ranks = f"{system.best_rank} to {system.worst_rank}"
            row += [system.score, ranks, " ".join(system.groups), system.p_first]
            rows.append([*row, system.missing] if is_missing else row)
        return TextTable([*columns, "missing"] if is_missing else columns, rows)

    def parts(self) -> list[Part]:
        of = f"{self.dataset}, {self.split}" if self.split else self.dataset
        title = f"{of}: {self.metric}" if of else self.metric
        return [title, self.table(), self.verdict, self.method, *self.notes]

    def __str__(self) -> str:
        return render(self.parts())

    def _repr_html_(self) -> str:
        return render(self.parts(), "html")

    def markdown(self) -> str:
        return f"# {TITLE}\n\n{render(self.parts(), 'markdown')}"

    def csv(self) -> str:
        """Write one line a system; groups are separated by spaces."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        languages = [*self.systems[0].languages]
        writer.writerow([*CSV_COLUMNS, *languages])
        for system in self.systems:
            ranks = [system.rank, system.best_rank, system.worst_rank]
            more = [" ".join(system.groups), system.p_first, system.missing, system.score]
            writer.writerow([system.system, *ranks, *more, *system.languages.values()])
        return out.getvalue()

    def as_json(self) -> object:
        return finite(asdict(self))


def groups(
    results: Mapping[str, Ranking],
    dataset: Dataset,
    metric: str = MAIN_METRIC,
    alpha: float = 0.05,
    repeats: int = 10_000,
    seed: int = 0,
) -> GroupsReport:
    """Say who is tied: bound every system's rank, and group those that no test separates.

    A value is a ranking as `evaluate` takes it: a result, a file, scores, a frame, a model. All
    pairs are tested by paired randomisation by gold paper on the macro average, and corrected
    together. Raises `UserError` on runs of other claims, `ConfigError` on an unknown metric.

    Example:
        >>> import claim2source as c2s
        >>> dev = c2s.load("demo", "dev")
        >>> runs = {
        ...     "stems": c2s.BM25().index(dev.sources).search(dev.claims),
        ...     "words": c2s.BM25(stemmer=False).index(dev.sources).search(dev.claims),
        ... }
        >>> found = c2s.groups(runs, dev, repeats=200)
        >>> sorted(found.groups["a"]), found.systems[1].best_rank
        (['stems', 'words'], 1)
    """
    require(0 < alpha < 1, "alpha", alpha, "a number between 0 and 1")
    repeats = whole_number(repeats, "repeats")
    seed = whole_number(seed, "seed", 0)
    runs = read_runs(results, dataset)
    for name, run in runs.items():
        require_same_split(name, run, dataset)
    return group_runs(runs, dataset, metric, alpha, repeats, seed)


def read_groups(config: ReportConfig) -> GroupsReport:
    """Group the systems of reports, and those of files of runs, as a report's settings say.

    Raises `UserError` and `InputError` if files cannot be read, or are of other claims.
    """
    runs: dict[str, Run] = {}
    folder = config.dataset
    split = config.split or _SPLIT
    dataset = None
    if config.reports:
        folder, _, scored = read_scored(config)
        dataset = scored.dataset
        split = dataset.split
        runs.update(scored.runs)
    if config.runs:
        whole = _whole_split(config, folder, split)
        for name, run in _read_files(config.runs, whole, runs).items():
            require_same_split(name, run, whole)
            runs[name] = run
        if dataset is None:
            dataset = _judged(whole, config.languages)
    if dataset is None:
        raise ValueError("neither reports nor runs")
    for name, run in runs.items():
        coverage(run, dataset.qrels, name)
    return group_runs(
        runs,
        replace(dataset, name=str(folder or config.qrels)),
        config.metric,
        config.alpha,
        config.repeats,
        config.seed,
    )


def _whole_split(config: ReportConfig, folder: str | None, split: str) -> Dataset:
    """Load a split in all its languages, or make one of a file of judgements alone."""
    if config.qrels is None:
        return load(folder, split, lenient=config.lenient)
    qrels = read_qrels(config.qrels)
    claims = []
    for claim in qrels.claim_ids:
        claims.append(Claim(claim, "", golds=qrels.golds(claim)))
    return Dataset(tuple(claims), (), qrels, "")


def _judged(dataset: Dataset, languages: Sequence[str] | None) -> Dataset:
    """Keep the claims with a gold, in the wanted languages."""
    wanted = {primary_language(language) for language in languages or dataset.languages}
    kept = []
    for claim in dataset.claims:
        if claim.golds and claim.lang in wanted:
            kept.append(claim)
    if not kept:
        reason = f"no claim with a gold in {', '.join(sorted(wanted))}"
        raise UserError(f"languages: {reason}; the split has {', '.join(dataset.languages)}")
    return dataset.with_claims(kept)


def _read_files(paths: Sequence[Path], dataset: Dataset, taken: Iterable[str]) -> dict[str, Run]:
    """Read runs by name: files, or folders with a file for each language.

    A name that is `taken` is replaced by the path. Raises `InputError` as `read_run` does.
    """
    golds: dict[str, dict[str, tuple[str, ...]]] = {_ALL: {}}
    for claim in dataset.claims:
        golds[_ALL][claim.id] = claim.golds
        golds.setdefault(claim.lang, {})[claim.id] = claim.golds
    runs: dict[str, Run] = {}
    for name, path in zip(run_names(paths), paths, strict=True):
        name = str(path) if name in taken else name
        parts = []
        for language, file in _language_files(path).items():
            if language in golds:
                parts.append(named_as(read_run(file, keep_places=True), golds[language]).run)
        if not parts:
            reason = f"has no run in {', '.join(dataset.languages)}, such as en.trec"
            raise InputError(path, reason=reason)
        runs[name] = parts[0] if len(parts) == 1 else join_runs(parts)
    return runs


def _language_files(path: Path) -> dict[str, Path]:
    """Find a system's files by language; a file alone is one of all languages."""
    if not path.is_dir():
        return {_ALL: path}
    files: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        match = _BY_LANGUAGE.fullmatch(file.name)
        if match is None:
            continue
        language = primary_language(match[1])
        if language in files:
            reason = f"{files[language].name} and {file.name} are of the same language"
            raise InputError(path, reason=reason)
        files[language] = file
    return files


def group_runs(
    runs: Mapping[str, Run],
    dataset: Dataset,
    metric: str = MAIN_METRIC,
    alpha: float = 0.05,
    repeats: int = 10_000,
    seed: int = 0,
) -> GroupsReport:
    """Score runs on the same claims, test all pairs, and rank and group the systems.

    Claims that a run lacks count as 0, and are counted.
    """
    cleaned, themselves = without_themselves(runs, dataset.qrels)
    scored = ScoredRuns.of(cleaned, dataset, metric)
    claims = scored.claim_ids
    means = _means_by_language(scored)
    # Rounding must not order what is equal.
    names = sorted(cleaned, key=lambda name: -round(_mean(means[name]), _DIGITS))
    values = np.stack([scored.values[name] for name in names])
    papers = gold_groups(dataset.qrels, claims)
    strata = language_strata(dataset.claims, claims)
    flips = max(repeats, enough_repeats(1, alpha))
    tests = compare_pairs(values, papers, strata, flips, seed)
    letters = _letters(tests, alpha)
    by_letter: dict[str, tuple[str, ...]] = {}
    for letter, members in letters.items():
        by_letter[letter] = tuple(names[member] for member in members)
    pairs = _pair_tests(names, tests, alpha)
    tied = []
    for pair in pairs:
        if pair.system == names[0] and not pair.separated:
            tied.append(pair.other)
    notes = [*scored.notes, *themselves, *_same_scores(names, values)]
    if len(names) > 1 and tests.least_p > alpha:
        notes.append(
            f"These claims are too few to separate any two systems: the smallest p that a test of "
            f"theirs could have is {tests.least_p:.2g}."
        )
    return GroupsReport(
        dataset=dataset.name,
        split=dataset.split,
        metric=metric,
        alpha=alpha,
        repeats=flips,
        seed=seed,
        claims=len(claims),
        papers=tests.groups,
        first=names[0],
        tied_with_first=tuple(tied),
        systems=_standings(names, scored, means, tests, letters, alpha),
        groups=by_letter,
        pairs=pairs,
        notes=tuple(notes),
    )


def _means_by_language(scored: ScoredRuns) -> dict[str, dict[str, float]]:
    """Average every system's scores: system -> language -> mean."""
    masks = language_masks(scored.dataset.claims, scored.claim_ids)
    means: dict[str, dict[str, float]] = {}
    for name, values in scored.values.items():
        means[name] = {language: float(values[mask].mean()) for language, mask in masks.items()}
    return means


def _mean(by_language: Mapping[str, float]) -> float:
    return sum(by_language.values()) / len(by_language)


def _letters(tests: AllPairs, alpha: float) -> dict[str, list[int]]:
    """Name the groups that no test separates: a, b, .. z, aa, ab, .."""
    named: dict[str, list[int]] = {}
    for number, members in enumerate(tied_groups(tests.p_values <= alpha)):
        letter = ""
        rest = number + 1
        while rest:
            rest, position = divmod(rest - 1, len(ascii_lowercase))
            letter = ascii_lowercase[position] + letter
        named[letter] = members
    return named


def _pair_tests(names: Sequence[str], tests: AllPairs, alpha: float) -> tuple[PairTest, ...]:
    """List all pairs, the better system first."""
    pairs = []
    for row, system in enumerate(names):
        for column in range(row + 1, len(names)):
            p = float(tests.p_values[row, column])
            difference = float(tests.differences[row, column])
            pairs.append(PairTest(system, names[column], difference, p, p <= alpha))
    return tuple(pairs)


def _standings(
    names: Sequence[str],
    scored: ScoredRuns,
    means: Mapping[str, Mapping[str, float]],
    tests: AllPairs,
    letters: Mapping[str, Sequence[int]],
    alpha: float,
) -> tuple[Standing, ...]:
    intervals = rank_intervals(tests.better(alpha)).tolist()
    standings = []
    for row, (system, (best, worst)) in enumerate(zip(names, intervals, strict=True)):
        score = _mean(means[system])
        ahead = 0
        for other in names:
            ahead += _mean(means[other]) > score + ROUNDING
        covered = coverage(scored.runs[system], scored.dataset.qrels, system)
        standing = Standing(
            system=system,
            score=score,
            languages=means[system] if len(means[system]) > 1 else {},
            rank=1 + ahead,
            best_rank=best,
            worst_rank=worst,
            groups=tuple(letter for letter, members in letters.items() if row in members),
            p_first=float(tests.p_values[0, row]) if row else None,
            missing=covered.missing,
        )
        standings.append(standing)
    return tuple(standings)


def _same_scores(names: Sequence[str], values: np.ndarray) -> list[str]:
    """Note the systems that have the same score for every claim."""
    alike: dict[bytes, list[str]] = {}
    for name, scores in zip(names, values, strict=True):
        alike.setdefault(scores.tobytes(), []).append(name)
    notes = []
    for same in alike.values():
        if len(same) > 1:
            notes.append(f"{listed(same, _MOST_NAMED)} have the same score for every claim.")
    return notes
