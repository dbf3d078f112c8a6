"""Read the launched processes from the environment, and check the launcher's options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from claim2source.core.errors import UserError

_LEAVE_OUT = "leave it out and set trainer.strategy to ddp or fsdp2"
# Launcher settings that Lightning silently ignores -> option, harmless values, advice.
_IGNORED_BY_LIGHTNING = {
    "USE_FSDP": ("--use_fsdp", ("false", "0", "no"), _LEAVE_OUT),
    "USE_DEEPSPEED": ("--use_deepspeed", ("false", "0", "no"), _LEAVE_OUT),
    "USE_MEGATRON_LM": ("--use_megatron_lm", ("false", "0", "no"), _LEAVE_OUT),
    "USE_PARALLELISM_CONFIG": ("--use_parallelism_config", ("false", "0", "no"), _LEAVE_OUT),
    "DYNAMO_BACKEND": ("--dynamo_backend", ("no",), _LEAVE_OUT),
}
# Options that start several processes, on GPUs and on the CPU.
_SEVERAL = "--multi_gpu --num_processes N --num_machines 1 --mixed_precision no --dynamo_backend no"


@dataclass(frozen=True)
class World:
    """Describe the launched processes and this one's rank.

    `local_size` counts the processes on this machine; `local_rank` is this one's rank among
    those, and the number of its GPU.
    """

    size: int = 1
    local_size: int = 1
    rank: int = 0
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this process writes files, mines and evaluates."""
        return self.rank == 0


@dataclass(frozen=True)
class LaunchedSettings:
    """Settings of a run that the launcher also has options for.

    Programs that do not train have no precision and no accumulation.
    """

    device: str | None = None
    precision: str | None = None
    accumulation: int | None = None


def launched_world(
    environment: Mapping[str, str] | None = None, settings: LaunchedSettings | None = None
) -> World:
    """Read the world from the launcher's environment variables; without them, one process.

    Raises `UserError` for launcher options that Lightning would ignore or that contradict the
    settings, and for several processes without a launcher.
    """
    env = os.environ if environment is None else environment
    settings = settings or LaunchedSettings()
    _check_options(env, settings)
    on_cpu = env.get("ACCELERATE_USE_CPU", "").strip().lower() in ("true", "1", "yes")
    launched = any(name.startswith("ACCELERATE_") for name in env)
    if not env.get("WORLD_SIZE", "").strip() and launched and env.get("MASTER_ADDR"):
        advice = f"instead of --cpu, use {_SEVERAL}" if on_cpu else f"use {_SEVERAL}"
        raise UserError(
            f"accelerate launch started one process instead of several: {advice} "
            "(it also runs on the CPU; add --device cpu if there is a GPU)"
        )
    if on_cpu and settings.device != "cpu" and _has_gpu():
        raise UserError("accelerate launch --cpu would be ignored: use --device cpu")
    size = env.get("WORLD_SIZE", "").strip() or "1"
    if size == "1":
        return World()
    if "TORCHELASTIC_RUN_ID" not in env:
        raise UserError(
            f"WORLD_SIZE={size}, but no launcher started this process: use accelerate "
            "launch --multi_gpu, or unset WORLD_SIZE"
        )
    return World(int(size), *(int(env[n]) for n in ("LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK")))


def _check_options(env: Mapping[str, str], settings: LaunchedSettings) -> None:
    for name, (option, harmless, advice) in _IGNORED_BY_LIGHTNING.items():
        value = _launcher_value(env, name)
        if value and value.lower() not in harmless:
            raise UserError(
                f"accelerate launch {option} (ACCELERATE_{name}={value}) would be ignored: {advice}"
            )
    if settings.precision is not None:
        _check_agreement(env, "mixed_precision", "no", settings.precision, "precision")
    if settings.accumulation is not None:
        own = str(settings.accumulation)
        _check_agreement(env, "gradient_accumulation_steps", "1", own, "accumulation")


def _check_agreement(env: Mapping[str, str], option: str, default: str, own: str, key: str) -> None:
    """Raise `UserError` if the launcher's option is not its default, and not our key's value."""
    value = _launcher_value(env, option.upper())
    if value.lower() in ("", default, own):
        return
    raise UserError(
        f"accelerate launch --{option} {value} contradicts optimisation.{key}: {own}; "
        f"set both to the same value, or the launcher's to {default}"
    )


def _launcher_value(env: Mapping[str, str], name: str) -> str:
    return env.get(f"ACCELERATE_{name}", "").strip()


def _has_gpu() -> bool:
    import torch  # here, because only a launch with --cpu needs it

    return torch.cuda.is_available()
