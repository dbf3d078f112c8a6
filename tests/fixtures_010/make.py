"""Make the runs of this folder; it runs with version 0.1.0 of claim2source only.

In the root of a checkout of 0.1.0: python FOLDER/make.py FOLDER
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

REPOSITORY = Path.cwd()
PLACEHOLDER = "@FIXTURES@"
TOPICS = (
    "masks vitamin coffee sleep exercise aspirin screens noise sugar pollen tea yoga fish statins "
    "zinc walking music chess salt olive pollution heat stress daylight"
).split()
WORDS = ("on health and study matters studie says . , : a author journal").split()
RUNS: dict[str, dict[str, object]] = {
    "lora": {"tuning": "lora"},
    "full": {"tuning": "full"},
    "query_only": {"tuning": "lora", "optimisation.train": "query_only"},
    "killed": {"tuning": "lora", "optimisation.chunk_size": 5, "batches.rotate_negatives": "true"},
}
# Batches whose state is the last that the killed run saves: the second epoch's second of five.
KILLED_AFTER = 7
SAVE_THEN_DIE = """
import os, sys, runpy
import claim2source.training.finetune as program
real = program.save_state
def save_then_die(path, state):
    real(path, state)
    if state["batches_done"] == int(os.environ["KILLED_AFTER"]):
        os._exit(9)
program.save_state = save_then_die
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
VECTORS = """
import json, sys
from claim2source.datasets import load
from claim2source.encode import resolve
checkpoint, data, out = sys.argv[1:]
resolved, dataset = resolve(checkpoint, "cpu"), load(data, "dev")
sides = {
    "claim": (dataset.claims, resolved.rendering.claim_texts(dataset.claims)),
    "source": (dataset.sources, resolved.rendering.source_texts(dataset.sources)),
}
found = {}
for side, (records, texts) in sides.items():
    vectors, _ = resolved.encoder.encode(texts[:4], side)
    found[f"{side}s"] = {r.id: [float(x) for x in v] for r, v in zip(records, vectors)}
open(out, "w").write(json.dumps(found))
"""


