"""Check on the device that a training would be right, before hours are spent on it."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from claim2source.core.errors import UserError
from claim2source.core.records import Dataset
from claim2source.core.terminal import say
from claim2source.models import Encoder
from claim2source.models.tokens import Tokens
from claim2source.training.base import LoadedBase
from claim2source.training.checkpoint import adapt, set_dropout
from claim2source.training.config import RetrieverRecipe
from claim2source.training.distributed import World
from claim2source.training.losses import info_nce

# Layers of the model that is checked, and the claims that are compared with their golds.
LAYERS, CLAIMS = 2, 16
STEPS, _RATE = 2, 1e-4
# How far two ways of computing the same may be apart, relative: losses, and gradients by norm.
_FULL, _HALF = (1e-4, 1e-3), (0.05, 0.1)


# Losses of some steps, and the first one's gradient as one vector.
Trial = tuple[list[float], Tensor]


def check_device(base: LoadedBase, train: Dataset, world: World) -> None:
    """Compare ways of computing a step on this device: first on a GPU, or where that is wanted.

    Where it is wanted, the longest chunk's memory is measured too, on a GPU.
    """
    recipe, encoder = base.recipe, base.encoder
    if recipe.self_check is False or (recipe.self_check is None and encoder.device.type != "cuda"):
        return
    claims = [claim for claim in train.claims if claim.golds][:CLAIMS]
    sources = {source.id: source for source in train.sources}
    golds = [sources[claim.golds[0]] for claim in claims]
    texts = recipe.rendering.claim_texts(claims), recipe.rendering.source_texts(golds)
    lines = check_training(encoder, recipe, *texts)
    if recipe.self_check:
        adapt(encoder, recipe)
        lines += base.plan.calibrate(encoder)[1]
    if world.is_first:
        say("\n".join(lines))


def check_training(
    encoder: Encoder, recipe: RetrieverRecipe, claims: Sequence[str], golds: Sequence[str]
) -> list[str]:
    """Train two steps of the model's first layers in several ways, and compare them.

    `golds` are the sources of the claims. The layers have the model's shape and random weights;
    packed texts are compared with padded ones, and the training's precision with float32, by the
    losses of two steps and the first gradient. Returns what was found, as lines. Raises
    `UserError` where a difference is beyond its bound. The random state stays as it is.
    """
    started, lines, optimisation = time.perf_counter(), [], recipe.optimisation
    half = optimisation.precision == "bf16" or recipe.model.dtype != "float32"
    with torch.random.fork_rng([encoder.device] if encoder.device.type == "cuda" else []):
        small = cut_encoder(encoder)
        length = optimisation.max_length
        texts = [
            small.tokenize(claims[:CLAIMS], "claim", length),
            small.tokenize(golds[:CLAIMS], "source", length),
        ]
        trial = partial(_train_copy, small, texts, optimisation.temperature)
        reference = trial(packed=False, half=False)
        if small.packs:
            packed = trial(packed=True, half=False)
            lines.append(_compare("packed against padded texts", packed, reference, _FULL))
        if half:
            actual = trial(packed=small.packs, half=True)
            lines.append(_compare("bfloat16 against float32", actual, reference, _HALF))
    head = f"self check on {encoder.device}: {STEPS} steps of {LAYERS} layers, {len(texts[0])}"
    return [f"{head} claims with their golds, {time.perf_counter() - started:.1f} s", *lines]


def cut_encoder(encoder: Encoder) -> Encoder:
    """Make an encoder of the model's first layers' shape, in float32, of random weights."""
    shape = copy.deepcopy(encoder.model.config)
    shape.num_hidden_layers = min(LAYERS, shape.num_hidden_layers)
    if getattr(shape, "layer_types", None):
        shape.layer_types = shape.layer_types[: shape.num_hidden_layers]
    shape.use_cache = False
    torch.manual_seed(0)
    with torch.device(encoder.device):
        model: Any = type(encoder.model)._from_config(shape, dtype=torch.float32)
    set_dropout(model, 0.0)
    return Encoder(model, encoder.tokenizer, replace(encoder.settings, dtype="float32"), None)


def _train_copy(
    encoder: Encoder,
    texts: Sequence[Sequence[Tokens]],
    temperature: float,
    *,
    packed: bool,
    half: bool,
) -> Trial:
    """Train a copy for some steps, on the same texts, without dropout."""
    model: Any = copy.deepcopy(encoder.model).train().requires_grad_(True)
    copied, device = Encoder(model, encoder.tokenizer, encoder.settings, None), encoder.device
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    rows = torch.arange(len(texts[0]), device=device)
    masked = torch.zeros(len(rows), len(rows), dtype=torch.bool, device=device)
    losses: list[float] = []
    gradients: list[Tensor] = []
    for _ in range(STEPS):
        parts = [copied.batch(side) if packed else copied.collate(side) for side in texts]
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            claims, golds = (copied.vectors(part.to(device)) for part in parts)
        loss = info_nce(claims, golds, rows, masked, temperature)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        trained = [p.grad for p in model.parameters() if p.grad is not None]
        gradients.append(torch.cat([gradient.float().flatten().cpu() for gradient in trained]))
        optimizer.step()
        optimizer.zero_grad()
    return losses, gradients[0]


def _compare(subject: str, trial: Trial, reference: Trial, bounds: tuple[float, float]) -> str:
    """Describe how far two ways of computing the same are apart, relative.

    Raises `UserError` where losses or gradients are beyond their bounds, as a NaN is.
    """
    pairs = zip(trial[0], reference[0], strict=True)
    loss = max(abs(a - b) / max(abs(b), 1e-6) for a, b in pairs)
    gradient = float((trial[1] - reference[1]).norm() / reference[1].norm())
    line = (
        f"{subject}: losses differ by {loss:.2g}, gradients by {gradient:.2g} "
        f"(at most {bounds[0]:g} and {bounds[1]:g})"
    )
    if not (loss <= bounds[0] and gradient <= bounds[1]):
        raise UserError(
            f"self check: {line}; a training here would be wrong: another version of torch, or "
            "model.attention, may help"
        )
    return f"  {line}"
