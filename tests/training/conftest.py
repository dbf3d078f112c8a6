"""What the tests of training share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from claim2source.data.beir import write_beir
from claim2source.models import Encoder
from tests.training.small import small_encoder, small_setup, small_splits


@pytest.fixture(scope="session")
def setup(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small model and a small data set; do not change them."""
    return small_setup(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def encoder(setup: tuple[Path, Path]) -> Encoder:
    """The loaded small model; do not change it."""
    return small_encoder(setup[0])


@pytest.fixture(scope="session")
def untranslated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small data set without a single translation; do not change it."""
    folder = tmp_path_factory.mktemp("untranslated")
    splits = [
        replace(split, claims=tuple(replace(c, translation=None) for c in split.claims))
        for split in small_splits()
    ]
    write_beir(splits, folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small re-rankers, an encoder and their data, by name; do not change them."""
    from tests.training.reranker.small import small_rerankers

    return small_rerankers(tmp_path_factory.mktemp("small"))
