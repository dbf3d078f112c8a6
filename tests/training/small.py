"""A small real model and a small real data set, for training in seconds."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedModel

from claim2source.core.config import read_config
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.data.beir import write_beir
from claim2source.mining import MinedRow, MiningConfig, Negative
from claim2source.models import Encoder, ModelConfig, resolve
from claim2source.models.hub import PACKAGED
from claim2source.stages.yes_no import DETAILED, RELEASED, SYSTEM
from claim2source.text import Rendering
from claim2source.training.config import (
    BatchesConfig,
    FinetuneConfig,
    OptimisationConfig,
    RetrieverRecipe,
)
from claim2source.training.loss_list import Losses
from claim2source.training.resume import OURS, TrainingState
from claim2source.training.run_folder import RunFolder
from claim2source.training.splits import TrainingData, load_data
from tests.models.layout import declare

Gradients = Mapping[str, torch.Tensor]
TOPICS = (
    "masks, vitamin D, coffee, sleep, exercise, aspirin, screens, noise, sugar, pollen, tea, yoga, "
    "fish oil, statins, zinc, walking, music, chess, salt, olive oil, pollution, heat, stress, "
    "daylight"
).split(", ")


MINILM_WORDS = 30522


@cache
def small_tokenizer() -> tuple[dict[str, str], list[int]]:
    """The files of MiniLM's tokenizer with few of its words, and the numbers that these have there.

    They are the frequent ones, those of the small data and those of prompts. All words would be
    most of a small model, and most of the time of its training.
    """
    module = import_module(PACKAGED["sentence-transformers/all-MiniLM-L6-v2"][0])
    tokenizer = AutoTokenizer.from_pretrained(module.get_model_path())
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = {path.name: path.read_text(encoding="utf-8") for path in Path(folder).iterdir()}
    texts = [SYSTEM, RELEASED, DETAILED]
    for split in small_splits():
        texts += [text for c in split.claims for text in (c.text, c.translation or "")]
        texts += Rendering().source_texts(split.sources)
    used = {i for ids in tokenizer(texts)["input_ids"] for i in ids}
    # Special tokens keep their numbers; between them and the letters are unused ones.
    kept = [*range(104), *range(999, 5000), *sorted(i for i in used if i >= 5000)]
    number = {old: new for new, old in enumerate(kept)}
    data = json.loads(files["tokenizer.json"])
    words = data["model"]["vocab"].items()
    data["model"]["vocab"] = {word: number[old] for word, old in words if old in number}
    return files | {"tokenizer.json": json.dumps(data)}, kept


def save_with_few_words(model: PreTrainedModel, folder: Path) -> Path:
    """Save a model of all of MiniLM's words with those of the small tokenizer, and the tokenizer.

    What is trained is, number by number, what would be trained with all words.
    """
    files, kept = small_tokenizer()
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        if layer is not None:
            layer.weight = torch.nn.Parameter(layer.weight.detach()[kept])
    model.config.vocab_size = len(kept)
    model.save_pretrained(folder)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def save_small_model(folder: Path, dropout: float = 0.1, seed: int = 0, **sizes: float) -> Path:
    """A random two-layer BERT with MiniLM's tokenizer, of fewer words."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"intermediate_size": 64, "max_position_embeddings": 64}
    shape |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = BertConfig(vocab_size=MINILM_WORDS, **shape | sizes)
    return save_with_few_words(BertModel(config), folder)


def small_encoder(folder: Path) -> Encoder:
    """Read the small model as the small configs do."""
    return resolve(ModelConfig(name=str(folder), pooling="mean", max_length=24)).encoder


def say_pooling(folder: Path, length: int = 64, *, normalize: bool = False) -> Path:
    """Write the sentence-transformers files that name mean pooling and a length."""
    kinds = ("Transformer", "Pooling", *(("Normalize",) if normalize else ()))
    return declare(folder, *kinds, sbert={"max_seq_length": length})


def small_splits() -> list[Dataset]:
    """48 claims to train on and 12 to report on, in two languages, over 36 sources."""
    sources = tuple(
        Source(
            f"s{i:02d}",
            f"Effect of {TOPICS[i % 24]} on health, part {i // 24}",
            f"We studied {TOPICS[i % 24]} in {100 + i} adults.",
            ("A. Author",),
            "A Journal",
        )
        for i in range(36)
    )

    def claim(name: str, i: int) -> Claim:
        topic, lang = TOPICS[i % 24], "en" if i % 2 else "de"
        if lang == "en":
            return Claim(name, f"wow study no {i} says {topic} matters", golds=(f"s{i % 24:02d}",))
        return Claim(
            name,
            f"krass, Studie {i} zu {topic}",
            lang,
            f"wow, study {i} on {topic}",
            (f"s{i % 24:02d}",),
        )

    train = [claim(f"train-{i}", i) for i in range(48)]
    reported = [claim(f"dev-{i}", 100 + 2 * i + i % 2) for i in range(12)]
    return [dataset_of(train, sources), dataset_of(reported, sources, "dev")]


def dataset_of(claims: Sequence[Claim], sources: Sequence[Source], split: str = "train") -> Dataset:
    """A split with the judgements that its claims name."""
    qrels = Qrels({c.id: dict.fromkeys(c.golds, 1) for c in claims})
    return Dataset(tuple(claims), tuple(sources), qrels, split)


