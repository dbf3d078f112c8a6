"""`train/finetune_reranker.py` as a user launches it: real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.core.report import Report
from claim2source.training.run_folder import read_history
from tests.shared_data import REPOSITORY
from tests.train.test_finetune import ONE, TWO, run
from tests.training.reranker.small import arguments, small_rerankers
from tests.training.small import losses_of

SCRIPT = str(REPOSITORY / "train" / "finetune_reranker.py")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return small_rerankers(tmp_path_factory.mktemp("small"))


@pytest.mark.slow
def test_two_processes_train_one_re_ranker(made: dict[str, Path], tmp_path: Path) -> None:
    """Each has half of a batch's claims, and re-ranks half of val's."""
    out = tmp_path / "run"
    more = {"optimisation__dropout": 0, "optimisation__batch_size": 7}
    done = run([*TWO[:-1], SCRIPT, *arguments(made, out, **more)], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("zero-shot re-ranker") == 1
    alone = {**more, "optimisation__batch_size": 14}
    done = run([*ONE[:-1], SCRIPT, *arguments(made, tmp_path / "alone", **alone)], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    # Of 28 claims no process lacks any: the mean loss is that of one process.
    losses = losses_of(out)
    assert losses == pytest.approx(losses_of(tmp_path / "alone"), rel=1e-3) and len(losses) == 4
    histories = [read_history(folder) for folder in (out, tmp_path / "alone")]
    for one, other in zip(*histories, strict=True):
        assert one.val["macro"]["queries"] == other.val["macro"]["queries"] == 20
        assert one.score == pytest.approx(other.score, abs=0.15)
    assert histories[0][0].score == histories[1][0].score
    assert Report.read(out).training is not None
