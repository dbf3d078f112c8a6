"""Score recipes out of fold, row by row: each claim of train by a model not trained on it.

python scripts/ablate_folds.py [--rows NAME ...] [--folds 2] [--out DIR]

A row is one run of train/folds.py on ct25, tested over all claims of train against another row;
dev is not read. Finished folds are not trained again and a stopped one goes on, so that the table
can be made in several calls. Rows not run yet stand in it with their command.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import (
    flag,
    list_field,
    read_config,
    require_between,
    require_one_of,
    require_seed,
)
from claim2source.core.errors import UserError, run_program
from claim2source.core.files import write_json, write_text
from claim2source.core.records import Dataset
from claim2source.core.run import Run
from claim2source.core.tables import Cell, markdown_table, plain_table
from claim2source.core.terminal import say
from claim2source.datasets import load
from claim2source.evaluation.significance import paired_randomisation
from claim2source.io.store import Store
from claim2source.io.trec import write_trec_run
from claim2source.models import ModelConfig
from claim2source.pipeline.choosing import weigh
from claim2source.pipeline.out_of_fold import read_out_of_fold
from claim2source.retrieve import BM25, BM25Config, Dense, FusionConfig, fuse
from claim2source.text import Rendering
from claim2source.training.folds import train_first_fold, train_folds
from claim2source.training.folds_config import FoldsConfig
from scripts.data_folder import data_folder

METRIC = "mrr@5"
MINILM, LENGTH = "sentence-transformers/all-MiniLM-L6-v2", 256
RENDERING = Rendering("original", "title_abstract")
Settings = Mapping[str, str | int | float]
# Beside the rows, in the folder `out`; a row with this setting distils it.
TEACHER, SCORES = "teacher", "losses.distillation.scores"


@dataclass(frozen=True)
class Row:
    """One recipe: its `settings` of train/folds.py are added to those of the row `on`.

    `against` is the row of the paired test; a row without settings and `on` is the base model.
    """

    name: str
    what: str
    settings: Settings = field(default_factory=dict)
    on: str | None = None
    against: str | None = None


# configs/finetune/ct25_minilm.yaml, but for the choice of an epoch: folds are compared as trained.
RECIPE: Settings = {
    "tuning": "full",
    "model.name": MINILM,
    "model.max_length": LENGTH,
    "rendering.claims": RENDERING.claims,
    "rendering.sources": RENDERING.sources,
    "optimisation.epochs": 2,
    "optimisation.batch_size": 32,
    "optimisation.negatives": 1,
    "optimisation.temperature": 0.05,
    "optimisation.learning_rate": 5e-5,
    "optimisation.warmup_ratio": 0.1,
    "optimisation.dropout": 0.0,
    "choose": "last",
    "data.val_share": 0.05,
}
ROWS = (
    Row("zero-shot", "the base model"),
    Row(
        "claims-only",
        "the recipe of ct25_minilm.yaml, but the claims' side alone",
        {**RECIPE, "optimisation.train": "query_only"},
        against="zero-shot",
    ),
    Row(
        "batch-128",
        "claims-only, batches of 128 at twice the learning rate",
        {"optimisation.batch_size": 128, "optimisation.learning_rate": 1e-4},
        on="claims-only",
        against="claims-only",
    ),
    Row(
        "negatives-7",
        "batch-128, 7 negatives of each claim",
        {"optimisation.negatives": 7},
        on="batch-128",
        against="batch-128",
    ),
    Row(
        "hot",
        "negatives-7, four times the learning rate",
        {"optimisation.learning_rate": 4e-4},
        on="negatives-7",
        against="negatives-7",
    ),
    Row(
        "teacher",
        "hot, distilling the untrained hybrid at weight 1",
        {
            "losses.distillation.weight": 1.0,
            SCORES: TEACHER,
            "losses.distillation.temperature": "null",
        },
        on="hot",
        against="hot",
    ),
    Row(
        "epochs-4",
        "hot, four epochs, each with its next negatives",
        {"optimisation.epochs": 4, "batches.rotate_negatives": "true"},
        on="hot",
        against="hot",
    ),
    Row("both", "the recipe of ct25_minilm.yaml: both sides", RECIPE, against="claims-only"),
    Row(
        "both-64",
        "both, batches of 64 at 1.4 times the learning rate, in chunks of 32 texts",
        {
            "optimisation.batch_size": 64,
            "optimisation.chunk_size": 32,
            "optimisation.learning_rate": 7e-5,
        },
        on="both",
        against="both",
    ),
    Row(
        "both-pairs",
        "both, after a first phase on the pool's pairs (configs/finetune/pool_pairs.yaml)",
        {"model.name": "checkpoints/pool_pairs_merged"},
        on="both",
        against="both",
    ),
    Row(
        "me5",
        "both, from multilingual-e5-small in 4 bits, word embeddings frozen",
        {
            "model.name": "multilingual-e5-small-4bit",
            "optimisation.temperature": 0.01,
            "optimisation.train_embeddings": "false",
        },
        on="both",
        against="both",
    ),
)


@dataclass(frozen=True)
class FoldRowsConfig:
    """Settings of `scripts/ablate_folds.py`.

    Args:
        out: folder for the folds and the table.
        folds: number of folds, and of trainings of a row.
        seed: of every training.
        store: folder of the embedding store; none: one in `out`.
    """

    out: Path = Path("checkpoints/ablate_folds")
    folds: int = 2
    seed: int = 42
    store: Path | None = None
    first: bool = flag("train the first fold alone, and score its claims")
    rows: list[str] | None = list_field(help="run only these rows; finished ones are shown")

    def __post_init__(self) -> None:
        require_between("folds", self.folds, 2, 100)
        require_seed("seed", self.seed)
        for row in self.rows or ():
            require_one_of("rows", row, [row.name for row in ROWS])

    @property
    def vectors(self) -> Path:
        """The folder of the embedding store."""
        return self.store or self.out / "store"

    def folder(self, row: Row) -> Path:
        """The folder of a row's folds."""
        return self.out / f"{row.name}-{self.seed}-of-{self.folds}"


