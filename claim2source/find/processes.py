"""Divide the encoding of papers among processes started by Slurm, accelerate or a person."""

from __future__ import annotations

from collections.abc import Mapping

from claim2source.core.arguments import is_digits
from claim2source.core.config import require


def process_shard(shard: str | None, environment: Mapping[str, str]) -> tuple[int, int]:
    """Return this process's number, from 0, and the number of processes.

    Slurm's array indices may have any start and step; accelerate's processes have ranks.
    """
    if shard is not None:
        number, _, count = shard.partition("/")
        good = is_digits(number) and is_digits(count) and 1 <= int(number) <= int(count)
        require(good, "shard", shard, "I/N, such as 1/8")
        return int(number) - 1, int(count)
    if task := environment.get("SLURM_ARRAY_TASK_ID"):
        first = int(environment.get("SLURM_ARRAY_TASK_MIN", 0))
        step = int(environment.get("SLURM_ARRAY_TASK_STEP", 1)) or 1
        return (int(task) - first) // step, int(environment.get("SLURM_ARRAY_TASK_COUNT", 1))
    return int(environment.get("RANK", 0)), int(environment.get("WORLD_SIZE", 1))


def choose_gpu(device: str | None, environment: Mapping[str, str]) -> None:
    """Assign each process of accelerate its own GPU."""
    if (rank := environment.get("LOCAL_RANK")) and device != "cpu":
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(int(rank) % torch.cuda.device_count())
