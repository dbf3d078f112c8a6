"""Small cross-encoders for tests: a BERT with a head of random weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def save_cross_encoder(folder: Path, tiny: Path, seed: int = 0, **config: Any) -> Path:
    """Write a cross-encoder with the tokenizer of a `save_tiny` folder, which joins pairs here."""
    import torch
    from tokenizers import processors
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    shutil.copytree(tiny, folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.model_max_length = 64
    tokenizer.save_pretrained(folder)
    bert_config = BertConfig.from_pretrained(folder, **{"num_labels": 1} | config)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertForSequenceClassification(bert_config)
        # Scores that a sigmoid would flatten.
        model.classifier.weight.data *= 20
        model.save_pretrained(folder)
    return folder


def save_qwen(folder: Path, pads: bool) -> Path:
    """Write a Qwen3 with a head whose config names no padding token."""
    import torch
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    from tests.models.mistral import SIZES
    from tests.training.points import byte_level

    byte_level(folder, pad=pads)
    longer = SIZES | {"max_position_embeddings": 512, "initializer_range": 0.3}
    sizes = Qwen3Config(vocab_size=260, head_dim=8, num_labels=1, pad_token_id=None, **longer)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen3ForSequenceClassification(sizes).save_pretrained(folder)
    return folder
