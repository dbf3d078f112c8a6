"""What a run's files say and allow: the user's umask, and no path of this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from claim2source.core.errors import InputError
from claim2source.models import Manifest, resolve
from claim2source.training.finetune import finetune
from tests.training.small import small_config, small_setup


@pytest.mark.parametrize(
    ("umask", "tuning"), [(0o022, "full"), pytest.param(0o077, "lora", marks=pytest.mark.slow)]
)
def test_a_runs_files_have_the_umask_and_its_checkpoints_no_paths(
    umask: int, tuning: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it loads where it was moved to, and a checkpoint apart from its run."""
    model, data = small_setup(tmp_path / "here")
    monkeypatch.setenv("CLAIM2SOURCE_STORE", str(tmp_path / "store"))
    run = tmp_path / "run"
    before = os.umask(umask)
    try:
        finetune(small_config(model, data, run, tuning=tuning, optimisation__epochs=1))
    finally:
        os.umask(before)
    for path in (run, *run.rglob("*")):
        expected = (0o777 if path.is_dir() else 0o666) & ~umask
        assert path.stat().st_mode & 0o777 == expected, path
    points = [path for path in (run / "checkpoints").rglob("*") if path.is_file()]
    assert {path.name for path in points} >= {"manifest.json"}
    for path in points:
        assert str(tmp_path).encode() not in path.read_bytes(), path
    new_folder = tmp_path / "elsewhere" / "run"
    new_folder.parent.mkdir()
    run.rename(new_folder)
    monkeypatch.setenv("CLAIM2SOURCE_STORE", str(tmp_path / "another store"))
    for epoch in ("epoch-0", "epoch-1"):
        resolve(new_folder / "checkpoints" / epoch)
    assert Manifest.read(new_folder / "checkpoints" / "epoch-1").data.dataset == str(data)
    # Apart from its run the user's cache knows the base; then it may lie beside it.
    name = "epoch-1" if tuning == "lora" else "epoch-0"
    single = Path(shutil.copytree(new_folder / "checkpoints" / name, tmp_path / "alone" / name))
    with pytest.raises(InputError, match=r"no such folder on this machine: 'model'"):
        resolve(single)
    monkeypatch.setenv("CLAIM2SOURCE_STORE", str(tmp_path / "store"))
    resolve(single)
    monkeypatch.setenv("CLAIM2SOURCE_STORE", str(tmp_path / "another store"))
    (single.parent / "model").symlink_to(model)
    resolve(single)
