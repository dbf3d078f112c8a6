"""The launcher's world and its options."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from claim2source.core.errors import UserError
from claim2source.training.distributed import (
    check_same_world,
    joined_world,
    lost_connection,
)
from claim2source.training.launcher import LaunchedSettings, World, launched_world
from tests.refusals import refused


def test_the_launchers_variables() -> None:
    """Nothing set means one process; harmless options pass."""
    world = launched_world({})
    assert world == World(1, 1, 0, 0) and world.is_first
    env = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "RANK": "5", "LOCAL_RANK": "3"}
    # Ranks need not count a machine's processes in order.
    world = launched_world({**env, "TORCHELASTIC_RUN_ID": "1"})
    assert world == World(8, 4, 5, 3) and not world.is_first
    harmless = {"MIXED_PRECISION": "no", "DYNAMO_BACKEND": "NO", "USE_FSDP": "false"}
    harmless |= {"GRADIENT_ACCUMULATION_STEPS": "1", "USE_CPU": "True"}
    launcher = {f"ACCELERATE_{name}": value for name, value in harmless.items()}
    launched_world(launcher, LaunchedSettings("cpu"))


@pytest.mark.parametrize(
    ("variable", "value", "option"),
    [
        ("ACCELERATE_USE_FSDP", "true", "--use_fsdp"),
        ("ACCELERATE_USE_DEEPSPEED", "true", "--use_deepspeed"),
        ("ACCELERATE_USE_MEGATRON_LM", "true", "--use_megatron_lm"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", "--dynamo_backend"),
    ],
)
def test_options_that_lightning_would_ignore_are_refused(
    variable: str, value: str, option: str
) -> None:
    with pytest.raises(UserError, match=option):
        launched_world({variable: value})


@pytest.mark.parametrize(
    ("name", "launched", "own", "contradicts"),
    [
        ("MIXED_PRECISION", "bf16", "bf16", False),
        ("MIXED_PRECISION", "BF16", "bf16", False),
        ("MIXED_PRECISION", "no", "bf16", False),
        ("MIXED_PRECISION", "no", "fp32", False),
        ("MIXED_PRECISION", "bf16", "fp32", True),
        ("MIXED_PRECISION", "fp16", "bf16", True),
        ("MIXED_PRECISION", "fp8", "fp32", True),
        ("GRADIENT_ACCUMULATION_STEPS", "4", 4, False),
        ("GRADIENT_ACCUMULATION_STEPS", "1", 4, False),
        ("GRADIENT_ACCUMULATION_STEPS", "4", 1, True),
        ("GRADIENT_ACCUMULATION_STEPS", "4", 2, True),
    ],
)
def test_only_contradictions_of_config_and_launcher_are_refused(
    name: str, launched: str, own: str | int, contradicts: bool
) -> None:
    environment = {f"ACCELERATE_{name}": launched}
    settings = LaunchedSettings("cpu", "fp32", 1)
    if isinstance(own, str):
        settings = replace(settings, precision=own)
    else:
        settings = replace(settings, accumulation=own)
    # A program that does not train has no such settings.
    assert launched_world(environment).size == 1
    if not contradicts:
        assert launched_world(environment, settings).size == 1
        return
    with pytest.raises(UserError, match=rf"--{name.lower()} {launched} .*optimisation\.\w+: {own}"):
        launched_world(environment, settings)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_more_processes_than_gpus_are_refused() -> None:
    gpus = torch.cuda.device_count()
    facts = f"{gpus + 1} processes", f"{gpus} GPUs"
    world = World(gpus + 1, gpus + 1, gpus, gpus)
    with refused(UserError, *facts), joined_world(world, None):
        raise AssertionError("joined")


def test_two_worlds_are_an_error() -> None:
    check_same_world(World(2, 2, 0), 2)
    with refused(UserError, " 2 processes", "Lightning sees 1"):
        check_same_world(World(2, 2, 0), 1)


def test_several_processes_asked_for_and_one_started_is_refused() -> None:
    # The environment of `accelerate launch --num_processes 2` if it finds one device.
    launcher = {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1"}
    with pytest.raises(UserError, match="--multi_gpu"):
        launched_world(launcher)
    # `--cpu` starts one process, and accelerate takes no --multi_gpu beside it.
    with refused(UserError, "--cpu", "--multi_gpu --num_processes N "):
        launched_world(launcher | {"ACCELERATE_USE_CPU": "True"})
    assert launched_world(launcher | {"WORLD_SIZE": "1"}).size == 1
    assert launched_world({"MASTER_ADDR": "127.0.0.1"}).size == 1  # a cluster's, not the launcher's


def test_the_launchers_cpu_is_not_ignored_where_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = {"ACCELERATE_USE_CPU": "True"}
    for has_gpu in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        assert launched_world(launcher, LaunchedSettings("cpu")).size == 1
        if has_gpu:
            with pytest.raises(UserError, match="--device cpu"):
                launched_world(launcher)
        else:
            assert launched_world(launcher).size == 1


@pytest.mark.parametrize("size", ["2", "0", "two"])
def test_a_world_that_no_launcher_started_is_not_waited_for(size: str) -> None:
    with refused(UserError, f"WORLD_SIZE={size},", "accelerate launch"):
        launched_world({"WORLD_SIZE": size})
    with joined_world(World(), "cpu"):
        pass


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            RuntimeError(
                "[/a/b/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.1]:1926: Connection "
                "reset by peer. This is typically caused by a remote process that ended.\nmore"
            ),
            "(Read error [10.0.0.1]:1926: Connection reset by peer)",
        ),
        # gloo's error for the next exchange after a timeout.
        (RuntimeError("Application timeout caused pair closure"), "caused pair closure"),
        (dist.DistBackendError("NCCL error: remote process exited"), "remote process exited"),
    ],
)
def test_a_lost_process_is_one_line(error: Exception, reason: str) -> None:
    cause = lost_connection(error)
    assert cause is not None and "\n" not in cause and "--resume" in cause
    assert reason in cause
    assert lost_connection(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None
