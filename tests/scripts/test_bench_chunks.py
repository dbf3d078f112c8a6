"""The memory benchmark on a tiny model: its line of JSON, its check, its measurements."""

from __future__ import annotations

import pytest

from claim2source.core.errors import UserError
from scripts import bench_chunks
from scripts.bench_chunks import BenchConfig, Step, as_table, main, measure, step
from tests.scripts.output import read_result
from tests.training.small import save_small_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_small_model(tmp_path_factory.mktemp("model")))


def test_one_line_of_json_at_the_end(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_chunks, "step_in_process", step)  # a new process costs seconds
    main(["--model", model, "--batch", "4", "--chunk", "3", "--tokens", "8", "--repeats", "2"])
    _, result = read_result(capsys.readouterr().out)
    assert result["large_batch"] == 32 and result["repeats"] == 2
    assert {"growth", "median"} <= result.keys()


def test_ratios_are_of_the_right_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(config: BenchConfig, batch: int, chunked: bool) -> Step:
        peak = {(8, True): 110.0, (8, False): 150.0, (64, True): 121.0}[batch, chunked]
        return Step(peak, 100.0, 1.0)

    monkeypatch.setattr(bench_chunks, "step_in_process", measured)
    config = BenchConfig(batch=8)
    result = measure(config)
    assert result["ratio"] == 5.0 and result["growth"] == 1.1
    assert result["growth_above_start"] == 2.1
    assert "1.100 times; of the memory above the start: 2.100" in as_table(config, result)


def test_other_losses_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(config: BenchConfig, batch: int, chunked: bool) -> Step:
        return Step(1.0, 0.5, 1.0 if chunked else 2.0)

    monkeypatch.setattr(bench_chunks, "step_in_process", measured)
    with pytest.raises(UserError, match="losses? differ"):
        measure(BenchConfig())


def test_both_ways_take_the_same_step(model: str) -> None:
    import torch

    config = BenchConfig(model, batch=4, chunk=3, tokens=8)
    torch.manual_seed(0)
    one = step(config, 4, True)
    torch.manual_seed(0)
    assert step(config, 4, False).loss == pytest.approx(one.loss, rel=1e-5)
