"""FLOPs of a model, counted by hand."""

from __future__ import annotations

from transformers import BertConfig, BertModel, MistralConfig, MistralModel

from claim2source.training.memory_plan import ModelShape


def test_flops_of_a_bert_by_hand() -> None:
    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 32, "num_hidden_layers": 3}
    shape = ModelShape.of(BertModel(BertConfig(num_attention_heads=2, **sizes)))
    # Four of 8 x 8 for attention, two of 8 x 32; the pooler's is not needed for a vector.
    assert shape == ModelShape(3 * (4 * 64 + 2 * 256), 0, 3, 8)
    linear = shape.linear
    assert shape.forward([5, 2]) == 2 * linear * 7 + 4 * 3 * 8 * (25 + 4)
    assert shape.training([5, 2], "full") == 3 * shape.forward([5, 2])


def test_flops_with_adapters_leave_out_the_frozen_weights_gradients() -> None:
    from peft import LoraConfig, get_peft_model

    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    model = MistralModel(MistralConfig(num_attention_heads=2, num_key_value_heads=1, **sizes))
    linear = 2 * 64 + 2 * 32 + 3 * 128
    assert ModelShape.of(model) == ModelShape(linear, 0, 1, 8)
    tuned = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    adapters = 2 * (2 * 16 + 2 * 12 + 3 * 24)
    shape = ModelShape.of(tuned)
    assert shape == ModelShape(linear, adapters, 1, 8)
    assert shape.training([3], "lora") == 3 * (4 * linear + 6 * adapters) + 3 * 4 * 8 * 9
