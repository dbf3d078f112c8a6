"""Load the base model of a retriever's training, check the device, make it trainable."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Dataset
from claim2source.core.terminal import say
from claim2source.data.store import Store
from claim2source.models import Encoder, Identity, Manifest, Tokens, Weights, resolve
from claim2source.models.layers import set_dropout
from claim2source.models.manifest import Base
from claim2source.models.query_only import base_encoder
from claim2source.training.checkpoint import (
    PART,
    Kind,
    adapt,
    check_layers,
    save_checkpoint,
)
from claim2source.training.config import RetrieverRecipe
from claim2source.training.distributed import first_before_others, gather_values
from claim2source.training.launcher import World
from claim2source.training.losses import info_nce
from claim2source.training.memory_plan import MemoryPlan, plan_memory_here, trained_length
from claim2source.training.session import Session
from claim2source.training.splits import TrainingData, require_new_val
from claim2source.training.targets import check_targets
from claim2source.training.teacher import BaseVectors, SourceTeacher, load_teacher

# Layers of the model that checks a device, and its number of claims with golds.
LAYERS = 2
CLAIMS = 16
STEPS = 2
_RATE = 1e-4
# Largest relative difference of two computations of the same: losses, and gradients by norm.
_FULL = (1e-4, 1e-3)
_HALF = (0.05, 0.1)

# Losses of some steps, and the first step's gradient as one vector.
Trial = tuple[list[float], Tensor]


@dataclass(frozen=True)
class LoadedBase:
    """Model to train, as it was loaded.

    `untrained` identifies its weights, `folder` has its files, `record` is for manifests.
    `plan` has the recipe with numbers in place of `auto`. Step 0 encodes texts of up to `length`
    tokens: what the base supports, even if the recipe cuts texts earlier.
    """

    encoder: Encoder
    record: Base
    folder: Path
    untrained: Identity
    teacher: SourceTeacher | None
    plan: MemoryPlan
    length: int

    @property
    def recipe(self) -> RetrieverRecipe:
        return self.plan.recipe

    @contextmanager
    def as_checkpoint(self, folder: Path, world: World) -> Iterator[None]:
        """Encode texts and name stored vectors as a checkpoint does while the body runs."""
        encoder = self.encoder
        manifest = Manifest.read(folder) if world.is_first else None
        own = gather_values(manifest, world)[0]
        assert own is not None
        before = encoder.weights, encoder.settings
        own_weights = own.weights.identity(self.untrained)
        encoder.weights = own_weights
        encoder.settings = own.encoder
        try:
            yield
        finally:
            encoder.weights, encoder.settings = before

    def save(self, folder: Path, manifest: Manifest) -> Manifest:
        kind: Kind = "full" if self.recipe.tuning == "full" else "lora"
        if not manifest.epoch:
            kind = "base"
            whole = replace(manifest.encoder, max_length=self.length)
            manifest = replace(manifest, encoder=whole)
        return save_checkpoint(
            folder,
            self.encoder,
            self.folder,
            manifest,
            kind,
        )

    def manifest(self, provenance: Mapping[str, Any]) -> Manifest:
        """Return the manifest of the model before training, with step 0's length."""
        return Manifest(
            base=self.record,
            weights=Weights(trained=self.recipe.optimisation.train),
            encoder=self.encoder.settings,
            rendering=self.recipe.rendering,
            epoch=0,
            source_model=None if self.teacher is None else self.teacher.record,
            **provenance,
        )


