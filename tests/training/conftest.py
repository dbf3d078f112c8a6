"""What the tests of training share."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.models import Encoder
from tests.training.small import small_encoder, small_setup


@pytest.fixture(scope="session")
def setup(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small model and a small data set; do not change them."""
    return small_setup(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def encoder(setup: tuple[Path, Path]) -> Encoder:
    """The small model as it is read; do not change it."""
    return small_encoder(setup[0])
