"""Verify rumours: `python eval/rumors.py --config FILE --dataset FILE.json --out DIR`.

CheckThat! 2024 Task 5: up to five tweets of authorities as evidence, and a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from claim2source.core.config import (
    Between,
    Seed,
    as_plain,
    flag,
    list_field,
    read_config,
    require,
    require_one_of,
)
from claim2source.core.errors import InputError, run_program
from claim2source.core.files import finite, refuse_input, write_json
from claim2source.core.folders import require_output, require_output_file
from claim2source.core.records import Qrels
from claim2source.core.report import (
    MACRO,
    Choice,
    Report,
    StageReport,
    SystemCost,
    SystemReport,
    Table,
)
from claim2source.core.run import Run
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.datasets.rumor_outputs import (
    Verdicts,
    read_evidence,
    read_verification,
    write_evidence,
    write_verification,
)
from claim2source.datasets.rumors import Rumors, load_rumors
from claim2source.evaluation.analysis.anova import anova_parts, two_way_anova
from claim2source.evaluation.choices import choice_notes, choice_text
from claim2source.evaluation.published.scores import Scorer, published_parts, with_published
from claim2source.evaluation.published.tables import load_published
from claim2source.evaluation.reports import LoadedSystem
from claim2source.evaluation.rumors import DEFINITIONS, HEADLINE, RumorScores, score_rumors
from claim2source.io.store import Store
from claim2source.models.local import ModelOptions, with_local_models
from claim2source.pipeline.evaluate import make_report
from claim2source.pipeline.rumor_choices import (
    RumorGrid,
    choose_bm25,
    choose_threshold,
    cross_validated_bm25,
    cross_validated_threshold,
    try_bm25,
)
from claim2source.pipeline.rumors import (
    RumorResult,
    RumorSystem,
    run_rumors,
    without_unverifiable,
)
from claim2source.pipeline.views import write_markdown
from claim2source.retrieve.fielded import FieldedConfig

EVIDENCE, VERIFICATION, ANOVA = "evidence.trec", "verification.json", "anova.json"
BM25, THRESHOLD = "bm25", "threshold"
# Tukey's HSD is not defined with fewer degrees of freedom.
LEAST_FREEDOM = 2


@dataclass(frozen=True, kw_only=True)
class RumorsConfig(RumorSystem, ModelOptions):
    """Settings of `eval/rumors.py`.

    Args:
        dataset: the organisers' JSON: a list of rumours, or one on each line.
        out: folder for the report, the evidence (`evidence.trec`) and the verdicts
            (`verification.json`).
        split: name of the split; none: as the file's name ends.
        choose_on: another file of rumours to choose on; none: cross-validation.
        grid: what is tried when BM25 is chosen, and how rumours are parted.
        evidence: score this TREC run in place of a system; `name` names it.
        verification: score these verdicts in place of a system.
        store: folder of the store of vectors, scores and answers; none: the user's cache.
        device: none takes a GPU if there is one.
        repeats: draws of the intervals, by rumour; 0 for none.
        seed: of the draws.
    """

    dataset: Path
    out: Path
    split: str | None = None
    choose: list[str] = list_field(
        (), help="bm25 (analysis, k1, b and boost), threshold (of the verdict), or both"
    )
    choose_on: Path | None = None
    grid: RumorGrid = field(default_factory=RumorGrid)
    against: list[Path] | None = list_field(
        help="folders of this program to compare with: ANOVA and Tukey's HSD"
    )
    evidence: Path | None = None
    verification: Path | None = None
    store: Path | None = None
    device: Literal["cpu", "cuda"] | None = None
    repeats: Annotated[int, Between(0, 1_000_000)] = 10_000
    seed: Seed = 0
    simulated: bool = flag("a made-up server has a part in it: it is compared with nothing")

    def check(self) -> None:
        super().check()
        for name in self.choose:
            require_one_of("choose", name, (BM25, THRESHOLD))
        own = self.index == "own" or BM25 not in self.choose
        require(own, "index", self.index, "own where bm25 is chosen")
        judged = self.stance.by != "none" or THRESHOLD not in self.choose
        require(judged, "choose", self.choose, f"no {THRESHOLD} without a stance")
        given = self.evidence is not None or self.verification is not None
        require(not (given and self.choose), "choose", self.choose, "nothing for given outputs")

    @property
    def model(self) -> str:
        """Name what the system is made of; what is chosen is not what was published."""
        return "+".join([super().model, *(f"chosen-{name}" for name in self.choose)])


@dataclass(frozen=True, eq=False)
class Outputs:
    """Hold what is scored: evidence, verdicts, and how they were made.

    `named` is the evidence that the verdicts name, where that is another file's.
    """

    run: Run
    verdicts: Verdicts
    result: RumorResult | None = None
    choices: tuple[Choice, ...] = ()
    named: Run | None = None


def main(argv: Sequence[str] | None = None) -> None:
    """Run the system or read its outputs, score them, write the folder, print the tables."""
    config = read_config(RumorsConfig, argv, program="eval/rumors.py", description=__doc__)
    say(verify_rumors(config))


@with_local_models
def verify_rumors(config: RumorsConfig) -> str:
    """Find evidence and verdicts, score them; write `config.out`, return the tables.

    Raises `UserError` for files, models and servers that cannot be used.
    """
    require_output(config.out)
    inputs = [config.dataset, *filter(None, (config.choose_on, config.evidence))]
    for name, sign in ((EVIDENCE, "\tQ0\t"), (VERIFICATION, "predicted_label"), (ANOVA, "systems")):
        refuse_input(config.out / name, [*inputs, *filter(None, [config.verification])])
        require_output_file(config.out / name, sign)
    rumors = load_rumors(config.dataset, config.split)
    others = None if config.choose_on is None else load_rumors(config.choose_on)
    for one in (rumors if config.choose and others is None else None, others):
        require(one is None or one.is_labelled, "choose", config.choose, "nothing without labels")
    require(rumors.is_labelled or not config.against, "against", config.against, "none: no labels")
    if others is not None and BM25 in config.choose:
        judged = any(rumor.evidence for rumor in others.rumors)
        allowed = f"rumours with evidence, where {BM25} is chosen"
        require(judged, "choose_on", config.choose_on, allowed)
    earlier = read_earlier(config.against or [], rumors)
    require(config.name not in earlier, "name", config.name, "another than those in --against")
    if config.evidence is not None or config.verification is not None:
        outputs = read_outputs(config, rumors)
    else:
        outputs = run_system(config, rumors, others)
    scores = None
    if rumors.is_labelled:
        scores = score_rumors(
            rumors,
            outputs.run,
            outputs.verdicts,
            config.repeats,
            config.seed,
            named=outputs.named,
        )
    report = make_rumor_report(config, rumors, outputs, scores)
    parts = report_parts(report, config, scores)
    write_evidence(outputs.run, config.out / EVIDENCE, config.name.replace(" ", "_"))
    write_verification(rumors, outputs.run, outputs.verdicts, config.out / VERIFICATION)
    if scores is not None and earlier and not config.simulated:
        precision = {**earlier, config.name: scores.average_precision}
        parts += compare_precision(precision, config.out / ANOVA)
    write_markdown(config.out, f"Rumours: {config.name}", parts)
    report.write(config.out)
    return render(parts)


def run_system(config: RumorsConfig, rumors: Rumors, others: Rumors | None) -> Outputs:
    """Choose what is to be chosen, and run the system."""
    store, choices = Store(config.store), []
    system: RumorSystem = config
    bm25_of: dict[str, FieldedConfig] = {}
    chosen = config.bm25
    if BM25 in config.choose and others is not None:
        tried = try_bm25(others, config.bm25, config.grid)
        chosen, choice = choose_bm25(others, tried, config.grid.rule)
        system = replace(config, bm25=chosen)
        choices.append(choice)
    elif BM25 in config.choose:
        bm25_of, chosen, choice = cross_validated_bm25(rumors, config.bm25, config.grid)
        choices.append(choice)
    result = run_rumors(system, rumors, store, config.device, bm25_of=bm25_of, progress=True)
    used = set(bm25_of.values()) or {chosen}
    results = dict.fromkeys(used, result) if len(used) == 1 else {}

    def result_without(fold: frozenset[str]) -> RumorResult:
        """Rank all rumours by the BM25 that was chosen without a fold, and judge them."""
        bm25 = bm25_of.get(next(iter(fold), ""), chosen)
        if bm25 not in results:
            one = replace(system, bm25=bm25)
            results[bm25] = run_rumors(one, rumors, store, config.device, progress=True)
        return results[bm25]

    threshold: float | Mapping[str, float] = config.verdict.threshold
    if THRESHOLD in config.choose:
        default = config.verdict.threshold
        if others is None:
            threshold, choice = cross_validated_threshold(
                rumors, result_without, default, config.grid
            )
        else:
            known = run_rumors(system, others, store, config.device, progress=True)
            threshold, choice = choose_threshold(others, known, default)
        choices.append(choice)
    verdicts, run = result.verdicts(threshold), result.run
    if config.verdict.drop_unverifiable:
        run = without_unverifiable(run, verdicts)
    return Outputs(run, verdicts, result, tuple(choices))


def read_outputs(config: RumorsConfig, rumors: Rumors) -> Outputs:
    """Read the evidence and verdicts of another program."""
    verdicts: Verdicts = {}
    run = None if config.evidence is None else read_evidence(config.evidence, rumors)
    if config.verification is None:
        assert run is not None
        return Outputs(run, verdicts)
    verdicts, named = read_verification(config.verification, rumors)
    return Outputs(named if run is None else run, verdicts, named=named)


def read_earlier(folders: Sequence[Path], rumors: Rumors) -> dict[str, Mapping[str, float]]:
    """Read average precision by rumour of systems that this program ran; simulated ones are not.

    Raises `InputError` where a folder is of other rumours, or a name is there twice.
    """
    found: dict[str, Mapping[str, float]] = {}
    for folder in folders:
        report = Report.read(folder)
        if rumors.dataset.fingerprint not in report.provenance.data.values():
            raise InputError.at(folder, field="dataset", why="is of other rumours")
        (system,) = report.systems.values()
        if system.name in found:
            raise InputError.at(folder, field="systems", why=f"{system.name!r} is there twice")
        if not system.simulated:
            run = read_evidence(folder / EVIDENCE, rumors)
            found[system.name] = score_rumors(rumors, run, {}).average_precision
    return found


def compare_precision(precision: Mapping[str, Mapping[str, float]], file: Path) -> list[Part]:
    """Test systems by their average precision by rumour; write the ANOVA, return its tables."""
    values = {name: np.array([*own.values()]) for name, own in precision.items()}
    rumors = len(next(iter(values.values())))
    heading = f"Average precision of {len(values)} systems on {rumors} rumours"
    if (len(values) - 1) * (rumors - 1) < LEAST_FREEDOM:
        return [f"{heading}: too few for an ANOVA."]
    anova = two_way_anova(values)
    write_json(file, finite(asdict(anova)))
    return [f"{heading}:", *anova_parts(anova)]


def make_rumor_report(
    config: RumorsConfig, rumors: Rumors, outputs: Outputs, scores: RumorScores | None
) -> Report:
    """Put scores, stages, costs, choices and settings into a report."""
    known = {} if scores is None else scores.known
    table: Table = {}
    if known:
        table = {rumors.language: {**known, "queries": len(rumors.rumors)}}
    result = outputs.result
    system = SystemReport(
        config.name,
        config.model if result is not None else config.name,
        config.name,
        languages=table,
        macro=next(iter(table.values()), {}),
        intervals=None if scores is None else scores.intervals,
        cost=None if result is None else SystemCost.of(result.cost),
        stages=() if result is None else result.stages,
        choices=outputs.choices,
        failures=all_failures(() if result is None else result.stages),
        settings={} if result is None else as_plain(system_of(config)),
        simulated=config.simulated,
    )
    report = make_report(
        rumors.dataset,
        {config.name: system},
        config.name,
        name=str(config.dataset),
        program="eval/rumors.py",
    )
    headline = {name: None if scores is None else scores.values[name] for name in HEADLINE}
    notes = [f"{name}: {DEFINITIONS[name]}." for name in known]
    report = replace(report, headline=headline, notes=(*report.notes, *notes))
    if config.simulated:
        return report
    loaded = LoadedSystem(system, config.out, report.dataset, report.split)
    scorer = Scorer(Qrels(), max(config.repeats, 1), config.seed)
    return with_published(report, load_published(), [loaded], scorer)


def system_of(config: RumorsConfig) -> RumorSystem:
    """Return the system's settings alone."""
    names = RumorSystem.__dataclass_fields__
    return RumorSystem(**{name: getattr(config, name) for name in names})


