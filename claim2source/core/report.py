"""Results of an evaluation: systems, scores, intervals, tests, costs, provenance."""

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
# The lab's metric, by which settings are chosen and systems are tested.
MAIN_METRIC = "mrr@5"
# Language, or `macro`, -> metric -> mean; "queries" is the number of claims.
Table = Mapping[str, Mapping[str, int | float]]
Settings = Mapping[str, Any]  # settings of a system or a choice as JSON values, for display
# How settings are chosen: see `Choice`.
Rule = Literal["one_se", "best"]
TWINS = "Sources with a gold's title and abstract under another id (twins), which tie with it:"


@dataclass(frozen=True)
class StageReport:
    """One stage of a system with its cost and its failures (reason -> number of claims).

    `settings` are all that its ranking depends on, such as a language model's `llm` with its
    decoding, and prompts with name, version and hash.
    """

    name: str
    cost: SystemCost
    failures: Mapping[str, int] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Trial:
    """One setting that was tried, with its score, and its scores by language if available."""

    settings: Settings
    score: float
    scores: Table = field(default_factory=dict)
    verdict: str = ""
    cost: SystemCost | None = None


@dataclass(frozen=True)
class Choice:
    """Settings chosen by `metric` on `claims` claims of a split that is not reported.

    `score` is the macro average; if `seen_share` is a number, each language's score is a weighted
    mean: `seen_share` for claims of seen papers, the rest for the others. `rule` is the rule of
    choice: the best setting, or the one nearest to the default among those within one standard
    error of the best (`one_se`). `best` and `best_score` describe the best setting, `error` is the
    standard error, by paper, of its difference from the chosen one, and `reason` (JSON: `why`)
    explains why the best was not chosen. `compared` is the number of settings.
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
    """Counts of ties between golds and sources with the same text under another id (twins).

    Of all `golds` of the claims, `of_golds` have a twin, `ties` have the same score as one, and
    for `lost` claims a twin is ranked first instead of the gold. `as_one` is MRR@5 by language and
    `macro` if a gold and its twins are treated as one source.
    """

    golds: int
    of_golds: int
    ties: int
    lost: int
    as_one: Mapping[str, float] = field(repr=False)


@dataclass(frozen=True)
class PublishedScore:
    """Published score next to ours, both in the paper's unit.

    `unreliable` lists the reasons to doubt the published number; `inside` is whether it is within
    our interval (`low`, `high`). There is no difference if ours was computed on other claims.
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
    """Rank of a score on a leaderboard: between `best` and `worst`, if not known exactly.

    `lead` is the lead over the next score at rank 1, else the (negative) distance to the best.
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
    """A row: one system with one claim form, with all of its stages or up to one of them.

    `model` is its name in published tables (`bm25`, a model's name, `hybrid:NAME`; `bm25-tuned`
    and `tuned-hybrid:NAME` if settings were chosen); `system` is its name without the claim form,
    `stage` the row's last stage ("" for all stages); `parts` are the systems that it fuses; `val`
    are the scores on val and its parts from a checkpoint's manifest; `slices` are scores of a part
    of the claims, such as those with a gold seen in training; `simulated` marks a row that used a
    made-up server and is not compared with others; `runs` is the folder of its TREC runs, relative
    to the report's; `key` identifies everything that it depends on; `twins` is set if golds have
    twins; `published` are papers' scores next to its own, `places` its ranks on leaderboards.
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
    """Comparison of one system with its baseline on one metric.

    `low` and `high` bound the difference (95 %, by gold paper). `p` is the p-value of the paired
    randomisation test, `p_holm` after Holm's correction within the family; `t_p` and `t_p_holm`
    are those of the cluster-robust t-test, None like `t` if the differences have no spread.
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
    """Comparisons of one declared family of tests, with the settings of the tests.

    `average` is `macro`, `micro` or a language; `repeats` is the number of permutations, `draws`
    that of bootstrap samples, both from `seed`; `least_p` is the smallest possible p-value.
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
    """A system and claim form that did not run, with the reason and a remedy."""

    system: str
    claims: str
    reason: str
    advice: str


@dataclass(frozen=True)
class Epoch:
    """Scores on val after an epoch, and the epoch's mean loss; epoch 0 is before training.

    `parts` are the scores of val's claims with `seen` papers, which stay in train, and with
    `unseen` ones; `score` decides the choice, and `claims` are the reciprocal ranks by claim (in
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
    """A training run and its choice on val.

    `chosen_checkpoint` is relative to the run's folder; `choice` compares base and epochs, without
    their scores by language; `skipped_steps` counts the optimizer steps that were skipped because
    their loss or gradient was not finite; `settings` are the run's, without those that depend on
    the machine.
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
    """Machine of a report: processor, cores, memory in bytes, names of the GPUs."""

    cpu: str
    cores: int
    memory: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Provenance:
    """Origin of a report: program, versions, git state, hardware, and hashes of the data.

    `data` maps a split to the hash of its claims, sources and golds. Prompts with versions,
    decoding, seeds and costs belong to a row: see its stages, intervals and tests.
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
    or the only one. `systems` are in the order of the tables. `headline` are scores at the top
    level of `report.json`.

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
        """Tabulate each system's ties between golds and their twins; None if there are none."""
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
        """Return the JSON form without a system's empty fields; infinity and NaN become null."""
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

        Raises `InputError` if there is none or it has another version, or with the field that is
        missing, unknown or of another type.
        """
        require_path(folder, "folder")
        path = Path(folder)
        path = path if path.suffix == ".json" and path.is_file() else path / FILE
        raw = read_json(path)
        if not isinstance(raw, dict):
            raise InputError(path, reason="is not a JSON object")
        version = raw.get("version")
        if version != VERSION:
            older = "missing: not a report, or one of version 0.1.0; evaluate again to compare"
            cause = older if version is None else f"{version!r}; this version reads {VERSION}"
            raise InputError(path, field="version", reason=cause)
        _upgrade(raw)
        headline = raw.get("headline", [])
        if isinstance(headline, list) and all(isinstance(n, str) and n in raw for n in headline):
            raw["headline"] = {name: raw.pop(name) for name in headline}
        # Validated as JSON, because a JSON list is accepted as a tuple.
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
    """Move a merge's choices from the report to its system; drop approximate indexes."""
    systems = raw.get("systems")
    systems = systems if isinstance(systems, dict) else {}
    for system in systems.values():
        if isinstance(system, dict):
            system.pop("index", None)
    choices, chosen = raw.pop("choices", None), systems.get(str(raw.get("chosen")))
    if choices and isinstance(chosen, dict) and not chosen.get("choices"):
        chosen["choices"] = choices


def location_error(text: str) -> str | None:
    """Return the reason why a path is unsafe within its folder, also on Windows; None if safe."""
    windows = PureWindowsPath(text)
    absolute = text.startswith(("/", "\\")) or bool(windows.drive)
    if absolute or any(sign in text for sign in "\0\r\n") or ".." in windows.parts:
        return "is not a path within the report's folder"
    return None


_EMPTY: tuple[Any, ...] = (None, "", (), {}, [])
