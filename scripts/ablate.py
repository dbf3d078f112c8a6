"""Run ablations row by row: each row changes one thing and is tested against another row.

python scripts/ablate.py [--tables ct25 demo retention] [--rows NAME ...] [--out DIR]

The tables stand in scripts/ablate.yaml. A row is one run of train/finetune.py, of at most 12
minutes on two CPU cores. Finished rows are not run again and a stopped row resumes, so that a table
can be made in several calls; a row whose settings have changed starts again. The table shows rows
not yet run with the words that run them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import Seed, Settings, list_field, read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.files import content_hash, write_json, write_text
from claim2source.core.folders import is_run
from claim2source.core.records import Dataset
from claim2source.core.report import Report
from claim2source.core.tables import Cell, TextTable, render
from claim2source.core.validate import read_json, validated
from claim2source.datasets import load
from claim2source.datasets.grouping import gold_groups
from claim2source.io.store import Store
from claim2source.metrics.metrics import evaluate, language_table, macro
from claim2source.metrics.significance import paired_randomisation
from claim2source.models import ModelConfig, Resolved, resolve
from claim2source.retrieve import Dense
from claim2source.text import Rendering
from claim2source.training.config import FinetuneConfig
from claim2source.training.export.weighted_sum import ScaledCheckpoint
from claim2source.training.run_folder import resumable

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


TABLES = validated(dict[str, Table], yaml.safe_load(TABLE_FILE.read_bytes()), TABLE_FILE)


@dataclass(frozen=True)
class AblateConfig(Settings):
    """Settings of `scripts/ablate.py`.

    Args:
        out: folder for runs and tables.
        seed: of every run.
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


@dataclass(frozen=True)
class Scores:
    """MRR@5 by language and, for the paired test, of every claim with its group of golds."""

    scores: dict[str, float]
    claims: list[str]
    values: list[float]
    groups: list[int]


@dataclass(frozen=True)
class Outcome:
    """Hold a row's scores, as in its row.json.

    `key` is the hash of its settings, `val` the score of the chosen checkpoint on val, `note` says
    which that is.
    """

    key: str = ""
    val: float | None = None
    note: str = ""
    targets: dict[str, Scores] = field(default_factory=dict)


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

    def outcome_of(self, row: str) -> Outcome | None:
        file = self.folder(row) / "row.json"
        if not file.is_file():
            return None
        outcome = validated(Outcome, read_json(file), file)
        return outcome if outcome.key == self.key(row) else None

    def key(self, row: str) -> str:
        targets = {name: list(target) for name, target in self.table.targets.items()}
        words, scale = self.arguments(row), self.table.rows[row].scale
        return content_hash({"words": words, "scale": scale, "targets": targets})

    def run(self, row: str) -> Outcome | None:
        """Read a row's outcome, or run it if it is selected; None otherwise."""
        report, own, rows = self.outcome_of(row), self.table.rows[row], self.config.rows
        if report is not None or (rows is not None and row not in rows):
            return report
        outcome, settings = Outcome(), self.table.of(row)
        if own.scale is None:
            print(f"== {self.name}, {row}: {own.what}", flush=True)
            outcome, model = train(self.folder(row), self.arguments(row)), resolve(self.folder(row))
        elif own.against is None:
            length = int(str(settings["model.max_length"]))
            model = resolve(ModelConfig(name=str(settings["model.name"]), max_length=length))
        elif self.outcome_of(own.against) is None:
            return None
        else:
            scaled = ScaledCheckpoint(self.folder(own.against))
            scaled.set(own.scale)
            outcome, model = Outcome(note=f"scale {own.scale:g}"), scaled.resolved
        rendering = model.rendering or Rendering(
            settings["rendering.claims"],  # type: ignore[arg-type]
            settings["rendering.sources"],  # type: ignore[arg-type]
        )
        scores = {target: self.score(target, model, rendering) for target in self.table.targets}
        outcome = replace(outcome, key=self.key(row), targets=scores)
        write_json(self.folder(row) / "row.json", asdict(outcome))
        return outcome

    def load(self, target: str) -> Dataset:
        name, *rest = self.table.targets[target]
        return load(name, *rest)  # type: ignore[arg-type]

    def score(self, target: str, model: Resolved, rendering: Rendering) -> Scores:
        dataset, store = self.load(target), Store(self.config.out / "store")
        dense = Dense(model.encoder, rendering=rendering, store=store, progress=True)
        result = dense.index(dataset.sources).search(dataset.claims)
        scores = evaluate(result.run, dataset.qrels, (METRIC,))
        languages = language_table(scores, dataset.claims)
        return Scores(
            {lang: row[METRIC] for lang, row in {**languages, "macro": macro(languages)}.items()},
            list(scores.claim_ids),
            scores[METRIC].tolist(),
            gold_groups(dataset.qrels, scores.claim_ids).tolist(),
        )

    def lines(self, outcomes: dict[str, Outcome]) -> tuple[list[str], list[list[Cell]]]:
        columns = ["row", "what", "val", "chosen"]
        languages: dict[str, list[str]] = {}
        for target in self.table.targets:
            names = self.load(target).languages
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
            for target, scores in outcome.targets.items():
                line += [scores.scores[n] for n in languages[target]]
                before, test = outcomes.get(row.against or ""), None
                if before is not None:
                    test = f"{difference(scores, before.targets[target])} against {row.against}"
                line.append(test)
            lines.append(line)
        return columns, lines


def train(folder: Path, words: list[str]) -> Outcome:
    config = read_config(FinetuneConfig, words, program="scripts/ablate.py", description="")
    # A run with other settings is not this row: it starts again.
    how = ["--resume"] if resumable(config) else ["--overwrite"] if is_run(folder) else []
    process = subprocess.run([sys.executable, str(TRAINER), *words, *how], check=False)
    if process.returncode:
        raise UserError(f"{folder}: the run ended with exit code {process.returncode}")
    training = Report.read(folder).training
    assert training is not None
    choice, history = training.choice, {entry.epoch: entry for entry in training.history}
    score = history[training.chosen_epoch].val["macro"][METRIC] if choice is None else choice.score
    return Outcome(val=score, note=f"epoch {training.chosen_epoch}")


def difference(ours: Scores, theirs: Scores) -> str:
    """Test a row against another, over all claims: difference and p."""
    if ours.claims != theirs.claims:
        raise UserError("two rows were scored on different claims")
    test = paired_randomisation(
        np.array(ours.values), np.array(theirs.values), np.array(ours.groups)
    )
    return f"{test.difference:+.4f} ({test.p_value:.3f})"


def ablate(config: AblateConfig) -> str:
    """Run the wanted rows that are missing, write the tables as Markdown, return them as text."""
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
