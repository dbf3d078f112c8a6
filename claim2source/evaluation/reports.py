"""Read the reports of evaluation programs, with the settings of their comparison."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import numpy as np

from claim2source.core.config import Between, Repeats, Seed, Settings, flag, list_field, require
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.files import real_path
from claim2source.core.folders import EVALUATION
from claim2source.core.languages import primary_language
from claim2source.core.program import next_command
from claim2source.core.records import Dataset
from claim2source.core.report import FILE as REPORT_FILE
from claim2source.core.report import Report, SystemReport
from claim2source.core.run import Run
from claim2source.core.terminal import listed
from claim2source.data.folders import dataset_folder
from claim2source.data.lenient import LENIENT
from claim2source.data.trec import read_run
from claim2source.data.wandb import Tracking
from claim2source.metrics.metrics import coverage, cutoff

# Programs whose reports have scores but no runs.
_WITHOUT_RANKINGS = ("train/finetune.py", "train/finetune_reranker.py", "train/merge.py")


@dataclass(frozen=True)
class ReportConfig(Settings):
    """Settings of `eval/report.py`.

    Args:
        html: HTML file to write; none: no page.
        out: folder for `compare.json` and `compare.md`, for `groups.json`, `groups.md` and
            `groups.csv`, or for the papers' tables as `published.md` and `published.csv`; none:
            they are printed only.
        qrels: with `runs`, their judgements, in place of a data set: TREC qrels, BEIR's TSV or the
            lab's gold TSV.
        dataset: data set of the runs: folder in BEIR layout, or its name in CLAIM2SOURCE_DATA, or
            `demo`; none: that of the reports.
        split: split of the runs; none: that of the reports, or dev without reports.
        against: the system that every other is tested against; none: the first.
        metric: metric that is compared.
        alpha: significance level of the family of tests; with `groups`, the chance of a wrong
            separation.
        repeats: number of permutations and bootstrap draws; more permutations are made if Holm
            needs them.
        seed: seed of the permutations and draws.
        claims: maximal number of claims on the page; claims on which the systems differ come first.
        wandb: log the page's tables to Weights & Biases.
    """

    reports: list[Path] = list_field((), help="folders that an evaluation wrote")
    groups: bool = flag("print intervals of ranks, and the systems that no paired test separates")
    runs: list[Path] = list_field(
        (),
        help="with groups, further systems: TREC runs or the lab's TSVs, or folders with one for "
        "each language, such as en.trec or predictions_en.tsv",
    )
    qrels: Path | None = None
    html: Path | None = None
    published: bool = flag("show our scores next to the papers' tables")
    out: Path | None = None
    dataset: str | None = None
    split: str | None = None
    languages: list[str] | None = list_field(
        help="only claims in these languages; none: those that all the reports scored"
    )
    against: str | None = None
    metric: str = "mrr@5"
    alpha: Annotated[float, Between(0.001, 0.9)] = 0.05
    repeats: Repeats = 10_000
    seed: Seed = 0
    claims: Annotated[int, Between(0, 10**6)] = 1_000
    tables: list[str] | None = list_field(
        help="only these of the papers' tables, or papers: 2025-styles or 2026; none: all"
    )
    wandb: Tracking = "off"
    lenient: bool = flag(LENIENT)

    def check(self) -> None:
        needless = bool(self.runs) or (self.published and self.html is None)
        require(bool(self.reports) or needless, "reports", self.reports, "one or more folders")
        self._check_groups()
        good = self.out is None or self.out.suffix.lower() not in (".html", ".htm")
        require(good, "out", self.out, "a folder; the page is --html FILE")
        good = self.tables is None or self.published
        require(good, "tables", self.tables, "none without --published")
        good = self.wandb == "off" or self.html is not None
        require(good, "wandb", self.wandb, "off without --html: the page's tables are logged")
        try:
            cutoff(self.metric)
        except ConfigError as error:
            raise ConfigError("metric", error.value, error.allowed) from None

    def _check_groups(self) -> None:
        if not self.groups:
            require(not self.runs, "runs", self.runs, "none without --groups")
            require(self.qrels is None, "qrels", self.qrels, "none without --groups")
            return
        require(not self.published, "groups", self.groups, "false with --published")
        is_text = self.html is None or not self.runs
        require(is_text, "runs", self.runs, "none with --html: the page is of reports")
        has_page = self.html is None or bool(self.reports)
        require(has_page, "reports", self.reports, "one or more folders with --html")
        require(self.against is None, "against", self.against, "none with --groups: all pairs")
        if self.qrels is None:
            is_known = bool(self.reports) or self.dataset is not None
            require(is_known, "dataset", self.dataset, "what the runs are of, or --qrels FILE")
            return
        is_alone = bool(self.runs) and not self.reports and self.dataset is None
        require(is_alone, "qrels", self.qrels, "none with reports or a dataset: only for --runs")
        is_one = self.languages is None and self.split is None
        require(is_one, "qrels", self.qrels, "none with languages or a split: all that it judges")


@dataclass(frozen=True)
class LoadedSystem:
    """One system of a report, whose runs are TREC files in `report_folder`.

    `alias` replaces its name if reports of several folders use the same one.
    """

    report: SystemReport
    report_folder: Path
    dataset: str
    split: str
    alias: str | None = None

    @property
    def name(self) -> str:
        return self.alias or self.report.name

    @cached_property
    def runs(self) -> dict[str, Path]:
        """Find the runs that are there: language -> file.

        Raises `InputError` if a link leads out of the report's folder.
        """
        folder = self.report_folder / self.report.runs
        files = {}
        for lang in self.report.languages:
            files[lang] = folder / f"{lang}.trec"
        present = {lang: path for lang, path in files.items() if path.is_file()}
        for path in present.values():
            if not real_path(path).is_relative_to(real_path(self.report_folder)):
                raise InputError(path, reason="is a link that leads out of the report's folder")
        return present


def named_reports(folders: Sequence[Path]) -> dict[str, Report]:
    """Read reports by the shortest distinct names of their folders.

    Raises `InputError` if a folder has no report or one that cannot be read.
    """
    distinct = list({real_path(folder): Path(folder).absolute() for folder in folders}.values())
    return dict(zip(distinct_ends(distinct), map(Report.read, distinct), strict=True))


def read_reports(folders: Sequence[Path]) -> list[LoadedSystem]:
    """Read the systems of every report, in order; systems without scores are left out.

    Raises `InputError` as `named_reports` does. Names that repeat get a prefix of their folder:
    `lora/epoch-1` and `full/epoch-1`.
    """
    paths = {real_path(folder): Path(folder) for folder in folders}
    loaded = []
    for front, folder in zip(distinct_ends([*paths]), paths.values(), strict=True):
        report = Report.read(folder)
        for system in report.scored:
            loaded.append((front, LoadedSystem(system, folder, report.dataset, report.split)))
    counts = Counter(system.name for _, system in loaded)
    systems = [
        replace(system, alias=f"{front}/{system.name}") if counts[system.name] > 1 else system
        for front, system in loaded
    ]
    # A system's own name may equal a new name: then the whole path is the prefix.
    counts = Counter(system.name for system in systems)
    return [
        replace(s, alias=f"{s.report_folder}/{s.report.name}") if counts[s.name] > 1 else s
        for s in systems
    ]


def distinct_ends(folders: Sequence[Path]) -> list[str]:
    """Shorten paths to the last parts that differ: a/x/c and b/x/c to a and b."""
    if len(folders) < 2:
        return [folder.name for folder in folders]
    for length in range(1, max(len(folder.parts) for folder in folders) + 1):
        ends = [folder.parts[: -length - 1 : -1] for folder in folders]  # the last part first
        if len(set(ends)) == len(ends):
            break
    is_shared = []
    for column in zip_longest(*ends):
        is_shared.append(len(set(column)) == 1)
    differing = []
    for end in ends:
        differing.append([part for part, skip in zip(end, is_shared, strict=False) if not skip])
    return [str(Path(*reversed(parts))) for parts in differing]


def join_runs(runs: Iterable[Run]) -> Run:
    """Join several runs, each of other claims, to one."""
    ids: list[str] = []
    claims: list[str] = []
    sources: list[str] = []
    scores: list[float] = []
    for run in runs:
        ids += run.claim_ids
        claims += np.repeat(np.array(run.claim_ids, object), np.diff(run.offsets)).tolist()
        sources += run.vocabulary[run.codes].tolist()
        scores += run.scores.tolist()
    return Run.from_rows(claims, sources, scores, claim_ids=ids)


def common_data(
    systems: Sequence[LoadedSystem],
    dataset: str | None = None,
    split: str | None = None,
) -> tuple[str, str]:
    """Return the given data set and split; by default those that all the reports name.

    Raises `UserError` if the reports name different ones.
    """
    if dataset is None:
        dataset = _common("dataset", [(system.dataset, system.name) for system in systems])
    if split is None:
        split = _common("split", [(system.split, system.name) for system in systems])
    return dataset, split


def common_languages(systems: Sequence[LoadedSystem]) -> list[str]:
    """Return the languages that all were scored on. Raises `UserError` if they differ."""
    languages = list(systems[0].report.languages)
    _common("languages", [(" ".join(sorted(s.report.languages)), s.name) for s in systems])
    return languages


def _common(key: str, values: Sequence[tuple[str, str]]) -> str:
    names: dict[str, list[str]] = {}
    for value, system in values:
        # Two spellings of a path, or a path and a name, are one data set.
        folders = []
        for name in names:
            if key == "dataset" and _one_folder(name, value):
                folders.append(name)
        names.setdefault(folders[0] if folders else value, []).append(system)
    if len(names) != 1:
        values_text = "; ".join(f"{value!r} ({listed(own)})" for value, own in names.items())
        raise UserError(f"{key}: the reports differ: {values_text}; choose with --{key}")
    return next(iter(names))


def _one_folder(a: str, b: str) -> bool:
    try:
        return a == b or real_path(dataset_folder(a)) == real_path(dataset_folder(b))
    except InputError:
        return False  # a name without a folder equals no other


def require_rankings(folder: Path) -> None:
    """Raise `InputError` for a report that has only scores: a training's, or an export's.

    The message names the folder of its evaluation, or the command that makes one.
    """
    report = Report.read(folder)
    program = report.provenance.program
    if program not in _WITHOUT_RANKINGS and report.training is None:
        return
    evaluation = folder / EVALUATION
    if (evaluation / REPORT_FILE).is_file():
        advice = f"its evaluation is in {evaluation}"
    else:
        advice = f"evaluate it: {_evaluation_command(folder, report)}"
    reason = f"is the report of {program or 'a training'}, which has no rankings; {advice}"
    raise InputError(folder, reason=reason)


def _evaluation_command(folder: Path, report: Report) -> str:
    """Return the command that evaluates the models in the folder of a training or an export."""
    run = shlex.quote(str(folder))
    data = f"--dataset {shlex.quote(report.dataset)} --split {shlex.quote(report.split)}"
    program = next_command("eval/evaluate.py")
    settings = {} if report.training is None else report.training.settings
    if "first" in settings:  # a re-ranker's, which is a stage of a system
        model = settings.get("model")
        kind = model.get("kind") if isinstance(model, Mapping) else None
        stage = f"{{rerank: {kind or 'cross_encoder'}, model: {folder}}}"
        return f"{program} --systems FILE {data} --out OUT, with the stage {stage} in FILE"
    out = shlex.quote(str(folder / EVALUATION if report.training else Path("out", folder.name)))
    return f"{program} --checkpoint {run} {data} --out {out}"


def judged_run(system: LoadedSystem, dataset: Dataset) -> Run:
    """Return a system's run in the languages of `dataset`.

    Raises `InputError` if a language's file is missing, and `UserError` if it is of another
    split: it has claims that `dataset` lacks, and lacks judged claims of `dataset`.
    """
    languages = []
    for lang in system.report.languages:
        if primary_language(lang) in dataset.languages:
            languages.append(lang)
    if absent := [lang for lang in languages if lang not in system.runs]:
        require_rankings(system.report_folder)
        raise InputError(
            system.report_folder, reason=f"{system.name}: no runs/.../{absent[0]}.trec"
        )
    run = join_runs(read_run(system.runs[lang]).run for lang in languages)
    require_same_split(system.name, run, dataset)
    return run


def require_same_split(name: str, run: Run, dataset: Dataset) -> None:
    """Raise `UserError` if a run is of another split.

    It has claims that `dataset` does not have and lacks some that are judged.
    """
    met = coverage(run, dataset.qrels, name)
    ids = set()
    for claim in dataset.claims:
        ids.add(claim.id)
    strangers = sum(claim not in ids for claim in run.claim_ids)
    if strangers and met.missing:
        raise UserError(
            f"{name}: its run has {strangers} claims that are not in "
            f"{dataset.split or 'the judgements'} and lacks {met.missing} that are judged: a run "
            "of another split"
        )
