"""What the tests of training share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.small import small_setup


@pytest.fixture(scope="session")
def setup(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small model and a small data set; do not change them."""
    return small_setup(tmp_path_factory.mktemp("small"))
