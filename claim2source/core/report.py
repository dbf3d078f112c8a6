"""Evaluation's results: systems, scores, intervals, tests, costs, provenance."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any, ClassVar, Literal

from claim2source.core.arguments import require_path
from claim2source.core.costs import (
    SystemCost,
    cost_cells,
    cost_columns,
)
from claim2source.core.errors import InputError, value_text
from claim2source.core.files import finite, write_json
from claim2source.core.report_ranges import out_of_range
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import one_line
from claim2source.core.validate import Strict, read_json, validated

VERSION = 3
FILE = "report.json"
MACRO = "macro"
# The lab's metric: settings are chosen, and systems tested, by it.
MAIN_METRIC = "mrr@5"
# Language, or `macro`, -> metric -> mean; "queries" is the number of claims.
Table = Mapping[str, Mapping[str, int | float]]
Settings = Mapping[str, Any]  # JSON values: a system's or a choice's settings, for a reader
# How settings are chosen: see `Choice`.
Rule = Literal["one_se", "best"]
TWINS = "Sources of the same title and abstract under another id (twins), which tie with a gold:"


@dataclass(frozen=True)
class StageReport:
    """Describe one stage of a system: its cost and its failures, reason -> claims.

    `settings` are all that it ranks by: a language model's `llm` with its decoding, and prompts
    with name, version and hash.
    """

    name: str
    cost: SystemCost
    failures: Mapping[str, int] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Trial:
    """Record one setting that was tried: its score, and its scores by language if kept."""

    settings: Settings
    score: float
    scores: Table = field(default_factory=dict)
    verdict: str = ""
    cost: SystemCost | None = None


@dataclass(frozen=True)
class Choice:
    """Record settings chosen by `metric` on `claims` claims of a split that is not reported.

    `score` is the macro average; if `seen_share` is a number, each language's score is that
    share of its mean over claims of seen papers, and the rest of that over the others. `rule`
    is how it was chosen: of the settings that are within one standard error of the best, the
    one nearest to the default (`one_se`), or the best. `best` and `best_score` are the best
    setting's, `error` is the standard error, by paper, of its difference from the chosen one, and
    `reason` (JSON: `why`) explains that the best was not taken. `compared` settings were.
    """

    what: str
    settings: Settings
    score: float
    split: str
    claims: int
    metric: str = "mrr@5"
    note: str = ""
    tried: tuple[Trial, ...] = field(default=(), repr=False)
    rule: Rule = "best"
    seen_share: float | None = None
    best: Settings = field(default_factory=dict)
    best_score: float | None = None
    error: float | None = None
    reason: str = ""
    compared: int = 0

    __pydantic_config__: ClassVar[Any] = {
        "extra": "forbid",
        "alias_generator": lambda name: "why" if name == "reason" else name,
    }


@dataclass(frozen=True)
class Intervals:
    """95 % bootstrap intervals by gold paper: metric -> language or `macro` -> (low, high)."""

    values: Mapping[str, Mapping[str, tuple[float, float]]] = field(repr=False)
    repeats: int
    seed: int
    papers: int

    def of(self, metric: str, language: str = MACRO) -> tuple[float, float] | None:
        return self.values.get(metric, {}).get(language)


@dataclass(frozen=True)
class Twins:
    """Count ties between golds and sources of the same text under another id.

    Of all `golds` of the claims, `of_golds` have such a twin, `ties` are ranked with one at the
    same score, and for `lost` claims a twin of their gold is first in its place. `as_one` is MRR@5
    by language and `macro` if a gold and its twins counted as one source.
    """

    golds: int
    of_golds: int
    ties: int
    lost: int
    as_one: Mapping[str, float] = field(repr=False)


@dataclass(frozen=True)
class PublishedScore:
    """Published cell next to our score, both in the paper's unit.

    `unreliable` gives the reasons to doubt the published number, `inside` whether it lies within
    our interval (`low`, `high`); if ours is over other claims there is no difference.
    """

    table: str
    row: str
    column: str
    published: float | None
    unreliable: str
    ours: float
    difference: float | None
    low: float | None
    high: float | None
    inside: str
    same_claims: bool
    digits: int


@dataclass(frozen=True)
class Place:
    """Place of a score on a leaderboard: from `best` to `worst`, as far as it is known.

    `lead` is over the next score if it is the first, else negative, behind the best.
    """

    board: str
    language: str
    score: float
    best: int
    worst: int
    teams: int
    lead: float

    @property
    def text(self) -> str:
        return str(self.best) if self.best == self.worst else f"{self.best} to {self.worst}"


@dataclass(frozen=True)
class SystemReport(Strict):
    """Describe a row: one system over one claim form, all of it or up to one of its stages.

    `model` is the name that published tables know it by (`bm25`, a model's name, `hybrid:NAME`;
    `bm25-tuned` and `tuned-hybrid:NAME` if settings were chosen); `system` is its name whatever
    the claim form, `stage` the last stage that the row has, "" for all of them; `parts` are the
    systems it fuses; `val` are the scores on val and its parts that
    a checkpoint's manifest states; `slices` are scores of a part of the claims,
    such as those with a gold seen in training; `simulated` says that a made-up server had a part in
    it, so that it is compared with nothing; `runs` is the folder of its TREC runs, relative to
    the report's; `key` identifies all that made it; `twins` is there where golds have a source of
    the same text; `published` are the papers' cells next to its scores, `places` those
    on a lab's leaderboard.
    """

    name: str
    model: str
    system: str
    claims: str = "original"
    sources: str = ""
    style: str = "S0C0"
    languages: Table = field(default_factory=dict)
    macro: Mapping[str, int | float] = field(default_factory=dict)
    intervals: Intervals | None = None
    slices: Mapping[str, Table] = field(default_factory=dict)
    val: Mapping[str, Table] = field(default_factory=dict)
    cost: SystemCost | None = None
    stages: tuple[StageReport, ...] = ()
    choices: tuple[Choice, ...] = ()
    failures: Mapping[str, int] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    without_translation: int = 0
    rewrites: str | None = None
    simulated: bool = False
    runs: str = ""
    key: str = ""
    twins: Twins | None = None
    stage: str = ""
    published: tuple[PublishedScore, ...] = ()
    places: tuple[Place, ...] = ()

    def __repr__(self) -> str:
        return one_line(self, name=self.name, macro=self.macro)

    @property
    def title(self) -> str:
        return f"{self.system}: {self.stage}" if self.stage else self.system

    @property
    def table(self) -> Table:
        """Return the scores by language with `macro` last; empty without golds."""
        return {**self.languages, MACRO: self.macro} if self.macro else {}

    @property
    def queries(self) -> dict[str, int]:
        return {lang: int(row.get("queries", 0)) for lang, row in self.languages.items()}

    def interval(self, metric: str, language: str = MACRO) -> tuple[float, float] | None:
        return None if self.intervals is None else self.intervals.of(metric, language)

    def bounds(self, language: str, metric: str = MAIN_METRIC) -> str | None:
        bounds = self.interval(metric, language)
        return None if bounds is None else f"{bounds[0]:.4f} to {bounds[1]:.4f}"

    def choice(self, name: str) -> Choice | None:
        return next((choice for choice in self.choices if choice.what == name), None)


@dataclass(frozen=True)
class Comparison:
    """Compare one system with its baseline on one metric.

    `low` and `high` bound the difference (95 %, by gold paper); `p` is the paired randomisation
    test's, `p_holm` the same after Holm within the family, `t_p` the cluster-robust t-test's
    and `t_p_holm` that after Holm; `t` and these are None if the differences have no spread.
    `wins`, `ties` and `losses` count claims.
    """

    system: str
    baseline: str
    mean: float
    baseline_mean: float
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    t: float | None
    t_p: float | None
    t_p_holm: float | None
    wins: int
    ties: int
    losses: int
    verdict: str


@dataclass(frozen=True)
class FamilyResult:
    """Comparisons of one declared family of tests, and how they were made.

    `average` is `macro`, `micro` or a language; `repeats` the permutations used, `draws` the
    bootstrap's, both by `seed`; `least_p` the smallest p-value that these claims can give.
    """

    family: str
    average: str
    alpha: float
    repeats: int
    draws: int
    least_p: float
    claims: int
    groups: int
    comparisons: tuple[Comparison, ...] = field(repr=False)
    seed: int | None = None


@dataclass(frozen=True)
class NotRun:
    """Name a system and claim form that did not run, with the reason and a remedy."""

    system: str
    claims: str
    reason: str
    advice: str


@dataclass(frozen=True)
class Epoch:
    """Record the scores on val after an epoch and its mean loss; epoch 0 is before training.

    `parts` are the scores of val's claims of `seen` papers, which stay in train, and of `unseen`
    ones; `score` is the one to choose by, and `claims` are the reciprocal ranks by claim (in
    `run.json` only).
    """

    epoch: int
    val: Table
    loss: float | None = None
    parts: Mapping[str, Table] = field(default_factory=dict)
    score: float | None = None
    claims: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingReport:
    """Describe a training run and its choice on val.

    `chosen_checkpoint` is relative to the run's folder; `choice` says how base and epochs compared,
    without their scores by language; `skipped_steps` counts the optimizer steps that were not
    taken, since their loss or gradient was not finite; `settings` are the run's, without what is of
    one machine.
    """

    history: tuple[Epoch, ...] = field(repr=False)
    choose: str
    chosen_epoch: int
    chosen_checkpoint: str
    skipped_steps: int = 0
    choice: Choice | None = None
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Hardware:
    """State a report's machine: processor, its cores, memory in bytes, GPUs by name."""

    cpu: str
    cores: int
    memory: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Provenance:
    """State a report's origin: program, versions, git state, hardware, and hashes of the data.

    `data` maps a split to the hash of its claims, sources and golds. Prompts with versions,
    decoding, seeds and costs are each row's own: they are in its stages, intervals and tests.
    """

    program: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    git: str | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    hardware: Hardware | None = None


