"""`train/folds.py`, and `eval/hybrid.py` choosing on what it wrote."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.config import read_config
from claim2source.core.errors import UserError
from claim2source.core.records import Claim
from claim2source.datasets import load
from claim2source.datasets.folds import assign_folds
from claim2source.models import Manifest, resolve
from claim2source.pipeline.out_of_fold import read_out_of_fold
from claim2source.retrieve import Dense
from claim2source.training.config import FinetuneConfig
from claim2source.training.finetune import finetune
from claim2source.training.folds_config import FoldsConfig
from claim2source.training.run_folder import RunFolder
from claim2source.training.splits import load_data
from claim2source.training.state import TrainingState
from eval.hybrid import main as hybrid
from tests.training.small import arguments, small_config, small_setup
from train.folds import main


class Killed(Exception):
    """What ends the work in a test."""


FOLDS = ["--folds=2", "--seen_share=0.5", "--depth=20"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Model, data and the folder of two folds, each trained for an epoch."""
    folder = tmp_path_factory.mktemp("folds")
    model, data = small_setup(folder)
    out = folder / "folds"
    main([*arguments(model, data, out, optimisation__epochs=1, choose="last"), *FOLDS])
    return model, data, out


@pytest.mark.slow
def test_each_claim_is_ranked_once_by_a_model_that_was_not_trained_on_it(
    done: tuple[Path, Path, Path],
) -> None:
    model, data, out = done
    train = load(data, "train")
    found, run = read_out_of_fold(out)
    times = Counter(claim for fold in found.folds for claim in fold.claims)
    assert times == dict.fromkeys([claim.id for claim in train.claims], 1)
    assert run.claim_ids == tuple(claim.id for claim in train.claims)
    assert {len(run.sources(claim)) for claim in run.claim_ids} == {20}
    text = {claim.id: claim.text for claim in train.claims}
    for number, fold in enumerate(found.folds, 1):
        place = out / fold.checkpoint
        recipe = small_config(
            model,
            out.resolve() / f"data-{number}",
            out / "unused",
            data__report_split="held_out",
        )
        trained = load_data(recipe)
        # The manifest's fingerprint is of what it was trained on: that, and nothing held out.
        assert Manifest.read(place).data.train_sha256 == trained.train.fingerprint
        known = {claim.text for part in (trained.train, trained.val) for claim in part.claims}
        assert not known & {text[claim] for claim in fold.claims}
        golds = trained.train.golds
        seen = {c.id for c in train.claims if c.id in fold.claims and golds & set(c.golds)}
        assert set(fold.seen) == seen
        held = [claim for claim in train.claims if claim.id in fold.claims]
        own = Dense(resolve(str(place), "cpu")).index(train.sources).search(held, 20).run
        for claim in held:
            assert run.scored(claim.id) == pytest.approx(own.scored(claim.id), abs=1e-6)
    assert 0.2 < len(found.seen) / len(train.claims) < 0.8
    assert {"all", "seen", "unseen"} == set(found.scores)


