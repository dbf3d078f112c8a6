"""Run ablations row by row: each row changes one thing and is tested against another row.

python scripts/ablate.py [--tables ct25 demo retention] [--rows NAME ...] [--out DIR]

A row is one run of train/finetune.py, of at most 12 minutes on two CPU cores. Finished rows are
not run again and a stopped row resumes, so that a table can be made in several calls; a row whose
settings have changed starts again. The table shows rows not yet run with their command.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import Seed, list_field, read_config, require
from claim2source.core.config import Settings as Checked
from claim2source.core.errors import UserError, run_program
from claim2source.core.files import content_hash, write_json, write_text
from claim2source.core.folders import is_run
from claim2source.core.report import Report
from claim2source.core.tables import Cell, markdown_table, plain_table
from claim2source.datasets import load
from claim2source.datasets.grouping import gold_groups
from claim2source.evaluation.metrics import evaluate, language_table, macro
from claim2source.evaluation.significance import paired_randomisation
from claim2source.io.store import Store
from claim2source.models import ModelConfig, Resolved, resolve
from claim2source.retrieve import Dense
from claim2source.text import Rendering
from claim2source.training.config import FinetuneConfig
from claim2source.training.export.weighted_sum import ScaledCheckpoint
from claim2source.training.run_folder import resumable
from scripts.ablate_retention import RETENTION, RETENTION_ME5, SMALL, make_small
from scripts.ablate_rows import (
    COMMON,
    DEMO_RECIPE,
    LIMITED,
    MINILM,
    Row,
    Settings,
    Table,
    settings_of,
)
from scripts.data_folder import REPOSITORY, data_folder

METRIC = "mrr@5"
_UNLIMITED = settings_of(mining__max_share="null", mining__max_title_similarity="null")
CT25 = Table(
    "ct25",
    {
        **COMMON,
        **settings_of(
            model__name=MINILM,
            model__max_length=128,
            rendering__claims="original",
            rendering__sources="title_abstract",
            optimisation__epochs=1,
            optimisation__learning_rate=1e-4,
            optimisation__negatives=1,
        ),
    },
    {"dev": ("ct25", "dev", None)},
    (
        Row("zero-shot", "the base model", trained=False),
        Row(
            "pool-all",
            "one hard negative from the whole pool, no limits",
            {**_UNLIMITED, **settings_of(mining__pool="all")},
            against="zero-shot",
        ),
        Row(
            "pool-train-golds",
            "the same from the golds of training claims",
            settings_of(mining__pool="train-golds"),
            on="pool-all",
            against="pool-all",
        ),
        Row(
            "limits",
            "train golds; no near-duplicates of the gold, at most 0.95 of its score "
            "(in-batch golds are masked in every row)",
            LIMITED,
            on="pool-train-golds",
            against="pool-train-golds",
        ),
        Row(
            "large-pool",
            "limits, and batches of 128 claims in chunks of 32 texts",
            settings_of(optimisation__batch_size=128, optimisation__chunk_size=32),
            on="limits",
            against="limits",
        ),
        Row(
            "scale",
            "large-pool, and the scale between base and tuned chosen on val",
            settings_of(scales=[0.25, 0.5, 0.75]),
            on="large-pool",
            against="large-pool",
        ),
    ),
)
DEMO = Table(
    "demo",
    DEMO_RECIPE,
    {"test": ("demo", "test", None)},
    (
        Row("zero-shot", "the base model", trained=False),
        *CT25.rows[1:],
        Row(
            "alpha",
            "limits, and languages' shares as the root of their size",
            settings_of(batches__alpha=0.5),
            on="limits",
            against="limits",
        ),
        Row(
            "one-language",
            "limits, and one language per batch",
            settings_of(batches__order="language"),
            on="limits",
            against="limits",
        ),
        Row(
            "consistency",
            "limits, and translated-pair consistency at weight 1",
            settings_of(losses__consistency__weight=1.0),
            on="limits",
            against="limits",
        ),
        Row(
            "keep-base",
            "limits, and KL to the base model at weight 1",
            settings_of(losses__keep_base__weight=1.0),
            on="limits",
            against="limits",
        ),
        Row(
            "query-only",
            "limits, and the claims' side alone",
            settings_of(optimisation__train="query_only"),
            on="limits",
            against="limits",
        ),
    ),
)
TABLES = {"ct25": CT25, "demo": DEMO, "retention": RETENTION, "retention_me5": RETENTION_ME5}


@dataclass(frozen=True)
class AblateConfig(Checked):
    """Settings of `scripts/ablate.py`.

    Args:
        out: folder for runs and tables.
        seed: of every run.
        store: folder of the embedding store; default: one in `out`.
    """

    out: Path = Path("checkpoints/ablate")
    seed: Seed = 42
    store: Path | None = None
    tables: list[str] | None = list_field(help="make only these tables")
    rows: list[str] | None = list_field(help="run only these rows; finished ones are shown too")

    def check(self) -> None:
        """Check that there are such tables, and such rows in them."""
        names = self.tables or list(TABLES)
        for name in names:
            require(name in TABLES, "tables", name, ", ".join(TABLES))
        rows = [row.name for name in names for row in TABLES[name].rows]
        for name in self.rows or ():
            require(name in rows, "rows", name, ", ".join(rows))

    @property
    def vectors(self) -> Path:
        """The folder of the embedding store."""
        return self.store or self.out / "store"


@dataclass(frozen=True)
class Scores:
    """MRR@5 by language and, for the paired test, of every claim with its group of golds."""

    scores: dict[str, float]
    claims: list[str]
    values: list[float]
    groups: list[int]


@dataclass(frozen=True)
class Outcome:
    """What a row reached, as in its row.json.

    Args:
        key: hash of its settings.
        val: score of the chosen checkpoint on val.
        note: which checkpoint was chosen.
        seconds: of the training; None where it was resumed.
        targets: scores by target.
    """

    key: str = ""
    val: float | None = None
    note: str = ""
    seconds: int | None = None
    targets: dict[str, Scores] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path, key: str) -> Outcome | None:
        """Read a row.json; None where it is missing or has other settings than `key` names."""
        if not file.is_file():
            return None
        done = json.loads(file.read_text(encoding="utf-8"))
        if done["key"] != key:
            return None
        targets = {name: Scores(**scores) for name, scores in done.pop("targets", {}).items()}
        return cls(**done, targets=targets)


def ablate(config: AblateConfig) -> str:
    """Run the wanted rows that are missing, write the tables as Markdown, return them as text."""
    names = config.tables or list(TABLES)
    texts = []
    for name in names:
        make_small(TABLES[name], config.out / "data")
        outcomes: dict[str, Outcome] = {}
        for row in TABLES[name].rows:
            outcome = _outcome(config, name, row)
            if outcome is not None:
                outcomes[row.name] = outcome
        table = _rows(config, name, outcomes)
        title = f"{name}, MRR@5, seed {config.seed}"
        texts.append(f"{title}\n{plain_table(*table)}")
        text = f"{title}\n\n{markdown_table(*table)}\n"
        write_text(config.out / f"{name}-{config.seed}.md", text)
    return "\n\n".join(texts)


def arguments(config: AblateConfig, name: str, row: Row) -> list[str]:
    """Give the arguments of train/finetune.py for a row."""
    table = TABLES[name]
    own = table.settings(row)
    split = own.get("data.report_split", next(iter(table.targets.values()))[1])
    settings: dict[str, Any] = {
        **own,
        "data.dataset": _folder(table.data_of(row), config.out),
        "data.report_split": split,
        "optimisation.seed": config.seed,
        "store": config.vectors,
        "wandb.mode": "off",
        "out": config.out / f"{name}-{row.name}-{config.seed}",
    }
    words: list[str] = []
    for key, value in settings.items():
        words += [f"--{key}", *map(str, value)] if isinstance(value, list) else [f"--{key}={value}"]
    return words


def _folder(data: str, out: Path) -> str:
    """Locate a data set; `demo` is part of the package, small ones are made beside the rows."""
    if data in SMALL:
        return str(out / "data" / data)
    return data if data == "demo" else str(data_folder(data))


def _key(config: AblateConfig, name: str, row: Row) -> str:
    """Hash a row's settings."""
    words, targets = arguments(config, name, row), TABLES[name].targets
    return content_hash({"words": words, "scale": row.scale, "targets": targets})


