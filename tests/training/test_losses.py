"""Every loss against a computation by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from claim2source.training.loss_list import Losses
from claim2source.training.losses import (
    Alignment,
    Consistency,
    Distillation,
    InfoNCE,
    KeepBase,
    LossInputs,
    LossTargets,
    combined,
    consistency,
    distillation,
    info_nce,
    keep_base,
)
from tests.training.own_losses import Uniformity

NAN = math.nan


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=draw), dim=-1)


def dot(first: list[float], second: list[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))


def softmax(scores: list[float]) -> list[float]:
    total = sum(math.exp(s) for s in scores)
    return [math.exp(s) / total for s in scores]


def by_hand(
    claims: torch.Tensor,
    sources: torch.Tensor,
    positives: list[int],
    masked: list[list[bool]],
    temperature: float,
) -> float:
    total = 0.0
    for i, claim in enumerate(claims.tolist()):
        scores = [dot(claim, source) / temperature for source in sources.tolist()]
        unmasked = [s for j, s in enumerate(scores) if not masked[i][j]]
        total += math.log(sum(math.exp(s) for s in unmasked)) - scores[positives[i]]
    return total / len(claims)


@pytest.mark.parametrize("temperature", [0.02, 0.07, 1.0])
def test_against_a_slow_reference(temperature: float) -> None:
    claims, sources = unit(3, 5), unit(6, 5, seed=1)
    positives = [4, 0, 2]
    masked = [[False] * 6 for _ in range(3)]
    masked[0][1] = masked[2][5] = True
    loss = info_nce(claims, sources, torch.tensor(positives), torch.tensor(masked), temperature)
    expected = by_hand(claims, sources, positives, masked, temperature)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


TEACHER = [
    [5.0, 1.0, NAN, 2.0],
    [NAN, NAN, NAN, NAN],  # nothing said
    [NAN, 4.0, NAN, NAN],  # one candidate: no distribution
    [3.0, NAN, NAN, 1.0],  # its gold (column 2) is not scored
]


@pytest.mark.parametrize("teacher_temperature", [1.0, 3.0])
def test_kl_to_the_teacher(teacher_temperature: float) -> None:
    claims, sources = unit(4, 5), unit(4, 5, seed=1)
    expected = 0.0
    for i, row in enumerate(TEACHER):
        scored = [j for j, score in enumerate(row) if not math.isnan(score)]
        if len(scored) < 2:
            continue
        wished = softmax([row[j] / teacher_temperature for j in scored])
        student = softmax([dot(claims[i].tolist(), sources[j].tolist()) / 0.1 for j in scored])
        expected += sum(w * math.log(w / g) for w, g in zip(wished, student, strict=True))
    loss = distillation(
        claims,
        sources,
        torch.tensor(TEACHER),
        temperature=0.1,
        teacher_temperature=teacher_temperature,
    )
    assert float(loss) == pytest.approx(expected / 4, rel=1e-5)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [1, 2]])
def test_silent_rows_give_no_gradient_and_no_nan(rows: list[int]) -> None:
    claims = unit(4, 5)[rows].requires_grad_()
    loss = distillation(
        claims,
        unit(4, 5, seed=1),
        torch.tensor(TEACHER)[rows],
        temperature=0.1,
        teacher_temperature=1.0,
    )
    loss.backward()
    assert torch.isfinite(loss) and claims.grad is not None
    assert torch.isfinite(claims.grad).all()
    silent = [position for position, row in enumerate(rows) if row in (1, 2)]
    assert torch.all(claims.grad[silent] == 0)
    assert (float(loss) > 0) == (0 in rows)


def test_keep_base_is_weighted_by_language_and_divided_by_all() -> None:
    claims, sources = unit(3, 5), unit(6, 5, seed=1)
    base_claims, base_sources = unit(3, 5, seed=2), unit(6, 5, seed=3)
    weights = [1.0, 0.0, 0.5]
    expected = 0.0
    for i, weight in enumerate(weights):
        tuned = softmax([dot(claims[i].tolist(), s) / 0.2 for s in sources.tolist()])
        base = softmax([dot(base_claims[i].tolist(), s) / 0.2 for s in base_sources.tolist()])
        # KL from the base to the tuned model: what the base found likely must stay likely.
        expected += weight * sum(b * math.log(b / t) for b, t in zip(base, tuned, strict=True))
    loss = keep_base(claims, sources, base_claims, base_sources, torch.tensor(weights), 0.2)
    assert float(loss) == pytest.approx(expected / 3, rel=1e-5)
    same = keep_base(claims, sources, claims, sources, torch.ones(3), 0.2)
    assert float(same) == pytest.approx(0, abs=1e-6)


def test_consistency_is_one_minus_cosine_over_all_claims() -> None:
    claims, views = unit(4, 5), unit(3, 5, seed=1) * 7  # not of length 1: cosines all the same
    owners = [3, 0, 0]
    expected = sum(
        1 - dot(claims[o].tolist(), v) / 7 for o, v in zip(owners, views.tolist(), strict=True)
    )
    loss = consistency(claims, views, torch.tensor(owners))
    assert float(loss) == pytest.approx(expected / 4, rel=1e-5)
    none = consistency(claims, views[:0], torch.tensor([], dtype=torch.long))
    assert float(none) == 0


def test_the_sum_is_weighted_and_every_term_is_named() -> None:
    losses = Losses(
        [
            InfoNCE(0.5),
            Distillation(2.0, Path("x")),
            KeepBase(3.0),
            Consistency(5.0),
            Uniformity(7.0),
            Alignment(0.0),
        ]
    )
    masked = torch.zeros(3, 5, dtype=torch.bool)
    masked[0, 4] = True
    targets = LossTargets(
        positives=torch.tensor([0, 1, 2]),
        masked=masked,
        teacher=torch.randn(3, 5),
        base_claims=unit(3, 8, seed=5),
        base_sources=unit(5, 8, seed=6),
        languages=("en", "de", "fr"),
        owners=torch.tensor([0, 2]),
    )
    vectors = unit(3, 8), unit(5, 8, seed=1), unit(2, 8, seed=7), unit(1, 8)[:0]
    total, terms = combined(losses.active, LossInputs(*vectors, targets, 0.05))
    weights = {
        "info_nce": 0.5,
        "distillation": 2,
        "keep_base": 3,
        "consistency": 5,
        "tests.training.own_losses.Uniformity": 7,
    }
    assert terms.keys() == weights.keys()
    assert len({round(float(term), 5) for term in terms.values()}) == 5
    expected = sum(weights[name] * float(term) for name, term in terms.items())
    assert float(total) == pytest.approx(expected, rel=1e-5)
