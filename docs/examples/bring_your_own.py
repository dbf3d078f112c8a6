# %% [markdown]
# # Bring your own data: fine-tune, export, use it elsewhere
#
# Write a small data set in the native layout, tune MiniLM on it for one epoch, export the result,
# and load the export in sentence-transformers. About a minute on two CPU cores:
#
#     python docs/examples/bring_your_own.py [FOLDER]
#
# Everything is written to FOLDER, by default a temporary one.

# %%
import json
import sys
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from claim2source.train.merge import MergeConfig, merge
from sentence_transformers import SentenceTransformer

import claim2source as c2s
from claim2source.models import ModelConfig, resolve
from claim2source.text import Rendering
from claim2source.training.config import (
    DataConfig,
    FinetuneConfig,
    MiningConfig,
    OptimisationConfig,
    WandbConfig,
)
from claim2source.training.finetune import finetune

folder = Path(sys.argv[1] if len(sys.argv) > 1 else mkdtemp(prefix="claim2source-"))

# %% [markdown]
# ## The data set
#
# A BEIR folder: `corpus.jsonl`, `queries.jsonl`, and one file of judgements per split. Here every
# topic has three papers, which differ in their design. The posts describe it in other words.

# %%
TOPICS = (
    "face masks and influenza, vitamin D and fractures, coffee and blood pressure, sleep and "
    "memory, exercise and depression, aspirin and stroke, screens and myopia, road noise and "
    "heart disease, pollen and asthma, green tea and cholesterol, yoga and back pain, zinc and "
    "colds, music and anxiety, salt and kidney stones, olive oil and cancer, daylight and mood"
).split(", ")
# The design in the words of a paper, and in those of a post.
DESIGNS = {
    "A randomised controlled trial": "they drew lots who gets it",
    "A prospective cohort study": "followed folks for ages",
    "Evidence from a rodent model": "it was just mice, people",
}

corpus, queries, qrels = [], [], {"train": [], "dev": []}
for number, topic in enumerate(TOPICS):
    split = "dev" if number % 4 == 0 else "train"
    for design, gossip in DESIGNS.items():
        paper, claim = f"paper-{len(corpus)}", f"claim-{len(corpus)}"
        text = f"Much is unknown about {topic}. We report what we found."
        corpus.append({"_id": paper, "title": f"{design} of {topic}", "text": text})
        post = f"new study on {topic}, {gossip}"
        queries.append({"_id": claim, "text": post, "metadata": {"lang": "en"}})
        qrels[split].append(f"{claim}\t{paper}\t1")


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


data = folder / "data"
write_lines(data / "corpus.jsonl", [json.dumps(row) for row in corpus])
write_lines(data / "queries.jsonl", [json.dumps(row) for row in queries])
for split, rows in qrels.items():
    write_lines(data / "qrels" / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *rows])

dev = c2s.load(data, "dev")
print(f"{len(c2s.load(data, 'train').claims)} training claims, {len(dev.claims)} dev claims")

# %% [markdown]
# ## Fine-tune
#
# `FinetuneConfig` has the keys of a config file, `finetune` is what `train/finetune.py` calls. Part
# of train is held out as `val`. Every epoch is scored there, and so is the model before training;
# by default, the best of them is the result of the run. `choose="last"` takes the last epoch,
# because this val has too few claims to choose by. `dev` is only reported on.

# %%
config = FinetuneConfig(
    data=DataConfig(dataset=str(data), report_split="dev", val_share=0.2),
    rendering=Rendering("original", "title_abstract"),
    model=ModelConfig(name="sentence-transformers/all-MiniLM-L6-v2", max_length=48),
    tuning="full",
    mining=MiningConfig(hard=2, random=1, max_share=None),
    optimisation=OptimisationConfig(epochs=1, batch_size=8, learning_rate=1e-4, dropout=0.0),
    choose="last",
    wandb=WandbConfig(mode="off"),
    device="cpu",
    out=folder / "run",
    store=folder / "store",
)
report = finetune(config)
print(report)

# %% [markdown]
# ## Export
#
# The same as `python train/merge.py --checkpoints RUN --out FOLDER`: a sentence-transformers folder
# with prompts, pooling and length of the checkpoint.

# %%
for line in merge(MergeConfig([str(folder / "run")], folder / "my_model")):
    print(line)

# %% [markdown]
# ## Use it elsewhere
#
# sentence-transformers computes the same vectors as this library, up to rounding.

# %%
rendering = config.rendering
claims, sources = rendering.claim_texts(dev.claims), rendering.source_texts(dev.sources)
theirs = SentenceTransformer(str(folder / "my_model"), device="cpu")
encoder = resolve(str(folder / "run"), "cpu").encoder
for texts, side, encode in (
    (claims, "claim", theirs.encode_query),
    (sources, "source", theirs.encode_document),
):
    ours, _ = encoder.encode(texts, side)
    difference = np.abs(ours - encode(texts)).max()
    print(f"{side}s: largest difference of a number in a vector {difference:.1e}")
    assert difference < 1e-5

# %% [markdown]
# `Dense` accepts both the run's folder and the export.

# %%
for name in ("run", "my_model"):
    result = c2s.Dense(str(folder / name), device="cpu").index(dev.sources).search(dev.claims)
    print(name, f"MRR@5 on dev: {c2s.evaluate(result, dev, repeats=0).macro['mrr@5']:.4f}")
print(f"Everything is in {folder}.")
