"""Score systems over text styles: `python eval/style_grid.py --dataset DIR --out DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from claim2source.core.config import as_plain, flag, list_field, read_config, require_one_of
from claim2source.core.errors import run_program
from claim2source.core.folders import require_output
from claim2source.core.progress import watched
from claim2source.core.tables import render
from claim2source.core.terminal import say
from claim2source.evaluation.style_grid import CLAIM, SOURCE, cell_name
from claim2source.io.wandb import log_tables, require_tracking
from claim2source.models.local import with_local_models
from claim2source.pipeline.evaluate_systems import ALL_FORMS, ordered
from claim2source.pipeline.options import EvaluationOptions
from claim2source.pipeline.style_grid import GridRun
from claim2source.pipeline.style_texts import StyleOptions
from claim2source.pipeline.submit import load_reported, require_submittable, submit
from claim2source.systems.heldout import ChoosingOn
from claim2source.systems.read import named_systems
from claim2source.systems.system import RunSettings, SystemRunner
from claim2source.text import ClaimForm

PROGRAM = "eval/style_grid.py"


@dataclass(frozen=True)
class StyleGridConfig(StyleOptions, EvaluationOptions):
    """Settings of `eval/style_grid.py`.

    Args:
        out: folder for the grid and its runs.
        dataset: folder in BEIR layout, or `demo`.
        split: split to report on.
        claims: claim form in which systems read the claims of every style; `translated` is the
            C0 of the 2026 companion paper. A system with claims of its own keeps them.
    """

    out: Path
    dataset: str = "demo"
    split: str = "dev"
    files: list[Path] = list_field(help="YAML files of systems; none: all of configs/systems")
    systems: list[str] = list_field(help="only these systems of the files")
    claims: str = "translated"
    languages: list[str] | None = list_field(help="score claims in these languages only")
    dry_run: bool = flag("list what would be rewritten, encoded and searched, and stop")

    def check(self) -> None:
        StyleOptions.check(self)
        EvaluationOptions.check(self)
        require_one_of("claims", self.claims, ALL_FORMS)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the grid of every system, print its tables."""
    config = read_config(StyleGridConfig, argv, program=PROGRAM, description=__doc__ or "")
    say(evaluate_style_grid(config))


@with_local_models
def evaluate_style_grid(config: StyleGridConfig) -> str:
    """Run every system over every pair of styles, write `config.out`, return the tables.

    What the store holds is neither encoded nor searched again: one more style or system costs
    only itself.
    """
    require_output(config.out)
    require_tracking(config.wandb)
    systems, names = named_systems(config.files, config.systems)
    dataset = load_reported(config.dataset, config.split, config.languages, lenient=config.lenient)
    asked = [
        (system, claims, sources)
        for system in names
        for sources in config.source_styles or [SOURCE]
        for claims in config.claim_styles or [CLAIM]
    ]
    grid_run = GridRun(
        dataset, config, folder=config.dataset, repeats=config.repeats, seed=config.seed
    )
    form = cast(ClaimForm, config.claims)
    if config.submit is not None:
        cells = [
            cell_name(*cell) for cell in asked for _ in range(grid_run.rankings(*cell[1:], form))
        ]
        how = "choose with --systems, --claim_styles and --source_styles, and one version of texts"
        require_submittable(config.submit, dataset, cells, how)
    if config.dry_run:
        return render(grid_run.plan([systems[name] for name in names], form))
    settings = RunSettings(
        config.dataset,
        ChoosingOn(lenient=config.lenient),
        models=config.models,
        store=config.open_store(),
        device=config.device,
    )
    runner = SystemRunner(dataset, settings)
    for name in watched(ordered({name: systems[name] for name in names}), "systems", len(names)):
        grid_run.add(runner, systems[name], form, model=systems[name].label_of())
    grid = grid_run.grid(names, name=config.dataset, program=PROGRAM)
    title = f"Styles: {config.dataset}, {config.split}"
    grid_run.write(grid, config.out, title)
    log_tables(
        config.wandb,
        grid_run.tables(grid),
        folder=config.out,
        program="style_grid",
        config=as_plain(config),
    )
    parts = grid_run.parts(grid)
    if config.submit is not None:
        parts += submit(config.submit, grid_run.run_of(*asked[0]), dataset)
    return f"{title}\n{render(parts)}"


if __name__ == "__main__":
    run_program(main)
