"""Ablations, a row at a time: each is one change, tested against the row it is compared with.

python scripts/ablate.py [--tables ct25 demo retention] [--rows NAME ...] [--out DIR]

A row is one run of train/finetune.py, of at most 12 minutes on two CPU cores. Rows that are done
are not done again and a stopped row resumes, so that the tables can be made in pieces; a row whose
settings have changed begins again. Rows that were not run stand in the table with their command.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import list_field, read_config
from claim2source.core.errors import UserError, run_program
from claim2source.core.files import content_hash, write_json, write_text
from claim2source.core.tables import markdown_table, plain_table
from claim2source.datasets import load
from claim2source.datasets.grouping import gold_groups
from claim2source.evaluation.metrics import evaluate
from claim2source.evaluation.retrieval import evaluate_dense
from claim2source.evaluation.significance import paired_randomisation
from claim2source.io.store import Store
from claim2source.models import ModelConfig, Resolved, resolve
from claim2source.text import Rendering
from claim2source.training.config import FinetuneConfig
from claim2source.training.export.scaling import ScaledCheckpoint
from claim2source.training.run_folder import CONFIG_FILE, resumable
from scripts.data_folder import REPOSITORY, data_folder

METRIC = "mrr@5"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
Settings = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One line of a table: `settings` are added to those of the row `on`, then to the recipe's.

    `against` names the row of the paired test. Without `trained` it is the base model, or with
    `scale` the row `on`'s checkpoint at this share of the way from its base.
    """

    name: str
    what: str
    settings: Settings = field(default_factory=dict)
    on: str | None = None
    against: str | None = None
    trained: bool = True
    scale: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows that share data, recipe and targets (name -> data set, split, languages)."""

    data: str
    recipe: Settings
    targets: dict[str, tuple[str, str, list[str] | None]]
    rows: tuple[Row, ...]

    def below(self, row: Row) -> Row | None:
        """The row that a row builds on."""
        return next((other for other in self.rows if other.name == row.on), None)

    def settings(self, row: Row) -> Settings:
        """All settings of a row."""
        below = self.below(row)
        return {**(self.settings(below) if below else self.recipe), **row.settings}


def _settings(**settings: Any) -> Settings:
    return {key.replace("__", "."): value for key, value in settings.items()}


_UNLIMITED = _settings(mining__max_share="null", mining__max_title_similarity="null")
_LIMITED = _settings(mining__max_share=0.95, mining__max_title_similarity=0.9)
_COMMON = _settings(
    tuning="full",
    optimisation__temperature=0.05,
    optimisation__dropout=0.0,
    optimisation__batch_size=32,
    optimisation__warmup_ratio=0.1,
)

CT25 = Table(
    "ct25",
    {
        **_COMMON,
        **_settings(
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
            {**_UNLIMITED, **_settings(mining__pool="all")},
            against="zero-shot",
        ),
        Row(
            "pool-train-golds",
            "the same from the golds of training claims",
            _settings(mining__pool="train-golds"),
            on="pool-all",
            against="pool-all",
        ),
        Row(
            "limits",
            "train golds; no near-duplicates of the gold, at most 0.95 of its score "
            "(in-batch golds are masked in every row)",
            _LIMITED,
            on="pool-train-golds",
            against="pool-train-golds",
        ),
        Row(
            "large-pool",
            "limits, and batches of 128 claims in chunks of 32 texts",
            _settings(optimisation__batch_size=128, optimisation__chunk_size=32),
            on="limits",
            against="limits",
        ),
        Row(
            "scale",
            "large-pool, and the scale between base and tuned chosen on val",
            _settings(scales=[0.25, 0.5, 0.75]),
            on="large-pool",
            against="large-pool",
        ),
    ),
)
_DEMO = {
    **_COMMON,
    **_settings(
        model__name=MINILM,
        model__max_length=128,
        rendering__claims="bilingual",
        optimisation__epochs=1,
        optimisation__learning_rate=5e-5,
        optimisation__negatives=1,
    ),
}
DEMO = Table(
    "demo",
    _DEMO,
    {"test": ("demo", "test", None)},
    (
        Row("zero-shot", "the base model", trained=False),
        *CT25.rows[1:],
        Row(
            "alpha",
            "limits, and languages' shares as the root of their size",
            _settings(batches__alpha=0.5),
            on="limits",
            against="limits",
        ),
        Row(
            "one-language",
            "limits, and one language per batch",
            _settings(batches__order="language"),
            on="limits",
            against="limits",
        ),
        Row(
            "consistency",
            "limits, and translated-pair consistency at weight 1",
            _settings(losses__consistency__weight=1.0),
            on="limits",
            against="limits",
        ),
        Row(
            "keep-base",
            "limits, and KL to the base model at weight 1",
            _settings(losses__keep_base__weight=1.0),
            on="limits",
            against="limits",
        ),
        Row(
            "query-only",
            "limits, and the claims' side alone",
            _settings(optimisation__train="query_only"),
            on="limits",
            against="limits",
        ),
    ),
)
RETENTION = Table(
    "demo",
    {**_DEMO, **_LIMITED, **_settings(languages=["de", "fr"])},
    {
        "demo test": ("demo", "test", ["de", "fr"]),
        "ct25 dev": ("ct25", "dev", None),
        "fact-checks dev": ("tweets-factchecks", "dev", None),
    },
    (
        Row("base", "the base model", trained=False),
        Row("tuned", "tuned on German and French alone", against="base"),
        Row(
            "kl",
            "tuned, and KL to the base model at weight 1",
            _settings(losses__keep_base__weight=1.0),
            on="tuned",
            against="tuned",
        ),
        Row(
            "half",
            "tuned, at half the way from the base",
            on="tuned",
            against="tuned",
            trained=False,
            scale=0.5,
        ),
        Row(
            "claims-only",
            "tuned, the claims' side alone",
            _settings(optimisation__train="query_only"),
            on="tuned",
            against="tuned",
        ),
        Row(
            "slow",
            "tuned, at a quarter of the learning rate",
            _settings(optimisation__learning_rate=1.25e-5),
            on="tuned",
            against="tuned",
        ),
        Row(
            "replay",
            "tuned with the English claims replayed",
            _settings(languages=["en", "de", "fr"]),
            on="tuned",
            against="tuned",
        ),
        Row(
            "lora",
            "tuned by LoRA (rank 16, learning rate 5e-4)",
            _settings(tuning="lora", lora__r=16, optimisation__learning_rate=5e-4),
            on="tuned",
            against="base",
        ),
        Row(
            "lora-half",
            "lora, at half its scale",
            on="lora",
            against="lora",
            trained=False,
            scale=0.5,
        ),
    ),
)
TABLES = {"ct25": CT25, "demo": DEMO, "retention": RETENTION}


@dataclass(frozen=True)
class AblateConfig:
    """Settings of `scripts/ablate.py`.

    Args:
        out: folder of the runs and the tables.
        seed: of every run.
        store: folder of the embedding store; none: one in `out`.
    """

    out: Path = Path("checkpoints/ablate")
    seed: int = 42
    store: Path | None = None
    tables: list[str] | None = list_field(str, help="these tables only")
    rows: list[str] | None = list_field(str, help="run only these rows, and show those done before")

    @property
    def vectors(self) -> Path:
        """The store of every run and score."""
        return self.store or self.out / "store"


def ablate(config: AblateConfig) -> str:
    """Run what is wanted and missing; writes the tables as Markdown and returns them as text."""
    names = config.tables or list(TABLES)
    _known("tables", names, list(TABLES))
    _known("rows", config.rows or [], [row.name for name in names for row in TABLES[name].rows])
    texts = []
    for name in names:
        outcomes: dict[str, dict[str, Any]] = {}
        for row in TABLES[name].rows:
            found = _outcome(config, name, row)
            if found is not None:
                outcomes[row.name] = found
        rows = _rows(config, name, outcomes)
        title = f"{name}, MRR@5, seed {config.seed}"
        texts.append(f"{title}\n{plain_table(*rows)}")
        write_text(config.out / f"{name}-{config.seed}.md", f"{title}\n\n{markdown_table(*rows)}\n")
    return "\n\n".join(texts)


def _known(key: str, given: list[str], allowed: list[str]) -> None:
    for value in given:
        if value not in allowed:
            raise UserError(f"{key}: {value!r} is not allowed; allowed: {', '.join(allowed)}")


def arguments(config: AblateConfig, name: str, row: Row) -> list[str]:
    """The command line of a row's run of train/finetune.py."""
    table = TABLES[name]
    settings = {
        **table.settings(row),
        "data.dataset": _folder(table.data),
        "data.report_split": next(iter(table.targets.values()))[1],
        "optimisation.seed": config.seed,
        "store": config.vectors,
        "wandb.mode": "off",
        "out": config.out / f"{name}-{row.name}-{config.seed}",
    }
    words: list[str] = []
    for key, value in settings.items():
        words += [f"--{key}", *map(str, value)] if isinstance(value, list) else [f"--{key}={value}"]
    return words


