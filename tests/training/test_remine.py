"""Mining again: the pairs that a run began with keep their order, whoever named them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.records import Dataset
from claim2source.data.loading import load
from claim2source.data.split import carve_val
from claim2source.mining import MinedRow, Negative, read_mined, write_mined
from claim2source.models import Encoder, Side, Tokens
from claim2source.training.batches import BatchPlan
from claim2source.training.data import TrainBatch, TrainingPairs
from claim2source.training.finetune import finetune
from claim2source.training.negatives import mines_after
from scripts.plan import Sizes, plan
from tests.refusals import refused
from tests.training.small import mined_row, recipe_of, small_config

REMINED: dict[str, Any] = {
    "optimisation__epochs": 3,
    "optimisation__remine_every": 1,
    "batches__order": "language",
    "batches__rotate_negatives": True,
    "optimisation__learning_rate": 1e-2,
    "mining__alpha": 0.0,
}


@pytest.fixture(scope="module")
def train(setup: tuple[Path, Path]) -> Dataset:
    whole = load(setup[1], "train")
    rest, _ = carve_val(whole, 0.2, 13)
    return rest


def named_file(kind: str, train: Dataset, path: Path) -> Path:
    """A file of mined rows as a user may name one: in another order, or not of every claim."""
    claims = list(reversed(train.claims))
    if kind == "subset":
        claims = [claim for claim in train.claims if claim.lang == "en"]
    rows = []
    for claim in claims:
        others = [s.id for s in train.sources if s.id not in claim.golds]
        gold = claim.golds[0]
        row = mined_row(claim.id, gold, *others[:3])
        rows.append(row)
    write_mined(rows, path)
    return path


def pairs_in(path: Path, train: Dataset) -> list[tuple[str, str]]:
    rows = read_mined(path, train)
    return [(row.claim, row.positive) for row in rows]


def all_negatives(rows: Sequence[MinedRow]) -> tuple[Negative, ...]:
    """The negatives of all rows, one after another."""
    negatives: list[Negative] = []
    for row in rows:
        negatives += row.negatives
    return tuple(negatives)


@pytest.mark.parametrize("kind", ["reversed", pytest.param("subset", marks=pytest.mark.slow)])
def test_a_named_file_keeps_its_pairs_in_their_places(
    kind: str,
    setup: tuple[Path, Path],
    train: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    languages: list[set[str]] = []
    negatives_of: list[set[tuple[Negative, ...]]] = [set(), set(), set()]
    real = TrainingPairs.batch

    def remember(self: TrainingPairs, plan: BatchPlan) -> TrainBatch:
        batch_languages = {self.languages[row] for row in plan.rows}
        languages.append(batch_languages)
        negatives = all_negatives(self.rows)
        negatives_of[plan.epoch].add(negatives)
        # A new list begins at its hardest; near-duplicates are those of the run's mining.
        assert plan.turns == (0,) * len(plan.rows)
        assert self.mining == config.mining
        return real(self, plan)

    monkeypatch.setattr(TrainingPairs, "batch", remember)
    mined_file = named_file(kind, train, tmp_path / "named.jsonl")
    out = tmp_path / "run"
    config = small_config(*setup, out, mined=mined_file, **REMINED)
    finetune(config)
    assert all(len(language) == 1 for language in languages)
    expected_languages = {"en"} if kind == "subset" else {"en", "de"}
    assert set.union(*languages) == expected_languages

    expected = pairs_in(mined_file, train)
    mined_again = [out / f"mined-epoch-{epoch}.jsonl" for epoch in (1, 2)]
    for path in mined_again:
        assert pairs_in(path, train) == expected
    files = []
    for path in [mined_file, *mined_again]:
        rows = read_mined(path, train)
        files.append(all_negatives(rows))
    assert files[0] != files[1] != files[2]
    # No batch, made ahead as they are, has negatives from before they were mined again.
    assert negatives_of == [{negatives} for negatives in files]


def test_other_pairs_or_another_order_are_refused(train: Dataset, encoder: Encoder) -> None:
    first_claims = train.claims[:3]
    rows = [MinedRow(claim.id, claim.golds[0], ()) for claim in first_claims]
    pairs = TrainingPairs(train, rows, encoder, recipe_of(0))
    other_claim = train.claims[3]
    another = MinedRow(other_claim.id, "s00", ())
    for new_rows in (
        rows[::-1],
        rows[:2],
        [*rows, another],
    ):
        with refused(ValueError, "order"):
            pairs.use(new_rows)

    name = next(s.id for s in train.sources if s.id not in train.golds)
    negative = Negative(name, 0.5, "both")
    pairs.use([replace(row, negatives=(negative,)) for row in rows])
    used = [row.negatives[0].source for row in pairs.rows]
    assert used == [name] * 3


@pytest.mark.parametrize(
    ("interval", "negatives", "expected"),
    [
        (0, 2, []),
        (1, 2, [1, 2, 3, 4, 5]),
        (2, 2, [2, 4]),
        (4, 2, [4]),
        (6, 2, []),
        (2, 0, []),
    ],
)
def test_after_which_epochs_negatives_are_mined(
    interval: int,
    negatives: int,
    expected: list[int],
    setup: tuple[Path, Path],
    train: Dataset,
    tmp_path: Path,
) -> None:
    """Not after the last: nothing would be trained on them."""
    config = small_config(
        *setup,
        tmp_path,
        optimisation__epochs=6,
        optimisation__remine_every=interval,
        optimisation__negatives=negatives,
    )
    optimisation = config.optimisation
    mined_after = [epoch for epoch in range(7) if mines_after(optimisation, epoch)]
    assert mined_after == expected


@pytest.mark.parametrize("train", ["both", pytest.param("query_only", marks=pytest.mark.slow)])
def test_nothing_is_encoded_twice_and_the_plan_counts_it(
    train: str,
    setup: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One process mines again what it has just scored val with; an epoch is a model."""
    encoded: Counter[tuple[str, str, str]] = Counter()
    real = Encoder._encode_chunk

    def count_texts(self: Encoder, texts: Sequence[Tokens], side: Side, *options: Any) -> Any:
        assert self.weights is not None
        weights = sorted(self.weights.items())
        model = repr(weights)
        for text in texts:
            key = (model, side, repr(text))
            encoded[key] += 1
        return real(self, texts, side, *options)

    monkeypatch.setattr(Encoder, "_encode_chunk", count_texts)
    extra = {
        "optimisation__train": train,
        "store": tmp_path / "store",
        "choose": "last",
    }
    config = small_config(*setup, tmp_path / "run", **REMINED | extra)
    finetune(config)
    assert set(encoded.values()) == {1}
    # Step 0 and three epochs, of which the last mines nothing; the first and the last report.
    claims = Counter(model for model, side, _ in encoded if side == "claim")
    assert sorted(claims.values()) == [8 + 12, 48, 48, 48 + 12]

    larger_val = replace(config.data, val_share=8 / 48)
    held_out = replace(config, data=larger_val)
    sizes = Sizes(
        48,
        12,
        24,
        36,
        claim_tokens=10.0,
        source_tokens=10.0,
    )
    run_plan = plan(held_out, sizes)
    texts = sum(part.texts for part in run_plan.parts if not part.trains)
    assert texts == sum(encoded.values())
