"""InfoNCE against a computation by hand."""

from __future__ import annotations

import math

import pytest
import torch

from claim2source.training.losses import info_nce


def by_hand(
    claims: torch.Tensor,
    sources: torch.Tensor,
    positives: list[int],
    masked: list[list[bool]],
    temperature: float,
) -> float:
    total = 0.0
    for i, claim in enumerate(claims.tolist()):
        scores = [
            sum(a * b for a, b in zip(claim, source, strict=True)) / temperature
            for source in sources.tolist()
        ]
        kept = [s for j, s in enumerate(scores) if not masked[i][j]]
        total += math.log(sum(math.exp(s) for s in kept)) - scores[positives[i]]
    return total / len(claims)


@pytest.mark.parametrize("temperature", [0.02, 0.07, 1.0])
def test_against_a_slow_reference(temperature: float) -> None:
    torch.manual_seed(0)
    claims = torch.nn.functional.normalize(torch.randn(3, 5), dim=-1)
    sources = torch.nn.functional.normalize(torch.randn(6, 5), dim=-1)
    positives = [4, 0, 2]
    masked = [[False] * 6 for _ in range(3)]
    masked[0][1] = masked[2][5] = True
    loss = info_nce(claims, sources, torch.tensor(positives), torch.tensor(masked), temperature)
    expected = by_hand(claims, sources, positives, masked, temperature)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_a_masked_source_gets_no_gradient_and_an_unmasked_one_does() -> None:
    claims = torch.nn.functional.normalize(torch.ones(1, 4), dim=-1)
    sources = torch.nn.functional.normalize(torch.rand(3, 4), dim=-1).requires_grad_()
    masked = torch.tensor([[False, True, False]])
    info_nce(claims, sources, torch.tensor([0]), masked, 0.05).backward()
    assert sources.grad is not None
    assert torch.all(sources.grad[1] == 0)
    assert torch.all(sources.grad[2] != 0)
