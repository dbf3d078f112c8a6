"""The map from a student's vectors to its teacher's space."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from claim2source.core.errors import InputError
from claim2source.core.files import file_hash
from claim2source.models.projection import (
    FILE,
    fit_projection,
    load_projection,
    new_projection,
    projection_hash,
    save_projection,
)


def draws(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mapped(projection: torch.nn.Module, vectors: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = projection({"sentence_embedding": vectors})["sentence_embedding"]
    return found.detach()


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


def test_it_is_saved_under_the_hash_that_it_was_named_by(tmp_path: Path) -> None:
    projection = new_projection(4, 7)
    named = projection_hash(projection)
    assert save_projection(projection, tmp_path) == named == file_hash(tmp_path / FILE)
    read = load_projection(tmp_path, 4)
    vectors = draws(3, 4, seed=0)
    assert mapped(read, vectors).equal(mapped(projection, vectors))
    assert not any(p.requires_grad for p in read.parameters())
    with pytest.raises(InputError, match="no projection of vectors of 5 dimensions"):
        load_projection(tmp_path, 5)
    (tmp_path / FILE).write_bytes(b"no")
    with pytest.raises(InputError, match="not the weights of a projection"):
        load_projection(tmp_path, 4)
