"""Small real re-rankers over the small data set, for training in seconds."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from claim2source.train.mine import main as mine
from transformers import BertConfig, BertForSequenceClassification, Qwen3Config, Qwen3ForCausalLM

from claim2source.core.config import read_config
from claim2source.training.reranker_config import RerankerConfig
from tests.models.mistral import SIZES
from tests.training.small import MINILM_WORDS, save_with_few_words, small_setup


def small_rerankers(folder: Path) -> dict[str, Path]:
    """Write the data, an encoder, a cross-encoder and a generative model, all of random weights."""
    model, data = small_setup(folder)
    dirs = {"data": data, "encoder": model}
    for name in ("cross_encoder", "yes_no"):
        dirs[name] = folder / name
        shutil.copytree(model, dirs[name])
        for file in ("model.safetensors", "config.json"):
            (dirs[name] / file).unlink()
    torch.manual_seed(0)
    words = {"vocab_size": MINILM_WORDS}
    shape = BertConfig.from_pretrained(model, num_labels=1, initializer_range=0.2, **words)
    save_with_few_words(BertForSequenceClassification(shape), dirs["cross_encoder"])
    longer = SIZES | {"max_position_embeddings": 512}
    decoder = Qwen3Config(head_dim=8, **longer, **words)
    save_with_few_words(Qwen3ForCausalLM(decoder), dirs["yes_no"])
    dirs["mined"] = folder / "mined.jsonl"
    mine(
        f"--out={dirs['mined']} --dataset={data} --first.system=BM25 --first.depth=10 "
        "--val_share=0.4 --val_seen_share=0 --rendering.claims=bilingual --mining.last_rank=20 "
        "--mining.hard=6 --mining.random=4 --mining.pick=random --mining.max_share=null".split()
    )
    return dirs


def arguments(dirs: dict[str, Path], out: Path, **options: object) -> list[str]:
    kind = str(options.get("model__kind", "cross_encoder"))
    settings: dict[str, object] = {
        "data.dataset": dirs["data"],
        "data.val_share": 0.4,
        "data.val_seen_share": 0,
        "model.name": dirs[kind],
        "model.max_length": 200 if kind == "yes_no" else 48,
        "rendering.claims": "bilingual",
        "first.depth": 10,
        "mined": dirs["mined"],
        "optimisation.negatives": 4,
        "optimisation.epochs": 2,
        "optimisation.save_every": 1,
        "optimisation.learning_rate": 1e-3,
        "wandb.mode": "off",
        "device": "cpu",
        "threads": 1,
        "store": dirs["data"].parent / "store",
        "out": out,
    }
    settings |= {key.replace("__", "."): value for key, value in options.items()}
    return [f"--{key}={value}" for key, value in settings.items()]


def small_config(dirs: dict[str, Path], out: Path, **options: object) -> RerankerConfig:
    flags = [f"--{key}" for key in ("resume", "overwrite") if options.pop(key, False)]
    words = [*arguments(dirs, out, **options), *flags]
    return read_config(RerankerConfig, words, program="t", description="t")
