"""Fit and measure abstention: `python eval/abstain.py --system NAME --dataset DIR --out DIR`.

With --index in place of --system the abstention of an index is measured as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from claim2source.core.config import Between, as_plain, list_field, read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.files import atomic_path, write_json
from claim2source.core.folders import require_output
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.engines import open_index
from claim2source.evaluation.abstention import (
    MOST_RISK,
    Outcomes,
    abstention_table,
    curve_table,
    draw_curves,
    measure,
    point_at,
    reliability_table,
    risk_coverage,
)
from claim2source.find.calibrate import reliability
from claim2source.io.wandb import log_tables, require_tracking
from claim2source.models.local import with_local_models
from claim2source.pipeline.abstain import (
    SCORES,
    Fitted,
    PairedResults,
    Target,
    fit_abstention,
    paired_results,
)
from claim2source.pipeline.evaluate import (
    Scoring,
    load_reported,
    make_report,
    score_system,
    unjudged,
)
from claim2source.pipeline.files import require_submittable, submit, write_runs, write_submissions
from claim2source.pipeline.options import ChoosingOptions, EvaluationOptions
from claim2source.pipeline.views import write_markdown
from claim2source.stages.abstain import AbstainModel
from claim2source.systems.read import named_systems
from claim2source.systems.system import RunSettings, SystemRunner
from claim2source.text import ClaimForm

PROGRAM = "eval/abstain.py"
SHARES = tuple(step / 10 for step in range(1, 11))
# Keys that are read with --index.
OF_INDEX = ("index", "out", "dataset", "split", "models", "offline", "device", "lenient", "store")


@dataclass(frozen=True)
class AbstainConfig(EvaluationOptions, ChoosingOptions):
    """Settings of `eval/abstain.py`.

    Args:
        system: name of a system of the YAML files.
        index: folder or bucket of an index whose own abstention is measured on the split's claims.
        out: folder for the model (`abstain.json`), the report and the curves.
        dataset: folder in BEIR layout, or `demo`.
        split: split to report on; nothing is chosen on it.
        claims: claim form of the first stage; none: the system's own.
        target: what the written model predicts: that the claim's paper is `present`, or that the
            first source is the `right` one.
        risk: share of wrong answers that is allowed.
    """

    out: Path
    system: str | None = None
    index: str | None = None
    dataset: str = "demo"
    split: str = "dev"
    files: list[Path] = list_field(help="YAML files of systems; none: all of configs/systems")
    claims: ClaimForm | None = None
    target: Target = "present"
    risk: Annotated[float, Between(0.001, 0.999)] = MOST_RISK

    def check(self) -> None:
        super().check()
        one = (self.system is None) != (self.index is None)
        require(one, "system", self.system, "a system's name, or --index DIR in its place")
        if self.index is not None:
            self.require_unset(OF_INDEX, "is not read with --index")
        self.require_unset({*vars(self)} - {"tests"}, "is not read here")


def main(argv: Sequence[str] | None = None) -> None:
    """Fit on train, report on the split, print the tables."""
    config = read_config(AbstainConfig, argv, program=PROGRAM, description=__doc__ or "")
    say(abstain(config))


@with_local_models
def abstain(config: AbstainConfig) -> str:
    """Fit, measure and write `config.out`; return the tables.

    Raises `UserError` for a system that is not there, and where nothing can be fitted on.
    """
    require_output(config.out)
    if config.index is not None:
        return measured_index(config, config.index)
    assert config.system is not None
    require_tracking(config.wandb)
    dataset = load_reported(config.dataset, config.split, lenient=config.lenient)
    require_submittable(config.submit, dataset, [config.system])
    system = named_systems(config.files, [config.system])[config.system]
    settings = RunSettings(
        config.dataset,
        config.choosing("auto"),
        store=config.open_store(),
        device=config.device,
    )
    runner = SystemRunner(dataset, settings)
    train = runner.choosing_claims(system).val
    known = paired_results(runner, system, config.claims, train)
    paired = paired_results(runner, system, config.claims, dataset) if dataset.golds else None
    kinds: list[Target] = ["present", "right"]
    of_system = f" of {train.name or config.dataset}, {train.split}"
    fitted = {
        f"logistic: {'paper present' if target == 'present' else 'first source right'}"
        + (", with none" if none else ""): fit_abstention(
            known, target, none, config.risk, said=of_system
        )
        for none in ([False, True] if known.has_none and (paired or known).has_none else [False])
        for target in kinds
    }
    # The file holds the richest model of the target that was asked for.
    written = [one for one in fitted.values() if one.target == config.target][-1]
    written.model.write(config.out / "abstain.json")
    parts: list[Part] = [f"{config.dataset}, {config.split}: {config.system}"]
    tables: dict[str, TextTable] = {}
    if paired is not None:
        more, tables["abstention"] = measured(config, paired, fitted)
        parts += more
    else:
        parts += unjudged(dataset)
    parts += [f"{name}: {fit_line(one)}" for name, one in fitted.items()]
    ranked = score_system(
        config.system, runner.run(system, config.claims), dataset, Scoring(repeats=0)
    )
    write_runs(ranked.run, dataset, config.out / "runs")
    write_submissions(ranked.run, dataset, config.out)
    described = replace(ranked.report, runs="runs")
    make_report(
        dataset, {config.system: described}, config.system, name=config.dataset, program=PROGRAM
    ).write(config.out)
    parts += submit(config.submit, ranked.run, dataset)
    write_markdown(config.out, "Abstention", parts)
    log_tables(config.wandb, tables, folder=config.out, program="abstain", config=as_plain(config))
    return render(parts)


def measured_index(config: AbstainConfig, index: str) -> str:
    """Measure an index's abstention, write it to `config.out`, and return the tables.

    Raises `UserError` where none is fitted, or the index has no paper of the claims.
    """
    engine = open_index(index)
    if engine.manifest.abstain is None:
        raise UserError(f"{index}: no abstention is fitted: index --claims DATASET does that")
    engine.device = config.device
    model = AbstainModel.of_plain(engine.manifest.abstain, Path(index))
    dataset = load_reported(config.dataset, config.split, lenient=config.lenient)
    tenths = reliability(engine, model, dataset)
    write_json(config.out / "reliability.json", [asdict(tenth) for tenth in tenths])
    parts: list[Part] = [
        f"{index}: claims of {config.dataset}, {config.split}, each once with its papers in the "
        "index and once without them, by the probability that the paper is there:",
        reliability_table(tenths),
    ]
    if model.tenths:
        parts.append(
            f"On papers and kinds of other posts that it was not fitted on ({model.fitted}):"
        )
        parts.append(reliability_table(model.tenths))
    return render(parts)


def measured(
    config: AbstainConfig, asked: PairedResults, fitted: Mapping[str, Fitted]
) -> tuple[list[Part], TextTable]:
    """Measure fitted models on the reported split, write the curves; return all, and the table."""
    confidences = asked.single_scores()
    baseline = list(confidences)[-2]
    for name, one in fitted.items():
        confidences[name] = one.model.probabilities(asked.features(one.model.design))
    outcomes = asked.outcomes
    figures = measure(confidences, outcomes, baseline, config.risk, config.repeats, config.seed)
    curves = {
        name: risk_coverage(confidence, ~outcomes.right) for name, confidence in confidences.items()
    }
    drawn = {name: curves[name] for name in (baseline, list(curves)[-len(fitted) - 1], *fitted)}
    papers = len(np.unique(outcomes.groups))
    table = abstention_table(figures, config.risk)
    parts: list[Part] = [
        f"{len(asked.claim_ids)} claims of {papers} papers, each once with its papers in the "
        f"pool and once without them and their near-duplicates. The right source is first for "
        f"{outcomes.right.sum()} of the former. 95 % intervals: {config.repeats} bootstrap "
        f"samples of gold papers. The difference is in AUROC, to {baseline!r}.",
        table,
        "Risk at most: the upper bound of the risk at that point (Clopper and Pearson, 95 %). "
        "The point is the best of the curve, which only the reported claims tell. Chosen before, "
        "on held-out papers:",
        thresholds_table(fitted, confidences, outcomes),
        "Risk by coverage:",
        curve_table(drawn, SHARES),
    ]
    with atomic_path(config.out / "curve.svg") as path:
        title = f"{config.dataset}, {config.split}: {config.system}"
        draw_curves(drawn, title).savefig(path, format="svg")
    write_json(
        config.out / "abstention.json",
        {
            "measures": {name: asdict(figure) for name, figure in figures.items()},
            "curves": {name: curve.plain() for name, curve in curves.items()},
        },
    )
    return parts, table


def thresholds_table(
    fitted: Mapping[str, Fitted], confidences: Mapping[str, np.ndarray], outcomes: Outcomes
) -> TextTable:
    """Tabulate models at their own threshold, and at the one that was safe on train."""
    columns = ["model", "answered from", "coverage", "risk", "risk at most", "answered", "wrong"]
    rows: list[list[Cell]] = []
    for name, one in fitted.items():
        curve = risk_coverage(confidences[name], ~outcomes.right)
        for why, least in (("", one.model.threshold), (" (safe on train)", one.safe)):
            at = point_at(curve, least)
            start = "nowhere" if least is None else f"{least:.4f}"
            rows.append([name, start + why, at.coverage, at.risk, at.upper, at.answered, at.wrong])
    return TextTable(columns, rows, numeric=[False, False, *[True] * 5])


def fit_line(one: Fitted) -> str:
    """Describe the choice of scores and penalty."""
    scores, penalty = one.chosen
    losses = ", ".join(
        f"{s} {min(v for k, v in one.tried.items() if k[0] == s):.4f}" for s in SCORES
    )
    return (
        f"fitted on {one.model.fitted}; the first {scores} scores of each stage, penalty "
        f"{penalty:g}, by log loss on held-out papers (best by number of scores: {losses})."
    )


if __name__ == "__main__":
    run_program(main)
