"""Average checkpoints of one base: `python train/soup.py --checkpoints A B C --out DIR`.

They may be epochs of one run, or the checkpoints that runs with other seeds chose; all held out
the same val. Each and the mean are scored on val, and the best is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from claim2source.core.config import list_field, read_config
from claim2source.core.errors import run_program
from claim2source.core.tables import Cell, TextTable, render
from claim2source.core.terminal import say
from claim2source.models import ModelConfig, resolve
from claim2source.models.manifest import FILE
from claim2source.pipeline.evaluate import Scoring, score_encoder
from claim2source.pipeline.options import StoreOptions
from claim2source.pipeline.selection import ChoosingOn, selection_data
from claim2source.training.curve import TO_CHOOSE_BY
from claim2source.training.export.scaling import refuse_existing
from claim2source.training.export.soup import read_ingredients, save_soup

SOUP = "their mean"


@dataclass(frozen=True)
class SoupConfig(StoreOptions):
    """Settings of `train/soup.py`.

    Args:
        out: folder of the checkpoint to write.
        dataset: folder in BEIR layout, or `demo`; none: what they were trained on.
        split: split that will be reported on; nothing is chosen on it.
        model: `allow_bin`, `allow_remote_code` and `attention`, where their base needs them; all
            else is the manifests'.
    """

    out: Path
    dataset: str | None = None
    split: str = "dev"
    model: ModelConfig = field(default_factory=ModelConfig)
    checkpoints: list[str] = list_field(str, (), help="checkpoints, or folders of training runs")


def main(argv: Sequence[str] | None = None) -> None:
    """Average, write the checkpoint, print what val says of it and of each."""
    config = read_config(SoupConfig, argv, program="train/soup.py", description=__doc__)
    say(soup(config))


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
    selection = None
    if all(one.manifest.refit is None for one in ingredients):
        selection = selection_data(dataset, config.split, choosing, resolved.manifest)
    written = save_soup(ingredients, config.out)
    if selection is None:
        return f"{config.out}: trained on val too (a refit), so that val says nothing of it"
    folders[SOUP] = config.out
    rows: list[list[Cell]] = []
    scores: dict[str, float] = {}
    for name, folder in folders.items():
        encoder = resolve(config.model.for_checkpoint(folder), config.device).encoder
        store = config.open_store()
        settings, val = Scoring(repeats=0), selection.val
        one = score_encoder(encoder, val, manifest.rendering, settings, store=store, progress=True)
        table, weighing = one.report.table, selection.weighing()
        scores[name] = weighing.score(weighing.of(one.run))
        rows.append([name, *(row["mrr@5"] for row in table.values()), scores[name]])
        if name == SOUP:
            replace(written, scores={"val": table}).write(config.out)
        languages = list(table)
    best = max(scores, key=lambda name: (scores[name], name == SOUP))
    shown = TextTable(["MRR@5 on val", *languages, TO_CHOOSE_BY], rows)
    better = "the mean" if best == SOUP else f"{best}, not the mean"
    return f"{render([shown])}\n\nBest on val: {better}. In {config.out}."


if __name__ == "__main__":
    run_program(main)
