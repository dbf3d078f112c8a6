"""`train/finetune_reranker.py` as a user launches it: real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.core.report import Report
from claim2source.training.run_folder import RunFile
from tests.processes import BY_TWO, run
from tests.shared_data import REPOSITORY
from tests.train.test_finetune import ONE
from tests.training.reranker.small import arguments
from tests.training.small import losses_of

SCRIPT = str(REPOSITORY / "train" / "finetune_reranker.py")


@pytest.mark.slow
def test_two_processes_train_one_re_ranker(tiny: dict[str, Path], tmp_path: Path) -> None:
    """Each has half of a batch's claims, and re-ranks half of val's."""
    out = tmp_path / "run"
    extra = {"optimisation__dropout": 0, "optimisation__batch_size": 7}
    proc = run([*BY_TWO, SCRIPT, *arguments(tiny, out, **extra)], tmp_path)
    assert proc.returncode == 0, proc.stderr[-3000:]
    assert proc.stdout.count("zero-shot re-ranker") == 1
    options_alone = {**extra, "optimisation__batch_size": 14}
    proc = run([*ONE[:-1], SCRIPT, *arguments(tiny, tmp_path / "alone", **options_alone)], tmp_path)
    assert proc.returncode == 0, proc.stderr[-3000:]
    # 28 claims divide evenly: the mean loss equals that of one process.
    losses = losses_of(out)
    assert losses == pytest.approx(losses_of(tmp_path / "alone"), rel=1e-3) and len(losses) == 4
    histories = [RunFile.read(folder).history for folder in (out, tmp_path / "alone")]
    for first, second in zip(*histories, strict=True):
        assert first.val["macro"]["queries"] == second.val["macro"]["queries"] == 20
        assert first.score == pytest.approx(second.score, abs=0.15)
    assert histories[0][0].score == histories[1][0].score
    assert Report.read(out).training is not None
