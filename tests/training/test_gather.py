"""Negatives of all processes: real processes, gradients equal for any world and any chunks.

They are those of a step over two accumulated batches, as the strategy's own hook averages them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from claim2source.training.module import gather_vectors
from tests.processes import environment
from tests.shared_data import REPOSITORY
from tests.training.small import relative_gap

PORTS = iter(range(29611, 29700))


@pytest.fixture(scope="module")
def reference(setup: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process, two whole batches at once: the reference for all other ways."""
    alone = gradients(setup, 1, "none", tmp_path_factory.mktemp("alone") / "out.pt")
    # Every loss has a weight, so that all gradients are compared.
    own = "tests.training.own_losses.Uniformity"
    ours = {"info_nce", "distillation", "keep_base", "consistency"}
    assert {*ours, own} < alone["terms"].keys()
    assert all(abs(value) > 1e-4 for value in alone["terms"].values())
    return alone


def gradients(
    setup: tuple[Path, Path], world: int, chunk: str, out: Path, freeze: str = "nothing"
) -> dict[str, Any]:
    port = str(next(PORTS) + os.getpid() % 1000)
    words = [*map(str, setup), chunk, freeze, str(out)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.training.world_gradients", *words],
            cwd=REPOSITORY,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                TORCHELASTIC_RUN_ID="tests",
                LOCAL_WORLD_SIZE=str(world),
                WORLD_SIZE=str(world),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            ),
        )
        for rank in range(world)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-3000:]
    return torch.load(out, weights_only=True)


def require_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert second["terms"]["loss"] == pytest.approx(first["terms"]["loss"], rel=1e-5)
    assert relative_gap(first["gradients"], second["gradients"]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("world", "chunk"), [(1, "7"), (2, "none"), (4, "3")])
def test_processes_and_chunks_change_no_gradient(
    world: int, chunk: str, reference: dict[str, Any], setup: tuple[Path, Path], tmp_path: Path
) -> None:
    require_same(reference, gradients(setup, world, chunk, tmp_path / "out.pt"))


@pytest.mark.slow
def test_frozen_weights_have_no_gradient(setup: tuple[Path, Path], tmp_path: Path) -> None:
    frozen = [
        gradients(setup, world, "5", tmp_path / f"{world}.pt", "embeddings") for world in (1, 2)
    ]
    require_same(*frozen)


def test_one_process_gathers_nothing() -> None:
    own = torch.randn(3, 4, requires_grad=True)
    assert gather_vectors(own, (3,), 0) is own
