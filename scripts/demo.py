"""Run the demo of `make demo`: set up .venv, fine-tune, evaluate, index, find a post's paper.

Nothing is installed when this starts, so it needs Python's standard library alone.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.progress import duration

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv" / "bin"
INSTALLED = ROOT / ".venv" / ".installed"
POST = "Ratten erschnüffeln Tuberkulose im Gefängnis in Mosambik, besser als das Mikroskop"
ENGLISH_POST = "new study: masks cut outbreaks 3.7x in primary schools"
INSTALL = ("make", "--no-print-directory", "install")
RUN, INDEX = "checkpoints/demo", "checkpoints/demo_index"
LAUNCH = (
    "accelerate launch --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no"
)
NEXT = (
    ("claim2source", "find", ENGLISH_POST, "--index", INDEX),
    ("claim2source", "serve", "--index", INDEX),
    ("claim2source", "report", "--reports", f"{RUN}/evaluation", "--html", f"{RUN}/report.html"),
)
# A machine may be this many times faster or slower than the one that the seconds are of.
FASTEST, SLOWEST = 0.1, 30.0
# Seconds between two lines about a step that prints nothing.
PATIENCE = 30.0


@dataclass(frozen=True)
class Step:
    """A command of the demo, and the seconds that it takes on two idle cores."""

    name: str
    detail: str
    seconds: int
    command: tuple[str, ...]
    # Whether it computes and shows its progress. The time of a download says nothing about those.
    computes: bool = True
    # A folder of an earlier demo that is removed first.
    replaces: str = ""


def demo_steps() -> list[Step]:
    """List the steps; the first is short if .venv is up to date."""
    project = ROOT / "pyproject.toml"
    is_installed = INSTALLED.is_file() and INSTALLED.stat().st_mtime >= project.stat().st_mtime
    detail = "PyTorch and the packages, 3.3 GB on disk; the time depends on the network"
    install = Step("Set up .venv", detail, 200, INSTALL, computes=False)
    if is_installed:
        install = Step("Set up .venv", "already there", 1, INSTALL, computes=False)
    config = ("--config", "configs/finetune/demo.yaml", "--overwrite")
    evaluate = ["--checkpoint", RUN, "--dataset", "demo", "--split", "test", "--no_tests"]
    evaluate += ["--out", f"{RUN}/evaluation"]
    return [
        install,
        Step(
            "Fine-tune",
            "multilingual E5, on 690 invented posts in English, German and French",
            170,
            (*LAUNCH.split(), "train/finetune.py", *config),
        ),
        Step(
            "Evaluate",
            "MRR@5 by language on 300 test posts, before and after training",
            20,
            ("python", "eval/evaluate.py", *evaluate),
        ),
        Step(
            "Index",
            "418 invented papers, with the new checkpoint",
            35,
            ("python", "eval/index.py", "demo", "--model", RUN, "--out", INDEX, "--no_sentences"),
            replaces=INDEX,
        ),
        Step(
            "Find",
            "the paper that a German post means",
            10,
            ("python", "eval/find.py", POST, "--index", INDEX, "--k", "3"),
        ),
    ]


def plan_lines(steps: Sequence[Step]) -> list[str]:
    """Say what the demo will do, and how long it takes."""
    total = duration(sum(step.seconds for step in steps))
    lines = [f"The demo takes about {total} on two idle cores; this machine has {os.cpu_count()}."]
    lines.append("It needs no GPU, no account and no model hub.")
    for number, step in enumerate(steps, 1):
        lines.append(f"  {number}. {step.name:<13}{duration(step.seconds):>6}  {step.detail}")
    lines.append(f"It writes .venv, {RUN} and {INDEX}. Ctrl-C stops it.")
    return lines


def time_left(steps: Sequence[Step], took: Mapping[str, float]) -> float:
    """Estimate the seconds of the steps that are not in `took`, at the speed of those that are."""
    done = [step for step in steps if step.name in took and step.computes]
    planned = sum(step.seconds for step in done)
    factor = 1.0
    if planned:
        factor = sum(took[step.name] for step in done) / planned
        factor = min(max(factor, FASTEST), SLOWEST)
    return factor * sum(step.seconds for step in steps if step.name not in took)


def say(line: str = "") -> None:
    print(line, flush=True)


def run_steps(
    steps: Sequence[Step],
    run: Callable[[Sequence[str], Callable[[], None] | None], int],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Run the steps, each after a line with the time left; return the first exit code but 0.

    `run` gets a function that says how much time is left, if the step shows no progress itself.
    """
    took: dict[str, float] = {}
    for number, step in enumerate(steps, 1):
        title = f"[{number}/{len(steps)}] {step.name}"
        left = time_left(steps, took)
        started = clock()
        say(f"\n{title}: {step.detail}; about {duration(left)} left in all")

        def tell(title: str = title, ends: float = started + left) -> None:
            say(f"{title}: about {duration(max(ends - clock(), PATIENCE))} left in all")

        if step.replaces:
            shutil.rmtree(ROOT / step.replaces, ignore_errors=True)
        code = run(step.command, None if step.computes else tell)
        if code:
            say(f"error: step {number}, {step.name!r}, ended with exit code {code}: see above")
            return code
        took[step.name] = clock() - started
    return 0


def run_command(words: Sequence[str], tell: Callable[[], None] | None = None) -> int:
    """Run a command with .venv first on the path; return its exit code.

    `tell` is called every `PATIENCE` seconds.
    """
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    process = None
    try:
        process = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PATH": path})
        while True:
            try:
                return process.wait(None if tell is None else PATIENCE)
            except subprocess.TimeoutExpired:
                assert tell is not None
                tell()
    except KeyboardInterrupt:
        # The terminal has interrupted the command too, which cleans up.
        if process is not None:
            process.wait()
        return 128 + signal.SIGINT


def main() -> None:
    """Say what will be done, do it, and name three commands that come next."""
    words = sys.argv[1:]
    if words and words[0] in ("-h", "--help"):
        say(f"usage: make demo\n\n{__doc__}")
        for line in plan_lines(demo_steps()):
            say(line)
        sys.exit(0)
    if words:
        say(f"error: {words[0]}: is not an option; the demo has none")
        sys.exit(2)
    if sys.version_info < (3, 11):  # noqa: UP036  any Python may start this
        say("error: the demo needs Python 3.11 or newer; name one: make demo PYTHON=python3.12")
        sys.exit(2)
    # The end of a reader, such as `head`, ends the demo too.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    steps = demo_steps()
    for line in plan_lines(steps):
        say(line)
    code = run_steps(steps, run_command)
    if code:
        sys.exit(code)
    say("\nnext, after `source .venv/bin/activate`:")
    for command in NEXT:
        say(f"  {shlex.join(command)}")


if __name__ == "__main__":
    main()
