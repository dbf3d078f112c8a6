"""A finished training run, for the tests of evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A finished run and its data; a test file's store holds nothing of other files' tests."""
    from claim2source.training.finetune import finetune
    from tests.training.small import small_config, small_setup

    folder = tmp_path_factory.mktemp("trained")
    model, data = small_setup(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLAIM2SOURCE_STORE", str(folder / "store"))
        finetune(small_config(model, data, folder / "run", optimisation__epochs=2))
        yield folder / "run", data
