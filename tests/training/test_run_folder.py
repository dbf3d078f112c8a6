"""A run's folder: what counts as one, what is replaced, moved aside, refused and left alone; what its files say."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from claim2source.core.config import as_plain
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.folders import is_run, is_unbegun
from claim2source.core.report import Epoch
from claim2source.models import Manifest, resolve
from claim2source.training.config import FinetuneConfig
from claim2source.training.finetune import finetune
from claim2source.training.loss_list import Losses
from claim2source.training.losses import Distillation, InfoNCE
from claim2source.training.run_folder import RunFolder
from tests.shared_data import FIXTURES
from tests.training.small import small_config, small_setup

SCORES = {"macro": {"mrr@5": 0.5}}
Make = Callable[..., FinetuneConfig]


@pytest.fixture(scope="module")
def base_config(setup: tuple[Path, Path]) -> FinetuneConfig:
    """A run's config; parsing one takes longer than most of these tests."""
    return small_config(*setup, Path("run"))


@pytest.fixture
def make(base_config: FinetuneConfig, tmp_path: Path) -> Make:
    """Configs of runs in `tmp_path / "run"`, with other values for some keys."""

    def make_config(**options: Any) -> FinetuneConfig:
        config = replace(base_config, out=tmp_path / "run")
        for key, value in options.items():
            group, _, name = key.partition("__")
            inner = replace(getattr(config, group), **{name: value}) if name else value
            config = replace(config, **{group: inner})
        return config

    return make_config


def begin(config: FinetuneConfig, scored: bool = True) -> None:
    """Begin a run, score its first checkpoint, and end as a killed trainer does."""
    run = RunFolder.find(config)
    run.begin()
    if scored:
        run.record(Epoch(0, SCORES))
    run.release()


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("name", ["config.yaml", "thesis.tex", ".claim2source-run.txt"])
@pytest.mark.parametrize("flag", ["overwrite", "resume", None])
def test_a_folder_of_the_users_is_no_run(
    name: str, flag: str | None, make: Make, tmp_path: Path
) -> None:
    """A config.yaml is anybody's; with the trainer's own keys too, and beside checkpoints."""
    run = tmp_path / "run"
    (run / "checkpoints" / "mine").mkdir(parents=True)
    (run / name).write_text(yaml.safe_dump(as_plain(make())))
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"not a run of ours|no run to resume"):
        finetune(make(**{flag: True} if flag else {}))
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"model__name": "no/such/model"}, "no/such/model"),
        ({"data__dataset": "no/such/data"}, "no/such/data"),
        ({"data__report_split": "nowhere"}, "nowhere"),
        ({"mined": Path("no-such.jsonl")}, "no-such.jsonl"),
        ({"tuning": "lora", "lora__targets": ("q_proj",)}, "lora.targets"),
        ({"losses": Losses([InfoNCE(), Distillation(0.5, Path("no.trec"))])}, "no.trec"),
        ({"after": Path("no-such.yaml")}, "no-such.yaml"),
    ],
)
def test_a_mistake_leaves_no_folder_and_the_old_run_as_it_was(
    mistake: dict[str, Any], message: str, make: Make, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        finetune(make(**mistake))
    assert list(tmp_path.iterdir()) == []
    begin(make())
    before = contents(tmp_path)
    with pytest.raises(UserError, match=message):
        finetune(make(**mistake, overwrite=True))
    assert contents(tmp_path) == before


def test_a_replaced_run_is_moved_aside_once(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(make())
    with pytest.raises(UserError, match="--resume, --overwrite"):
        begin(make())
    backup = tmp_path / "run.replaced"
    for turn in range(2):
        (tmp_path / "run" / "wandb.json").write_text(f"{turn}")
        begin(make(overwrite=True))
        assert f"the earlier run is in {backup} now" in capsys.readouterr().out
        assert (backup / "wandb.json").read_text() == f"{turn}"
        assert not (tmp_path / "run" / "wandb.json").exists()
        assert {path.name for path in tmp_path.iterdir()} == {"run", "run.replaced"}
    # What no program of ours made goes along, and is never removed.
    (tmp_path / "run" / "notes.txt").write_text("mine")
    begin(make(overwrite=True))
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"run\.replaced: .*'notes.txt'"):
        begin(make(overwrite=True))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_has_the_copys_name_and_is_no_run_stays(kind: str, make: Make, tmp_path: Path) -> None:
    begin(make())
    backup, other_folder = tmp_path / "run.replaced", tmp_path / "other"
    other_folder.mkdir()
    (other_folder / "mine.txt").write_text("mine")
    if kind == "link":
        begin(replace(make(), out=other_folder / "run"))
        backup.symlink_to(other_folder / "run")
    elif kind == "folder":
        other_folder.rename(backup)
    else:
        backup.write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"run\.replaced: is not a training run of this program"):
        begin(make(overwrite=True))
    assert contents(tmp_path) == before