def load_base(
    recipe: RetrieverRecipe,
    data: TrainingData,
    session: Session,
) -> LoadedBase:
    """Load the base and the teacher; neither may have been trained on the claims of val.

    Raises `UserError` for a model that cannot be trained with the recipe.
    """
    name = recipe.model.name
    settings = recipe.optimisation
    resolved = resolve(recipe.model, session.device)
    encoder = resolved.encoder
    if encoder.source_encoder is not None:
        raise UserError(f"model.name: {name} was tuned only for claims; train from its base")
    if encoder.dense is not None and recipe.teacher is not None:
        allowed = "a model without Dense layers after its pooling, if it learns from a teacher"
        raise ConfigError("model.name", name, allowed)
    check_layers(encoder.model, recipe, own_code=encoder.settings.own_code)
    check_targets(encoder.model, recipe, lambda: _text_vectors(encoder))
    teacher: SourceTeacher | None = None
    length = encoder.settings.max_length
    if recipe.teacher is not None:
        teacher = load_teacher(recipe, encoder, session.device)
    else:
        # Not all sources: a pool may have a million.
        sources = data.val.sources[:1_000]
        texts = recipe.rendering.source_texts(sources)
        length = resolved.uncut_length(texts)
    # A hub model's training claims are known only after its download.
    require_new_val(recipe.models, data, downloaded=True)

    longest = trained_length(settings, encoder.settings.max_length)
    # Otherwise a length without room for the prefixes would fail only when the base is scored.
    limit = None if settings.max_length is None else longest
    encoder.tokenize(["a text"], "claim", limit)
    if settings.train == "both":
        encoder.tokenize(["a text"], "source", limit)
    processes = session.world.local_size
    plan = plan_memory_here(recipe, encoder.model, longest, processes)
    return LoadedBase(
        encoder=encoder,
        record=resolved.base,
        folder=resolved.folder,
        untrained=encoder.weights or {},
        teacher=teacher,
        plan=plan,
        length=length,
    )


def _text_vectors(encoder: Encoder) -> Tensor:
    tokens = encoder.tokenize(["a text"], "claim")
    batch = encoder.collate(tokens)
    return encoder.vectors(batch.to(encoder.device))


def check_device(
    base: LoadedBase,
    train: Dataset,
    world: World,
) -> None:
    """Check that steps are computed correctly on this device: on a GPU, or if requested.

    If it is requested on a GPU, the memory of the longest chunk is measured too.
    """
    recipe = base.recipe
    encoder = base.encoder
    is_unset = recipe.self_check is None
    if recipe.self_check is False or (is_unset and encoder.device.type != "cuda"):
        return
    with_golds = [claim for claim in train.claims if claim.golds]
    claims = with_golds[:CLAIMS]
    sources = {source.id: source for source in train.sources}
    golds = [sources[claim.golds[0]] for claim in claims]
    claim_texts = recipe.rendering.claim_texts(claims)
    gold_texts = recipe.rendering.source_texts(golds)
    lines = check_training(encoder, recipe, claim_texts, gold_texts)
    if recipe.self_check:
        adapt(encoder, recipe)
        _, memory_lines = base.plan.calibrate(encoder)
        lines += memory_lines
    if world.is_first:
        say("\n".join(lines))


def check_training(
    encoder: Encoder,
    recipe: RetrieverRecipe,
    claims: Sequence[str],
    golds: Sequence[str],
) -> list[str]:
    """Train two steps of the model's first layers in several ways, and compare them.

    `golds` are the sources of the claims. The layers have the model's shape and random weights;
    packed texts are compared with padded ones, and the training's precision with float32, by the
    losses of two steps and the first gradient. Returns the findings as lines. Raises
    `UserError` if a difference is above its bound. The random state does not change.
    """
    started = time.perf_counter()
    lines: list[str] = []
    settings = recipe.optimisation
    device = encoder.device
    half = settings.precision == "bf16" or recipe.model.dtype != "float32"
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(gpus):
        small = cut_encoder(encoder)
        length = settings.max_length
        texts = [
            small.tokenize(claims, "claim", length),
            small.tokenize(golds, "source", length),
        ]
        trial = partial(_train_copy, small, texts, settings.temperature)
        reference = trial(packed=False, half=False)
        if small.packs:
            packed = trial(packed=True, half=False)
            line = _compare("packed against padded texts", packed, reference, _FULL)
            lines.append(line)
        if half:
            actual = trial(packed=small.packs, half=True)
            line = _compare("bfloat16 against float32", actual, reference, _HALF)
            lines.append(line)
    seconds = time.perf_counter() - started
    head = f"self check on {device}: {STEPS} steps of {LAYERS} layers, {len(texts[0])}"
    return [f"{head} claims with their golds, {seconds:.1f} s", *lines]