@pytest.mark.slow
def test_finished_folds_are_not_trained_again_and_other_settings_are_refused(
    done: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data, out = done
    monkeypatch.setattr("claim2source.training.folds.finetune", lambda *_: pytest.fail("again"))
    before = (out / "folds.trec").read_bytes()
    run = [*arguments(model, data, out, optimisation__epochs=1, choose="last"), *FOLDS]
    main(run)
    assert (out / "folds.trec").read_bytes() == before
    with pytest.raises(UserError, match="fold_seed.*begun"):
        main([*run, "--fold_seed=1"])
    with pytest.raises(UserError, match="overwrite"):
        main([*run, "--overwrite"])


def test_a_recipe_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    model, data = small_setup(tmp_path)
    (model / "config.json").write_text("{}")
    out = tmp_path / "folds"
    with pytest.raises(UserError, match="config.json"):
        main([*arguments(model, data, out), *FOLDS])
    assert not out.exists()


@pytest.mark.slow
def test_killed_folds_go_on_with_the_same_files(
    done: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed within the second fold's training: the first is not trained again, nor touched."""
    model, data, out = done
    run = [*arguments(model, data, tmp_path / "o", optimisation__epochs=1, choose="last"), *FOLDS]
    trained: list[str] = []
    save, begin = TrainingState.save, RunFolder.begin

    def saved(self: TrainingState, path: Path) -> None:
        save(self, path)
        if path.parent.name == "fold-2" and self.steps_done == 2:
            raise Killed

    def begun(self: RunFolder, config: FinetuneConfig) -> None:
        trained.append(config.out.name)
        begin(self, config)

    monkeypatch.setattr(TrainingState, "save", saved)
    monkeypatch.setattr(RunFolder, "begin", begun)
    with pytest.raises(Killed):
        main(run)
    assert trained == ["fold-1", "fold-2"] and not (tmp_path / "o" / "folds.json").exists()
    first = {p: p.stat().st_mtime_ns for p in (tmp_path / "o" / "fold-1").rglob("*")}
    monkeypatch.setattr(TrainingState, "save", save)
    main(run)
    assert trained[2:] == ["fold-2"]
    assert first == {p: p.stat().st_mtime_ns for p in (tmp_path / "o" / "fold-1").rglob("*")}
    for name in ("folds.trec", "folds.json"):
        assert (tmp_path / "o" / name).read_bytes() == (out / name).read_bytes()


@pytest.mark.slow
def test_a_model_of_other_claims_is_no_fold(done: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The models of two folds exchanged: each has trained on what it would have ranked."""
    out, raw = done[2], json.loads((done[2] / "folds.json").read_text())
    (tmp_path / "folds.trec").write_bytes((out / "folds.trec").read_bytes())
    for fold in raw["folds"]:
        fold["checkpoint"] = str(out / fold["checkpoint"])
    write = (tmp_path / "folds.json").write_text
    write(json.dumps(raw))
    assert read_out_of_fold(tmp_path)[0].claims
    first, second = raw["folds"]
    first["checkpoint"], second["checkpoint"] = second["checkpoint"], first["checkpoint"]
    write(json.dumps(raw))
    with pytest.raises(UserError, match="trained on other claims"):
        read_out_of_fold(tmp_path)
    first["claims"] = [*first["claims"], second["claims"][0]]
    write(json.dumps(raw))
    with pytest.raises(UserError, match="two folds"):
        read_out_of_fold(tmp_path)


@pytest.mark.slow
def test_a_fusion_is_chosen_on_all_of_train_out_of_fold(
    done: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    model, data, folds = done
    run = small_config(model, data, tmp_path / "run", optimisation__epochs=1, choose="last")
    finetune(run)
    options = [f"--checkpoint={run.out}", f"--dataset={data}", "--repeats=20"]
    hybrid([*options, f"--out={tmp_path / 'o'}", f"--choose_on={folds}"])
    report: dict[str, Any] = json.loads((tmp_path / "o" / "report.json").read_text())
    choices = {choice["what"]: choice for choice in report["systems"]["hybrid"]["choices"]}
    fusion = choices["fusion"]
    assert (fusion["split"], fusion["claims"]) == ("train", 48)
    # Every topic has two claims: a further one is expected to be of a seen paper. Both parts are
    # weighed for that, whatever share the folds have.
    assert fusion["seen_share"] == 1.0 and 0 < len(read_out_of_fold(folds)[0].seen) < 48
    assert "out-of-fold" in fusion["note"] and "recipe differs" not in fusion["note"]
    # Both fold models are loaded again, so that what they would score is tried too.
    assert "checkpoints are gone" not in fusion["note"]
    assert "out-of-fold" in (tmp_path / "o" / "report.md").read_text()
    with pytest.raises(UserError, match="was not trained"):
        hybrid(
            [
                f"--checkpoint={model}",
                f"--dataset={data}",
                f"--out={tmp_path / 'p'}",
                f"--choose_on={folds}",
                "--model.pooling=mean",
                "--model.max_length=24",
                "--rendering.claims=bilingual",
            ]
        )


def test_folds_keep_papers_together_or_spread_them() -> None:
    claims = [Claim(f"{paper}-{i}", f"text {paper} {i}", golds=(f"p{paper}",)) for paper in range(40) for i in range(3)]  # fmt: skip
    claims += [Claim(f"single-{i}", f"alone {i}", golds=(f"s{i}",)) for i in range(20)]
    claims += [Claim("twin-a", "The same  text", golds=("p0",)), Claim("twin-b", "the same text")]

    def parts(share: float) -> dict[str, int]:
        numbers = assign_folds(claims, 3, share, 7)
        assert numbers == assign_folds(claims[::-1], 3, share, 7)
        assert max(Counter(numbers.values()).values()) < 1.2 * len(claims) / 3
        assert numbers["twin-a"] == numbers["twin-b"]
        return numbers

    def spread(numbers: dict[str, int]) -> int:
        return sum(len({numbers[f"{p}-{i}"] for i in range(3)}) == 3 for p in range(40))

    together = parts(0.0)
    assert all(len({together[f"{p}-{i}"] for i in range(3)}) == 1 for p in range(40))
    assert spread(parts(1.0)) == 40
    half = parts(0.5)
    kinds = Counter(len({half[f"{p}-{i}"] for i in range(3)}) for p in range(1, 40))
    assert set(kinds) == {1, 3} and abs(3 * kinds[3] / len(claims) - 0.5) < 0.05
    assert half != assign_folds(claims, 3, 0.5, 8)


def test_the_settings_are_those_of_a_fine_tuning() -> None:
    config = read_config(
        FoldsConfig, ["--optimisation.epochs=7", "--folds=4"], program="t", description="t"
    )
    assert (config.recipe().optimisation.epochs, config.folds) == (7, 4)