def _done(config: AblateConfig, name: str, row: Row) -> Outcome | None:
    """Read what a row reached with its present settings, if it did."""
    file = config.out / f"{name}-{row.name}-{config.seed}" / "row.json"
    return Outcome.read(file, _key(config, name, row))


def _outcome(config: AblateConfig, name: str, row: Row) -> Outcome | None:
    """Read what a row reached, or run it where it is wanted; None otherwise."""
    done = _done(config, name, row)
    if done is not None or (config.rows is not None and row.name not in config.rows):
        return done
    table = TABLES[name]
    below = table.below(row)
    if row.scale is not None and (below is None or _done(config, name, below) is None):
        return None
    print(f"== {name}, {row.name}: {row.what}", flush=True)
    folder = config.out / f"{name}-{row.name}-{config.seed}"
    outcome = Outcome()
    if row.trained:
        outcome, model = _trained(folder, arguments(config, name, row)), resolve(folder)
    elif row.scale is not None:
        scaled = ScaledCheckpoint(config.out / f"{name}-{row.on}-{config.seed}")
        scaled.set(row.scale)
        outcome, model = replace(outcome, note=f"scale {row.scale:g}"), scaled.resolved
    else:
        length = int(str(table.recipe["model.max_length"]))
        model = resolve(ModelConfig(name=str(table.recipe["model.name"]), max_length=length))
    scores = {
        target: _scored(config, table.recipe, model, *where)
        for target, where in table.targets.items()
    }
    outcome = replace(outcome, key=_key(config, name, row), targets=scores)
    write_json(folder / "row.json", asdict(outcome))
    return outcome


