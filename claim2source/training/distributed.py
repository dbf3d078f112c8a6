"""The few things that the processes of a run do together outside the training loop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from claim2source.core.errors import UserError
from claim2source.training.launch import World

# The first process mines and evaluates while the others wait.
_PATIENCE = timedelta(hours=24)


@contextlib.contextmanager
def joined_world(world: World, device: str | None) -> Iterator[None]:
    """Join the processes for the duration of the body; nothing to do for one.

    On GPUs each takes its own first: what the body loads would else lie on GPU 0. Raises
    `UserError` where a machine has fewer GPUs than processes, and where no launcher started the
    others: they would be waited for in vain.
    """
    if world.size == 1:
        yield
        return
    if not dist.is_torchelastic_launched():
        raise UserError(
            f"WORLD_SIZE={world.size}, but no launcher started this process: use accelerate "
            "launch --multi_gpu, or unset WORLD_SIZE"
        )
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        there = torch.cuda.device_count()
        if world.local_rank >= there:
            raise UserError(f"{world.local_size} processes on a machine with {there} GPUs")
        torch.cuda.set_device(world.local_rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        rank=world.rank,
        world_size=world.size,
        timeout=_PATIENCE,
    )
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def barrier(world: World) -> None:
    """Wait for every process."""
    if world.size > 1:
        # A CPU collective: a GPU barrier would pick a device before Lightning has set it.
        dist.all_reduce(torch.zeros(1))


def gathered(value: Any, world: World) -> list[Any]:
    """The values of all processes, by rank; plain values and CPU tensors."""
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value)
    return values
