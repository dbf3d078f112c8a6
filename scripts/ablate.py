"""Run ablations row by row: each row changes one thing and is tested against another row.

python scripts/ablate.py [--tables ct25 demo retention] [--rows NAME ...] [--out DIR]

The tables are defined in scripts/ablate.yaml. A row is one run of train/finetune.py, of at most 12
minutes on two CPU cores. Finished rows are not run again and a stopped row resumes, so that a table
can be made in several calls; a row whose settings have changed starts again. For a row that has not
run yet, the table shows the command that runs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import (
    Seed,
    Settings,
    as_plain,
    list_field,
    read_config,
    read_yaml,
    require,
)
from claim2source.core.errors import ConfigError, UserError, run_program
from claim2source.core.files import write_text
from claim2source.core.folders import is_run
from claim2source.core.records import Dataset
from claim2source.core.report import FILE, Report, TrainingReport
from claim2source.core.tables import Cell, TextTable, render
from claim2source.core.validate import validated
from claim2source.data.grouping import gold_groups
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.metrics.metrics import Scores, evaluate, language_table, macro
from claim2source.metrics.significance import paired_randomisation
from claim2source.models import ModelConfig, Resolved, resolve
from claim2source.search.dense import Dense
from claim2source.text import Rendering
from claim2source.training.config import FinetuneConfig
from claim2source.training.export.weighted_sum import ScaledCheckpoint
from claim2source.training.run_folder import RunFolder

METRIC = "mrr@5"
Value = bool | int | float | str | None | list[str] | list[float]
TABLE_FILE = Path(__file__).with_suffix(".yaml")
TRAINER = Path(__file__).resolve().parents[1] / "train" / "finetune.py"


@dataclass(frozen=True)
class Row(Settings):
    """One row of a table; scripts/ablate.yaml explains the keys."""

    what: str
    against: str | None = None
    settings: dict[str, Value] = field(default_factory=dict)
    scale: float | None = None


@dataclass(frozen=True)
class Table(Settings):
    """Rows that share settings, and the data sets, splits and languages that they are scored on."""

    settings: dict[str, Value]
    targets: dict[str, tuple[str, str] | tuple[str, str, list[str]]]
    rows: dict[str, Row]

    def of(self, row: str) -> dict[str, Value]:
        own = self.rows[row]
        return {**(self.of(own.against) if own.against else self.settings), **own.settings}


TABLES = validated(dict[str, Table], as_plain(read_yaml(TABLE_FILE)), TABLE_FILE)


@dataclass(frozen=True)
class AblateConfig(Settings):
    """Settings of `scripts/ablate.py`.

    Args:
        out: folder for runs and tables.
        seed: seed of every run.
    """

    out: Path = Path("checkpoints/ablate")
    seed: Seed = 42
    tables: list[str] | None = list_field(help="make only these tables")
    rows: list[str] | None = list_field(help="run only these rows; finished ones are shown too")

    def check(self) -> None:
        names = self.tables or list(TABLES)
        for name in names:
            require(name in TABLES, "tables", name, ", ".join(TABLES))
        rows = [row for name in names for row in TABLES[name].rows]
        for name in self.rows or ():
            require(name in rows, "rows", name, ", ".join(rows))


class Outcome(NamedTuple):
    """Row's scores by target; `val` is the chosen checkpoint's score on val, `note` names it."""

    val: float | None
    note: str
    scores: dict[str, Scores]


@dataclass(frozen=True)
class Ablation:
    config: AblateConfig
    name: str

    @property
    def table(self) -> Table:
        return TABLES[self.name]

    def folder(self, row: str) -> Path:
        return self.config.out / f"{self.name}-{row}-{self.config.seed}"

    def arguments(self, row: str) -> list[str]:
        own = self.table.of(row)
        settings: dict[str, Value] = {
            **own,
            "optimisation.seed": self.config.seed,
            "store": str(self.config.out / "store"),
            "wandb.mode": "off",
            "out": str(self.folder(row)),
        }
        words: list[str] = []
        for key, value in settings.items():
            if isinstance(value, list):
                words += [f"--{key}", *map(str, value)]
            else:
                words.append(f"--{key}={value if isinstance(value, str) else json.dumps(value)}")
        return words

    def training_report(self, row: str) -> TrainingReport | None:
        """Return a row's training report, after training if the row is selected; None otherwise."""
        folder = self.folder(row)
        words = self.arguments(row)
        rows = self.config.rows
        config = read_config(FinetuneConfig, words, program="scripts/ablate.py", description="")
        begun = resumable(config)
        if not (begun and (folder / FILE).is_file()):
            if rows is not None and row not in rows:
                return None
            print(f"== {self.name}, {row}: {self.table.rows[row].what}", flush=True)
            # A run with other settings is not this row's: start again.
            if begun:
                how = ["--resume"]
            else:
                how = ["--overwrite"] if is_run(folder) else []
            train([*words, *how], folder)
        return Report.read(folder).training

    def run(self, row: str) -> Outcome | None:
        """Score a row after its training; None if the row is not selected."""
        own = self.table.rows[row]
        settings = self.table.of(row)
        val = None
        note = ""
        if own.scale is None:
            training = self.training_report(row)
            if training is None:
                return None
            model = resolve(self.folder(row))
            note = f"epoch {training.chosen_epoch}"
            history = {entry.epoch: entry for entry in training.history}
            scored = history[training.chosen_epoch].val["macro"][METRIC]
            val = scored if training.choice is None else training.choice.score
        elif self.config.rows is not None and row not in self.config.rows:
            return None
        elif own.against is None:
            model = resolve(ModelConfig(name=str(settings["model.name"])))  # uncut, like step 0
        elif self.training_report(own.against) is None:
            return None
        else:
            scaled = ScaledCheckpoint(self.folder(own.against))
            scaled.set(own.scale)
            note = f"scale {own.scale:g}"
            model = scaled.resolved
        rendering = model.rendering or Rendering(
            settings["rendering.claims"],  # type: ignore[arg-type]
            settings["rendering.sources"],  # type: ignore[arg-type]
        )
        scores = {target: self.score(target, model, rendering) for target in self.table.targets}
        return Outcome(val, note, scores)

    def load(self, target: str) -> Dataset:
        name, *rest = self.table.targets[target]
        return load(name, *rest)  # type: ignore[arg-type]

    def score(
        self,
        target: str,
        model: Resolved,
        rendering: Rendering,
    ) -> Scores:
        dataset = self.load(target)
        store = Store(self.config.out / "store")
        dense = Dense(model.encoder, rendering=rendering, store=store, progress=True)
        result = dense.index(dataset.sources).search(dataset.claims)
        return evaluate(result.run, dataset.qrels, (METRIC,))

    def lines(self, outcomes: dict[str, Outcome]) -> tuple[list[str], list[list[Cell]]]:
        columns = ["row", "what", "val", "chosen"]
        languages: dict[str, list[str]] = {}
        datasets = {target: self.load(target) for target in self.table.targets}
        for target, dataset in datasets.items():
            names = dataset.languages
            languages[target] = [*names, "macro"] if len(names) > 1 else ["macro"]
            columns += [target if n == "macro" else f"{target} {n}" for n in languages[target]]
            columns += [f"{target}: difference (p)"]
        lines: list[list[Cell]] = []
        for name, row in self.table.rows.items():
            outcome = outcomes.get(name)
            if outcome is None:
                lines.append([name, f"not run: --tables {self.name} --rows {name}"])
                lines[-1] += [None] * (len(columns) - 2)
                continue
            line: list[Cell] = [name, row.what, outcome.val, outcome.note]
            for target, scores in outcome.scores.items():
                table = language_table(scores, datasets[target].claims)
                means = {**table, "macro": macro(table)}
                line += [means[name][METRIC] for name in languages[target]]
                before = outcomes.get(row.against or "")
                test = None
                if before is not None:
                    groups = gold_groups(datasets[target].qrels, scores.claim_ids)
                    test = difference(scores, before.scores[target], groups)
                    test += f" against {row.against}"
                line.append(test)
            lines.append(line)
        return columns, lines