def _trained(folder: Path, words: list[str]) -> Outcome:
    """Train or resume; give the chosen checkpoint's score on val and how it was chosen."""
    asked = read_config(FinetuneConfig, words, program="scripts/ablate.py", description="")
    resume = resumable(asked)
    # A run with other settings is not this row: it starts again.
    how = ["--resume"] if resume else ["--overwrite"] if is_run(folder) else []
    program = str(REPOSITORY / "train" / "finetune.py")
    started = time.perf_counter()
    done = subprocess.run([sys.executable, program, *words, *how], check=False)
    if done.returncode:
        raise UserError(f"{folder}: the run ended with exit code {done.returncode}")
    training = Report.read(folder).training
    assert training is not None
    epoch = training.chosen_epoch
    choice, history = training.choice, {entry.epoch: entry for entry in training.history}
    return Outcome(
        val=history[epoch].val["macro"][METRIC] if choice is None else choice.score,
        note=training.chosen_name,
        # The time of a resumed run is not that of the whole training.
        seconds=None if resume else round(time.perf_counter() - started),
    )


def _scored(
    config: AblateConfig,
    recipe: Settings,
    model: Resolved,
    data: str,
    split: str,
    langs: list[str] | None,
) -> Scores:
    """Score a model by language and by claim."""
    dataset = load(_folder(data, config.out), split, langs)
    rendering = model.rendering or Rendering(
        recipe.get("rendering.claims", "original"),  # type: ignore[arg-type]
        recipe.get("rendering.sources", "metadata"),  # type: ignore[arg-type]
    )
    store = Store(config.vectors)
    dense = Dense(model.encoder, rendering=rendering, store=store, progress=True)
    result = dense.index(dataset.sources).search(dataset.claims)
    scores = evaluate(result.run, dataset.qrels, (METRIC,))
    languages = language_table(scores, dataset.claims)
    table = {**languages, "macro": macro(languages)}
    return Scores(
        {language: row[METRIC] for language, row in table.items()},
        list(scores.claim_ids),
        scores[METRIC].tolist(),
        gold_groups(dataset.qrels, scores.claim_ids).tolist(),
    )


def _rows(
    config: AblateConfig, name: str, outcomes: dict[str, Outcome]
) -> tuple[list[str], list[list[Cell]]]:
    """List a table's columns and rows."""
    table = TABLES[name]
    columns = ["row", "what", "val", "chosen", "seconds"]
    languages: dict[str, list[str]] = {}
    for target, (data, split, langs) in table.targets.items():
        known = load(_folder(data, config.out), split, langs).languages
        languages[target] = [*known, "macro"] if len(known) > 1 else ["macro"]
        columns += [target if n == "macro" else f"{target} {n}" for n in languages[target]]
        columns += [f"{target}: difference (p)"]
    lines: list[list[Cell]] = []
    for row in table.rows:
        outcome = outcomes.get(row.name)
        if outcome is None:
            lines.append([row.name, _not_run(config, name, row), *[None] * (len(columns) - 2)])
            continue
        line: list[Cell] = [row.name, row.what, outcome.val, outcome.note, outcome.seconds]
        for target in table.targets:
            line += [outcome.targets[target].scores[n] for n in languages[target]]
            line.append(_difference(row, target, outcomes))
        lines.append(line)
    return columns, lines


def _not_run(config: AblateConfig, name: str, row: Row) -> str:
    """Give the command of a row that was not run, with the row whose weights it scales."""
    rows = row.name if row.scale is None else f"{row.on} {row.name}"
    default, more = AblateConfig(), ""
    for key in ("seed", "out"):
        if getattr(config, key) != getattr(default, key):
            more += f" --{key} {getattr(config, key)}"
    return f"not run: python scripts/ablate.py --tables {name} --rows {rows}{more}"


def _difference(row: Row, target: str, outcomes: dict[str, Outcome]) -> str | None:
    """Test a row against the row it names, over all claims: difference and p."""
    if row.against not in outcomes:
        return None
    ours, theirs = (outcomes[name or ""].targets[target] for name in (row.name, row.against))
    if ours.claims != theirs.claims:
        raise UserError(f"{row.name} and {row.against} were scored on different claims")
    test = paired_randomisation(
        np.array(ours.values), np.array(theirs.values), np.array(ours.groups)
    )
    return f"{test.difference:+.4f} ({test.p_value:.3f}) against {row.against}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the rows and print the tables."""
    config = read_config(AblateConfig, argv, program="scripts/ablate.py", description=__doc__ or "")
    print(ablate(config))


if __name__ == "__main__":
    run_program(main)
