"""`train/finetune.py` as a user launches it: real processes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from claim2source.core.errors import UserError
from claim2source.core.lock import LOCK_FILE
from claim2source.core.report import Report
from claim2source.models import resolve
from claim2source.models.resolve import chosen_checkpoint
from claim2source.training.resume import TrainingState
from tests.report_files import without_costs
from tests.shared_data import REPOSITORY
from tests.training.small import arguments, last_weights, losses_of, same_weights, small_setup
from train.finetune import main

SCRIPT = str(REPOSITORY / "train" / "finetune.py")
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch"]
PLAIN = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
ONE = [*LAUNCH, "--cpu", "--num_processes", "1", *PLAIN, SCRIPT]
TWO = [
    *LAUNCH,
    "--multi_gpu",
    "--num_processes",
    "2",
    *PLAIN,
    "--main_process_port",
    "29517",
    SCRIPT,
]

# What is said on stderr of a run in which nothing goes wrong.
OURS = ("training: ", "WARNING: val has ")
KILLED: dict[str, object] = {
    "optimisation__epochs": 4,
    "optimisation__chunk_size": 5,
    "optimisation__remine_every": 2,
    "batches__rotate_negatives": True,
    "threads": 1,  # with or without a launcher the same sums
}


def environment(**options: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE", "SLURM"))}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **options}


def run(command: list[str], cwd: Path, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=environment(**options), capture_output=True, text=True, timeout=600
    )


@pytest.mark.parametrize("chosen", [None, "max_split_size_mb:64"])
def test_a_gpus_memory_grows_in_segments_unless_the_user_chose(
    chosen: str | None, setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set before anything of the run is loaded."""
    name = "PYTORCH_CUDA_ALLOC_CONF"
    monkeypatch.setenv(name, chosen or "")
    if chosen is None:
        monkeypatch.delenv(name)
    with pytest.raises(UserError, match="no/such/model"):
        main(arguments(*setup, tmp_path / "run", model__name="no/such/model"))
    assert os.environ[name] == (chosen or "expandable_segments:True")


@pytest.mark.slow
def test_a_mistake_in_two_processes_is_said_once(setup: tuple[Path, Path], tmp_path: Path) -> None:
    """Also by the launcher's --cpu, which starts one and is told what starts two."""
    words = arguments(*setup, tmp_path / "run")
    one = [*LAUNCH, "--cpu", "--num_processes", "2", *ONE[len(LAUNCH) + 3 :]]
    after = tmp_path / "after.yaml"
    after.write_text("only: [Nothing]\n", encoding="utf-8")
    for command, why in (
        ([*TWO, *words, "--no.key=3"], "no: no such key"),
        ([*TWO, *words, '--trainer={"devices": 3}'], "trainer.devices"),
        ([*TWO, *words, f"--after={after}"], "after.yaml: only: 'Nothing'"),
        ([*one, *words], " ".join(TWO[len(LAUNCH) : -3]).replace(" 2 ", " N ")),
    ):
        done = run(command, tmp_path)
        said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert done.returncode != 0 and len(said) == 1 and why in said[0], done.stderr
        assert "terminated" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_launched_from_anywhere(setup: tuple[Path, Path], tmp_path: Path) -> None:
    """With W&B offline: no key, no account, no network."""
    more: dict[str, object] = {"optimisation__epochs": 1, "wandb__mode": "auto"}
    home = {"HOME": str(tmp_path), "WANDB_API_KEY": "", "NETRC": str(tmp_path / "none")}
    done = run([*ONE, *arguments(*setup, tmp_path / "run", **more)], tmp_path, **home)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "MRR@5 on dev" in done.stdout and "unseen golds" in done.stdout
    # Results are on stdout; how far it is, and nothing of libraries, on stderr.
    assert "training: " not in done.stdout and "\nnext:\n" in done.stdout
    assert re.search(r"^training: \d+ of \d+, loss \d", done.stderr, re.MULTILINE)
    offline = "wandb: offline; `wandb sync "
    assert all(line.startswith((*OURS, offline)) for line in done.stderr.splitlines()), done.stderr
    assert done.stderr.count(offline) == 1
    assert "\r" not in done.stdout + done.stderr and "\x1b" not in done.stdout + done.stderr
    assert (tmp_path / "run" / "report.json").is_file()
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    # W&B has the report's tables, every number of them.
    record = json.loads((tmp_path / "run" / "report.json").read_text())
    tables = {
        path.name.rsplit("_", 2)[0]: json.loads(path.read_text())
        for path in folder.glob("files/media/table/*.table.json")
    }
    names = {"mined negatives", "history", "scores", "seen_and_unseen_golds"}
    assert set(tables) == names
    assert [row[:2] for row in tables["history"]["data"]] == [
        [epoch, language] for epoch in (0, 1) for language in ("en", "de", "macro")
    ]
    both = {(row[0], row[1]): row[2:] for row in tables["scores"]["data"]}
    scores = list(record["languages"]["de"].values())
    assert both["chosen", "de"][: len(scores)] == pytest.approx(scores)