@dataclass(frozen=True)
class Found:
    """What a row reached: its ranked claims, those of seen papers, CPU seconds."""

    run: Run
    seen: frozenset[str] = frozenset()
    seconds: float | None = None


def settings_of(row: Row) -> Settings:
    """Collect a row's settings with those of the rows that it extends."""
    below = next((other for other in ROWS if other.name == row.on), None)
    return {**(settings_of(below) if below else {}), **row.settings}


def arguments(config: FoldRowsConfig, row: Row) -> list[str]:
    """Give the arguments of train/folds.py for a row."""
    settings = dict(settings_of(row))
    if SCORES in settings:
        settings[SCORES] = str(config.out / TEACHER)
    settings |= {
        "data.dataset": str(data_folder("ct25")),
        "optimisation.seed": config.seed,
        "folds": config.folds,
        "store": str(config.vectors),
        "wandb.mode": "off",
        "out": str(config.folder(row)),
    }
    return [f"--{key}={value}" for key, value in settings.items()]


def ablate_folds(config: FoldRowsConfig) -> str:
    """Run the wanted rows that are missing, write the table as Markdown, return it as text."""
    data = load(str(data_folder("ct25")), "train")
    found = {row.name: one for row in ROWS if (one := _found(config, row, data)) is not None}
    # Folds are drawn from the claims alone: every row has the same, but for the base model.
    trained = [found[row.name] for row in ROWS if row.name in found and settings_of(row)]
    seen = trained[0].seen if trained else frozenset()
    claims = set(trained[0].run.claim_ids) if trained else {claim.id for claim in data.claims}
    weighing = weigh(data.with_claims(claim for claim in data.claims if claim.id in claims))
    values = {
        name: weighing.of(one.run.restricted(weighing.claim_ids)) for name, one in found.items()
    }
    of_seen = np.array([claim in seen for claim in weighing.claim_ids], dtype=bool)
    lines: list[list[Cell]] = []
    for row in ROWS:
        if row.name not in found:
            more = " --first" if config.first else ""
            command = f"not run: python scripts/ablate_folds.py --rows {row.name}{more}"
            lines.append([row.name, f"{row.what} ({command})", *[None] * 6])
            continue
        own, spent = values[row.name], found[row.name].seconds
        line: list[Cell] = [row.name, row.what, float(own.mean())]
        line += [float(own[p].mean()) if p.any() else None for p in (of_seen, ~of_seen)]
        for part in (np.ones(len(own), dtype=bool), ~of_seen):
            line.append(_difference(row, values, weighing.groups, part))
        lines.append([*line, None if spent is None else f"{spent / 60:.1f}"])
    columns = ["row", "what", METRIC, "seen papers", "unseen papers"]
    columns += ["difference (p)", "on unseen papers (p)", "CPU min"]
    fold = "the first fold" if config.first else "all folds"
    title = f"train out of fold, {fold} of {config.folds}, seed {config.seed}: "
    title += f"{len(of_seen)} claims, {int(of_seen.sum())} of seen papers"
    text = f"{title}\n\n{markdown_table(columns, lines)}\n"
    name = f"{'first' if config.first else 'all'}-of-{config.folds}-{config.seed}.md"
    write_text(config.out / name, text)
    return f"{title}\n{plain_table(columns, lines)}"


