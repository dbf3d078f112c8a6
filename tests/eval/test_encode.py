"""`eval/encode.py`: one process, two under accelerate, and evaluation that finds its vectors."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from claim2source.eval import encode
from claim2source.eval.encode import process_texts
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Source
from claim2source.data.beir import write_beir
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.models import ModelConfig, resolve
from claim2source.text import Rendering
from tests.processes import BY_TWO, run
from tests.refusals import refused
from tests.shared_data import REPOSITORY
from tests.training.small import dataset_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """150 sources and two splits, of 70 claims and of one."""
    sources = tuple(Source(f"s{i}", "paper " * (i % 9 + 1), f"a b {i}") for i in range(150))

    def split(name: str, count: int) -> Dataset:
        claims = [Claim(f"{name}-{i}", f"claim {name} {i}", golds=("s0",)) for i in range(count)]
        return dataset_of(claims, sources, name)

    write_beir([split("train", 70), split("dev", 1)], tmp_path / "data")
    return tmp_path / "data"


def words(model: Path, data: Path, store: Path, *options: str) -> list[str]:
    extra = ["--model.pooling=mean", "--model.max_length=16", "--device=cpu"]
    return [f"--model.name={model}", f"--dataset={data}", f"--store={store}", *extra, *options]


def assert_all_there(model: Path, data: Path, store: Store, split: str) -> None:
    """Every vector is in the store, and equals the encoder's."""
    encoder = resolve(ModelConfig(str(model), pooling="mean", max_length=16), "cpu").encoder
    data_set = load(data, split)
    texts = Rendering().source_texts(data_set.sources) + Rendering().claim_texts(data_set.claims)
    read, cost = encoder.encode(texts, "claim", store=store)
    assert cost.tokens == 0
    assert np.abs(read - encoder.encode(texts, "claim")[0]).max() < 1e-5


def test_one_process_says_what_was_there(
    tiny_folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    encode.main(words(tiny_folder, data, store))
    output = capsys.readouterr()
    assert "sources: 150 distinct texts, 0 already in the store, 150 encoded" in output.out
    assert "claims: 1 distinct texts, 0 already in the store, 1 encoded" in output.out
    assert_all_there(tiny_folder, data, Store(store), "dev")
    encode.main(words(tiny_folder, data, store, "--splits", "train", "dev"))
    output = capsys.readouterr()
    assert "sources: 150 distinct texts, 150 already in the store, 0 encoded" in output.out
    assert "claims: 71 distinct texts, 1 already in the store, 70 encoded" in output.out
    assert_all_there(tiny_folder, data, Store(store), "train")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(max_size=6)), st.integers(1, 5))
def test_every_text_goes_to_one_process(texts: list[str], size: int) -> None:
    divided = [process_texts(texts, rank, size) for rank in range(size)]
    assert sorted(text for part in divided for text in part) == sorted(set(texts))


def test_processes_get_blocks_of_like_length_and_equal_work() -> None:
    lengths = np.random.default_rng(0).integers(1, 400, 2000)
    texts = ["x" * length + str(i) for i, length in enumerate(lengths)]
    divided = [process_texts(texts, rank, 3) for rank in range(3)]
    assert [process_texts(texts[::-1], rank, 3) for rank in range(3)] == divided
    letters = [sum(map(len, part)) for part in divided]
    assert max(letters) < 1.05 * min(letters)
    assert all(part == sorted(part, key=len, reverse=True) for part in divided)
    assert process_texts(texts, 0, 1)[: encode.BLOCK] == divided[0][: encode.BLOCK]


def test_mistakes_are_said(tiny_folder: Path, data: Path, tmp_path: Path) -> None:
    with refused(UserError, "nosplit"):
        encode.main(words(tiny_folder, data, tmp_path / "store", "--splits", "nosplit"))
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_two_processes_share_the_work(tiny_folder: Path, data: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    command = [*BY_TWO, str(REPOSITORY / "eval" / "encode.py")]
    process = run([*command, *words(tiny_folder, data, store, "--splits", "train")], tmp_path)
    assert process.returncode == 0, process.stderr
    pattern = r"process (\d) of 2: (\w+): (\d+) distinct texts, 0 already in the store, (\d+) enc"
    counts_printed = sorted(re.findall(pattern, process.stdout))
    sides = [(rank, side) for rank, side, *_ in counts_printed]
    assert sides == [(rank, side) for rank in "12" for side in ("claims", "sources")]
    counts = {(rank, side): int(encoded) for rank, side, _, encoded in counts_printed}
    assert counts["1", "sources"] + counts["2", "sources"] == 150
    assert counts["1", "claims"] + counts["2", "claims"] == 70
    assert min(counts.values()) > 0
    assert_all_there(tiny_folder, data, Store(store), "train")
