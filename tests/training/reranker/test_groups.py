"""Groups of pairs: their members in each epoch, and their losses against formulas."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from claim2source.core.records import Claim, Source
from claim2source.mining import MinedRow, Negative
from claim2source.training.batches import BatchPlan
from claim2source.training.reranker_config import RerankerRecipe, RerankerStepsConfig
from claim2source.training.reranker_data import RerankerPairs
from claim2source.training.reranker_module import GroupLoss, RerankerModule
from tests.training.small import dataset_of

SOURCES = tuple(
    Source(
        f"s{i:02d}",
        f"title {i}",
        "text",
    )
    for i in range(40)
)
CLAIM = Claim("c", "a claim", golds=("s04",))
ONE = dataset_of([CLAIM], SOURCES)


def recipe(negatives: int) -> RerankerRecipe:
    steps = RerankerStepsConfig(negatives=negatives)
    return RerankerRecipe(optimisation=steps)


def hard_negatives(numbers: range) -> tuple[Negative, ...]:
    """Make one negative of the first stage for each number of a source."""
    return tuple(Negative(f"s{i:02d}", 1.0, "first") for i in numbers)


def test_each_epoch_takes_the_next_in_the_files_proportion() -> None:
    """Hard ones first, then random ones; a list that is not longer is used whole."""
    hard = hard_negatives(range(10, 16))
    numbers = range(30, 33)
    random = tuple(Negative(f"s{i}", 0.0, "random") for i in numbers)
    row = MinedRow("c", "s04", hard + random)
    takes_three = recipe(3)
    pairs = RerankerPairs(ONE, [row], takes_three)
    epochs = range(4)
    groups = [pairs.group(row, epoch) for epoch in epochs]
    assert groups[:3] == [
        ["s04", "s10", "s11", "s30"],
        ["s04", "s12", "s13", "s31"],
        ["s04", "s14", "s15", "s32"],
    ]
    assert groups[3] == groups[0]

    takes_nine = recipe(9)
    whole = RerankerPairs(ONE, [row], takes_nine)
    first_group = whole.group(row, 0)
    assert first_group == whole.group(row, 1)
    assert len(whole.group(row, 0)) == 10

    first_pair, *_ = pairs.pairs(0, ["s04"])
    claim, text = first_pair
    assert claim == "a claim"
    assert SOURCES[4].title in text


def test_a_teacher_decides_what_is_compared() -> None:
    negatives = hard_negatives(range(4))
    row = MinedRow("c", "s04", negatives)

    def pairs(scores: dict[str, float]) -> RerankerPairs:
        teacher = {"c": scores}
        return RerankerPairs(ONE, [row], recipe(2), teacher)

    with_gold = pairs(
        {
            "s04": 0.5,
            "s01": 0.9,
            "s03": 0.1,
        }
    )
    group = with_gold.group(row, 0)
    assert group == ["s04", "s01", "s03"]
    # Without a score of the gold the candidates are compared with each other.
    without_gold = pairs(
        {
            "s00": 3.0,
            "s01": 2.0,
            "s03": 1.0,
        }
    )
    group = without_gold.group(row, 0)
    assert group == ["s00", "s01", "s03"]
    only_gold = pairs({"s04": 1.0})
    assert not only_gold.rows
    only_negative = pairs({"s01": 1.0})
    assert only_negative.untaught == 1


def test_a_batch_has_the_teachers_scores_in_the_order_of_its_pairs() -> None:
    negatives = hard_negatives(range(4))
    backwards = negatives[::-1]
    rows = [
        MinedRow("c", "s04", negatives),
        MinedRow("c", "s04", backwards),
    ]
    scores = {
        "s04": 0.5,
        "s01": 0.9,
        "s03": 0.1,
    }
    pairs = RerankerPairs(
        ONE,
        rows,
        recipe(2),
        {"c": scores},
    )
    read = SimpleNamespace(features=lambda texts: {"texts": texts})
    reranker = SimpleNamespace(
        recipe=recipe(2),
        model=nn.Linear(1, 1),
        stage=read,
    )
    module = RerankerModule(reranker, pairs, 1)  # type: ignore[arg-type]
    plan = BatchPlan(
        (1, 0),
        epoch=0,
        index=0,
        window=1,
    )
    groups = module.collate(plan)

    ids = ["s04", "s03", "s01", "s04", "s01", "s03"]
    assert groups.sizes == [3, 3]
    is_gold = [name == "s04" for name in ids]
    assert groups.golds.tolist() == is_gold
    texts = [source for _, source in groups.texts]
    first_pairs = pairs.pairs(0, ids[:3])
    second_pairs = pairs.pairs(1, ids[3:])
    expected_pairs = first_pairs + second_pairs
    assert texts == [source for _, source in expected_pairs]
    assert groups.teacher is not None
    expected = [scores[name] for name in ids]
    assert groups.teacher.tolist() == pytest.approx(expected)


SIZES = [3, 2, 4]
GOLDS = torch.tensor([1, 0, 0, 1, 0, 1, 0, 0, 0], dtype=torch.bool)


def logits(labels: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(9, labels, generator=generator) * 2
    return values.requires_grad_()


def groups(values: Tensor) -> list[Tensor]:
    parts = values.split(SIZES)
    return list(parts)


def test_listwise_is_the_softmax_over_each_group() -> None:
    values = logits()
    loss = GroupLoss("listwise")(values, SIZES, GOLDS)
    losses = []
    for group in groups(values):
        log_shares = group[:, 0].log_softmax(0)
        losses.append(-log_shares[0])
    expected_loss = torch.stack(losses).mean()
    assert torch.allclose(loss, expected_loss)
    (gradient,) = torch.autograd.grad(loss, values)
    (expected,) = torch.autograd.grad(expected_loss, values)
    assert torch.allclose(gradient, expected, atol=1e-6)
    assert gradient.abs().min() > 0


@pytest.mark.parametrize("kind", ["listwise", "lambda"])
def test_raw_logits_can_be_certain_and_squashed_ones_cannot(kind: str) -> None:
    """A sigmoid leaves a group's logits less than 1 apart: no gold gets nearly all of a softmax."""
    by_pair = torch.where(GOLDS, 30.0, -30.0)
    certain = by_pair[:, None]
    loss = GroupLoss(kind)  # type: ignore[arg-type]
    raw = loss(certain, SIZES, GOLDS)
    assert float(raw) < 1e-6
    loss.loss.activation_fn = nn.Sigmoid()
    squashed = loss(certain, SIZES, GOLDS)
    assert float(squashed) > 0.3


