"""Two phases: pairs of the papers alone, then claims, from the first phase's export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from claim2source.core.errors import UserError
from claim2source.core.files import file_hash
from claim2source.models import Manifest, resolve
from claim2source.training.finetune import finetune
from tests.training.small import small_config, small_setup
from train.merge import MergeConfig, merge
from train.pairs import main


@pytest.mark.slow
def test_a_second_phase_starts_where_the_first_ended(tmp_path: Path) -> None:
    model, data = small_setup(tmp_path)
    pairs, first = tmp_path / "pairs", tmp_path / "first"
    main([f"--dataset={data}", f"--out={pairs}", "--kinds", "title", "--dev_share", "0.3"])
    short = {"optimisation__epochs": 1, "optimisation__batch_size": 4}
    finetune(small_config(model, pairs, first, optimisation__negatives=0, choose="last", **short))
    with pytest.raises(UserError, match=r"checkpoint of a run; .*merge\.py --checkpoints .*first "):
        finetune(small_config(first, data, tmp_path / "x", **short))
    merged = tmp_path / "merged"
    merge(MergeConfig(checkpoints=[str(first)], out=merged))
    second = tmp_path / "second"
    finetune(small_config(merged, data, second, choose="last", **short))
    before = Manifest.read(second / "checkpoints" / "epoch-0")
    assert before.base.name == str(merged)
    assert before.base.sha256 == file_hash(merged / "model.safetensors")
    assert before.base.sha256 != Manifest.read(first / "checkpoints" / "epoch-0").base.sha256
    # What the first phase was trained on stays beside its weights.
    said = json.loads((merged / "claim2source.json").read_text())
    assert Path(said["data"]["dataset"]).name == "pairs"
    vectors = [
        resolve(folder, "cpu").encoder.encode(["wow, study 1 on chess"], "claim")[0]
        for folder in (merged, second / "checkpoints" / "epoch-0", second)
    ]
    assert abs(vectors[0] - vectors[1]).max() < 1e-5 < abs(vectors[0] - vectors[2]).max()