@dataclass(frozen=True)
class Report(Strict):
    """Results of one evaluation.

    `languages` and `macro` are the scores of the main system: the one that a training run chose,
    or the only one. `systems` are in the order of the tables. `headline` are scores shown at
    the top of `report.json` under their own names.

    Example:
        >>> import tempfile
        >>> import claim2source as c2s
        >>> dev = c2s.load("demo", "dev")
        >>> report = c2s.evaluate(c2s.BM25().index(dev.sources).search(dev.claims), dev)
        >>> folder = tempfile.mkdtemp()
        >>> report.write(folder)
        >>> c2s.Report.read(folder) == report
        True
    """

    dataset: str
    split: str
    systems: Mapping[str, SystemReport]
    languages: Table = field(default_factory=dict)
    macro: Mapping[str, int | float] = field(default_factory=dict)
    chosen: str | None = None
    tests: tuple[FamilyResult, ...] = ()
    notes: tuple[str, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    training: TrainingReport | None = None
    provenance: Provenance = Provenance()
    headline: Mapping[str, float | None] = field(default_factory=dict)
    version: Literal[3] = 3

    def __repr__(self) -> str:
        return one_line(
            self,
            dataset=self.dataset,
            split=self.split,
            systems=tuple(self.systems),
            macro=self.macro,
            tests=len(self.tests),
        )

    @property
    def table(self) -> Table:
        """Return the main system's scores by language with `macro` last; empty without golds."""
        return {**self.languages, MACRO: self.macro} if self.macro else {}

    @property
    def scored(self) -> list[SystemReport]:
        return [system for system in self.systems.values() if system.macro]

    @property
    def published(self) -> list[PublishedScore]:
        return [cell for system in self.systems.values() for cell in system.published]

    def score_table(self) -> TextTable | None:
        """Tabulate all metrics: a row for each system and language; None without scores."""
        if not self.scored:
            return None
        metrics = [metric for metric in self.scored[0].macro if metric != "queries"]
        bounded = any(system.intervals for system in self.scored)
        interval = [f"95 % of {MAIN_METRIC}"] if bounded else []
        costs = cost_columns(system.cost for system in self.scored)
        rows: list[list[Cell]] = []
        for system in self.scored:
            name = f"{system.name} (chosen)" if system.name == self.chosen else system.name
            for language, row in system.table.items():
                cells: list[Cell] = [row.get(metric) for metric in metrics]
                if bounded:
                    cells.append(system.bounds(language))
                cost = cost_cells(system.cost if language == MACRO else None, costs)
                rows.append([name, language, *cells, int(row["queries"]), *cost])
        columns = ["system", "language", *metrics, *interval, "queries", *costs]
        return TextTable(columns, rows)

    @property
    def twins_table(self) -> TextTable | None:
        """Tabulate each system's ties with sources of a gold's text; None if there are none."""
        columns = ["system", "golds", "with a twin", "tied", "first rank lost to a twin"]
        columns += [f"{MAIN_METRIC} macro", "twins as one"]
        rows: list[list[Cell]] = [
            [
                *(s.name, twins.golds, twins.of_golds, twins.ties, twins.lost),
                *(s.macro.get(MAIN_METRIC), twins.as_one[MACRO]),
            ]
            for s in self.scored
            if (twins := s.twins) is not None
        ]
        return TextTable(columns, rows) if rows else None

    def not_run_table(self) -> TextTable | None:
        rows: list[list[Cell]] = [
            [row.system, row.claims, row.reason, row.advice] for row in self.not_run
        ]
        return TextTable(["system", "claims", "why", "what to do"], rows) if rows else None

    def __str__(self) -> str:
        return render(self._parts())

    def _repr_html_(self) -> str:
        return render(self._parts(), "html")

    def _parts(self) -> list[Part]:
        table = self.score_table()
        scores = table or "No golds: nothing to score."
        twins = self.twins_table
        twins_parts: list[Part] = [TWINS, twins] if twins is not None else []
        return [f"{self.dataset}, {self.split}", scores, *self.notes, *twins_parts]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, without a system's empty fields; null for what is not finite."""
        values = asdict(self)
        choices = [choice for system in values["systems"].values() for choice in system["choices"]]
        if self.training is not None and self.training.choice is not None:
            choices.append(values["training"]["choice"])
        for choice in choices:
            choice["why"] = choice.pop("reason")
        for name, system in values["systems"].items():
            values["systems"][name] = {k: v for k, v in system.items() if v not in _EMPTY}
        headline = values.pop("headline")
        if headline:
            values |= {**headline, "headline": list(headline)}
        first = ("version", "dataset", "split", *headline, "languages", "macro", "chosen")
        return {key: finite(value) for key, value in {**dict.fromkeys(first), **values}.items()}

    def write(self, folder: str | Path) -> None:
        """Write `report.json` into a folder, completely or not at all."""
        write_json(Path(folder) / FILE, self.to_json())

    @classmethod
    def read(cls, folder: str | Path) -> Report:
        """Read a folder's `report.json`, or a report under another name that ends in `.json`.

        Raises `InputError` naming the field if there is none, if it is of another version, or
        where anything in it is missing, unknown or of another type.
        """
        require_path(folder, "folder")
        path = Path(folder)
        path = path if path.suffix == ".json" and path.is_file() else path / FILE
        raw = read_json(path)
        if not isinstance(raw, dict):
            raise InputError(path, reason="is not a JSON object")
        version = raw.get("version")
        if version != VERSION:
            older = "none: no report, or one of version 0.1.0; evaluate again to compare"
            cause = older if version is None else f"{version!r}; this version reads {VERSION}"
            raise InputError(path, field="version", reason=cause)
        _upgrade(raw)
        headline = raw.get("headline", [])
        if isinstance(headline, list) and all(isinstance(n, str) and n in raw for n in headline):
            raw["headline"] = {name: raw.pop(name) for name in headline}
        # As JSON, where a list may stand for a tuple.
        report = validated(Report, json.dumps(raw), path)
        for key, value, allowed in out_of_range(raw):
            raise InputError(
                path, field=key, reason=f"{value!r} is not allowed; allowed: {allowed}"
            )
        for key, text in report._file_names():
            if reason := location_error(text):
                raise InputError(path, field=key, reason=f"{value_text(text)} {reason}")
        return report

    def _file_names(self) -> Iterator[tuple[str, str]]:
        for name, system in self.systems.items():
            for key, text in (("name", name), ("name", system.name), ("runs", system.runs)):
                yield f"systems.{name}.{key}", text
            for language in system.languages:
                yield f"systems.{name}.languages", language
        if self.training is not None:
            yield "training.chosen_checkpoint", self.training.chosen_checkpoint


def _upgrade(raw: dict[str, Any]) -> None:
    """Move what a merge chose from the report to its system; drop approximate indexes."""
    systems = raw.get("systems")
    systems = systems if isinstance(systems, dict) else {}
    for system in systems.values():
        if isinstance(system, dict):
            system.pop("index", None)
    choices, chosen = raw.pop("choices", None), systems.get(str(raw.get("chosen")))
    if choices and isinstance(chosen, dict) and not chosen.get("choices"):
        chosen["choices"] = choices


def location_error(text: str) -> str | None:
    """Explain why a text names no place within its folder, here or on Windows; None if it does."""
    windows = PureWindowsPath(text)
    absolute = text.startswith(("/", "\\")) or bool(windows.drive)
    if absolute or any(sign in text for sign in "\0\r\n") or ".." in windows.parts:
        return "is not a place within the report's folder"
    return None


_EMPTY: tuple[Any, ...] = (None, "", (), {}, [])