def _difference(
    row: Row, values: Mapping[str, np.ndarray], groups: np.ndarray, part: np.ndarray
) -> str | None:
    """Test a row against the one that it names, by paper."""
    if row.against not in values or not part.any():
        return None
    ours, theirs = values[row.name][part], values[str(row.against)][part]
    test = paired_randomisation(ours, theirs, groups[part])
    return f"{test.difference:+.4f} ({test.p_value:.3f}) against {row.against}"


def _found(config: FoldRowsConfig, row: Row, data: Dataset) -> Found | None:
    """Read what a row reached, or train it where it is wanted; None otherwise."""
    wanted = config.rows is None or row.name in config.rows
    if not settings_of(row):
        return Found(_untrained(config, data)) if wanted else None
    folder, words = config.folder(row), arguments(config, row)
    spent = folder / ("first.json" if config.first else "row.json")
    if not spent.is_file() and not wanted:
        return None
    if spent.is_file():
        known = json.loads(spent.read_text(encoding="utf-8"))
        if known["arguments"] != words:
            why = "holds folds of other settings; remove it or give another --out"
            raise UserError(f"{folder}: {why}")
        seconds, resumed = known["seconds"], False
    else:
        resumed = folder.exists()
        say(f"== {row.name}: {row.what}")
        if SCORES in settings_of(row):
            _teach(config, data)
        seconds = _seconds()
    asked = read_config(FoldsConfig, words, program="scripts/ablate_folds.py", description="")
    if config.first:
        fold, run = train_first_fold(asked)
        seen = frozenset(fold.seen)
    else:
        train_folds(asked)
        record, run = read_out_of_fold(folder)
        seen = record.seen
    if not spent.is_file():
        # The time of a resumed row is not that of the whole.
        seconds = None if resumed else _seconds() - seconds
        write_json(spent, {"arguments": words, "seconds": seconds})
    return Found(run, seen, seconds)


def _seconds() -> float:
    """Return the CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _untrained(config: FoldRowsConfig, data: Dataset) -> Run:
    """Rank train by the base model, which has seen none of its claims."""
    model = ModelConfig(name=MINILM, pooling="mean", max_length=LENGTH)
    dense = Dense(model, rendering=RENDERING, store=Store(config.vectors))
    return dense.index(data.sources).search(data.claims, 100).run


def _teach(config: FoldRowsConfig, data: Dataset) -> None:
    """Write the run of BM25 fused with the base model, neither of them trained or tuned."""
    sparse = BM25(BM25Config()).index(data.sources).search(data.claims, 100).run
    fused = fuse(sparse, _untrained(config, data), FusionConfig(), k=100)
    folder = config.out / TEACHER
    folder.mkdir(parents=True, exist_ok=True)
    write_trec_run(fused, folder / "train.trec", TEACHER)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the rows and print the table."""
    config = read_config(
        FoldRowsConfig, argv, program="scripts/ablate_folds.py", description=__doc__ or ""
    )
    say(ablate_folds(config))


if __name__ == "__main__":
    run_program(main)
