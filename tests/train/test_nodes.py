"""Real runs on several nodes: two hosts as network namespaces, with accelerate and Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import environment
from tests.shared_data import REPOSITORY
from tests.training.namespaces import Host, two_hosts, why_not
from tests.training.small import arguments

SCRIPT = str(REPOSITORY / "train" / "finetune.py")
PORT = "29611"
# Runs its command on both hosts, which have the numbers 0 and 1, and ends with the first's code.
SRUN = """#!/bin/bash
shift
SLURM_NODEID=1 GLOO_SOCKET_IFNAME={b.device} ip netns exec {b.name} "$@" > {log} 2>&1 &
SLURM_NODEID=0 GLOO_SOCKET_IFNAME={a.device} ip netns exec {a.name} "$@"
code=$?
wait
exit $code
"""
# The program, with exchanges that end after seconds.
IMPATIENT = """
from datetime import timedelta

from claim2source.core.errors import run_program
from claim2source.training import distributed
from claim2source.train.finetune import main

distributed._TIMEOUT = timedelta(seconds=8)
run_program(main)
"""


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with two_hosts() as pair:
        yield pair


def words(setup: tuple[Path, Path], out: Path, batch: int, epochs: int = 3) -> list[str]:
    extra: dict[str, object] = {"optimisation__epochs": epochs, "optimisation__batch_size": batch}
    extra |= {"optimisation__dropout": 0, "threads": 1, "device": "cpu"}
    return arguments(*setup, out, **extra)


def start(
    host: Host, number: int, main: Host, log: Path, command: list[str]
) -> subprocess.Popen[str]:
    """Start one node's launcher of one process, as a user types it on that node."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
    launch += ["--num_machines", "2", "--num_processes", "2", "--machine_rank", str(number)]
    launch += ["--main_process_ip", main.address, "--main_process_port", PORT]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    with log.open("w") as out:
        return subprocess.Popen(
            host.inside([*launch, *command]),
            env=environment(**host.environment),
            cwd=log.parent,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
        )


def wait_for(log: Path, text: str, nodes: list[subprocess.Popen[str]]) -> None:
    deadline = time.monotonic() + 240
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        assert all(node.poll() is None for node in nodes), log.read_text()
        time.sleep(0.05)


def ours(log: Path) -> list[str]:
    """The lines of the program's errors, the launcher's left out."""
    return [line for line in log.read_text().splitlines() if line.startswith("error: ")]


def losses_of(run: Path) -> list[float]:
    history = json.loads((run / "run.json").read_text())["history"]
    return [entry["loss"] for entry in history if entry["loss"] is not None]


@pytest.mark.slow
def test_two_nodes_train_as_one_process_and_resume_after_one_was_killed(
    hosts: tuple[Host, Host], setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """Started by accelerate, a node killed in the second epoch; the Slurm job goes on with it."""
    alone = [sys.executable, SCRIPT, *words(setup, tmp_path / "alone", 8)]
    process = subprocess.run(alone, env=environment(), capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr

    a, b = hosts
    run, logs = tmp_path / "run", [tmp_path / "a.log", tmp_path / "b.log"]
    command = [SCRIPT, *words(setup, run, 4)]
    nodes = [start(host, i, a, logs[i], command) for i, host in enumerate(hosts)]
    wait_for(logs[0], "epoch 1: ", nodes)
    b.kill()
    # Sooner than the hours that an exchange may take, and not as an internal error.
    assert nodes[0].wait(timeout=60) != 0
    assert nodes[1].wait(timeout=60) != 0
    (message,) = ours(logs[0])
    assert "the connection to another process was lost (" in message and "peer" in message
    assert "--resume" in message and "10.77.0.2" in message and ours(logs[1]) == []

    folder = tmp_path / "bin"
    folder.mkdir()
    srun_log = tmp_path / "srun.log"
    python = f'#!/bin/sh\nexec "{sys.executable}" -m accelerate.commands.accelerate_cli "$@"\n'
    scontrol = f"#!/bin/sh\nprintf '{a.address}\\n{b.address}\\n'\n"
    srun = SRUN.format(a=a, b=b, log=srun_log)
    for name, text in (("srun", srun), ("scontrol", scontrol), ("accelerate", python)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    slurm = {"SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "1", "SLURM_JOB_NODELIST": "node[1-2]"}
    slurm |= {"SLURM_SUBMIT_DIR": str(REPOSITORY), "MAIN_PORT": PORT}
    slurm |= {"PATH": f"{folder}:{os.environ['PATH']}"}
    job = ["bash", str(REPOSITORY / "scripts" / "slurm_finetune.sh"), *words(setup, run, 4)]
    # The job looks for `--out DIR` among its words, and adds --resume by itself.
    process = subprocess.run(
        job, env=environment(**slurm), capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stdout + process.stderr + srun_log.read_text()
    assert "resuming after batch " in process.stdout and "epoch 3: " in process.stdout
    assert "resuming after batch 0" not in process.stdout
    expected = losses_of(tmp_path / "alone")
    assert len(expected) == 3 and losses_of(run) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_a_node_without_its_network_is_not_waited_for(
    hosts: tuple[Host, Host], setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """Nothing closes the connections: an exchange's timeout ends one, the kernel's the other.

    The node without a network may wait in an exchange, or for the first process's store.
    """
    hosts[1].give_up_early()
    script = tmp_path / "impatient.py"
    script.write_text(IMPATIENT)
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    command = [str(script), *words(setup, tmp_path / "run", 4, epochs=500)]
    nodes = [start(host, i, hosts[0], logs[i], command) for i, host in enumerate(hosts)]
    wait_for(logs[0], "epoch 1: ", nodes)
    hosts[1].unplug()
    assert [node.wait(timeout=120) != 0 for node in nodes] == [True, True]
    for log in logs:
        (message,) = ours(log)
        assert "the connection to another process was lost (" in message and "--resume" in message
    # The thread that waits and the thread of the connection see the time-out, whichever is first.
    reasons = "Timed out waiting 8000ms", "Application timeout caused pair closure"
    assert any(reason in ours(logs[0])[0] for reason in reasons)
