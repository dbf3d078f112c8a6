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
    sources: list[Source] = []
    for i in range(150):
        title = "paper " * (i % 9 + 1)
        sources.append(Source(f"s{i}", title, f"a b {i}"))
    pool = tuple(sources)

    def split(name: str, count: int) -> Dataset:
        claims: list[Claim] = []
        for i in range(count):
            claim = Claim(
                f"{name}-{i}",
                f"claim {name} {i}",
                golds=("s0",),
            )
            claims.append(claim)
        return dataset_of(claims, pool, name)

    folder = tmp_path / "data"
    train = split("train", 70)
    dev = split("dev", 1)
    write_beir([train, dev], folder)
    return folder


def words(
    model: Path,
    data: Path,
    store: Path,
    *options: str,
) -> list[str]:
    return [
        f"--model.name={model}",
        f"--dataset={data}",
        f"--store={store}",
        "--model.pooling=mean",
        "--model.max_length=16",
        "--device=cpu",
        *options,
    ]


def assert_all_there(
    model: Path,
    data: Path,
    store: Store,
    split: str,
) -> None:
    """Every vector is in the store, and equals the encoder's."""
    config = ModelConfig(str(model), pooling="mean", max_length=16)
    encoder = resolve(config, "cpu").encoder
    data_set = load(data, split)
    rendering = Rendering()
    source_texts = rendering.source_texts(data_set.sources)
    claim_texts = rendering.claim_texts(data_set.claims)
    texts = source_texts + claim_texts
    read, cost = encoder.encode(texts, "claim", store=store)
    assert cost.tokens == 0
    encoded, _ = encoder.encode(texts, "claim")
    differences = np.abs(read - encoded)
    assert differences.max() < 1e-5


def test_one_process_says_what_was_there(
    tiny_folder: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = tmp_path / "store"
    encode.main(words(tiny_folder, data, store))
    output = capsys.readouterr()
    assert "sources: 150 distinct texts, 0 already in the store, 150 encoded" in output.out
    assert "claims: 1 distinct texts, 0 already in the store, 1 encoded" in output.out
    assert_all_there(tiny_folder, data, Store(store), "dev")
    both = words(
        tiny_folder,
        data,
        store,
        "--splits",
        "train",
        "dev",
    )
    encode.main(both)
    output = capsys.readouterr()
    assert "sources: 150 distinct texts, 150 already in the store, 0 encoded" in output.out
    assert "claims: 71 distinct texts, 1 already in the store, 70 encoded" in output.out
    assert_all_there(tiny_folder, data, Store(store), "train")


TEXTS = st.lists(st.text(max_size=6))


@settings(deadline=None, max_examples=60)
@given(TEXTS, st.integers(1, 5))
def test_every_text_goes_to_one_process(texts: list[str], size: int) -> None:
    together: list[str] = []
    for rank in range(size):
        together += process_texts(texts, rank, size)
    distinct = set(texts)
    assert sorted(together) == sorted(distinct)


def test_processes_get_blocks_of_like_length_and_equal_work() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 400, 2000)
    texts = ["x" * length + str(i) for i, length in enumerate(lengths)]
    backwards = texts[::-1]
    ranks = range(3)
    divided = [process_texts(texts, rank, 3) for rank in ranks]
    turned = [process_texts(backwards, rank, 3) for rank in ranks]
    assert turned == divided
    letters = [sum(map(len, part)) for part in divided]
    assert max(letters) < 1.05 * min(letters)
    for part in divided:
        assert part == sorted(part, key=len, reverse=True)
    alone = process_texts(texts, 0, 1)
    first = divided[0]
    assert alone[: encode.BLOCK] == first[: encode.BLOCK]


def test_mistakes_are_said(tiny_folder: Path, data: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    options = words(tiny_folder, data, store, "--splits", "nosplit")
    with refused(UserError, "nosplit"):
        encode.main(options)
    assert not store.exists()


@pytest.mark.slow
def test_two_processes_share_the_work(tiny_folder: Path, data: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    script = REPOSITORY / "eval" / "encode.py"
    options = words(tiny_folder, data, store, "--splits", "train")
    command = [*BY_TWO, str(script), *options]
    process = run(command, tmp_path)
    assert process.returncode == 0, process.stderr

    pattern = r"process (\d) of 2: (\w+): (\d+) distinct texts, 0 already in the store, (\d+) enc"
    found = re.findall(pattern, process.stdout)
    counts_printed = sorted(found)
    sides = [(rank, side) for rank, side, *_ in counts_printed]
    assert sides == [
        ("1", "claims"),
        ("1", "sources"),
        ("2", "claims"),
        ("2", "sources"),
    ]
    counts: dict[tuple[str, str], int] = {}
    for rank, side, _, encoded in counts_printed:
        counts[rank, side] = int(encoded)
    assert counts["1", "sources"] + counts["2", "sources"] == 150
    assert counts["1", "claims"] + counts["2", "claims"] == 70
    assert min(counts.values()) > 0
    assert_all_there(tiny_folder, data, Store(store), "train")