def _folder(data: str) -> str:
    """A data set's folder; `demo` ships with the package."""
    return data if data == "demo" else str(data_folder(data))


def _key(config: AblateConfig, name: str, row: Row) -> str:
    """Names a row's settings: what was made with others is not this row."""
    words, targets = arguments(config, name, row), TABLES[name].targets
    return content_hash({"words": words, "scale": row.scale, "targets": targets})


def _done(config: AblateConfig, name: str, row: Row) -> dict[str, Any] | None:
    """What a row reached with its present settings, where that was written down."""
    file = config.out / f"{name}-{row.name}-{config.seed}" / "row.json"
    if not file.is_file():
        return None
    done: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return done if done["key"] == _key(config, name, row) else None


def _outcome(config: AblateConfig, name: str, row: Row) -> dict[str, Any] | None:
    """What a row reached: read where it is done, made where it is wanted, else None."""
    done = _done(config, name, row)
    if done is not None:
        return done
    if config.rows is not None and row.name not in config.rows:
        return None
    below = TABLES[name].below(row)
    if row.scale is not None and (below is None or _done(config, name, below) is None):
        return None
    print(f"== {name}, {row.name}: {row.what}", flush=True)
    folder = config.out / f"{name}-{row.name}-{config.seed}"
    key = _key(config, name, row)
    found: dict[str, Any] = {"key": key, "val": None, "note": "", "seconds": None}
    if row.trained:
        found |= _trained(folder, arguments(config, name, row))
        model = resolve(folder)
    elif row.scale is not None:
        scaled = ScaledCheckpoint(config.out / f"{name}-{row.on}-{config.seed}")
        scaled.set(row.scale)
        model, found["note"] = scaled.resolved, f"scale {row.scale:g}"
    else:
        length = int(TABLES[name].recipe["model.max_length"])
        model = resolve(ModelConfig(name=MINILM, max_length=length))
    found["targets"] = {
        target: _scored(config, TABLES[name].recipe, model, *where)
        for target, where in TABLES[name].targets.items()
    }
    write_json(folder / "row.json", found)
    return found