def cut_encoder(encoder: Encoder) -> Encoder:
    """Make an encoder with the shape of the model's first layers and random float32 weights."""
    shape = copy.deepcopy(encoder.model.config)
    layers = min(LAYERS, shape.num_hidden_layers)
    shape.num_hidden_layers = layers
    if getattr(shape, "layer_types", None):
        shape.layer_types = shape.layer_types[:layers]
    shape.use_cache = False
    torch.manual_seed(0)
    kind: Any = type(encoder.model)
    with torch.device(encoder.device):
        model: Any = kind._from_config(shape, dtype=torch.float32)
    set_dropout(model, 0.0)
    settings = replace(encoder.settings, dtype="float32")
    return Encoder(model, encoder.tokenizer, settings, None)


def _train_copy(
    encoder: Encoder,
    texts: Sequence[Sequence[Tokens]],
    temperature: float,
    *,
    packed: bool,
    half: bool,
) -> Trial:
    """Train a copy for some steps on the same texts, without dropout."""
    device = encoder.device
    model: Any = copy.deepcopy(encoder.model).train().requires_grad_(True)
    copied = Encoder(model, encoder.tokenizer, encoder.settings, None)
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    count = len(texts[0])
    rows = torch.arange(count, device=device)
    masked = torch.zeros(
        count,
        count,
        dtype=torch.bool,
        device=device,
    )
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
        gradients.append(_as_vector(trained))
        optimizer.step()
        optimizer.zero_grad()
    return losses, gradients[0]


def _as_vector(gradients: Sequence[Tensor]) -> Tensor:
    """Join gradients as one float32 vector on the CPU."""
    parts = [gradient.float().flatten().cpu() for gradient in gradients]
    return torch.cat(parts)


def _compare(
    subject: str,
    trial: Trial,
    reference: Trial,
    bounds: tuple[float, float],
) -> str:
    """Describe the relative difference of two computations of the same.

    Raises `UserError` if losses or gradients are above their bounds, or NaN.
    """
    losses, gradient = trial
    expected_losses, expected_gradient = reference
    most_loss, most_gradient = bounds
    differences: list[float] = []
    for actual, expected in zip(losses, expected_losses, strict=True):
        size = max(abs(expected), 1e-6)
        differences.append(abs(actual - expected) / size)
    of_losses = max(differences)
    distance = (gradient - expected_gradient).norm()
    of_gradients = float(distance / expected_gradient.norm())
    line = (
        f"{subject}: losses differ by {of_losses:.2g}, gradients by {of_gradients:.2g} "
        f"(at most {most_loss:g} and {most_gradient:g})"
    )
    is_alike = of_losses <= most_loss and of_gradients <= most_gradient
    if not is_alike:
        raise UserError(
            f"self check: {line}; training on this device would be wrong; try another version of "
            "torch or another model.attention, or skip the check with --self_check false"
        )
    return f"  {line}"


def prepare_to_train(
    loaded: LoadedBase,
    train: Dataset,
    store: Store,
    world: World,
) -> BaseVectors | None:
    """Make the model trainable; first encode the targets of the losses."""
    recipe = loaded.recipe
    encoder = loaded.encoder
    teacher = loaded.teacher
    query_only = recipe.optimisation.train == "query_only"
    vectors = None if teacher is None else teacher.base
    if teacher is None and (query_only or recipe.losses.needing("base_vectors")):
        with first_before_others(world):
            vectors = BaseVectors.encode(
                encoder,
                recipe.rendering,
                train,
                store,
                world.is_first,
            )
    own = query_only and teacher is None
    frozen = None
    if own and recipe.tuning == "full":
        model = copy.deepcopy(encoder.model).eval().requires_grad_(False)
        frozen = Encoder(model, encoder.tokenizer, encoder.settings, encoder.weights)
    # All processes start with the same adapters; dropout is seeded by process in `fit`.
    pl.seed_everything(recipe.optimisation.seed, verbose=False)
    adapt(encoder, recipe)
    encoder.weights = None
    if teacher is not None:
        assert encoder.dense is not None
        # As a part of the model, its weights are trained, saved and restored.
        encoder.model.add_module(PART, encoder.dense.requires_grad_(True))
    elif own:
        encoder.source_encoder = frozen or base_encoder(encoder, loaded.untrained)
    return vectors
