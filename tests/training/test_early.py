"""Missing inputs of a training run are reported before torch is imported."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import InputError
from claim2source.data.loading import require_golds
from tests.cold import Command, Ended, run_cold
from tests.refusals import refused
from tests.shared_data import REPOSITORY
from tests.training.small import data_of, mined_row, small_config

DEMO = REPOSITORY / "claim2source" / "data" / "demo"


def without_golds(folder: Path) -> Path:
    """Make the demo without judgements."""
    folder.mkdir()
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / name).symlink_to(DEMO / name)
    return folder


STOPPING = '[{"class_path": "EarlyStopping", "init_args": {"monitor": "f1"}}]'
BOTH = [
    (
        ["--device", "cuda"],
        "config: device: 'cuda' is not allowed; allowed: cpu: there is no GPU",
    ),
    (["--out", "/proc/x"], "/proc/x: cannot be written"),
    (
        ["--model.name", "all-MiniLM-L6v2"],
        "did you mean sentence-transformers/all-MiniLM-L6-v2?",
    ),
    (["--data.dataset", "noq"], "noq: split: no claim of 'train' has a gold"),
    (
        ["--data.report_split", "tset"],
        "split: no split 'tset'; did you mean test? splits: train, dev, test",
    ),
]
ONE = [
    (["--after", "end.yaml"], "end.yaml:1: systemz: no such key"),
    (["--data.limit", "null", "--mined", "none.jsonl"], "none.jsonl"),
    (["--trainer.callbacks", STOPPING], "trainer.callbacks: 'EarlyStopping with monitor f1'"),
    (["--tuning", "lora", "--optimisation.train_layers", "1"], "optimisation.train_layers: 1"),
]


CASES = [
    *(("train.finetune", *case) for case in (*BOTH, *ONE)),
    *(("train.finetune_reranker", *case) for case in BOTH),
]


def command_of(program: str, words: list[str], folder: Path) -> Command:
    if program == "train.finetune":
        extra = ["--config", "configs/finetune/demo.yaml"]
        return Command([*extra, "--out", "o", *words], str(folder))
    # Every process of a launch checks, not only the first.
    launch = {"TORCHELASTIC_RUN_ID": "1", "RANK": "1", "WORLD_SIZE": "2"}
    launch |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    extra = ["--mined", "mined.jsonl", "--model.name", "all-MiniLM-L6-v2"]
    return Command([*extra, "--out", "o", *words], str(folder), launch)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Ended], Path]:
    """How each of the cases ended, in one folder."""
    folder = tmp_path_factory.mktemp("early")
    without_golds(folder / "noq")
    (folder / "end.yaml").write_text("systemz: []\n")
    found: dict[str, list[Ended]] = {}
    for program in ("train.finetune", "train.finetune_reranker"):
        commands = [command_of(name, words, folder) for name, words, _ in CASES if name == program]
        found[program] = run_cold(program, commands)
    return [found[program].pop(0) for program, _, _ in CASES], folder


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: f"{CASES[i][0]} {CASES[i][1]}")
def test_what_is_missing_is_said_without_torch(case: int, ended: tuple[list[Ended], Path]) -> None:
    _, words, message = CASES[case]
    if words[0] == "--device" and any(map(Path.exists, map(Path, ("/dev/nvidiactl", "/dev/kfd")))):
        pytest.skip("there is a GPU")
    found = ended[0][case]
    assert found.heavy == [] and any(message in line for line in found.lines), found
    assert not (ended[1] / "o").exists()


def count_calls(patch: pytest.MonkeyPatch, functions: dict[str, Any]) -> Counter[str]:
    """Count calls of functions, wherever they were imported to, by name and kind of argument."""
    counts: Counter[str] = Counter()

    def counted(name: str, function: Any) -> Any:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            split = f" {arguments[1]}" if name == "load" else ""
            counts[f"{name}{split}"] += 1
            return function(*arguments, **options)

        return call

    for name, function in functions.items():
        wrapper = counted(name, function)
        for module in list(sys.modules.values()):
            if module.__name__.startswith("claim2source") and vars(module).get(name) is function:
                patch.setattr(module, name, wrapper)
    return counts


def test_each_check_runs_once_in_a_training(
    setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the config to the report: data, files, model, folder, launcher and monitors."""
    from claim2source.data import loading, wandb
    from claim2source.mining import read_mined, write_mined
    from claim2source.models import hub
    from claim2source.systems import seen
    from claim2source.training import launcher, monitors, teacher_scores
    from claim2source.training.finetune import finetune
    from claim2source.training.run_folder import RunFolder

    train = data_of(small_config(*setup, tmp_path / "none")).train
    rows = [mined_row(claim.id, claim.golds[0], "s30", "s31") for claim in train.claims]
    write_mined(rows, tmp_path / "mined.jsonl")
    lines = [f"{claim.id} Q0 {claim.golds[0]} 1 2.0 teacher\n" for claim in train.claims]
    (tmp_path / "teacher.trec").write_text("".join(lines), encoding="utf-8")
    stopping = {"class_path": "EarlyStopping", "init_args": {"monitor": "loss"}}
    config = small_config(
        *setup,
        tmp_path / "run",
        mined=tmp_path / "mined.jsonl",
        optimisation__epochs=1,
        losses__distillation__weight=0.1,
        losses__distillation__scores=tmp_path / "teacher.trec",
    )
    config = replace(config, trainer={"callbacks": [stopping]})
    checks = {
        "load": loading.load,
        "launched_world": launcher.launched_world,
        "require_tracking": wandb.require_tracking,
        "wandb_mode": wandb.wandb_mode,
        "require_model": hub.require_model,
        "require_held_out": seen.require_held_out,
        "check_monitors": monitors.check_monitors,
        "read_teacher": teacher_scores.read_teacher,
        "read_mined": read_mined,
    }
    once = dict.fromkeys(checks, 1)
    del once["load"]
    expected = {**once, "load train": 1, "load dev": 1, "find": 1}
    finds: list[object] = []
    find = RunFolder.find

    def find_once(*arguments: Any, **options: Any) -> RunFolder:
        finds.append(arguments)
        return find(*arguments, **options)

    monkeypatch.setattr(RunFolder, "find", find_once)
    counts = count_calls(monkeypatch, checks)
    finetune(config)
    # The run's own copy of the negatives is read by every process.
    expected["read_mined"] = 2
    assert {**counts, "find": len(finds)} == expected


def test_golds_are_looked_for_in_the_judgements(tmp_path: Path) -> None:
    noq = without_golds(tmp_path / "noq")
    require_golds(DEMO, "dev")
    (noq / "qrels").mkdir()
    header = "query-id\tcorpus-id\tscore\n"
    claim, source, _ = (DEMO / "qrels" / "dev.tsv").read_text().splitlines()[1].split("\t")
    (noq / "qrels" / "dev.tsv").write_text(f"{header}{claim}\t{source}\t0\n")
    with refused(InputError, f"{noq}: split: ", "'dev'"):
        require_golds(noq, "dev")
    (noq / "qrels" / "dev.tsv").write_text(f"{header}{claim}\t{source}\t2\n")
    require_golds(noq, "dev")
