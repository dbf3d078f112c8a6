"""Evaluate BM25, a dense model and their fusion: `python eval/hybrid.py --checkpoint ...`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from claim2source.core.config import as_plain, read_config
from claim2source.core.errors import run_program
from claim2source.core.folders import require_output
from claim2source.core.tables import render
from claim2source.core.terminal import say
from claim2source.evaluation.families import Family
from claim2source.io.wandb import log_tables, require_tracking
from claim2source.models import ModelConfig
from claim2source.models.local import with_local_models
from claim2source.pipeline.evaluate import (
    ScoredSystem,
    Scoring,
    add_tests,
    make_report,
    score_system,
    write_runs,
    write_submissions,
)
from claim2source.pipeline.options import ChoosingOptions, EvaluationOptions
from claim2source.pipeline.submit import load_reported, require_submittable, submit
from claim2source.pipeline.views import report_parts, report_tables, write_markdown
from claim2source.retrieve import BM25Config
from claim2source.systems.choose import BM25_GRID
from claim2source.systems.nodes import AnyNode, BM25Node, DenseNode, HybridNode
from claim2source.systems.system import RunSettings, System, SystemRunner
from claim2source.text import Rendering


@dataclass(frozen=True)
class HybridConfig(EvaluationOptions, ChoosingOptions):
    """Settings of `eval/hybrid.py`.

    Args:
        checkpoint: a checkpoint, the folder of a training run (its chosen epoch), or a model.
        out: folder for the report and the runs.
        dataset: folder in BEIR layout, or `demo`.
        split: split to report on; nothing is chosen on it.
        val: claims that the fusion is chosen on: `carved` from the training split as in
            training, all of `train` (only for a model that was not trained on it), or `auto`:
            carved for a trained checkpoint, else train. BM25's settings are always chosen on
            all of train: it has no weights that could know those claims.
        bm25: its k1, b and title_weight are chosen, the rest is taken as it is.
        model: how a model that is no checkpoint of ours is read; its name is `checkpoint`.
        rendering: representation for such a model; a checkpoint has its own.
    """

    checkpoint: str
    out: Path
    dataset: str = "demo"
    split: str = "dev"
    val: Literal["auto", "carved", "train"] = "auto"
    bm25: BM25Config = field(default_factory=BM25Config)
    model: ModelConfig = field(default_factory=ModelConfig)
    rendering: Rendering | None = None


def main(argv: Sequence[str] | None = None) -> None:
    """Choose settings off the split, score the three systems, print the tables."""
    config = read_config(HybridConfig, argv, program="eval/hybrid.py", description=__doc__)
    say(evaluate_hybrid(config))


@with_local_models
def evaluate_hybrid(config: HybridConfig) -> str:
    """Choose, retrieve, score and test; write `config.out`, return the tables as text.

    Raises `UserError` where nothing can be chosen on claims that are not reported.
    """
    require_output(config.out)
    require_tracking(config.wandb)
    dataset = load_reported(config.dataset, config.split, lenient=config.lenient)
    require_submittable(config.submit, dataset, ["hybrid"])
    bm25 = BM25Node(name="bm25", bm25=config.bm25, claims=config.bm25.claims, grid=BM25_GRID)
    dense = DenseNode(
        name="dense",
        model=replace(config.model, name=config.checkpoint),
        sources_form=(config.rendering or Rendering()).sources,
        rendering=config.rendering,
    )
    hybrid = HybridNode(name="hybrid", sparse=bm25, dense=dense, fits=True)
    nodes: tuple[AnyNode, ...] = (bm25, dense, hybrid)
    settings = RunSettings(
        config.dataset,
        config.choosing(config.val),
        models=config.models,
        store=config.open_store(),
        device=config.device,
    )
    runner = SystemRunner(dataset, settings)
    fitted = runner.fitted(System("hybrid", hybrid))
    scoring = Scoring(repeats=config.repeats if config.tests else 0, seed=config.seed)
    # All three run before anything is written.
    first = fitted.system.first
    found = {
        node.shown: runner.run(System(node.shown, node), fitted.form if node == first else None)
        for node in (*first.parts, first)
    }
    chosen = {"bm25": fitted.choices[:1], "hybrid": fitted.choices}
    labels = {node.shown: node.label_of() for node in nodes}
    scored: dict[str, ScoredSystem] = {}
    for name, result in found.items():
        result = replace(result, choices=chosen.get(name, ()))
        one = score_system(name, result, dataset, scoring)
        labelled = replace(one.report, model=labels[name], runs=f"runs/{name}")
        scored[name] = replace(one, report=labelled)
        write_runs(one.run, dataset, config.out / "runs" / name)
    write_submissions(scored["hybrid"].run, dataset, config.out)
    systems_found = {name: one.report for name, one in scored.items()}
    report = make_report(
        dataset, systems_found, "hybrid", name=config.dataset, program="eval/hybrid.py"
    )
    if config.tests and dataset.golds:
        pairs = (("hybrid", "bm25"), ("hybrid", "dense"))
        families = [Family("The hybrid against its parts", pairs)]
        report = add_tests(report, scored, families, dataset, config.repeats, config.seed)
    report.write(config.out)
    parts = [f"{config.dataset}, {config.split}: {config.checkpoint}", *report_parts(report)]
    parts += submit(config.submit, scored["hybrid"].run, dataset)
    write_markdown(config.out, "Hybrid", parts)
    log_tables(
        config.wandb,
        report_tables(report),
        folder=config.out,
        program="hybrid",
        config=as_plain(config),
    )
    return render(parts)


if __name__ == "__main__":
    run_program(main)