def _trained(folder: Path, words: list[str]) -> dict[str, Any]:
    """Train, or go on training; the chosen checkpoint's score on val, and how it was chosen."""
    asked = read_config(FinetuneConfig, words, program="scripts/ablate.py", description="")
    resume = resumable(asked)
    # What was begun with other settings is not this row: it begins again.
    how = ["--resume"] if resume else ["--overwrite"] if (folder / CONFIG_FILE).is_file() else []
    program = str(REPOSITORY / "train" / "finetune.py")
    started = time.perf_counter()
    done = subprocess.run([sys.executable, program, *words, *how], check=False)
    if done.returncode:
        raise UserError(f"{folder}: the run ended with exit code {done.returncode}")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    epoch, scale = report["chosen_epoch"], report["chosen_scale"]
    tried = {entry["scale"]: entry["val"] for entry in report["scales"]}
    trained = next(entry["val"] for entry in report["history"] if entry["epoch"] == epoch)
    return {
        "val": tried.get(scale, trained)["macro"][METRIC],
        "note": f"epoch {epoch}" + ("" if scale == 1 else f", scale {scale:g}"),
        # A resumed run's time says nothing.
        "seconds": None if resume else round(time.perf_counter() - started),
    }


def _scored(
    config: AblateConfig,
    recipe: Settings,
    model: Resolved,
    data: str,
    split: str,
    langs: list[str] | None,
) -> dict[str, Any]:
    """Scores by language, and of every claim with its group of gold papers."""
    dataset = load(_folder(data), split, langs)
    rendering = model.rendering or Rendering(
        recipe.get("rendering.claims", "original"), recipe.get("rendering.sources", "metadata")
    )
    found = evaluate_dense(
        model.encoder,
        dataset,
        rendering,
        store=Store(config.vectors),
        metrics=(METRIC,),
        progress=True,
    )
    scores = evaluate(found.result.run, dataset.qrels, (METRIC,))
    return {
        "scores": {language: row[METRIC] for language, row in found.flat().items()},
        "claims": list(scores.claim_ids),
        "values": scores[METRIC].tolist(),
        "groups": gold_groups(dataset.qrels, scores.claim_ids).tolist(),
    }


