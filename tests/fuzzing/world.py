"""Make a folder of small valid inputs, and the commands that read them."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from claim2source.core.errors import run_program
from tests.models.layout import declare

REPOSITORY = Path(__file__).resolve().parents[2]
MADE = REPOSITORY / "tests" / "fixtures_100"
Main = Callable[[Sequence[str] | None], object]

QUICK = ("--repeats=40", "--seed=3")
DATA = ("--dataset=data", "--split=dev")
CPU = ("--device=cpu",)
# As the runs of `fixtures_100` were made, but shorter.
TRAINING = (
    *("--data.dataset=data", "--data.val_share=0.2"),
    *("--model.name=model", "--model.pooling=mean", "--model.max_length=24"),
    *("--lora.r=2", "--mining.hard=2", "--mining.random=1", "--optimisation.epochs=1"),
    *("--optimisation.batch_size=16", "--optimisation.negatives=2"),
    *("--wandb.mode=off", "--device=cpu", "--threads=1", "--out=out"),
)


@dataclass(frozen=True)
class Program:
    """Describe a program: its file, its config's class, commands that end with 0, what they read.

    `weight` says how often it is drawn.
    """

    path: str
    config: str
    commands: tuple[tuple[str, ...], ...]
    reads: tuple[str, ...]
    weight: int = 4

    def main(self) -> Main:
        main: Main = self.module().main
        return main

    def module(self) -> Any:
        return importlib.import_module(f"claim2source.{self.path.replace('/', '.')}")


_FILES = ("data/corpus.jsonl", "data/queries.jsonl", "data/qrels/dev.tsv", "data/qrels/train.tsv")
_MODEL = (
    *("model/config.json", "model/model.safetensors", "model/tokenizer.json"),
    *("model/tokenizer_config.json", "model/1_Pooling/config.json", "model/modules.json"),
    *("model/sentence_bert_config.json", "model/config_sentence_transformers.json"),
)
_EPOCH = "lora/checkpoints/epoch-2"
_CHECKPOINT = (
    *(f"{_EPOCH}/manifest.json", f"{_EPOCH}/adapter_config.json"),
    *(f"{_EPOCH}/adapter_model.safetensors", "lora/checkpoints/epoch-0/manifest.json"),
    *("lora/run.json", "model/config.json", "model/model.safetensors"),
)
_RUN = ("run/config.yaml", "run/run.json", "run/state.pt")
_REPORTS = ("reports/report.json", "reports/Tuned.original/runs/0/en.trec", *_FILES[:3])

PROGRAMS: dict[str, Program] = {
    "score": Program(
        "eval/score",
        "Config",
        (
            ("--qrels=qrels.trec", "--run", "a.trec", "b.trec", *QUICK),
            ("--qrels=gold.tsv", "--run", "lab.tsv", "a.trec", "--metrics", "mrr@5", "map"),
        ),
        ("qrels.trec", "a.trec", "b.trec", "data/qrels/dev.tsv", "gold.tsv", "lab.tsv"),
        weight=8,
    ),
    "report": Program(
        "eval/report",
        "ReportConfig",
        (
            ("--reports=reports", "--out=out", *DATA, *QUICK),
            ("--reports=reports", "--html=out.html", "--claims=5", *DATA, *QUICK),
            ("--published", "--reports=reports", "--out=out", *QUICK),
        ),
        _REPORTS,
        weight=12,
    ),
    "evaluate": Program(
        "eval/evaluate",
        "EvaluateConfig",
        (
            ("--checkpoint=lora", "--only=chosen", "--out=out", *DATA, *CPU, *QUICK),
            (
                *(f"--checkpoint={_EPOCH}", '--routes={"de": "model"}', "--out=out"),
                *(*DATA, *CPU, "--no_tests"),
            ),
            (
                *("--systems=systems.yaml", "--only", "BM25", "Tuned", "Dense", "Both", "Routed"),
                *("--rewrites=rewrites.jsonl", "--claims=original", "--out=out"),
                *(*DATA, *CPU, *QUICK),
            ),
        ),
        ("systems.yaml", "rewrites.jsonl", *_FILES, *_CHECKPOINT, *_MODEL),
    ),
    "mine": Program(
        "train/mine",
        "MineConfig",
        (("--model.name=model", "--dataset=data", "--out=out.jsonl", *CPU),),
        (*_FILES[:2], _FILES[3], *_MODEL),
        weight=3,
    ),
    "merge": Program(
        "train/merge",
        "MergeConfig",
        (
            ("--checkpoints=lora", "--scales", "0", "1", "--out=out", *DATA, *CPU),
            ("--checkpoints", "lora/checkpoints/epoch-1", _EPOCH, "--out=out", *DATA, *CPU),
        ),
        (*_FILES, *_CHECKPOINT, "lora/checkpoints/epoch-1/manifest.json"),
        weight=6,
    ),
    "finetune": Program(
        "train/finetune",
        "FinetuneConfig",
        (
            TRAINING,
            (*TRAINING, "--mined=lora/mined.jsonl", "--tuning=full", "--data.val_seen_share=0"),
            ("--config=run/config.yaml", "--resume"),
        ),
        (*_FILES, *_MODEL, "lora/mined.jsonl", *_RUN),
        weight=2,
    ),
    "fusion": Program(
        "train/fusion",
        "LearnedFusionConfig",
        (
            (
                *("--views=views.yaml", "--files=systems.yaml", "--system=BM25", "--depth=10"),
                *("--folds=2", "--out=out", *DATA, *CPU),
            ),
        ),
        (*_FILES, "views.yaml", "systems.yaml"),
    ),
}

SYSTEMS = """\
BM25:
  retrieve: {bm25: {k1: 1.2, b: 0.75, title_weight: 2}}
