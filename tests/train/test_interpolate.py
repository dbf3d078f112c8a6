"""`train/interpolate.py` as a user calls it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from claim2source.core.errors import run_program
from claim2source.models import Manifest
from claim2source.training.finetune import finetune
from tests.shared_data import REPOSITORY
from tests.training.small import small_config, small_setup
from train import interpolate as program
from train.interpolate import main


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished LoRA run of one epoch."""
    folder = tmp_path_factory.mktemp("trained")
    model, data = small_setup(folder)
    finetune(small_config(model, data, folder / "run", tuning="lora", optimisation__epochs=1))
    return folder / "run"


@pytest.mark.slow
def test_a_trained_checkpoint_needs_nothing_but_its_name(trained: Path, tmp_path: Path) -> None:
    """The data set is the manifest's; W&B is offline without a key, an account or a network."""
    out = tmp_path / "out"
    command = [
        sys.executable,
        str(REPOSITORY / "train" / "interpolate.py"),
        "--out",
        str(out),
        "--checkpoint",
        str(trained / "checkpoints" / "epoch-1"),
        "--scales",
        "0",
        "0.5",
        "1",
    ]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **kept,
            "PYTHONPATH": str(REPOSITORY),
            "HOME": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            "NETRC": str(tmp_path / "none"),
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((out / "report.json").read_text())
    assert [at["settings"]["scale"] for at in report["choices"][0]["tried"]] == [0.0, 0.5, 1.0]
    assert "Picked on val" in done.stdout and "MRR@5 on dev" in done.stdout
    media = list((out / "wandb").glob("offline-run-*/files/media/*/*"))
    assert {path.suffix for path in media} == {".png", ".json"}


@pytest.mark.parametrize("named", ["run", "run/checkpoints/epoch-1", "alone"])
def test_no_output_folder_need_be_named(
    named: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of the README: into the run, or beside a checkpoint that lies in none."""
    monkeypatch.setattr(program, "_log", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, "run")
    shutil.copytree(trained / "checkpoints" / "epoch-1", "alone")
    chosen = json.loads(Path("run/run.json").read_text()) | {"chosen": "epoch-1"}
    Path("run/run.json").write_text(json.dumps(chosen))
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    data = Manifest.read("run/checkpoints/epoch-1").data.dataset
    command = f"--checkpoint {named} --scales 0 0.25 0.5 0.75 1 --dataset {data}"
    main(command.split())
    out = tmp_path / ("interpolation" if named == "alone" else "run/interpolation")
    report = json.loads((out / "report.json").read_text())
    assert [at["settings"]["scale"] for at in report["choices"][0]["tried"]] == [
        0.0,
        0.25,
        0.5,
        0.75,
        1.0,
    ]
    assert report["dataset"] == data
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--scales", "-1"], "scales"),
        (["--scales", "all"], "scales"),
        (["--pick=best"], "pick"),
        (["--split=train"], "split"),
        (["--dataset=no/such"], "no/such"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    more: list[str],
    said: str,
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [f"--checkpoint={trained / 'checkpoints' / 'epoch-1'}", f"--out={tmp_path / 'out'}"]
    with pytest.raises(SystemExit) as stopped:
        run_program(main, [*given, *more])
    assert stopped.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and said in errors[0]
    assert not (tmp_path / "out").exists()
