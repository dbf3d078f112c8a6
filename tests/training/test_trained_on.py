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
from claim2source.systems.heldout import (
    ChoosingOn,
    HeldOut,
    NothingToChooseOn,
    SelectionData,
)
from claim2source.systems.seen import claims_models_saw, require_held_out
from claim2source.text import Rendering
from claim2source.training.export.weighted_sum import read_parts, write_sum
from claim2source.training.finetune import finetune
from tests.training.small import data_of, dataset_of, small_config, small_splits


def keys(claim: Claim) -> set[str]:
    """The texts that identify these claims."""
    texts = (claim.text, claim.translation)
    return {text.casefold() for text in texts if text}


def texts_of(claims: Sequence[Claim]) -> set[str]:
    texts: set[str] = set()
    for claim in claims:
        texts |= keys(claim)
    return texts


def held_out_from(model: Path, data: Path) -> SelectionData:
    """The claims of a data set that a choice with this model is made on."""
    held_out = HeldOut(str(data), "dev")
    manifest = read_any_manifest(str(model))
    return held_out.claims([manifest])


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
        index = number % len(self.data)
        return self.data[index]

    def model(self, number: int) -> Path:
        index = number % len(self.models)
        return list(self.models)[index]

    def write(self, train: Dataset) -> None:
        folder = self.place() / f"set{self.made}"
        _, dev = small_splits()
        known = {source.id for source in train.sources}
        # A joined set has other ids than the golds of dev.
        lacking = [source for source in dev.sources if source.id not in known]
        sources = (*train.sources, *lacking)
        splits = [
            replace(train, sources=sources),
            replace(dev, sources=sources),
        ]
        write_beir(splits, folder)
        self.data.append(folder)

    def join(self, first: int, second: int) -> None:
        sets = [self.dataset(first), self.dataset(second)]
        if sets[0] == sets[1]:
            return
        folder = self.place() / f"mixed{self.made}"
        names = [str(path) for path in sets]
        prepare(PrepareConfig("mixed", folder, sets=names))
        self.data.append(folder)

    def move_data(self, number: int, _: int) -> None:
        folder = self.dataset(number)
        target = self.place() / f"renamed{self.made}"
        target.parent.mkdir()
        shutil.move(folder, target)
        place = self.data.index(folder)
        self.data[place] = target

    def reword(self, number: int, _: int) -> None:
        """Other ids, and claims in the form of their translation."""
        train = load(self.dataset(number), "train")
        claims = []
        for i, claim in enumerate(train.claims):
            text = claim.translation or claim.text
            reworded = Claim(f"new-{i}", text.upper(), "en", None, claim.golds)
            claims.append(reworded)
        self.write(dataset_of(claims, train.sources))

    def train(self, number: int, base: int) -> None:
        """Train on a data set, from a model or from an untrained one, as the trainer does."""
        names = ["untrained", *map(str, self.models)]
        data = self.dataset(number)
        name = names[base % len(names)]
        config = small_config(Path(name), data, Path("out"))
        config = replace(config, choose="best")
        data_config = replace(config.data, val_seed=number, val_share=0.25)
        config = replace(config, data=data_config)
        loaded = data_of(config)
        known = {} if name == "untrained" else self.models[Path(name)]
        val_texts = texts_of(loaded.val.claims)
        try:
            require_held_out("model.name", [name], loaded.val, config.data)
        except ConfigError:
            assert val_texts & known
            return

        trained = texts_of(loaded.train.claims) | set(known)
        assert not val_texts & trained
        record = DataRecord(
            *(str(data), "train", 0.25, number, None),
            train_sha256=loaded.train.fingerprint,
            val_sha256=loaded.val.fingerprint,
            val_seen_share=config.data.val_seen_share,
        )
        seen_before = claims_models_saw([name], str(data))
        claims = seen_before | TrainedOn.on(loaded.train.claims)
        folder = self.place() / "model"
        self.save(folder, name, record, claims)
        self.models[folder] = trained

    def save(self, folder: Path, base: str, record: DataRecord, claims: TrainedOn) -> None:
        folder.mkdir(parents=True)
        weights_file = folder / "model.safetensors"
        config_file = folder / "config.json"
        tensor = torch.full((2,), float(self.made))
        save_file({"w": tensor}, weights_file)
        config_file.write_text("{}")
        weights = Weights("full", file_hash(weights_file))
        manifest = Manifest(
            base=Base("hub/base", None, "0"),
            weights=replace(weights, config_sha256=file_hash(config_file)),
            encoder=EncoderSettings("mean", max_length=24),
            rendering=Rendering(),
            epoch=1,
            data=record,
            trained_on=claims,
        )
        manifest.write(folder)

    def move_model(self, number: int, _: int) -> None:
        if not self.models:
            return
        folder = self.model(number)
        target = self.place() / "moved"
        target.parent.mkdir()
        shutil.move(folder, target)
        self.models[target] = self.models.pop(folder)

    def export(self, number: int, _: int) -> None:
        if not self.models:
            return
        folder = self.model(number)
        target = self.place() / "export"
        manifest = read_any_manifest(str(folder))
        assert manifest is not None
        target.mkdir(parents=True)
        manifest.write_export(target, sha256="1")
        self.models[target] = self.models[folder]

    def sum(self, first: int, second: int) -> None:
        if not self.models:
            return
        parts = [self.model(first), self.model(second)]
        target = self.place() / "sum"
        try:
            write_sum(read_parts(parts), target)
        except UserError:
            return  # an export, the same twice, or another val
        first_texts = self.models[parts[0]]
        second_texts = self.models[parts[1]]
        self.models[target] = first_texts | second_texts

    def forget(self, number: int, _: int) -> None:
        """A data set is removed."""
        if len(self.data) > 1:
            index = number % len(self.data)
            folder = self.data.pop(index)
            shutil.rmtree(folder)

    def choose(self, number: int, first: int) -> None:
        """Nothing is chosen on what one of two models has seen, by any form of its text."""
        names: list[Path] = []
        if self.models:
            names = [self.model(first), self.model(first + 1)]
        data = str(self.dataset(number))
        for val in ("auto", "carved"):
            held_out = HeldOut(data, "dev", ChoosingOn(val=val))
            try:
                manifests = [read_any_manifest(str(name)) for name in names]
                selection = held_out.claims(manifests)
            except NothingToChooseOn:
                continue
            self.chosen += 1
            chosen = texts_of(selection.val.claims)
            for name in names:
                assert not chosen & self.models[name], name


