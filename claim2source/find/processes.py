"""Divide the encoding of papers among processes started by Slurm, accelerate or a person."""

from __future__ import annotations

from collections.abc import Mapping

from claim2source.core.arguments import is_digits
from claim2source.core.config import require


def process_shard(
    shard: str | None,
    environment: Mapping[str, str],
) -> tuple[int, int]:
    """Return this process's number, from 0, and the number of processes.

    Slurm's array indices may have any start and step; accelerate's processes have ranks.
    """
    if shard is not None:
        return _named_shard(shard)

    task = environment.get("SLURM_ARRAY_TASK_ID")
    if task:
        return _slurm_shard(task, environment)

    rank = int(environment.get("RANK", 0))
    count = int(environment.get("WORLD_SIZE", 1))
    return rank, count


def _named_shard(shard: str) -> tuple[int, int]:
    """Read a shard that a person has named, such as 1/8."""
    number, _, count = shard.partition("/")
    are_digits = is_digits(number) and is_digits(count)
    is_within = are_digits and 1 <= int(number) <= int(count)
    require(is_within, "shard", shard, "I/N, such as 1/8")
    from_zero = int(number) - 1
    return from_zero, int(count)


def _slurm_shard(
    task: str,
    environment: Mapping[str, str],
) -> tuple[int, int]:
    """Read the shard of a task of a Slurm array."""
    first = int(environment.get("SLURM_ARRAY_TASK_MIN", 0))
    step = int(environment.get("SLURM_ARRAY_TASK_STEP", 1))
    offset = int(task) - first
    number = offset // (step or 1)
    count = int(environment.get("SLURM_ARRAY_TASK_COUNT", 1))
    return number, count


def choose_gpu(
    device: str | None,
    environment: Mapping[str, str],
) -> None:
    """Assign each process of accelerate its own GPU."""
    rank = environment.get("LOCAL_RANK")
    if not rank or device == "cpu":
        return

    import torch

    if torch.cuda.is_available():
        gpu = int(rank) % torch.cuda.device_count()
        torch.cuda.set_device(gpu)