def test_lambda_punishes_only_what_stands_above_a_gold() -> None:
    loss = GroupLoss("lambda")
    right = torch.tensor(
        [
            [3.0],
            [1.0],
            [0.0],
            [2.0],
            [0.0],
            [3.0],
            [2.0],
            [1.0],
            [0.0],
        ]
    )
    wrong = right.clone()
    wrong[0] = 1.0
    wrong[1] = 3.0
    values = wrong.requires_grad_()
    loss_if_right = loss(right, SIZES, GOLDS)
    loss_if_wrong = loss(wrong.detach(), SIZES, GOLDS)
    assert float(loss_if_right) < float(loss_if_wrong)
    differentiable = loss(values, SIZES, GOLDS)
    (gradient,) = torch.autograd.grad(differentiable, values)
    assert gradient[0] < 0 < gradient[1]


def test_bce_is_of_every_pair() -> None:
    values = logits()
    bce = GroupLoss("bce")(values, SIZES, GOLDS)
    probable = values[:, 0].sigmoid()
    of_truth = torch.where(GOLDS, probable, 1 - probable)
    expected = -of_truth.log().mean()
    assert torch.allclose(bce, expected)


def test_cross_entropy_is_of_irrelevant_and_relevant() -> None:
    values = logits(2)
    cross_entropy = GroupLoss("cross_entropy", 2)
    loss = cross_entropy(values, SIZES, GOLDS)
    log_shares = values.log_softmax(1)
    pairs = torch.arange(9)
    labels = GOLDS.long()
    of_truth = log_shares[pairs, labels]
    expected = -of_truth.mean()
    assert torch.allclose(loss, expected)

    sizes = values.detach().abs() + 9
    against = -sizes[:, 0]
    in_favour = sizes[:, 1]
    relevant = torch.stack([against, in_favour], dim=1)
    irrelevant = relevant.flip(1)
    by_row = GOLDS[:, None]
    sure = torch.where(by_row, relevant, irrelevant)
    cross_entropy = GroupLoss("cross_entropy", 2)
    loss_if_sure = cross_entropy(sure, SIZES, GOLDS)
    assert float(loss_if_sure) < 1e-6


def test_margin_mse_is_of_the_first_of_a_group_against_the_others() -> None:
    values = logits()
    teacher = torch.tensor([5.0, 1, 2, 4, 0, 9, 8, 7, 6])
    loss = GroupLoss("margin_mse")
    groups_of_logits = groups(values[:, 0])
    groups_of_teacher = groups(teacher)
    parts = zip(groups_of_logits, groups_of_teacher, strict=True)
    squares = []
    for group, taught in parts:
        margins = group[0] - group[1:]
        wanted = taught[0] - taught[1:]
        square = (margins - wanted).square()
        squares.append(square.mean())
    expected = torch.stack(squares).mean()
    actual = loss(values, SIZES, GOLDS, teacher)
    assert torch.allclose(actual, expected)
    # The teacher's level does not matter, its margins do.
    raised = teacher + 3 * math.pi
    level = raised[:, None]
    loss_of_level = loss(level, SIZES, GOLDS, teacher)
    assert float(loss_of_level) < 1e-9
