"""`train/merge.py` as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from claim2source.core.errors import run_program
from claim2source.core.files import file_hash
from claim2source.models import resolve
from tests.shared_data import REPOSITORY
from tests.training.points import config, write_point
from train.merge import main


def test_a_checkpoint_becomes_a_model(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_point(config(tiny_folder), tmp_path / "point", "lora")
    out = tmp_path / "out"
    main([f"--checkpoint={tmp_path / 'point'}", "--scale=0.5", "--dtype=float16", f"--out={out}"])
    said = capsys.readouterr().out
    assert "scale 0.5, float16" in said and file_hash(out / "model.safetensors") in said
    assert "encode_query" in said
    assert json.loads((out / "config.json").read_text())["dtype"] == "float16"
    assert resolve(out, "cpu").encoder.settings.max_length == 12


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--scale=-1"], "scale"),
        (["--scale=much"], "scale"),
        (["--dtype=int8"], "dtype"),
        (["--scales=1"], "scales"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_program(main, ["--checkpoint=nowhere", f"--out={tmp_path / 'out'}", *more])
    assert stopped.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ") and said in errors and errors.count("\n") == 1


@pytest.mark.slow
def test_as_a_program_from_anywhere(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(REPOSITORY / "train" / "merge.py"),
        "--checkpoint",
        "nowhere",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path)},
    )
    assert done.returncode == 2
    assert "manifest.json" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