def main(out: Path) -> None:
    """Make model, data, runs and what they must give, then name every path by the placeholder."""
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary).resolve() / "fixtures"
        made.mkdir()
        save_model(made / "model")
        save_data(made / "data")
        whole = made.parent / "whole"
        for name, settings in RUNS.items():
            command = [str(REPOSITORY / "train" / "finetune.py"), *arguments(made, settings)]
            if name == "killed":
                run([*command, f"--out={whole}"])
                run(["-c", SAVE_THEN_DIE, *command, f"--out={made / name}"], 9)
            else:
                run([*command, f"--out={made / name}"])
        expected = {name: finished(made, name) for name in RUNS if name != "killed"}
        expected["killed"] = {**said(whole), "killed_after": KILLED_AFTER}
        adapter = whole / "checkpoints" / "epoch-2" / "adapter_model.safetensors"
        shutil.copyfile(adapter, made / "killed_adapter.safetensors")
        (made / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        for name in ("full", "query_only"):
            (made / name / "state.pt").unlink()  # large, and nothing goes on with it
        name_paths(made)
        hash_configs(made)
        for path in made.iterdir():
            shutil.rmtree(out / path.name, ignore_errors=True)
            shutil.move(path, out / path.name)


def save_model(folder: Path) -> None:
    """Write a random BERT of 16 dimensions that knows the words of the data."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    digits = [*"0123456789", *(f"##{digit}" for digit in "0123456789")]
    vocabulary = {word: i for i, word in enumerate([*specials, *TOPICS, *WORDS, *digits])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"intermediate_size": 32, "max_position_embeddings": 40, "initializer_range": 0.5}
    BertModel(BertConfig(vocab_size=len(vocabulary), **sizes, **more)).save_pretrained(folder)


def save_data(folder: Path) -> None:
    """Write 50 claims to train on and 16 to report on, in two languages, over 36 sources."""
    corpus = [
        {
            "_id": f"s{i:02d}",
            "title": f"{TOPICS[i % 24]} on health",
            "text": f"{TOPICS[i % 24]} and {TOPICS[(7 * i + 3) % 24]}",
            "metadata": {"authors": ["A. Author"], "venue": "A Journal"},
        }
        for i in range(36)
    ]
    queries: list[dict[str, Any]] = []
    (folder / "qrels").mkdir(parents=True)
    for split, numbers in (("train", range(50)), ("dev", range(101, 149, 3))):
        judged = ["query-id\tcorpus-id\tscore"]
        for i in numbers:
            topic, name = TOPICS[i % 24], f"{split}-{i}"
            english = f"study {i} {topic} matters"
            if i % 2:
                queries.append({"_id": name, "text": english, "metadata": {"lang": "en"}})
            else:
                more = {"lang": "de", "translation": english}
                queries.append({"_id": name, "text": f"Studie {topic}", "metadata": more})
            judged.append(f"{name}\ts{i % 24:02d}\t1")
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(judged) + "\n")
    for file, rows in (("corpus", corpus), ("queries", queries)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{file}.jsonl").write_text(text)


def arguments(made: Path, more: dict[str, object]) -> list[str]:
    """Return the command line of a run of seconds."""
    settings: dict[str, object] = {
        "data.dataset": made / "data",
        "data.report_split": "dev",
        "data.val_share": 0.2,
        "model.name": made / "model",
        "model.pooling": "mean",
        "model.max_length": 24,
        "rendering.claims": "bilingual",
        "rendering.sources": "title_abstract",
        "lora.r": 2,
        "lora.alpha": 4,
        "mining.hard": 2,
        "mining.random": 1,
        "mining.max_share": "null",
        "optimisation.epochs": 2,
        "optimisation.batch_size": 8,
        "optimisation.save_every": 1,
        "optimisation.learning_rate": 5e-3,
        "optimisation.negatives": 2,
        "wandb.mode": "off",
        "device": "cpu",
        "threads": 1,
        "choose": "last",
    }
    return [f"--{key}={value}" for key, value in {**settings, **more}.items()]


def run(command: Sequence[str], code: int = 0) -> None:
    """Run Python in a store of its own; raises RuntimeError where it does not end with `code`."""
    with tempfile.TemporaryDirectory() as store:
        environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
            "CLAIM2SOURCE_STORE": store,
            "KILLED_AFTER": str(KILLED_AFTER),
        }
        done = subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True
        )
    if done.returncode != code:
        raise RuntimeError(f"{command}: {done.returncode}\n{done.stderr[-3000:]}")


def said(folder: Path) -> dict[str, Any]:
    """Return the scores on val and on dev that a run's report holds."""
    report = json.loads((folder / "report.json").read_text())
    return {
        "history": report["history"],
        "step 0": report["before"],
        "chosen": report["after"],
        "chosen_epoch": report["chosen_epoch"],
    }


def finished(made: Path, name: str) -> dict[str, Any]:
    """Return what a finished run gives: its report, every epoch's scores and a few vectors."""
    out = made.parent / "evaluated" / name
    settings = {"checkpoint": made / name, "dataset": made / "data", "split": "dev", "out": out}
    command = ["--no_tests", *(f"--{key}={value}" for key, value in settings.items())]
    run([str(REPOSITORY / "eval" / "evaluate.py"), *command])
    report = json.loads((out / "report.json").read_text())
    epochs = {
        epoch: {**part["languages"], "macro": part["macro"]}
        for epoch, part in report["checkpoints"].items()
    }
    run(["-c", VECTORS, str(made / name), str(made / "data"), str(out / "vectors.json")])
    vectors = json.loads((out / "vectors.json").read_text())
    return {**said(made / name), "epochs": epochs, "vectors": vectors}


def name_paths(made: Path) -> None:
    """Put the placeholder for the folder in every text, and see that it is nowhere else."""
    for path in [path for path in made.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        if path.suffix in (".json", ".yaml", ".jsonl"):
            path.write_bytes(content.replace(str(made).encode(), PLACEHOLDER.encode()))
        content = path.read_bytes()
        if re.search(re.escape(str(made.parent)).encode(), content):
            raise RuntimeError(f"{path} names the folder it was made in")


def hash_configs(made: Path) -> None:
    """Write the hashes of adapters' configs anew: peft wrote the base's path into these."""
    for path in made.rglob("adapter_config.json"):
        manifest = json.loads((path.parent / "manifest.json").read_text())
        manifest["weights"]["config_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        (path.parent / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