def all_failures(stages: Sequence[StageReport]) -> dict[str, int]:
    """Count the failures of all stages, by stage and reason."""
    return {f"{s.name}: {why}": count for s in stages for why, count in s.failures.items()}


def report_parts(report: Report, config: RumorsConfig, scores: RumorScores | None) -> list[Part]:
    """Tabulate scores with their definitions, stages, choices and published numbers."""
    (system,) = report.systems.values()
    simulated = " (simulated: a made-up server has a part in it)" if system.simulated else ""
    parts: list[Part] = [f"{config.dataset}, {report.split}: {config.name}{simulated}"]
    if scores is None:
        parts.append("No labels: nothing to score.")
    else:
        rows: list[list[Cell]] = []
        for name, value in scores.values.items():
            bounds = scores.intervals.of(name, MACRO) if scores.intervals else None
            interval = None if bounds is None else f"{bounds[0]:.4f} to {bounds[1]:.4f}"
            rows.append([name, value, interval])
        parts.append(TextTable(["measure", "value", "95 %, by rumour"], rows))
        parts.append("\n".join(report.notes))
    if system.stages:
        rows = [
            [
                stage.name,
                f"{'>' if stage.cost.reused else ''}{stage.cost.seconds:.2f}",
                stage.cost.tokens or None,
                "; ".join(f"{why} ({count})" for why, count in stage.failures.items()) or None,
            ]
            for stage in system.stages
        ]
        numeric = [False, True, True, False]
        parts.append(TextTable(["stage", "seconds", "tokens", "failures"], rows, numeric=numeric))
    for choice in system.choices:
        said = "; ".join([f"{choice.metric} {choice.score:.4f} there", *choice_notes(choice)])
        parts.append(
            f"Chosen among {choice.compared} on {choice.claims} rumours of {choice.split}: "
            f"{choice_text(choice)} ({said})."
        )
    return [*parts, *published_parts(report.systems)]


if __name__ == "__main__":
    run_program(main)
