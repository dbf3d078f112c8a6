"""The map from a student's vectors to its teacher's space."""

from __future__ import annotations

import torch

from claim2source.models.projection import fit_projection, new_projection


def draws(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mapped(projection: torch.nn.Module, vectors: torch.Tensor) -> torch.Tensor:
    mapped_vectors: torch.Tensor = projection({"sentence_embedding": vectors})["sentence_embedding"]
    return mapped_vectors.detach()


def test_it_is_fitted_to_a_linear_map_with_a_shift() -> None:
    inputs, matrix, shift = draws(400, 6, seed=0) + 2.0, draws(6, 9, seed=1), draws(9, seed=2)
    targets = inputs @ matrix + shift
    projection = new_projection(6, 9)
    fit_projection(projection, inputs, targets)
    fresh = draws(50, 6, seed=3) + 2.0
    error = (mapped(projection, fresh) - (fresh @ matrix + shift)).abs().max()
    # The ridge shrinks it a little; without the shift, or transposed, it would be off by 1 or more.
    assert error < 0.2
    # Fewer texts than dimensions: the ridge keeps it finite and near the mean.
    fit_projection(projection, inputs[:3], targets[:3])
    assert mapped(projection, inputs[:3]).isfinite().all()