def test_a_linked_folder_stays_linked(make: Make, tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "large" / "run")
    begin(make())
    begin(make(overwrite=True))
    assert (tmp_path / "run").is_symlink() and is_run(tmp_path / "run")
    names = {path.name for path in (tmp_path / "large").iterdir()}
    assert names == {"run", "run.replaced"}


@pytest.mark.parametrize("key", ["mined", "model__name", "data__dataset"])
def test_an_input_is_not_moved_away_with_the_run(key: str, make: Make, tmp_path: Path) -> None:
    begin(make())
    subfolder = tmp_path / "run" / "inside"
    subfolder.mkdir()
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"outside the run that is replaced"):
        begin(make(**{key: subfolder if key == "mined" else str(subfolder), "overwrite": True}))
    assert contents(tmp_path) == before


def test_a_run_that_never_began_is_used_again(make: Make, tmp_path: Path) -> None:
    """With other settings, and a file of the user's beside it; `--resume` begins it too."""
    begin(make(), scored=False)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    for extra in ({"optimisation__epochs": 9}, {"optimisation__epochs": 7, "resume": True}):
        assert is_unbegun(tmp_path / "run") and not is_run(tmp_path / "run")
        begin(make(**extra), scored=False)
        text = (tmp_path / "run" / "config.yaml").read_text()
        assert f"epochs: {extra['optimisation__epochs']}\n" in text
    assert {path.name for path in tmp_path.rglob("*")} == {
        *("run", "config.yaml", ".claim2source-run", "notes.txt")
    }


def test_resuming_clears_what_a_kill_left_and_puts_the_checkpoint_back(
    make: Make, tmp_path: Path
) -> None:
    """Killed in a save, in an epoch's checkpoint, and between the two renames of another."""
    out = tmp_path / "run"
    begin(make())
    points = out / "checkpoints"
    for folder in (".epoch-1.aaaaaaaa.old/epoch-1", ".epoch-1.bbbbbbbb.tmp", "epoch-0"):
        (points / folder).mkdir(parents=True)
        (points / folder / "manifest.json").write_text(folder)
    (out / ".state.pt.cccccccc.tmp").write_bytes(b"half")
    (out / ".env").write_text("theirs")
    begin(make(resume=True), scored=False)
    assert sorted(path.name for path in points.iterdir()) == ["epoch-0", "epoch-1"]
    assert (points / "epoch-1" / "manifest.json").read_text().endswith("old/epoch-1")
    names = {".claim2source-run", ".env", "checkpoints", "config.yaml", "run.json"}
    assert {path.name for path in out.iterdir()} == names
    # A folder with nothing but leftovers is empty.
    config = replace(make(), out=tmp_path / "other")
    config.out.mkdir()
    for name in (".config.yaml.abcd_123.tmp", ".claim2source-lock"):
        (config.out / name).write_text("half")
    os.utime(config.out / ".claim2source-lock", (0, 0))  # else its holder is waited for
    begin(config, scored=False)
    assert {path.name for path in config.out.iterdir()} == {"config.yaml", ".claim2source-run"}


