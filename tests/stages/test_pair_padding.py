"""A pair has the same score alone or in a batch, whichever side its tokenizer pads on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoTokenizer,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    XLNetConfig,
    XLNetForSequenceClassification,
)

from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.pairs import Pair
from tests.models.layout import change_json
from tests.stages.test_cross_encoder import predicted, scored
from tests.stages.tiny import save_cross_encoder, save_qwen

# Of unequal lengths: the short ones are padded among the others.
PAIRS = [
    Pair("a claim", "paper"),
    *(Pair("vaccine works . " * n, "a paper passage " * n) for n in (1, 2, 3, 4)),
    Pair("b", "c"),
]


def save_xlnet(folder: Path, tiny: Path) -> Path:
    """Write an XLNet, whose head reads a row's last token."""
    save_cross_encoder(folder, tiny)
    size = {"vocab_size": 32, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = XLNetConfig(**size, num_labels=1, initializer_range=0.5, pad_token_id=0)
        XLNetForSequenceClassification(config).save_pretrained(folder)
    return folder


def save_gpt_neo(folder: Path, tiny: Path) -> Path:
    """Write a decoder with a table of positions, whose tokens yes and no score a pair."""
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny)
    tokenizer.add_tokens(["yes", "no"])
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    tokenizer.save_pretrained(folder)
    size = {"vocab_size": 32, "hidden_size": 16, "num_layers": 2, "num_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPTNeoConfig(
            **size,
            attention_types=[[["global", "local"], 1]],
            max_position_embeddings=64,
            initializer_range=0.5,
            pad_token_id=0,
        )
        GPTNeoForCausalLM(config).save_pretrained(folder)
    return folder


SAVES: dict[str, Callable[[Path, Path], Path]] = {
    "bert": save_cross_encoder,
    "qwen": lambda folder, _: save_qwen(folder, pads=True),
    "xlnet": save_xlnet,
    "gpt_neo": save_gpt_neo,
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", [*SAVES])
def test_a_pair_scores_alone_as_among_others(
    kind: str, side: str, tmp_path: Path, tiny_folder: Path
) -> None:
    """sentence-transformers on single pairs is the oracle: there is nothing to pad."""
    folder = SAVES[kind](tmp_path / "model", tiny_folder)
    change_json(folder / "tokenizer_config.json", padding_side=side)
    expected = predicted(folder, PAIRS)
    assert expected.std() > 0.01
    logits = scored(CrossEncoder(model=str(folder), batch_tokens=10**6))
    together = scored(CrossEncoder(model=str(folder), batch_tokens=10**6), PAIRS)
    assert len(logits) and np.allclose(together, expected, atol=1e-4)
    alone = [float(scored(CrossEncoder(model=str(folder)), [pair])[0]) for pair in PAIRS[:2]]
    assert np.allclose(alone, expected[:2], atol=1e-4)


def test_stored_scores_are_kept_unless_they_were_wrong(tmp_path: Path, tiny_folder: Path) -> None:
    """The files are hashed too: what counts is whether the identity names its padding."""
    named = {}
    for kind in ("bert", "qwen"):
        for side in ("left", "right"):
            folder = SAVES[kind](tmp_path / f"{kind}-{side}", tiny_folder)
            change_json(folder / "tokenizer_config.json", padding_side=side)
            identity = CrossEncoder(model=str(folder)).with_runtime(None, "cpu").identity
            named[kind, side] = identity.get("padding")
    assert named == {
        ("bert", "left"): "right",
        ("bert", "right"): None,
        ("qwen", "left"): None,
        ("qwen", "right"): None,
    }
