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
from claim2source.train.finetune import main
from safetensors.torch import load_file

from claim2source.core.errors import UserError
from claim2source.core.lock import LOCK_FILE
from claim2source.core.report import Report
from claim2source.models import resolve
from claim2source.models.manifest import chosen_checkpoint
from claim2source.training.resume import TrainingState
from tests.processes import BY_TWO, LAUNCH, PLAIN, environment, run
from tests.report_files import without_costs
from tests.shared_data import REPOSITORY
from tests.training.small import (
    arguments,
    last_weights,
    losses_of,
    same_weights,
    say_pooling,
    small_setup,
)

SCRIPT = str(REPOSITORY / "train" / "finetune.py")
ONE = [*LAUNCH, "--cpu", "--num_processes", "1", *PLAIN, SCRIPT]
TWO = [*BY_TWO, SCRIPT]

# Lines on stderr of a run without problems.
OURS = ("training: ", "WARNING: val has ")
KILLED: dict[str, object] = {
    "optimisation__epochs": 4,
    "optimisation__chunk_size": 5,
    "optimisation__remine_every": 2,
    "batches__rotate_negatives": True,
    "threads": 1,  # with or without a launcher the same sums
}


@pytest.mark.parametrize("setting", [None, "max_split_size_mb:64"])
def test_a_gpus_memory_grows_in_segments_unless_the_user_chose(
    setting: str | None, setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set before anything of the run is loaded."""
    name = "PYTORCH_CUDA_ALLOC_CONF"
    monkeypatch.setenv(name, setting or "")
    if setting is None:
        monkeypatch.delenv(name)
    with pytest.raises(UserError, match="no/such/model"):
        main(arguments(*setup, tmp_path / "run", model__name="no/such/model"))
    assert os.environ[name] == (setting or "expandable_segments:True")


@pytest.mark.slow
def test_a_mistake_in_two_processes_is_said_once(setup: tuple[Path, Path], tmp_path: Path) -> None:
    """Also with the launcher's --cpu, which starts one; the error names the right options."""
    words = arguments(*setup, tmp_path / "run")
    launch = [*LAUNCH, "--cpu", "--num_processes", "2", *ONE[len(LAUNCH) + 3 :]]
    after = tmp_path / "after.yaml"
    after.write_text("only: [Nothing]\n", encoding="utf-8")
    for command, reason in (
        ([*TWO, *words, "--no.key=3"], "no: no such key"),
        ([*TWO, *words, '--trainer={"devices": 3}'], "trainer.devices"),
        ([*TWO, *words, f"--after={after}"], "after.yaml: only: 'Nothing'"),
        ([*launch, *words], " ".join(TWO[len(LAUNCH) : -3]).replace(" 2 ", " N ")),
    ):
        proc = run(command, tmp_path)
        errors = [line for line in proc.stderr.splitlines() if line.startswith("error: ")]
        assert proc.returncode != 0 and len(errors) == 1 and reason in errors[0], proc.stderr
        assert "terminated" not in proc.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_launchers_own_config_may_say_the_precision_too(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """As `accelerate config` writes it: bf16 with bf16 runs, and contradicts the default."""
    folder = tmp_path / "home" / "accelerate"
    folder.mkdir(parents=True)
    lines = "compute_environment: LOCAL_MACHINE", "debug: false", "distributed_type: 'NO'"
    lines += "downcast_bf16: 'no'", "machine_rank: 0", "main_training_function: main"
    lines += "mixed_precision: bf16", "num_machines: 1", "num_processes: 1", "use_cpu: true"
    (folder / "default_config.yaml").write_text("\n".join([*lines, ""]), encoding="utf-8")
    extra: dict[str, object] = {"optimisation__epochs": 1}
    home = {"HF_HOME": str(tmp_path / "home")}
    command = [*LAUNCH, SCRIPT, *arguments(*setup, tmp_path / "run", **extra)]
    proc = run(command, tmp_path, **home)
    (error,) = (line for line in proc.stderr.splitlines() if line.startswith("error: "))
    assert proc.returncode != 0 and "optimisation.precision: fp32" in error
    assert not (tmp_path / "run").exists()
    proc = run([*command, "--optimisation.precision=bf16"], tmp_path, **home)
    assert proc.returncode == 0, proc.stderr[-3000:]
    assert Report.read(tmp_path / "run").training is not None


@pytest.mark.slow
def test_callbacks_that_log_run_in_every_process(setup: tuple[Path, Path], tmp_path: Path) -> None:
    """Lightning's own refuse to run in a process without a logger."""
    trainer = "trainer={callbacks: [{class_path: LearningRateMonitor}]}"
    words = arguments(*setup, tmp_path / "run", optimisation__epochs=1)
    proc = run([*TWO, *words, f"--{trainer}"], tmp_path)
    assert proc.returncode == 0, proc.stderr[-3000:]
    assert len(losses_of(tmp_path / "run")) > 1


@pytest.mark.slow
def test_launched_from_anywhere(setup: tuple[Path, Path], tmp_path: Path) -> None:
    """With W&B offline: no key, no account, no network."""
    extra: dict[str, object] = {"optimisation__epochs": 1, "wandb__mode": "auto"}
    home = {"HOME": str(tmp_path), "WANDB_API_KEY": "", "NETRC": str(tmp_path / "none")}
    proc = run([*ONE, *arguments(*setup, tmp_path / "run", **extra)], tmp_path, **home)
    assert proc.returncode == 0, proc.stderr[-3000:]
    assert "MRR@5 on dev" in proc.stdout and "unseen golds" in proc.stdout
    # Results are on stdout; stderr has only progress, nothing from libraries.
    assert "training: " not in proc.stdout and "\nnext:\n" in proc.stdout
    assert re.search(r"^training: \d+ of \d+, loss \d", proc.stderr, re.MULTILINE)
    offline = "wandb: offline; `wandb sync "
    assert all(line.startswith((*OURS, offline)) for line in proc.stderr.splitlines()), proc.stderr
    assert proc.stderr.count(offline) == 1
    assert "\r" not in proc.stdout + proc.stderr and "\x1b" not in proc.stdout + proc.stderr
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
    columns = tables["scores"]["columns"]
    rows = {
        (row[0], row[1]): dict(zip(columns, row, strict=True)) for row in tables["scores"]["data"]
    }
    scores = record["languages"]["de"]
    chosen = rows["chosen", "de"]
    assert {name: chosen[name] for name in scores} == pytest.approx(scores)


@pytest.mark.slow
def test_two_processes_resume(setup: tuple[Path, Path], tmp_path: Path) -> None:
    """Killed, resumed, told to stop through their launcher, and resumed again."""
    extra: dict[str, object] = {"optimisation__epochs": 2, "tuning": "lora"}
    extra |= {"choose": "last", "model__max_length": 20}
    model = say_pooling(Path(shutil.copytree(setup[0], tmp_path / "model")), 40)
    setup = model, setup[1]
    proc = run([*TWO, *arguments(*setup, tmp_path / "whole", **extra)], tmp_path)
    assert proc.returncode == 0, proc.stderr[-3000:]
    assert proc.stderr.count("sources are cut") == 1  # and not by each process
    early = tmp_path / "cut"
    command = [*TWO, *arguments(*setup, early, **extra)]
    _kill_after_saves(command, early, 2)
    done, steps = _stop_after_saves([*command, "--resume"], early, 1, signal.SIGTERM)
    random = TrainingState.load(early / "state.pt").random
    assert len(random) == 2
    assert not torch.equal(*(state["cpu"] for state in random))  # nor is dropout
    assert done.returncode != 0
    assert done.stderr.count(f"stopped at step {steps}; continue with --resume") == 1
    done = run([*command, "--resume"], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses_of(early) == losses_of(tmp_path / "whole") and steps < len(losses_of(early))
    folders = [chosen_checkpoint(tmp_path / name) for name in ("whole", "cut")]
    first, second = (load_file(folder / "adapter_model.safetensors") for folder in folders)
    assert first and all(torch.equal(first[name], second[name]) for name in first)


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
    full, kind = tmp_path / "whole", (more["tuning"], "fsdp2" if "trainer" in more else "auto")
    if kind != ("full", "fsdp2"):
        more = more | {"optimisation__chunk_size": 7}
    (after := tmp_path / "after.yaml").write_text("claims: [bilingual]\n")
    extra = {"after": after} if kind[1] == "auto" else {}
    command = [*TWO, *arguments(*setup, full, **SAME, **more, **extra)]
    proc = run(command, tmp_path)
    assert proc.returncode == 0, proc.stderr[-3000:]
    assert proc.stdout.count("MRR@5 on dev") == 1  # one process reports
    if extra:
        # Neither libraries nor a second process print anything.
        assert all(line.startswith(OURS) for line in proc.stderr.splitlines()), proc.stderr
        assert proc.stderr.count("WARNING: ") == 1
        evaluated = Report.read(full / "evaluation")
        assert list(evaluated.systems) == [f"epoch-{epoch}.bilingual" for epoch in range(4)]
    options_alone: dict[str, Any] = {"optimisation__batch_size": 20, "trainer": "{strategy: auto}"}
    main(arguments(*setup, tmp_path / "alone", **{**SAME, **more, **options_alone}))
    losses, losses_alone = losses_of(full), losses_of(tmp_path / "alone")
    assert losses == pytest.approx(losses_alone, rel=near)
    weights = last_weights(full)
    assert len(set(losses_alone)) == 6 and weights.keys() == last_weights(tmp_path / "alone").keys()
    reports = [Report.read(tmp_path / name).training for name in ("whole", "alone")]
    assert reports[0] is not None and reports[1] is not None
    for first, second in zip(*(report.history for report in reports), strict=True):
        assert first.val["macro"]["mrr@5"] == pytest.approx(second.val["macro"]["mrr@5"], abs=0.2)
    tuned = [resolve(tmp_path / name / "checkpoints" / "epoch-3") for name in ("whole", "alone")]
    vectors = [resolved.encoder.encode(["masks matter"], "claim")[0] for resolved in tuned]
    base = resolve(full / "checkpoints" / "epoch-0").encoder.encode(["masks matter"], "claim")[0]
    # bf16 rounds the gradients of half a batch differently.
    share = 0.5 if kind == ("full", "fsdp2") else 0.2
    assert abs(vectors[0] - vectors[1]).max() < share * abs(vectors[0] - base).max()
    for name, weight in weights.items():
        assert weight.dtype == torch.float32, name
    if kind == ("full", "fsdp2"):
        # The optimizer moves fp32 masters: bf16 would have no such digits.
        assert any(not w.equal(w.bfloat16().float()) for w in weights.values())
    if kind != ("lora", "fsdp2"):
        return
    early = tmp_path / "cut"
    command = [word.replace(str(full), str(early)) for word in command]
    _kill_after_saves(command, early, 2)
    proc = run([*command, "--resume"], tmp_path)
    assert proc.returncode == 0, proc.stderr[-3000:]
    assert "resuming after batch" in proc.stdout
    assert losses_of(early) == losses
    same_weights(full, early)


SPOILING = """
import os
from claim2source.core.errors import run_program
from claim2source.training.module import RetrieverModule
from claim2source.train.finetune import main

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
    extra: dict[str, object] = {"optimisation__batch_size": 4, "optimisation__save_every": 1}
    proc = run([*BY_TWO, str(script), *arguments(*setup, out, **extra)], tmp_path)
    assert proc.returncode != 0
    assert len(re.findall(r"\b5 steps\b.*\bstep 9\b", proc.stderr)) == 1
    state = TrainingState.load(out / "state.pt")
    assert [step for step, loss in enumerate(state.losses) if loss != loss] == [1, 4, 5, 6, 7]
    assert "; 2 of 5 steps skipped (not finite)" in proc.stdout


@pytest.fixture(scope="module")
def uninterrupted(setup: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    proc = run([*ONE, *arguments(*setup, folder / "run", **KILLED)], folder)
    assert proc.returncode == 0, proc.stderr[-3000:]
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
    early, saves = tmp_path / "cut", dice.randint(1, 12)
    words = arguments(*setup, early, **KILLED)
    command = [*ONE, *words] if launched else [sys.executable, SCRIPT, *words]
    for _ in range(10):
        _kill_after_saves(command, early, saves, half_written)
        if half_written is None or _left(early, half_written):
            break
        shutil.rmtree(early)  # the file was whole before the signal came
    else:
        pytest.fail("no kill met a save")
    assert not (early / "report.json").exists()
    TrainingState.load(early / "state.pt")  # whole, whatever the moment of the kill
    for folder in (early / "checkpoints").glob("epoch-*"):
        resolve(folder)  # so are the checkpoints: their hashes are checked
    if launched:
        proc = run([*command, "--resume"], tmp_path)
        assert proc.returncode == 0, proc.stderr[-3000:]
        output = proc.stdout
    else:
        main([*words, "--resume"])
        output = capsys.readouterr().out
    assert "resuming after batch" in output
    assert losses_of(early) == losses_of(uninterrupted)
    same_weights(early, uninterrupted)
    expected, resumed = (without_costs(Report.read(folder)) for folder in (uninterrupted, early))
    assert expected == resumed


@pytest.mark.slow
def test_a_signal_saves_and_resuming_goes_on(
    uninterrupted: Path, setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """With the launcher, which forwards no signals and must leave no process; then without."""
    early, stops = tmp_path / "cut", []
    words = arguments(*setup, early, **KILLED)
    without_launcher = [sys.executable, SCRIPT, *words, "--resume"]
    for command, number in (([*ONE, *words], signal.SIGTERM), (without_launcher, signal.SIGINT)):
        proc, steps = _stop_after_saves(command, early, 1, number)
        stops.append(steps)
        assert f"stopped at step {steps}; continue with --resume" in proc.stderr
        assert proc.returncode != 0
    assert proc.returncode == 130 and "Traceback" not in proc.stderr
    main([*words, "--resume"])
    assert losses_of(early) == losses_of(uninterrupted)
    same_weights(early, uninterrupted)
    assert stops[0] < stops[1] < len(losses_of(early))
    expected, resumed = (without_costs(Report.read(folder)) for folder in (uninterrupted, early))
    assert expected == resumed


@contextlib.contextmanager
def _started(command: list[str], out: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a run with its output in two files; all of its processes end with the body."""
    with open(out.parent / "stdout", "w") as stdout, open(out.parent / "stderr", "w") as stderr:
        process = subprocess.Popen(
            command,
            cwd=out.parent,
            env=environment(),
            # A pipe would be closed only by the last process.
            stdout=stdout,
            stderr=stderr,
            text=True,
            # Tests in the background ignore SIGINT, and child processes would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            yield process
        finally:
            # The launcher last, because the others notice its end.
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
    ids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"--out={out}".encode() in path.read_bytes().split(b"\0"):
                ids.append(int(path.parent.name))
    return ids


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


@pytest.mark.parametrize("flag", ["--self_check", "--no_self_check"])
def test_a_self_check_alone_trains_nothing(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = small_setup(tmp_path)
    main([*arguments(model, data, tmp_path / "run", optimisation__epochs=1), flag])
    printed = capsys.readouterr().out
    assert ("self check on cpu" in printed) is (flag == "--self_check")
    is_trained = (tmp_path / "run" / "report.json").is_file()
    assert is_trained is (tmp_path / "run").exists() is (flag == "--no_self_check")
