"""The Slurm job against stand-ins for Slurm's commands and the launcher: what gets started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from claim2source.core.folders import MARKER
from tests.shared_data import REPOSITORY

JOB = REPOSITORY / "scripts" / "slurm_finetune.sh"
# srun runs its command once per node; the launcher prints its arguments, one per line.
SRUN = '#!/bin/sh\nshift\necho "cpus $SRUN_CPUS_PER_TASK" >&2\nfor n in $(seq 0 $((SLURM_NNODES - 1))); do SLURM_NODEID=$n "$@"; done\n'
LAUNCHER = '#!/bin/sh\nprintf "%s\\n" "accelerate" "$@"\n'


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {
        "srun": SRUN,
        "accelerate": LAUNCHER,
        "scontrol": "#!/bin/sh\nprintf 'node7\\nnode8\\n'\n",
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def submit(bin_folder: Path, *arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURM_SUBMIT_DIR": str(REPOSITORY),
        **options,
    }
    return subprocess.run(
        ["bash", str(JOB), *arguments], env=environment, capture_output=True, text=True
    )


def test_every_node_launches_its_share(bin_folder: Path, tmp_path: Path) -> None:
    proc = submit(bin_folder, "--config", "a file.yaml", "--out", str(tmp_path / "run"))
    assert proc.returncode == 0, proc.stderr
    nodes = proc.stdout.split("accelerate\n")[1:]
    assert len(nodes) == 2
    for number, node in enumerate(nodes):
        words = node.splitlines()
        program = words.index("train/finetune.py")
        options = dict(zip(words[:program], words[1:program], strict=False))
        assert options["launch"] == "--num_machines" and "--multi_gpu" in words[:program]
        assert options["--num_machines"] == "2" and options["--num_processes"] == "8"
        assert options["--main_process_ip"] == "node7"
        assert options["--machine_rank"] == str(number)
        # What the trainer refuses to have ignored is off.
        assert options["--mixed_precision"] == "no" and options["--dynamo_backend"] == "no"
        expected = ["--config", "a file.yaml", "--out", str(tmp_path / "run")]
        assert words[program + 1 :] == expected


@pytest.mark.parametrize("form", ["--out {}", "--out={}"])
@pytest.mark.parametrize("name", [MARKER, "config.yaml"])
def test_submitted_again_it_resumes(form: str, name: str, bin_folder: Path, tmp_path: Path) -> None:
    """What the trainer accepts as a run: a config alone is not enough."""
    (tmp_path / name).write_text("")
    words = form.format(tmp_path).split()
    proc = submit(bin_folder, *words, SLURM_NNODES="1", SLURM_GPUS_ON_NODE="1")
    assert (proc.stdout.splitlines()[-1] == "--resume") is (name != "config.yaml")
    assert "--multi_gpu" not in proc.stdout


def test_without_out_or_outside_a_job_nothing_starts(bin_folder: Path) -> None:
    proc = submit(bin_folder, "--config", "x.yaml")
    assert proc.returncode == 2 and "--out" in proc.stderr and proc.stdout == ""
    proc = submit(bin_folder, "--out", "x", SLURM_NNODES="")
    assert proc.returncode == 2 and "sbatch" in proc.stderr
