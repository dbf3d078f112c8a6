"""Commands that programs name: as this one was started, or as the README has them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from claim2source.core.program import next_command, program_command


def test_the_next_command_is_a_subcommand_if_the_command_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "train/finetune_reranker.py"
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "eval" / "find.py")])
    monkeypatch.setenv("PATH", str(tmp_path))
    # Of a notebook, or a program of one's own.
    started = "python -m claim2source finetune-reranker"
    assert next_command(program) == program_command(program) == started
    assert program_command("scripts/plan.py") == "python scripts/plan.py"
    command = tmp_path / "claim2source"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    assert next_command(program) == "claim2source finetune-reranker"
    assert program_command(program) == started