_STEPS = (
    "join",
    "move_data",
    "reword",
    "train",
    "move_model",
    "export",
    "sum",
    "forget",
    "choose",
)
_NUMBERS = st.integers(0, 5)
_STEP = st.tuples(st.sampled_from(_STEPS), _NUMBERS, _NUMBERS)


@pytest.mark.slow
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(_STEP, max_size=9))
def test_no_claim_that_something_is_chosen_on_was_trained_on(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    train, _ = small_splits()
    world.write(train)
    fewer_claims = train.with_claims(train.claims[:30])
    world.write(fewer_claims)
    world.train(0, 0)
    for name, *numbers in steps:
        step = getattr(world, name)
        step(*numbers)
    for number in range(len(world.data)):
        for model in range(len(world.models)):
            world.choose(number, model)


@pytest.fixture(scope="module")
def run(setup: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on a data set with an absolute path; do not change it."""
    out = tmp_path_factory.mktemp("run") / "run"
    config = small_config(
        *setup,
        out,
        optimisation__epochs=1,
        data__val_seed=5,
    )
    finetune(config)
    return out


def refused(model: Path, data: Path, out: Path, **options: Any) -> str:
    """Start a run from a model; return its refusal, "" if val's claims are new to the model."""
    config = small_config(model, data, out, **options)
    try:
        val = data_of(config).val
        require_held_out("model.name", [str(model)], val, config.data)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_training_records_its_claims_with_every_checkpoint(
    setup: tuple[Path, Path], run: Path
) -> None:
    config = small_config(*setup, run, data__val_seed=5)
    data = data_of(config)
    checkpoints = run / "checkpoints"
    for epoch, known in ((0, False), (1, True)):
        checkpoint = Manifest.read(checkpoints / f"epoch-{epoch}")
        record = checkpoint.trained_on
        assert record is not None
        assert not record.unrecorded
        assert all(record.knows(claim) is known for claim in data.train.claims)
        assert not any(map(record.knows, data.val.claims))

    # On its own data the same is chosen on as by what the manifest says of val.
    manifest = Manifest.read(checkpoints / "epoch-1")
    without_record = replace(manifest, trained_on=None)
    expected = data.selection
    for recorded in (manifest, without_record):
        held_out = HeldOut(str(setup[1]), "dev")
        selection = held_out.claims([recorded])
        assert selection.val == data.val
        assert not selection.note
        assert selection.seen == expected.seen
        assert selection.seen_share == expected.seen_share


def test_a_moved_and_an_exported_model_still_knows_its_claims(
    setup: tuple[Path, Path],
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a data set that lies elsewhere under another name, with other ids and as translations."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    train, dev = small_splits()
    renamed = []
    for i, claim in enumerate(reversed(train.claims)):
        other_claim = Claim(
            f"x{i}",
            claim.text,
            claim.lang,
            claim.translation,
            claim.golds,
        )
        renamed.append(other_claim)
    other = tmp_path / "other"
    write_beir([dataset_of(renamed, train.sources), dev], other)

    checkpoint = run / "checkpoints" / "epoch-1"
    moved = tmp_path / "moved"
    shutil.copytree(checkpoint, moved)
    export = tmp_path / "export"
    merge(MergeConfig(checkpoints=[str(checkpoint)], out=export))
    exported_record = (export / TRAINED_ON).read_bytes()
    assert exported_record == (checkpoint / TRAINED_ON).read_bytes()

    own_config = small_config(*setup, run, data__val_seed=5)
    data = data_of(own_config)
    trained = texts_of(data.train.claims)
    out = tmp_path / "out"
    for model in (checkpoint, moved, export):
        selection = held_out_from(model, other)
        val_texts = texts_of(selection.val.claims)
        assert val_texts == texts_of(data.val.claims)
        assert not val_texts & trained
        config = small_config(model, other, out)
        claims = data_of(config).val.claims
        count = sum(not keys(claim).isdisjoint(trained) for claim in claims)
        assert count > 0
        message = f"was trained on {count} of its {len(claims)}"
        assert message in refused(model, other, out)
        # If its own val is held out again, it may be trained further.
        assert refused(model, setup[1], out, data__val_seed=5) == ""
    with pytest.raises(ConfigError, match=r"config: model\.name: "):
        finetune(small_config(export, other, out))
    assert not out.exists()


def test_what_goes_on_from_a_trained_model_knows_its_claims_too(
    setup: tuple[Path, Path], run: Path, tmp_path: Path
) -> None:
    checkpoint = run / "checkpoints" / "epoch-1"
    export = tmp_path / "export"
    merge(MergeConfig(checkpoints=[str(checkpoint)], out=export))
    train, dev = small_splits()
    claims = []
    for claim in train.claims:
        text = f"anew: {claim.text}"
        claims.append(replace(claim, text=text, translation=None))
    new = tmp_path / "new"
    tuned = tmp_path / "tuned"
    write_beir([dataset_of(claims, train.sources), dev], new)
    config = small_config(export, new, tuned, optimisation__epochs=1)
    finetune(config)
    shutil.rmtree(export)

    first_config = small_config(*setup, run, data__val_seed=5)
    first = data_of(first_config).train.claims
    second = data_of(config).train.claims
    for epoch, known in ((0, first), (1, (*first, *second))):
        manifest = Manifest.read(tuned / "checkpoints" / f"epoch-{epoch}")
        record = manifest.trained_on
        assert record == TrainedOn.on(known)
    # On the first data set, only claims that both have held out are used for choices.
    selection = held_out_from(tuned / "checkpoints" / "epoch-1", setup[1])
    chosen_on = selection.val.claims
    assert chosen_on
    assert not texts_of(chosen_on) & texts_of(first)


def test_a_claim_that_is_trained_on_as_another_is_no_claim_of_val(
    setup: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Mixed data sets may have the same claim twice, once in each part."""
    train, dev = small_splits()
    part = tmp_path / "part"
    mixed = tmp_path / "mixed"
    fewer_claims = train.with_claims(train.claims[:30])
    write_beir([fewer_claims, dev], part)
    sets = [str(setup[1]), str(part)]
    prepare(PrepareConfig("mixed", mixed, sets=sets))
    config = small_config(setup[0], mixed, tmp_path / "out")
    data = data_of(config)
    val_claims = data.val.claims
    assert val_claims
    assert not texts_of(val_claims) & texts_of(data.train.claims)
    (message,) = caplog.messages
    assert str(mixed) in message
    assert "\n" not in message
    ids = {claim.id for claim in val_claims}
    assert set(data.weighing.claim_ids) <= ids
    assert data.selection.trained_golds is not None


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
    manifest_file = old / "manifest.json"
    values = json.loads(manifest_file.read_text())
    values.pop("trained_on")
    manifest_file.write_text(json.dumps(values))
    selection = held_out_from(old, setup[1])
    config = small_config(*setup, run, data__val_seed=5)
    own = data_of(config)
    assert selection.val.claims == own.val.claims
    assert not selection.note
    seen = claims_models_saw([str(old)], str(setup[1]))
    assert seen == TrainedOn.on(own.train.claims)
    assert not caplog.records

    # A part of its data: it is no longer known which claims it has seen.
    train, dev = small_splits()
    part = tmp_path / "part"
    fewer_claims = train.with_claims(train.claims[10:36])
    write_beir([fewer_claims, dev], part)
    selection = held_out_from(old, part)
    (warned,) = caplog.messages
    assert str(part) in warned
    assert "\n" not in warned
    assert selection.note
    caplog.clear()
    assert refused(old, part, tmp_path / "out") == ""
    (warned,) = caplog.messages
    assert "model.name" in warned
    assert str(old) in warned

    # Models trained from it record that.
    record = claims_models_saw([str(old)], str(part))
    assert record.unrecorded == ("old",)
    assert not record.packed