def train(words: Sequence[str], out: Path) -> None:
    """Run train/finetune.py. Raises `UserError` with the run's folder if it fails."""
    process = subprocess.run([sys.executable, str(TRAINER), *words], check=False)
    if process.returncode:
        raise UserError(f"{out}: the run ended with exit code {process.returncode}")


def resumable(config: FinetuneConfig) -> bool:
    """Whether `config.out` has a run that began with these settings."""
    if not is_run(config.out):
        return False
    try:
        RunFolder.find(replace(config, resume=True), lock=False)
    except ConfigError:  # other settings
        return False
    return True


def difference(ours: Scores, theirs: Scores, groups: np.ndarray) -> str:
    """Test a row against another over all claims: difference and p."""
    test = paired_randomisation(ours[METRIC], theirs[METRIC], groups)
    return f"{test.difference:+.4f} ({test.p_value:.3f})"


def ablate(config: AblateConfig) -> str:
    """Run the selected rows that are missing, write the tables as Markdown, return them as text."""
    texts = []
    for name in config.tables or TABLES:
        ablation = Ablation(config, name)
        outcomes = {row: ablation.run(row) for row in TABLES[name].rows}
        table = ablation.lines(
            {row: outcome for row, outcome in outcomes.items() if outcome is not None}
        )
        title = f"{name}, MRR@5, seed {config.seed}"
        texts.append(f"{title}\n{render([TextTable(*table)])}")
        text = f"{title}\n\n{render([TextTable(*table)], 'markdown')}\n"
        write_text(config.out / f"{name}-{config.seed}.md", text)
    return "\n\n".join(texts)


def main(argv: Sequence[str] | None = None) -> None:
    config = read_config(AblateConfig, argv, program="scripts/ablate.py", description=__doc__ or "")
    print(ablate(config))


if __name__ == "__main__":
    run_program(main)
