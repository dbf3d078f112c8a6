"""What the launcher says and what Lightning sees must be one world."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from claim2source.core.errors import UserError

# Launcher settings that Lightning would pass over in silence -> values that ask for nothing.
_IGNORED_BY_LIGHTNING = {
    "ACCELERATE_USE_FSDP": ("--use_fsdp", ("false", "0", "no")),
    "ACCELERATE_USE_DEEPSPEED": ("--use_deepspeed", ("false", "0", "no")),
    "ACCELERATE_USE_MEGATRON_LM": ("--use_megatron_lm", ("false", "0", "no")),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("--use_parallelism_config", ("false", "0", "no")),
    "ACCELERATE_MIXED_PRECISION": ("--mixed_precision", ("no",)),
    "ACCELERATE_DYNAMO_BACKEND": ("--dynamo_backend", ("no",)),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ("--gradient_accumulation_steps", ("1",)),
}
_OURS = {
    "--mixed_precision": "set optimisation.precision",
    "--gradient_accumulation_steps": "set optimisation.accumulation",
}


@dataclass(frozen=True)
class World:
    """The processes of a launch: their number, those on this machine, and this one's rank.

    `local_rank` is its rank among those on this machine, and the number of its GPU.
    """

    size: int = 1
    local_size: int = 1
    rank: int = 0
    local_rank: int = 0

    @property
    def nodes(self) -> int:
        """Number of machines."""
        return self.size // self.local_size

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0


def launched_world(environment: Mapping[str, str] | None = None) -> World:
    """Read the world from the launcher's variables; none set means one process.

    Raises `UserError` for launcher options that Lightning would ignore, and for a world that
    does not add up.
    """
    env = os.environ if environment is None else environment
    for variable, (option, harmless) in _IGNORED_BY_LIGHTNING.items():
        value = env.get(variable, "").strip().lower()
        if value and value not in harmless:
            instead = _OURS.get(option, "leave it out; the trainer runs single or DDP")
            raise UserError(
                f"accelerate launch {option} ({variable}={env[variable]}) "
                f"would be ignored: {instead}"
            )
    if not env.get("WORLD_SIZE", "").strip() and _launched(env) and env.get("MASTER_ADDR"):
        raise UserError(
            "accelerate launch was asked for several processes and started one; add --multi_gpu"
        )
    size = _number(env, "WORLD_SIZE", 1)
    local = _number(env, "LOCAL_WORLD_SIZE", size)
    rank = _number(env, "RANK", 0)
    local_rank = _number(env, "LOCAL_RANK", rank % local)
    if size % local or not 0 <= rank < size or local_rank >= local:
        raise UserError(
            f"the launcher's world does not add up: WORLD_SIZE={size}, "
            f"LOCAL_WORLD_SIZE={local}, RANK={rank}, LOCAL_RANK={local_rank}"
        )
    return World(size, local, rank, local_rank)


def _launched(env: Mapping[str, str]) -> bool:
    return any(name.startswith("ACCELERATE_") for name in env)


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or (int(text) == 0 and name not in ("RANK", "LOCAL_RANK")):
        raise UserError(f"{name}={text!r}: a number of processes was expected")
    return int(text)


def check_same_world(world: World, seen_by_lightning: int) -> None:
    """Raise `UserError` unless Lightning trains in the launcher's world."""
    if world.size != seen_by_lightning:
        raise UserError(
            f"the launcher started {world.size} processes, Lightning sees {seen_by_lightning}: "
            "they would train apart from each other; check the launcher's options"
        )