def _rows(
    config: AblateConfig, name: str, outcomes: dict[str, dict[str, Any]]
) -> tuple[list[str], list[list[Any]]]:
    """Columns and lines of a table."""
    table = TABLES[name]
    columns = ["row", "what", "val", "chosen", "seconds"]
    languages: dict[str, list[str]] = {}
    for target, (data, split, langs) in table.targets.items():
        languages[target] = [*load(_folder(data), split, langs).languages, "macro"]
        if len(languages[target]) == 2:
            languages[target] = ["macro"]
        columns += [target if n == "macro" else f"{target} {n}" for n in languages[target]]
        columns += [f"{target}: difference (p)"]
    lines: list[list[Any]] = []
    for row in table.rows:
        found = outcomes.get(row.name)
        if found is None:
            lines.append([row.name, _not_run(config, name, row), *[None] * (len(columns) - 2)])
            continue
        line: list[Any] = [row.name, row.what, found["val"], found["note"], found["seconds"]]
        for target in table.targets:
            line += [found["targets"][target]["scores"][n] for n in languages[target]]
            line.append(_difference(row, target, outcomes))
        lines.append(line)
    return columns, lines


def _not_run(config: AblateConfig, name: str, row: Row) -> str:
    """Says so, with the command that runs it and, for a row of another's weights, that one."""
    rows = row.name if row.scale is None else f"{row.on} {row.name}"
    default, more = AblateConfig(), ""
    for key in ("seed", "out"):
        if getattr(config, key) != getattr(default, key):
            more += f" --{key} {getattr(config, key)}"
    return f"not run: python scripts/ablate.py --tables {name} --rows {rows}{more}"


def _difference(row: Row, target: str, outcomes: dict[str, dict[str, Any]]) -> str | None:
    """Difference to the row it is compared with, over all claims, and the paired test's p."""
    if row.against not in outcomes:
        return None
    ours, theirs = (outcomes[name or ""]["targets"][target] for name in (row.name, row.against))
    if ours["claims"] != theirs["claims"]:
        raise UserError(f"{row.name} and {row.against} were scored on other claims")
    test = paired_randomisation(
        np.array(ours["values"]), np.array(theirs["values"]), np.array(ours["groups"])
    )
    return f"{test.difference:+.4f} ({test.p_value:.3f}) against {row.against}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run and print."""
    config = read_config(AblateConfig, argv, program="scripts/ablate.py", description=__doc__ or "")
    print(ablate(config))


if __name__ == "__main__":
    run_program(main)