DAMAGES: dict[str, tuple[str, bytes | None, str]] = {
    "no history": ("run.json", None, r"run\.json: is missing"),
    "a history cut": ("run.json", b'{"chosen": null, "history": []}', "history: epoch 0"),
    "an epoch of text": ("run.json", b'{"chosen": null, "history": [{"epoch": "x"}]}', "epoch"),
    "empty settings": ("config.yaml", b"", r"config\.yaml: is missing, damaged"),
    "no settings": ("config.yaml", None, r"config\.yaml: is missing"),
    "binary settings": ("config.yaml", b"\xff\x00", r"config\.yaml: is missing, damaged"),
    "an empty state": ("state.pt", b"", r"state\.pt: not a saved state"),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_run_is_not_resumed(damage: str, make: Make, tmp_path: Path) -> None:
    """In one line that names the file; nothing else in the folder changes."""
    name, content, message = DAMAGES[damage]
    begin(make())
    run = tmp_path / "run"
    (run / "state.pt").write_bytes(b"cut")
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
    before = contents(run)
    with pytest.raises(UserError, match=message) as raised:
        finetune(make(resume=True))
    assert len(str(raised.value).splitlines()) == 1
    assert contents(run) == before


def test_a_run_of_an_earlier_version_is_not_resumed(make: Make, tmp_path: Path) -> None:
    """In one line; version 0.2 did not know this setting."""
    run = Path(shutil.copytree(FIXTURES / "full", tmp_path / "full"))
    settings = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    del settings["optimisation"]["warmup_from_zero"]
    (run / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"config\.yaml: .*earlier version.*--overwrite"):
        finetune(replace(make(resume=True), out=run))
    assert contents(tmp_path) == before
    # One of ours goes on, but not with another schedule.
    begin(make())
    RunFolder.find(make(resume=True)).release()
    with pytest.raises(ConfigError, match=r"optimisation\.warmup_from_zero: true .*False, with"):
        RunFolder.find(make(resume=True, optimisation__warmup_from_zero=True))


@pytest.mark.parametrize(
    ("umask", "tuning"), [(0o022, "full"), pytest.param(0o077, "lora", marks=pytest.mark.slow)]
)
def test_a_runs_files_have_the_umask_and_its_checkpoints_no_paths(
    umask: int, tuning: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it loads if it was moved to, and a checkpoint apart from its run."""
    model, data = small_setup(tmp_path / "here")
    monkeypatch.setenv("CLAIM2SOURCE_STORE", str(tmp_path / "store"))
    run = tmp_path / "run"
    before = os.umask(umask)
    try:
        finetune(small_config(model, data, run, tuning=tuning, optimisation__epochs=1))
    finally:
        os.umask(before)
    for path in (run, *run.rglob("*")):
        expected = (0o777 if path.is_dir() else 0o666) & ~umask
        assert path.stat().st_mode & 0o777 == expected, path
    points = [path for path in (run / "checkpoints").rglob("*") if path.is_file()]
    assert {path.name for path in points} >= {"manifest.json"}
    for path in points:
        assert str(tmp_path).encode() not in path.read_bytes(), path
    new_folder = tmp_path / "elsewhere" / "run"
    new_folder.parent.mkdir()
    run.rename(new_folder)
    monkeypatch.setenv("CLAIM2SOURCE_STORE", str(tmp_path / "another store"))
    for epoch in ("epoch-0", "epoch-1"):
        resolve(new_folder / "checkpoints" / epoch)
    assert Manifest.read(new_folder / "checkpoints" / "epoch-1").data.dataset == str(data)
    # Apart from its run the user's cache knows the base; then it may lie beside it.
    name = "epoch-1" if tuning == "lora" else "epoch-0"
    single = Path(shutil.copytree(new_folder / "checkpoints" / name, tmp_path / "alone" / name))
    with pytest.raises(InputError, match=r"no such folder on this machine: 'model'"):
        resolve(single)
    monkeypatch.setenv("CLAIM2SOURCE_STORE", str(tmp_path / "store"))
    resolve(single)
    monkeypatch.setenv("CLAIM2SOURCE_STORE", str(tmp_path / "another store"))
    (single.parent / "model").symlink_to(model)
    resolve(single)


@pytest.mark.parametrize("revision", ["1e5", "7e12345", "on", "0o17"])
def test_text_that_looks_like_another_value_is_the_same_when_a_run_goes_on(
    revision: str, make: Make
) -> None:
    config = make(model__revision=revision)
    begin(config)
    run = RunFolder.find(replace(config, resume=True))
    assert run.config.model.revision == revision and run.file.history
    run.release()
    with pytest.raises(ConfigError, match=f"model.revision: 'main' .*'{revision}'"):
        RunFolder.find(make(model__revision="main", resume=True))