Tuned:
  retrieve: {bm25: {metadata: [true, false], k1: [1.2, 0.9]}}
  label: bm25-tuned
Dense:
  retrieve: {dense: {name: model, pooling: mean, max_length: 24}}
Both:
  retrieve: {hybrid: [BM25, Dense], alpha: 0.3}
Routed:
  retrieve: Dense
  routes: {de: BM25}
"""


def make_world(folder: Path) -> None:
    """Write every input once; programs that read them by relative paths end with 0."""
    from claim2source.training.run_folder import RunFolder

    shutil.copytree(MADE / "data", folder / "data")
    shutil.copytree(MADE / "model", folder / "model")
    shutil.copytree(MADE / "lora", folder / "lora")
    prompts = {"prompts": {"query": "study "}}
    declare(folder / "model", "Transformer", "Pooling", whole=prompts)
    (folder / "systems.yaml").write_text(SYSTEMS, encoding="utf-8")
    (folder / "views.yaml").write_text("a: {bm25: {k1: 1.2}}\nb: {part: title}\n", encoding="utf-8")
    _lines(folder / "rewrites.jsonl", [{"_id": "dev-104", "text": "sleep and tea"}])
    _write_user(folder / "user")
    _write_runs(folder)
    with _inside(folder):
        _run("evaluate", *PROGRAMS["evaluate"].commands[0], "--out=reports")
        # As one that is killed once its report is written: its state is there to be damaged.
        with mock.patch.object(RunFolder, "remove_states"):
            _run("finetune", *TRAINING, "--out=run")


def _run(name: str, *words: str) -> None:
    # What it prints is for nobody.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            run_program(PROGRAMS[name].main(), words)
        except SystemExit as ended:
            assert ended.code == 0, f"{name} could not make the world"


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _lines(path: Path, records: Sequence[object]) -> None:
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_text(text, encoding="utf-8")


def _write_user(folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine\n", encoding="utf-8")
    (folder / "config.yaml").write_text("data: {dataset: mine}\n", encoding="utf-8")
    (folder / "report.json").write_text("{}\n", encoding="utf-8")
    (folder / "link").symlink_to("notes.txt")


def _write_runs(folder: Path) -> None:
    """Write two runs of dev, its judgements in TREC's and the lab's form, and a lab's run."""
    judged = (folder / "data/qrels/dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    golds = [line.split("\t")[:2] for line in judged]
    for name, first in (("a", 0), ("b", 2)):
        ranked = [
            f"{claim} Q0 {source} {rank} {9 - rank} {name}"
            for number, (claim, gold) in enumerate(golds)
            for rank, source in enumerate([f"s{(number + first) % 36:02d}x", gold, "s35"], 1)
        ]
        (folder / f"{name}.trec").write_text("\n".join(ranked) + "\n", encoding="utf-8")
    (folder / "qrels.trec").write_text("".join(f"{c} 0 {s} 1\n" for c, s in golds))
    lab = "".join(f"{c}\t{s}\n" for c, s in golds)
    (folder / "gold.tsv").write_text(f"post_id\tcord_uid\n{lab}")
    preds = "".join(f"{c}\t['{s}', 's01x']\n" for c, s in golds)
    (folder / "lab.tsv").write_text(f"post_id\tpreds\n{preds}")
