"""Nothing is chosen on training claims, wherever data and models have moved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from claim2source.train.merge import MergeConfig, merge
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.files import file_hash
from claim2source.core.records import Claim, Dataset
from claim2source.data.beir import write_beir
from claim2source.data.loading import load
from claim2source.data.prepare import PrepareConfig, prepare
from claim2source.models import Base, EncoderSettings, Manifest, Weights
from claim2source.models.manifest import DataRecord, read_any_manifest
from claim2source.models.trained_on import TRAINED_ON, TrainedOn
from claim2source.systems.heldout import ChoosingOn, HeldOut, NothingToChooseOn
from claim2source.systems.seen import claims_models_saw, require_held_out
from claim2source.text import Rendering
from claim2source.training.export.weighted_sum import read_parts, write_sum
from claim2source.training.finetune import finetune
from tests.training.small import data_of, dataset_of, small_config, small_splits


def keys(claim: Claim) -> set[str]:
    """The texts that identify these claims."""
    return {text.casefold() for text in (claim.text, claim.translation) if text}


def texts_of(claims: Sequence[Claim]) -> set[str]:
    return {key for claim in claims for key in keys(claim)}


@dataclass
class World:
    """Data sets and models in folders, and what each model was really trained on."""

    root: Path
    data: list[Path] = field(default_factory=list)
    models: dict[Path, set[str]] = field(default_factory=dict)
    made: int = 0
    chosen: int = 0

    def place(self) -> Path:
        self.made += 1
        return self.root / f"place{self.made}"

    def dataset(self, number: int) -> Path:
        return self.data[number % len(self.data)]

    def model(self, number: int) -> Path:
        return list(self.models)[number % len(self.models)]

    def write(self, train: Dataset) -> None:
        folder = self.place() / f"set{self.made}"
        dev = small_splits()[1]
        known = {source.id for source in train.sources}
        # A joined set has other ids than the golds of dev.
        lacking = [source for source in dev.sources if source.id not in known]
        sources = (*train.sources, *lacking)
        write_beir([replace(train, sources=sources), replace(dev, sources=sources)], folder)
        self.data.append(folder)

    def join(self, first: int, second: int) -> None:
        sets = [self.dataset(first), self.dataset(second)]
        if sets[0] != sets[1]:
            folder = self.place() / f"mixed{self.made}"
            prepare(PrepareConfig("mixed", folder, sets=[*map(str, sets)]))
            self.data.append(folder)

    def move_data(self, number: int, _: int) -> None:
        folder = self.dataset(number)
        target = self.place() / f"renamed{self.made}"
        target.parent.mkdir()
        shutil.move(folder, target)
        self.data[self.data.index(folder)] = target

    def reword(self, number: int, _: int) -> None:
        """Other ids, and claims in the form of their translation."""
        train = load(self.dataset(number), "train")
        claims = [
            Claim(f"new-{i}", (claim.translation or claim.text).upper(), "en", None, claim.golds)
            for i, claim in enumerate(train.claims)
        ]
        self.write(dataset_of(claims, train.sources))

    def train(self, number: int, base: int) -> None:
        """Train on a data set, from a model or from an untrained one, as the trainer does."""
        names = ["untrained", *map(str, self.models)]
        data, name = self.dataset(number), names[base % len(names)]
        config = replace(small_config(Path(name), data, Path("out")), choose="best")
        config = replace(config, data=replace(config.data, val_seed=number, val_share=0.25))
        loaded = data_of(config)
        known = {} if name == "untrained" else self.models[Path(name)]
        try:
            require_held_out("model.name", [name], loaded.val, config.data)
        except ConfigError:
            assert texts_of(loaded.val.claims) & known
            return
        trained = texts_of(loaded.train.claims) | set(known)
        assert not texts_of(loaded.val.claims) & trained
        record = DataRecord(
            *(str(data), "train", 0.25, number, None),
            train_sha256=loaded.train.fingerprint,
            val_sha256=loaded.val.fingerprint,
            val_seen_share=config.data.val_seen_share,
        )
        claims = claims_models_saw([name], str(data)) | TrainedOn.on(loaded.train.claims)
        self.save(self.place() / "model", name, record, claims)
        self.models[self.root / f"place{self.made}" / "model"] = trained

    def save(self, folder: Path, base: str, record: DataRecord, claims: TrainedOn) -> None:
        folder.mkdir(parents=True)
        save_file({"w": torch.full((2,), float(self.made))}, folder / "model.safetensors")
        (folder / "config.json").write_text("{}")
        weights = Weights("full", file_hash(folder / "model.safetensors"))
        manifest = Manifest(
            base=Base("hub/base", None, "0"),
            weights=replace(weights, config_sha256=file_hash(folder / "config.json")),
            encoder=EncoderSettings("mean", max_length=24),
            rendering=Rendering(),
            epoch=1,
            data=record,
            trained_on=claims,
        )
        manifest.write(folder)

    def move_model(self, number: int, _: int) -> None:
        if self.models:
            folder, target = self.model(number), self.place() / "moved"
            target.parent.mkdir()
            shutil.move(folder, target)
            self.models[target] = self.models.pop(folder)

    def export(self, number: int, _: int) -> None:
        if self.models:
            folder, target = self.model(number), self.place() / "export"
            manifest = read_any_manifest(str(folder))
            assert manifest is not None
            target.mkdir(parents=True)
            manifest.write_export(target, sha256="1")
            self.models[target] = self.models[folder]

    def sum(self, first: int, second: int) -> None:
        if self.models:
            parts = [self.model(first), self.model(second)]
            target = self.place() / "sum"
            try:
                write_sum(read_parts(parts), target)
            except UserError:
                return  # an export, the same twice, or another val
            self.models[target] = self.models[parts[0]] | self.models[parts[1]]

    def forget(self, number: int, _: int) -> None:
        """A data set is removed."""
        if len(self.data) > 1:
            shutil.rmtree(self.data.pop(number % len(self.data)))

    def choose(self, number: int, first: int) -> None:
        """Nothing is chosen on what one of two models has seen, by any form of its text."""
        names = [self.model(first), self.model(first + 1)] if self.models else []
        for val in ("auto", "carved"):
            held_out = HeldOut(str(self.dataset(number)), "dev", ChoosingOn(val=val))
            try:
                chosen = held_out.claims(
                    [read_any_manifest(str(name)) for name in names]
                ).val.claims
            except NothingToChooseOn:
                continue
            self.chosen += 1
            for name in names:
                assert not texts_of(chosen) & self.models[name], name


_STEPS = ("join", "move_data", "reword", "train", "move_model", "export", "sum", "forget", "choose")
_NUMBERS = st.integers(0, 5)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.sampled_from(_STEPS), _NUMBERS, _NUMBERS), max_size=9))
def test_no_claim_that_something_is_chosen_on_was_trained_on(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    train = small_splits()[0]
    world.write(train)
    world.write(train.with_claims(train.claims[:30]))
    world.train(0, 0)
    for name, *numbers in steps:
        getattr(world, name)(*numbers)
    for number in range(len(world.data)):
        for model in range(len(world.models)):
            world.choose(number, model)


@pytest.fixture(scope="module")
def run(setup: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on a data set with an absolute path; do not change it."""
    folder = tmp_path_factory.mktemp("run")
    config = small_config(*setup, folder / "run", optimisation__epochs=1, data__val_seed=5)
    finetune(config)
    return folder / "run"


