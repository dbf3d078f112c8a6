"""What the user's environment holds changes no test, and no file that is read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.shared_data import REPOSITORY

# A locale without umlauts, a home that is not there, and settings for what the tests use.
WORST = {
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "TZ": "Pacific/Kiritimati",
    "COLUMNS": "20",
    "NO_COLOR": "1",
    "HOME": "/nonexistent",
    "XDG_CACHE_HOME": "/nonexistent/cache",
    "WANDB_MODE": "disabled",
    "WANDB_API_KEY": "x",
    "WANDB_BASE_URL": "http://127.0.0.1:9",
    "HF_HUB_OFFLINE": "0",
    "HF_HOME": "/nonexistent/hf",
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "CLAIM2SOURCE_STORE": "/nonexistent/store",
    "https_proxy": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
    "WORLD_SIZE": "2",
    "SLURM_NTASKS": "3",
}


def in_the_worst(words: list[str], cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **WORST, "PYTHONPATH": str(REPOSITORY), **more},
        umask=0o077,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=600,
    )


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
    done = in_the_worst(["-c", code], tmp_path)
    encoding, *said = done.stdout.splitlines()
    assert encoding.lower() != "utf-8" and said == [ascii("Čapek/größe.jsonl")], done.stderr
