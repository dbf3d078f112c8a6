"""Average checkpoints of one base: `python train/soup.py --checkpoints A B C --out DIR`.

They may be epochs of one run, or the checkpoints that runs with other seeds chose; all held out
the same val. Each and the mean are scored on val, which chooses among them by `rule`. What is
written is the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from claim2source.core.config import list_field, read_config
from claim2source.core.errors import run_program
from claim2source.core.report import Rule, Table
from claim2source.core.tables import Cell, TextTable, render
from claim2source.core.terminal import say
from claim2source.evaluation.choices import choices_table
from claim2source.models import ModelConfig, resolve
from claim2source.models.local import with_local_models
from claim2source.models.manifest import FILE
from claim2source.pipeline.choosing import choose
from claim2source.pipeline.evaluate import Scoring, score_encoder
from claim2source.pipeline.options import StoreOptions
from claim2source.pipeline.selection import ChoosingOn, selection_data
from claim2source.training.curve import TO_CHOOSE_BY
from claim2source.training.export.scaling import refuse_existing
from claim2source.training.export.soup import read_ingredients, save_soup

if TYPE_CHECKING:
    import numpy as np

SOUP = "their mean"


@dataclass(frozen=True)
class SoupConfig(StoreOptions):
    """Settings of `train/soup.py`.

    Args:
        out: folder of the checkpoint to write.
        dataset: folder in BEIR layout, or `demo`; none: what they were trained on.
        split: split that will be reported on; nothing is chosen on it.
        rule: how val chooses: `one_se`, the mean unless one of them is better by more than one
            standard error, by paper; or the plain `best`.
        model: `allow_bin`, `allow_remote_code` and `attention`, where their base needs them; all
            else is the manifests'.
    """

    out: Path
    dataset: str | None = None
    split: str = "dev"
    rule: Rule = "one_se"
    model: ModelConfig = field(default_factory=ModelConfig)
    checkpoints: list[str] = list_field((), help="checkpoints, or folders of training runs")


def main(argv: Sequence[str] | None = None) -> None:
    """Average, write the checkpoint, print what val says of it and of each."""
    config = read_config(SoupConfig, argv, program="train/soup.py", description=__doc__)
    say(soup(config))


@with_local_models
def soup(config: SoupConfig) -> str:
    """Write the mean and score it beside what it was made of; return the scores as text.

    Raises `UserError` for checkpoints that have no mean, or held out different claims.
    """
    refuse_existing(config.out, FILE, False, "a checkpoint")
    ingredients = read_ingredients(config.checkpoints)
    manifest = ingredients[0].manifest
    dataset = config.dataset or manifest.data.dataset or "demo"
    folders = {str(one.folder): one.folder for one in ingredients}
    choosing = ChoosingOn(val="carved", lenient=config.lenient)
    resolved = resolve(config.model.for_checkpoint(ingredients[0].folder), config.device)
    selection = selection_data(dataset, config.split, choosing, resolved.manifest)
    written = save_soup(ingredients, config.out)
    rows: list[list[Cell]] = []
    values: dict[str, np.ndarray] = {}
    tables: dict[str, Table] = {}
    weighing = selection.weighing()
    # Of equal ones the first: the mean.
    for name, folder in {SOUP: config.out, **folders}.items():
        encoder = resolve(config.model.for_checkpoint(folder), config.device).encoder
        store = config.open_store()
        settings, val = Scoring(repeats=0), selection.val
        one = score_encoder(encoder, val, manifest.rendering, settings, store=store, progress=True)
        table = tables[name] = one.report.table
        values[name] = weighing.of(one.run)
        score = weighing.score(values[name])
        rows.append([name, *(row["mrr@5"] for row in table.values()), score])
        if name == SOUP:
            replace(written, scores={"val": table}).write(config.out)
    chosen, choice = choose(
        "checkpoint",
        values,
        weighing,
        settings=lambda name: {"checkpoint": name},
        # Which seed is better is noise sooner than that their mean is.
        distance=lambda name: float(name != SOUP),
        rule=config.rule,
        tables=tables,
        note=selection.note,
    )
    shown = TextTable(["MRR@5 on val", *tables[SOUP], TO_CHOOSE_BY], rows)
    parts = [shown, choices_table([("soup", choice)])]
    said = SOUP if chosen == SOUP else f"{chosen}, not the mean"
    text = render([part for part in parts if part is not None])
    return f"{text}\n\nChosen on val: {said}. {config.out} is the mean."


if __name__ == "__main__":
    run_program(main)