def refused(model: Path, data: Path, out: Path, **options: Any) -> str:
    """Start a run from a model; return its refusal, "" if val's claims are new to the model."""
    config = small_config(model, data, out, **options)
    try:
        require_held_out("model.name", [str(model)], data_of(config).val, config.data)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_training_records_its_claims_with_every_checkpoint(
    setup: tuple[Path, Path], run: Path
) -> None:
    config = small_config(*setup, run, data__val_seed=5)
    data = data_of(config)
    for epoch, known in ((0, False), (1, True)):
        record = Manifest.read(run / "checkpoints" / f"epoch-{epoch}").trained_on
        assert record is not None and not record.unrecorded
        assert all(record.knows(claim) is known for claim in data.train.claims)
        assert not any(map(record.knows, data.val.claims))
    # On its own data the same is chosen on as by what the manifest says of val.
    manifest = Manifest.read(run / "checkpoints" / "epoch-1")
    for recorded in (manifest, replace(manifest, trained_on=None)):
        selection = HeldOut(str(setup[1]), "dev").claims([recorded])
        assert selection.val == data.val and not selection.note
        assert selection.seen == data.selection.seen
        assert selection.seen_share == data.selection.seen_share


def test_a_moved_and_an_exported_model_still_knows_its_claims(
    setup: tuple[Path, Path], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a data set that lies elsewhere under another name, with other ids and as translations."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    train, dev = small_splits()
    renamed = [
        Claim(f"x{i}", claim.text, claim.lang, claim.translation, claim.golds)
        for i, claim in enumerate(reversed(train.claims))
    ]
    write_beir([dataset_of(renamed, train.sources), dev], tmp_path / "other")
    checkpoint = run / "checkpoints" / "epoch-1"
    shutil.copytree(checkpoint, tmp_path / "moved")
    export = tmp_path / "export"
    merge(MergeConfig(checkpoints=[str(checkpoint)], out=export))
    assert (export / TRAINED_ON).read_bytes() == (checkpoint / TRAINED_ON).read_bytes()
    data = data_of(small_config(setup[0], setup[1], run, data__val_seed=5))
    trained = texts_of(data.train.claims)
    for model in (checkpoint, tmp_path / "moved", export):
        val = HeldOut(str(tmp_path / "other"), "dev").claims([read_any_manifest(str(model))]).val
        assert texts_of(val.claims) == texts_of(data.val.claims)
        assert not texts_of(val.claims) & trained
        other = data_of(small_config(model, tmp_path / "other", tmp_path / "out")).val
        count = sum(not keys(claim).isdisjoint(trained) for claim in other.claims)
        assert count > 0
        message = f"was trained on {count} of its {len(other.claims)}"
        assert message in refused(model, tmp_path / "other", tmp_path / "out")
        # If its own val is held out again, it may be trained further.
        assert refused(model, setup[1], tmp_path / "out", data__val_seed=5) == ""
    with pytest.raises(ConfigError, match=r"config: model\.name: "):
        finetune(small_config(export, tmp_path / "other", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_what_goes_on_from_a_trained_model_knows_its_claims_too(
    setup: tuple[Path, Path], run: Path, tmp_path: Path
) -> None:
    export = tmp_path / "export"
    merge(MergeConfig(checkpoints=[str(run / "checkpoints" / "epoch-1")], out=export))
    train, dev = small_splits()
    claims = [replace(c, text=f"anew: {c.text}", translation=None) for c in train.claims]
    write_beir([dataset_of(claims, train.sources), dev], tmp_path / "new")
    config = small_config(export, tmp_path / "new", tmp_path / "tuned", optimisation__epochs=1)
    finetune(config)
    shutil.rmtree(export)
    first = data_of(small_config(setup[0], setup[1], run, data__val_seed=5)).train.claims
    second = data_of(config).train.claims
    for epoch, known in ((0, first), (1, (*first, *second))):
        record = Manifest.read(tmp_path / "tuned" / "checkpoints" / f"epoch-{epoch}").trained_on
        assert record == TrainedOn.on(known)
    # On the first data set, only claims that both have held out are used for choices.
    tuned = read_any_manifest(str(tmp_path / "tuned" / "checkpoints" / "epoch-1"))
    val = HeldOut(str(setup[1]), "dev").claims([tuned]).val
    assert val.claims and not texts_of(val.claims) & texts_of(first)


def test_a_claim_that_is_trained_on_as_another_is_no_claim_of_val(
    setup: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Mixed data sets may have the same claim twice, once in each part."""
    train, dev = small_splits()
    write_beir([train.with_claims(train.claims[:30]), dev], tmp_path / "part")
    sets = [str(setup[1]), str(tmp_path / "part")]
    prepare(PrepareConfig("mixed", tmp_path / "mixed", sets=sets))
    data = data_of(small_config(setup[0], tmp_path / "mixed", tmp_path / "out"))
    assert data.val.claims and not texts_of(data.val.claims) & texts_of(data.train.claims)
    (message,) = caplog.messages
    assert str(tmp_path / "mixed") in message and "\n" not in message
    ids = {claim.id for claim in data.val.claims}
    assert set(data.weighing.claim_ids) <= ids and data.selection.trained_golds is not None


def test_a_checkpoint_without_a_record_is_warned_of_unless_its_data_are_here(
    setup: tuple[Path, Path],
    run: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    old = tmp_path / "old"
    shutil.copytree(run / "checkpoints" / "epoch-1", old)
    (old / TRAINED_ON).unlink()
    values = json.loads((old / "manifest.json").read_text())
    values.pop("trained_on")
    (old / "manifest.json").write_text(json.dumps(values))
    selection = HeldOut(str(setup[1]), "dev").claims([read_any_manifest(str(old))])
    own = data_of(small_config(*setup, run, data__val_seed=5))
    assert selection.val.claims == own.val.claims and not selection.note
    assert claims_models_saw([str(old)], str(setup[1])) == TrainedOn.on(own.train.claims)
    assert not caplog.records
    # A part of its data: it is no longer known which claims it has seen.
    train, dev = small_splits()
    write_beir([train.with_claims(train.claims[10:36]), dev], tmp_path / "part")
    selection = HeldOut(str(tmp_path / "part"), "dev").claims([read_any_manifest(str(old))])
    (warned,) = caplog.messages
    assert str(tmp_path / "part") in warned and "\n" not in warned and selection.note
    caplog.clear()
    assert refused(old, tmp_path / "part", tmp_path / "out") == ""
    (warned,) = caplog.messages
    assert "model.name" in warned and str(old) in warned
    # Models trained from it record that.
    record = claims_models_saw([str(old)], str(tmp_path / "part"))
    assert record.unrecorded == ("old",) and not record.packed
