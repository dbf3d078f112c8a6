"""What the user's environment holds changes no file that is read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.shared_data import REPOSITORY

WORST = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_configs_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("mined: Čapek/größe.jsonl\n", encoding="utf-8")
    code = """
import locale
from dataclasses import dataclass
from claim2source.core.config import read_config
@dataclass
class Own:
    mined: str
print(locale.getpreferredencoding(False))
own = read_config(Own, ["--config=own.yaml"], program="t", description="t")
print(ascii(own.mined))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, **WORST, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    encoding, *said = done.stdout.splitlines()
    assert encoding.lower() != "utf-8" and said == [ascii("Čapek/größe.jsonl")], done.stderr