@pytest.mark.slow
def test_two_processes_resume(setup: tuple[Path, Path], tmp_path: Path) -> None:
    """Killed, resumed, told to stop through their launcher, and resumed again."""
    more: dict[str, object] = {"optimisation__epochs": 2, "tuning": "lora"}
    more |= {"choose": "last"}
    whole = run([*TWO, *arguments(*setup, tmp_path / "whole", **more)], tmp_path)
    assert whole.returncode == 0, whole.stderr[-3000:]
    cut = tmp_path / "cut"
    command = [*TWO, *arguments(*setup, cut, **more)]
    _kill_after_saves(command, cut, 2)
    done, steps = _stop_after_saves([*command, "--resume"], cut, 1, signal.SIGTERM)
    random = TrainingState.load(cut / "state.pt").random
    assert len(random) == 2
    assert not torch.equal(*(state["cpu"] for state in random))  # nor is dropout
    assert done.returncode != 0
    assert done.stderr.count(f"stopped at step {steps}; continue with --resume") == 1
    done = run([*command, "--resume"], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses_of(cut) == losses_of(tmp_path / "whole") and steps < len(losses_of(cut))
    chosen = [chosen_checkpoint(tmp_path / name) for name in ("whole", "cut")]
    one, other = (load_file(folder / "adapter_model.safetensors") for folder in chosen)
    assert one and all(torch.equal(one[name], other[name]) for name in one)


SAME: dict[str, Any] = {
    "optimisation__dropout": 0.0,
    "optimisation__epochs": 3,
    "optimisation__batch_size": 10,  # of 40 pairs: none is left out of either
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "near"),
    [
        # The limit is of the averaged gradient, and so small that AdamW's epsilon shows it.
        ({"tuning": "full", "optimisation__max_grad_norm": 1e-4}, 1e-4),
        ({"tuning": "lora", "lora__dropout": 0.0, "trainer": "{strategy: fsdp2}"}, 1e-5),
        (
            {"tuning": "full", "optimisation__precision": "bf16", "trainer": "{strategy: fsdp2}"},
            6e-3,
        ),
    ],
)
def test_two_processes_give_the_losses_of_one(
    more: dict[str, Any], near: float, setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """Each has half of a batch. FSDP2's adapters go on after a kill with the same bits."""
    whole, kind = tmp_path / "whole", (more["tuning"], "fsdp2" if "trainer" in more else "auto")
    if kind != ("full", "fsdp2"):
        more = more | {"optimisation__chunk_size": 7}
    (after := tmp_path / "after.yaml").write_text("claims: [bilingual]\n")
    extra = {"after": after} if kind[1] == "auto" else {}
    command = [*TWO, *arguments(*setup, whole, **SAME, **more, **extra)]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("MRR@5 on dev") == 1  # one process reports
    if extra:
        # Neither libraries nor a second process have anything to say.
        assert all(line.startswith(OURS) for line in done.stderr.splitlines()), done.stderr
        assert done.stderr.count("WARNING: ") == 1
        evaluated = Report.read(whole / "evaluation")
        assert list(evaluated.systems) == [f"epoch-{epoch}.bilingual" for epoch in range(4)]
    alone: dict[str, Any] = {"optimisation__batch_size": 20, "trainer": "{strategy: auto}"}
    main(arguments(*setup, tmp_path / "alone", **{**SAME, **more, **alone}))
    losses, others = losses_of(whole), losses_of(tmp_path / "alone")
    assert losses == pytest.approx(others, rel=near)
    weights = last_weights(whole)
    assert len(set(others)) == 6 and weights.keys() == last_weights(tmp_path / "alone").keys()
    reports = [Report.read(tmp_path / name).training for name in ("whole", "alone")]
    assert reports[0] is not None and reports[1] is not None
    for one, other in zip(*(report.history for report in reports), strict=True):
        assert one.val["macro"]["mrr@5"] == pytest.approx(other.val["macro"]["mrr@5"], abs=0.2)
    tuned = [resolve(tmp_path / name / "checkpoints" / "epoch-3") for name in ("whole", "alone")]
    vectors = [found.encoder.encode(["masks matter"], "claim")[0] for found in tuned]
    base = resolve(whole / "checkpoints" / "epoch-0").encoder.encode(["masks matter"], "claim")[0]
    assert abs(vectors[0] - vectors[1]).max() < 0.2 * abs(vectors[0] - base).max()
    for name, weight in weights.items():
        assert weight.dtype == torch.float32, name
    if kind == ("full", "fsdp2"):
        # The optimizer moves fp32 masters: bf16 would have no such digits.
        assert any(not w.equal(w.bfloat16().float()) for w in weights.values())
    if kind != ("lora", "fsdp2"):
        return
    cut = tmp_path / "cut"
    command = [word.replace(str(whole), str(cut)) for word in command]
    _kill_after_saves(command, cut, 2)
    done = run([*command, "--resume"], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "resuming after batch" in done.stdout
    assert losses_of(cut) == losses
    same_weights(whole, cut)


SPOILING = """
import os
from claim2source.core.errors import run_program
from claim2source.training.module import RetrieverModule
from train.finetune import main

real = RetrieverModule.backward

def backward(self, loss):
    real(self, loss)
    if os.environ["RANK"] == "1" and (self.batches_done == 2 or self.batches_done > 4):
        gradient = next(p.grad for p in self.model.parameters() if p.grad is not None)
        gradient.view(-1)[0] = float("inf")

RetrieverModule.backward = backward
run_program(main)
"""


@pytest.mark.slow
def test_what_one_process_finds_not_finite_all_of_them_skip(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its second step, and all from the fifth on, till both processes give up, with one line."""
    script, out = tmp_path / "spoiling.py", tmp_path / "run"
    script.write_text(SPOILING)
    more: dict[str, object] = {"optimisation__batch_size": 4, "optimisation__save_every": 1}
    done = run([*TWO[:-1], str(script), *arguments(*setup, out, **more)], tmp_path)
    assert done.returncode != 0
    assert done.stderr.count("5 steps in a row, to step 9, had a loss or a gradient") == 1
    state = TrainingState.load(out / "state.pt")
    assert [step for step, loss in enumerate(state.losses) if loss != loss] == [1, 4, 5, 6, 7]
    assert "; 2 of 5 steps skipped (not finite)" in done.stdout


@pytest.fixture(scope="module")
def uninterrupted(setup: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    done = run([*ONE, *arguments(*setup, folder / "run", **KILLED)], folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("half_written", "launched"),
    [
        *[(None, False)] * 5,
        (None, True),
        *[(".state.pt.", False)] * 2,
        (".state.pt.", True),
        ("checkpoints/.epoch-", True),
    ],
)
def test_kill_nine_and_resume(
    half_written: str | None,
    launched: bool,
    uninterrupted: Path,
    setup: tuple[Path, Path],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At random steps, and while a state or a checkpoint is being written.

    Some are launched and resumed in a process of their own; the others are resumed in this one.
    """
    dice = random.Random(request.node.name)
    cut, saves = tmp_path / "cut", dice.randint(1, 12)
    words = arguments(*setup, cut, **KILLED)
    command = [*ONE, *words] if launched else [sys.executable, SCRIPT, *words]
    for _ in range(10):
        _kill_after_saves(command, cut, saves, half_written)
        if half_written is None or _left(cut, half_written):
            break
        shutil.rmtree(cut)  # the file was whole before the signal came
    else:
        pytest.fail("no kill met a save")
    assert not (cut / "report.json").exists()
    TrainingState.load(cut / "state.pt")  # whole, whatever the moment of the kill
    for folder in (cut / "checkpoints").glob("epoch-*"):
        resolve(folder)  # so are the checkpoints: their hashes are checked
    if launched:
        done = run([*command, "--resume"], tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        said = done.stdout
    else:
        main([*words, "--resume"])
        said = capsys.readouterr().out
    assert "resuming after batch" in said
    assert losses_of(cut) == losses_of(uninterrupted)
    same_weights(cut, uninterrupted)
    whole, resumed = (without_costs(Report.read(folder)) for folder in (uninterrupted, cut))
    assert whole == resumed


@pytest.mark.slow
def test_a_signal_saves_and_resuming_goes_on(
    uninterrupted: Path, setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """Through the launcher, which hands no signal on and must leave no process; then without it."""
    cut, stops = tmp_path / "cut", []
    words = arguments(*setup, cut, **KILLED)
    plain = [sys.executable, SCRIPT, *words, "--resume"]
    for command, number in (([*ONE, *words], signal.SIGTERM), (plain, signal.SIGINT)):
        done, steps = _stop_after_saves(command, cut, 1, number)
        stops.append(steps)
        assert f"stopped at step {steps}; continue with --resume" in done.stderr
        assert done.returncode != 0
    assert done.returncode == 130 and "Traceback" not in done.stderr
    main([*words, "--resume"])
    assert losses_of(cut) == losses_of(uninterrupted)
    same_weights(cut, uninterrupted)
    assert stops[0] < stops[1] < len(losses_of(cut))
    whole, resumed = (without_costs(Report.read(folder)) for folder in (uninterrupted, cut))
    assert whole == resumed


@contextlib.contextmanager
def _started(command: list[str], out: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a run, whose words go to two files beside it; in the end none of its processes is."""
    with open(out.parent / "stdout", "w") as stdout, open(out.parent / "stderr", "w") as stderr:
        process = subprocess.Popen(
            command,
            cwd=out.parent,
            env=environment(),
            # A pipe would be closed only by the last process.
            stdout=stdout,
            stderr=stderr,
            text=True,
            # Tests in the background ignore SIGINT, and would hand that on.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            yield process
        finally:
            # The launcher last: the others hear of its end.
            left = {*_processes_of(out), *([process.pid] if process.poll() is None else ())}
            for name in sorted(left, key=lambda name: name == process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(name, signal.SIGKILL)
            process.wait()


def _stop_after_saves(
    command: list[str], out: Path, saves: int, number: signal.Signals
) -> tuple[subprocess.CompletedProcess[str], int]:
    """Send a signal to the process that was started, once its state has changed `saves` times.

    Returns what it said and the steps that it saved, when no process of the run is left.
    """
    with _started(command, out) as process:
        _wait_for_saves(process, out / "state.pt", saves)
        process.send_signal(number)
        process.wait(120)
        deadline = time.monotonic() + 30
        while left := _processes_of(out):
            assert time.monotonic() < deadline, f"still running: {left}"
            time.sleep(0.1)
    assert not (out / LOCK_FILE).exists() and not (out / "report.json").exists()
    texts = [(out.parent / name).read_text() for name in ("stdout", "stderr")]
    completed_process = subprocess.CompletedProcess(command, process.returncode, *texts)
    return completed_process, TrainingState.load(out / "state.pt").steps_done


def _processes_of(out: Path) -> list[int]:
    """List the processes that were told to write to a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"--out={out}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def _wait_for_saves(process: subprocess.Popen[Any], state: Path, saves: int) -> None:
    seen = {state.stat().st_mtime_ns} if state.is_file() else set()
    saves, deadline = saves + len(seen), time.monotonic() + 300
    while len(seen) < saves:
        assert process.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < deadline
        if state.is_file():
            seen.add(state.stat().st_mtime_ns)
        time.sleep(0.002)  # a save takes longer, and the run needs the core


def _left(out: Path, half_written: str) -> bool:
    """Whether something of this name is not whole yet."""
    folder = out / Path(half_written).parent
    name = Path(half_written).name
    return any(at.startswith(name) and at.endswith(".tmp") for at in os.listdir(folder))


def _kill_after_saves(
    command: list[str], out: Path, saves: int, half_written: str | None = None
) -> None:
    """Start a run and kill all of its processes once its state has changed `saves` times.

    With `half_written`, as soon as there is something of this name that is not whole yet.
    """
    with _started(command, out) as process:
        _wait_for_saves(process, out / "state.pt", saves)
        deadline = time.monotonic() + 60
        while half_written is not None and not _left(out, half_written):
            assert process.poll() is None and time.monotonic() < deadline


@pytest.mark.parametrize("wanted", ["--self_check", "--no_self_check"])
def test_a_self_check_alone_trains_nothing(
    wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = small_setup(tmp_path)
    main([*arguments(model, data, tmp_path / "run", optimisation__epochs=1), wanted])
    printed = capsys.readouterr().out
    assert ("self check on cpu" in printed) is (wanted == "--self_check")
    done = (tmp_path / "run" / "report.json").is_file()
    assert done is (tmp_path / "run").exists() is (wanted == "--no_self_check")
