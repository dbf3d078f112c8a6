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

SOURCES = tuple(Source(f"s{i:02d}", f"title {i}", "text") for i in range(40))
ONE = dataset_of([Claim("c", "a claim", golds=("s04",))], SOURCES)


def recipe(negatives: int) -> RerankerRecipe:
    return RerankerRecipe(optimisation=RerankerStepsConfig(negatives=negatives))


def test_each_epoch_takes_the_next_in_the_files_proportion() -> None:
    """Hard ones first, then random ones; a list that is not longer is used whole."""
    negatives = tuple(Negative(f"s{i:02d}", 1.0, "first") for i in range(10, 16))
    negatives += tuple(Negative(f"s{i}", 0.0, "random") for i in range(30, 33))
    row = MinedRow("c", "s04", negatives)
    pairs = RerankerPairs(ONE, [row], recipe(3))
    groups = [pairs.group(row, epoch) for epoch in range(4)]
    assert groups[:3] == [
        ["s04", "s10", "s11", "s30"], ["s04", "s12", "s13", "s31"], ["s04", "s14", "s15", "s32"]
    ]  # fmt: skip
    assert groups[3] == groups[0]
    reranker_pairs = RerankerPairs(ONE, [row], recipe(9))
    assert (
        reranker_pairs.group(row, 0) == reranker_pairs.group(row, 1)
        and len(reranker_pairs.group(row, 0)) == 10
    )
    (claim, text), *_ = pairs.pairs(0, ["s04"])
    assert claim == "a claim" and SOURCES[4].title in text


def test_a_teacher_decides_what_is_compared() -> None:
    negatives = tuple(Negative(f"s{i:02d}", 1.0, "first") for i in range(4))
    row = MinedRow("c", "s04", negatives)

    def pairs(scores: dict[str, float]) -> RerankerPairs:
        return RerankerPairs(ONE, [row], recipe(2), {"c": scores})

    reranker_pairs = pairs({"s04": 0.5, "s01": 0.9, "s03": 0.1})
    assert reranker_pairs.group(row, 0) == ["s04", "s01", "s03"]
    # Without a score of the gold the candidates are compared with each other.
    assert pairs({"s00": 3.0, "s01": 2.0, "s03": 1.0}).group(row, 0) == ["s00", "s01", "s03"]
    assert not pairs({"s04": 1.0}).rows and pairs({"s01": 1.0}).untaught == 1


def test_a_batch_has_the_teachers_scores_in_the_order_of_its_pairs() -> None:
    negatives = tuple(Negative(f"s{i:02d}", 1.0, "first") for i in range(4))
    rows = [MinedRow("c", "s04", negatives), MinedRow("c", "s04", negatives[::-1])]
    scores = {"s04": 0.5, "s01": 0.9, "s03": 0.1}
    pairs = RerankerPairs(ONE, rows, recipe(2), {"c": scores})
    read = SimpleNamespace(features=lambda texts: {"texts": texts})
    reranker = SimpleNamespace(recipe=recipe(2), model=nn.Linear(1, 1), stage=read)
    module = RerankerModule(reranker, pairs, 1)  # type: ignore[arg-type]
    groups = module.collate(BatchPlan((1, 0), epoch=0, index=0, window=1))
    ids = ["s04", "s03", "s01", "s04", "s01", "s03"]
    assert groups.sizes == [3, 3] and groups.golds.tolist() == [name == "s04" for name in ids]
    assert [source for _, source in groups.texts] == [
        source for _, source in pairs.pairs(0, ids[:3]) + pairs.pairs(1, ids[3:])
    ]
    assert groups.teacher is not None
    assert groups.teacher.tolist() == pytest.approx([scores[name] for name in ids])


SIZES = [3, 2, 4]
GOLDS = torch.tensor([1, 0, 0, 1, 0, 1, 0, 0, 0], dtype=torch.bool)


def logits(labels: int = 1) -> Tensor:
    values = torch.randn(9, labels, generator=torch.Generator().manual_seed(3)) * 2
    return values.requires_grad_()


def groups(values: Tensor) -> list[Tensor]:
    return list(values.split(SIZES))


def test_listwise_is_the_softmax_over_each_group() -> None:
    values = logits()
    loss = GroupLoss("listwise")(values, SIZES, GOLDS)
    expected_loss = torch.stack([-group[:, 0].log_softmax(0)[0] for group in groups(values)]).mean()
    assert torch.allclose(loss, expected_loss)
    (gradient,) = torch.autograd.grad(loss, values)
    (expected,) = torch.autograd.grad(expected_loss, values)
    assert torch.allclose(gradient, expected, atol=1e-6) and gradient.abs().min() > 0


@pytest.mark.parametrize("kind", ["listwise", "lambda"])
def test_raw_logits_can_be_certain_and_squashed_ones_cannot(kind: str) -> None:
    """A sigmoid leaves a group's logits less than 1 apart: no gold gets nearly all of a softmax."""
    certain = torch.where(GOLDS, 30.0, -30.0)[:, None]
    loss = GroupLoss(kind)  # type: ignore[arg-type]
    assert float(loss(certain, SIZES, GOLDS)) < 1e-6
    loss.loss.activation_fn = nn.Sigmoid()
    assert float(loss(certain, SIZES, GOLDS)) > 0.3


def test_lambda_punishes_only_what_stands_above_a_gold() -> None:
    loss = GroupLoss("lambda")
    right = torch.tensor([[3.0], [1.0], [0.0], [2.0], [0.0], [3.0], [2.0], [1.0], [0.0]])
    wrong = right.clone()
    wrong[0], wrong[1] = 1.0, 3.0
    values = wrong.requires_grad_()
    assert float(loss(right, SIZES, GOLDS)) < float(loss(wrong.detach(), SIZES, GOLDS))
    (gradient,) = torch.autograd.grad(loss(values, SIZES, GOLDS), values)
    assert gradient[0] < 0 < gradient[1]


def test_bce_is_of_every_pair() -> None:
    values = logits()
    bce = GroupLoss("bce")(values, SIZES, GOLDS)
    probable = values[:, 0].sigmoid()
    expected = -torch.where(GOLDS, probable, 1 - probable).log().mean()
    assert torch.allclose(bce, expected)


def test_cross_entropy_is_of_irrelevant_and_relevant() -> None:
    values = logits(2)
    loss = GroupLoss("cross_entropy", 2)(values, SIZES, GOLDS)
    expected = -values.log_softmax(1)[torch.arange(9), GOLDS.long()].mean()
    assert torch.allclose(loss, expected)
    sizes = values.detach().abs() + 9
    relevant = torch.stack([-sizes[:, 0], sizes[:, 1]], dim=1)
    sure = torch.where(GOLDS[:, None], relevant, relevant.flip(1))
    assert float(GroupLoss("cross_entropy", 2)(sure, SIZES, GOLDS)) < 1e-6


def test_margin_mse_is_of_the_first_of_a_group_against_the_others() -> None:
    values, teacher = logits(), torch.tensor([5.0, 1, 2, 4, 0, 9, 8, 7, 6])
    loss = GroupLoss("margin_mse")
    parts = zip(groups(values[:, 0]), groups(teacher), strict=True)
    squares = [((group[0] - group[1:]) - (t[0] - t[1:])).square().mean() for group, t in parts]
    assert torch.allclose(loss(values, SIZES, GOLDS, teacher), torch.stack(squares).mean())
    # The teacher's level does not matter, its margins do.
    level = (teacher + 3 * math.pi)[:, None]
    assert float(loss(level, SIZES, GOLDS, teacher)) < 1e-9
