"""A finished training run, and a searchable index, for the tests of evaluation."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.eval.papers import PAPERS


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A finished run and its data; the store is not shared with other test files."""
    from claim2source.training.finetune import finetune
    from tests.training.small import small_config, small_setup

    folder = tmp_path_factory.mktemp("trained")
    model, data = small_setup(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLAIM2SOURCE_STORE", str(folder / "store"))
        finetune(small_config(model, data, folder / "run", optimisation__epochs=2))
        yield folder / "run", data


# Of a tiny model, the index of a few papers: fourteen test files have copies of it.
_BUILT: dict[Path, Path] = {}


@pytest.fixture(scope="module")
def index(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An index of a few papers; do not change it."""
    if tiny_folder not in _BUILT:
        _BUILT[tiny_folder] = _build_index(tiny_folder, tmp_path_factory.mktemp("built") / "idx")
    copy = shutil.copytree(_BUILT[tiny_folder], tmp_path_factory.mktemp("find") / "idx")
    return str(copy)


def _build_index(tiny_folder: Path, folder: Path) -> Path:
    from claim2source.models import ModelConfig
    from claim2source.search.dense import Dense
    from claim2source.search.growing import grow, open_for_writing
    from claim2source.text import Rendering

    model = ModelConfig(name=str(tiny_folder), pooling="mean", max_length=32)
    dense = Dense(model, rendering=Rendering("original", "title_abstract"), device="cpu")
    # A random model's scores are too near to each other for bfloat16.
    dense.encoder.in_bfloat16 = lambda: dense.encoder  # type: ignore[attr-defined]
    engine = open_for_writing(folder, dense)
    grow(engine, PAPERS, dense)
    engine.close()
    return folder


@pytest.fixture
def ask(index: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    from claim2source.eval.find import main

    def run(*words: str) -> str:
        main([*words, "--index", index, "--device", "cpu", "--store", str(tmp_path / "store")])
        return capsys.readouterr().out

    return run