def recipe_of(
    negatives: int = 1,
    rendering: Rendering | None = None,
    losses: Losses | None = None,
    rotate: bool = False,
    **optimisation: Any,
) -> RetrieverRecipe:
    """How a retriever is trained, if only equal texts make two sources one paper."""
    return RetrieverRecipe(
        rendering=rendering or Rendering(),
        optimisation=OptimisationConfig(negatives=negatives, **optimisation),
        mining=MiningConfig(max_title_similarity=None),
        batches=BatchesConfig(rotate_negatives=rotate),
        losses=losses or Losses(),
    )


def mined_row(claim: str, positive: str, *negatives: str) -> MinedRow:
    """A claim with its gold, and hard negatives."""
    return MinedRow(claim, positive, tuple(Negative(n, 0.5, "both") for n in negatives))


def small_setup(folder: Path) -> tuple[Path, Path]:
    model = save_small_model(folder / "model")
    write_beir(small_splits(), folder / "data")
    return model, folder / "data"


def arguments(model: Path, data: Path, out: Path, **options: object) -> list[str]:
    settings: dict[str, object] = {
        "data.dataset": data,
        "data.report_split": "dev",
        "data.val_share": 0.2,
        "data.val_seen_share": 0,
        "model.name": model,
        "model.pooling": "mean",
        "model.max_length": 24,
        "tuning": "full",
        "rendering.claims": "bilingual",
        "mining.hard": 2,
        "mining.random": 1,
        "mining.max_share": "null",
        "optimisation.epochs": 3,
        "optimisation.batch_size": 8,
        "optimisation.save_every": 1,
        "optimisation.learning_rate": 1e-3,
        "optimisation.negatives": 2,
        "wandb.mode": "off",
        "out": out,
    }
    settings |= {key.replace("__", "."): value for key, value in options.items()}
    return [f"--{key}={value}" for key, value in settings.items()]


def small_config(model: Path, data: Path, out: Path, **options: object) -> FinetuneConfig:
    flags = [f"--{key}" for key in ("resume", "overwrite") if options.pop(key, False)]
    return read_config(
        FinetuneConfig,
        [*arguments(model, data, out, **options), *flags],
        program="t",
        description="t",
    )


def data_of(config: FinetuneConfig) -> TrainingData:
    """Load a config's data, as a new run does."""
    return load_data(config.losses, RunFolder(config.out, config=config))


def logged_steps(run: Path, column: str = "loss") -> list[dict[str, str]]:
    """Read the lines of a run's CSV that have a value in this column."""
    with open(run / "logs" / "step-000000" / "metrics.csv", newline="") as file:
        return [row for row in csv.DictReader(file) if row[column]]


def a_state(steps: int, **weights: torch.Tensor) -> TrainingState:
    """A state after so many steps, as a run saves it."""
    mined = {"file": "mined.jsonl", "content": torch.zeros(1, dtype=torch.uint8)}
    losses = [0.5] * steps
    ours = {"batches_done": steps, "steps_done": steps, "losses": losses, "world_size": 1}
    ours |= {"mined": mined, "random": [], "epoch_open": False, "ended": False}
    state = {f"model.{name}": weight for name, weight in weights.items()}
    return TrainingState.of({"epoch": 0, "state_dict": state, OURS: ours})


def losses_of(run: Path) -> list[float]:
    """Read the loss of every step from a run's logs; a resumed run goes on in another file."""
    losses: dict[int, float] = {}
    for log in sorted((run / "logs").iterdir()):
        with open(log / "metrics.csv", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("loss")]
        losses |= {int(row["step"]): float(row["loss"]) for row in rows}
    assert sorted(losses) == list(range(1, len(losses) + 1))
    return [losses[step] for step in sorted(losses)]


def relative_gap(expected: Gradients, actual: Gradients) -> float:
    """Measure how far gradients are from those expected, by the size of these."""
    assert expected.keys() == actual.keys()
    size = sum(float(gradient.square().sum()) for gradient in expected.values())
    assert size > 1e-8, "no gradient: nothing is compared"
    gap = sum(float((gradient - actual[n]).square().sum()) for n, gradient in expected.items())
    return float((gap / size) ** 0.5)


@contextmanager
def power_cut(
    when: Callable[[TrainingState], bool] = lambda state: True, *, expected: bool = True
) -> Iterator[None]:
    """End the run inside right after the first saved state for which `when` is true."""
    real = TrainingState.save

    def save_then_die(self: TrainingState, path: Path) -> None:
        real(self, path)
        if when(self):
            raise RuntimeError("power cut")

    ended = pytest.raises(RuntimeError, match="power cut") if expected else nullcontext()
    with pytest.MonkeyPatch.context() as patch, ended:
        patch.setattr(TrainingState, "save", save_then_die)
        yield


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    """Read the weights of a run's last checkpoint."""
    last = max((run / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
    files = (last / "model.safetensors", last / "adapter_model.safetensors")
    (file,) = (file for file in files if file.is_file())
    return load_file(file)


def same_weights(first: Path, second: Path) -> None:
    """Check that two runs ended with the same weights, bit for bit."""
    ends = [last_weights(run) for run in (first, second)]
    assert ends[0].keys() == ends[1].keys() and ends[0]
    for name, weight in ends[0].items():
        assert torch.equal(weight, ends[1][name]), name
