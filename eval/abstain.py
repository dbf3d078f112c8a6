"""Fit and measure abstention: `python eval/abstain.py --system NAME --dataset DIR --out DIR`.

With --index in place of --system the abstention of an index is measured as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from claim2source.core.config import Between, as_plain, list_field, read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.files import write_json
from claim2source.core.folders import require_output
from claim2source.core.tables import Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.engines import open_index
from claim2source.evaluation.abstention import MOST_RISK
from claim2source.find.calibrate import reliability, reliability_parts
from claim2source.find.rankings import abstention_of
from claim2source.io.wandb import log_tables, require_tracking
from claim2source.models.local import with_local_models
from claim2source.pipeline.abstain import Target, fit_all, paired_results, write_measures
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
from claim2source.systems.read import named_systems
from claim2source.systems.system import RunSettings, SystemRunner
from claim2source.text import ClaimForm

PROGRAM = "eval/abstain.py"
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
        is_one = (self.system is None) != (self.index is None)
        require(is_one, "system", self.system, "a system's name, or --index DIR in its place")
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
        return measure_index(config, config.index)
    assert config.system is not None
    require_tracking(config.wandb)
    dataset = load_reported(config.dataset, config.split, lenient=config.lenient)
    require_submittable(config.submit, dataset, [config.system])
    system = named_systems(config.files, [config.system])[config.system]
    choosing, store = config.choosing("auto"), config.open_store()
    settings = RunSettings(config.dataset, choosing, store=store, device=config.device)
    runner = SystemRunner(dataset, settings)

    # Fit on train, and write the richest model of the target that was asked for.
    train = runner.choosing_claims(system).val
    fitting = paired_results(runner, system, config.claims, train)
    paired = paired_results(runner, system, config.claims, dataset) if dataset.golds else None
    on = f" of {train.name or config.dataset}, {train.split}"
    fitted = fit_all(fitting, paired, config.risk, on)
    [model for model in fitted.values() if model.target == config.target][-1].model.write(
        config.out / "abstain.json"
    )

    # Measure on the reported split, and write.
    title = f"{config.dataset}, {config.split}: {config.system}"
    parts: list[Part] = [title]
    tables: dict[str, TextTable] = {}
    if paired is not None:
        draws = {"repeats": config.repeats, "seed": config.seed}
        measures, tables["abstention"] = write_measures(
            paired, fitted, config.out, title, risk=config.risk, **draws
        )
        parts += measures
    else:
        parts += unjudged(dataset)
    parts += [f"{name}: {model}" for name, model in fitted.items()]
    result = runner.run(system, config.claims)
    scored = score_system(config.system, result, dataset, Scoring(repeats=0))
    write_runs(scored.run, dataset, config.out / "runs")
    write_submissions(scored.run, dataset, config.out)
    reports = {config.system: replace(scored.report, runs="runs")}
    report = make_report(dataset, reports, config.system, name=config.dataset, program=PROGRAM)
    report.write(config.out)
    parts += submit(config.submit, scored.run, dataset)
    write_markdown(config.out, "Abstention", parts)
    log_tables(config.wandb, tables, folder=config.out, program="abstain", config=as_plain(config))
    return render(parts)


def measure_index(config: AbstainConfig, index: str) -> str:
    """Measure an index's abstention, write it to `config.out`, and return the tables."""
    engine = open_index(index)
    model = abstention_of(engine)
    if model is None:
        why = "no abstention is fitted: index --claims DATASET does that"
        raise UserError(f"{index}: {why}")
    engine.device = config.device
    dataset = load_reported(config.dataset, config.split, lenient=config.lenient)
    tenths = reliability(engine, model, dataset)
    write_json(config.out / "reliability.json", [asdict(tenth) for tenth in tenths])
    title = f"{index}: claims of {config.dataset}, {config.split}"
    return render(reliability_parts(title, tenths, model))


if __name__ == "__main__":
    run_program(main)
