"""Estimate a training step's memory; choose chunks and checkpointing to fit a device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from claim2source.core.errors import ConfigError
from claim2source.core.machine import machine_memory
from claim2source.models import Encoder
from claim2source.models.layers import count_weights, linear_layers
from claim2source.models.tokens import Tokens
from claim2source.training.config import OptimisationConfig, RetrieverRecipe
from claim2source.training.resume import trainable_weights

GIB, MIB = 2**30, 2**20
# Bytes per trained weight: weight and gradient in fp32, and AdamW's two moments.
TRAINED, MEANS = 16, 8
DTYPES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
# Bytes per weight in NF4 with its scales.
FOUR_BITS = 0.56
# Share of a device's memory to plan with: kernels' working space and fragmentation need the rest.
# A single process that measured a chunk uses more: if a step does not fit, its chunks are halved.
USABLE, MEASURED = 0.9, 0.95
# A GPU is slow below this many tokens per chunk: checkpointing allows larger chunks.
LEAST_CHUNK = 1024
# Chunk sizes are multiples of this.
_STEP = 512


@dataclass(frozen=True)
class Memory:
    """Bytes that a device needs to train with this many `tokens` at once.

    `weights` are the bytes of frozen weights, `states` those of trained weights with gradients and
    AdamW's moments; `a_token` is what the forward pass keeps of each token until its gradient is
    computed, with checkpointing plus what one layer keeps.
    """

    weights: float
    states: float
    a_token: float
    tokens: int

    @property
    def total(self) -> float:
        return self.weights + self.states + self.tokens * self.a_token

    def room(self, device: float) -> float:
        """Compute how many tokens fit in `device` bytes."""
        return (device - (self.weights + self.states)) / self.a_token

    def chunk(self, device: float, longest: int) -> int:
        """Compute the tokens of a chunk in `device` bytes, at least a text of `longest`."""
        return max(int(self.room(device)) // _STEP * _STEP, longest)

    @classmethod
    def measured(cls, tokens: int, before: int, peak: int, gradients: int, trained: int) -> Memory:
        """Compute it from the bytes before a chunk, at its peak, and of its gradients.

        AdamW's moments of the `trained` weights are added.
        """
        states = gradients + MEANS * trained
        return cls(before, states, max(peak - before - gradients, 1) / tokens, tokens)

    @classmethod
    def of(cls, model: PreTrainedModel, recipe: RetrieverRecipe, tokens: int) -> Memory:
        """Estimate a training's memory with this many tokens in the forward pass at once.

        The model does not have adapters yet.
        """
        size = DTYPES[recipe.model.dtype]
        found, layers = linear_layers(model).values(), model.config.num_hidden_layers
        inside, linear = {id(layer.weight) for layer in found}, count_weights(found)
        outside = sum(p.numel() for p in model.parameters() if id(p) not in inside)
        total, trained = linear + outside, float(adapter_weights(model, recipe))
        if recipe.tuning == "full":
            trained, count = float(total), recipe.optimisation.train_layers
            if count is not None:
                trained = linear / layers * min(count, layers)
            # Sources that are not trained keep a copy of the base.
            copy = total if recipe.optimisation.train == "query_only" else 0
            weights = (total - trained + copy) * size
        elif recipe.tuning == "qlora":
            weights = linear * FOUR_BITS + outside * size
        else:
            weights = total * size
        a_layer = bytes_per_token(model, recipe)
        checkpointed = bool(recipe.optimisation.gradient_checkpointing)
        width = 2 if recipe.optimisation.precision == "bf16" or size < 4 else 4
        of_layer = model.config.hidden_size * width if checkpointed else a_layer
        a_token = of_layer * layers + (a_layer if checkpointed else 0.0)
        return cls(weights, trained * TRAINED, a_token, tokens)


def adapter_weights(model: torch.nn.Module, recipe: RetrieverRecipe) -> int:
    """Count the weights of the adapters that the recipe will add to a model."""
    if recipe.tuning == "full":
        return 0
    layers = linear_layers(model, recipe.lora.targets).values()
    return recipe.lora.r * sum(layer.in_features + layer.out_features for layer in layers)


def bytes_per_token(model: PreTrainedModel, recipe: RetrieverRecipe) -> float:
    """Count the bytes that a layer keeps per token until its gradients are computed.

    Without dropout, LoRA adapters keep each input once. Dropout keeps a mask and an output for
    every adapter, and fp32 arithmetic on 16-bit weights a copy, instead of the input. The rank's
    part, and attention's one number per head, are ignored.
    """
    hidden, inner = model.config.hidden_size, model.config.intermediate_size
    queries, keys = _attention_widths(model)
    low = recipe.optimisation.precision == "bf16" or recipe.model.dtype != "float32"
    size = 2 if low else 4
    # Inputs of attention, its three projections, its output, and the inner layer's input.
    values = hidden + queries + 2 * keys + queries + hidden
    if any(name.endswith("gate_proj") for name, _ in model.named_modules()):
        # Both halves of the inner layer, the activation and their product.
        values += 4 * inner
        # An RMS norm keeps a copy in fp32 and, if its weight is trained, its normalised value.
        norm = 8 if recipe.tuning == "full" else 4
    else:
        values += 2 * inner
        # A layer norm keeps its input.
        norm = size
    total = float(size * values + 2 * hidden * norm)
    if recipe.tuning != "full":
        total += _adapter_bytes(model, recipe, size)
    return total


def _attention_widths(model: PreTrainedModel) -> tuple[int, int]:
    """Return the sizes of a token's queries, and of its keys or values, in a layer."""
    shape = model.config
    heads = shape.num_attention_heads
    width = getattr(shape, "head_dim", None) or shape.hidden_size // heads
    key_heads = getattr(shape, "num_key_value_heads", None) or heads
    return width * heads, width * key_heads


def _adapter_bytes(model: PreTrainedModel, recipe: RetrieverRecipe, size: int) -> float:
    """Count the bytes that a layer's adapters keep per token, minus those that they replace."""
    shape = model.config
    copied = recipe.optimisation.precision == "fp32" and recipe.model.dtype != "float32"
    copies = int(copied)
    if recipe.lora.dropout:
        copies = 2
    if not copies:
        return 0.0
    adapted = linear_layers(model, recipe.lora.targets).values()
    inputs = sum(layer.in_features for layer in adapted) / shape.num_hidden_layers
    number_size = 4 if copied else size
    replaced = size * (2 * shape.hidden_size + shape.intermediate_size)
    return copies * number_size * inputs - replaced


@dataclass(frozen=True)
class MemoryPlan:
    """Recipe without `auto`, and its estimated memory on a device with `device` bytes.

    Texts have at most `longest` tokens; `auto` are the keys of `optimisation` that were `auto`.
    """

    recipe: RetrieverRecipe
    memory: Memory
    device: float
    longest: int
    auto: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the device has enough memory, apart from working space."""
        return self.memory.total <= USABLE * self.device

    def calibrate(self, encoder: Encoder) -> tuple[RetrieverRecipe, list[str]]:
        """Measure a chunk of a model that is ready to train; set its tokens, if they are `auto`.

        Returns the recipe and, if there is a GPU, a line with the predicted and measured memory.
        """
        recipe = self.recipe
        if encoder.device.type != "cuda" or recipe.self_check is False:
            return recipe, []
        measured = measure_chunk(encoder, recipe, self.memory.tokens, self.longest)
        predicted, peak = (
            memory.weights + measured.tokens * memory.a_token for memory in (self.memory, measured)
        )
        line = (
            f"memory of {measured.tokens:,} tokens: predicted {predicted / GIB:,.1f} GiB, measured "
            f"{peak / GIB:,.1f} GiB"
        )
        if "chunk_tokens" in self.auto and isinstance(recipe.optimisation.chunk_tokens, int):
            share = USABLE if torch.distributed.is_initialized() else MEASURED
            budget = measured.chunk(share * self.device, self.longest)
            line += f"; chunks of {budget:,} tokens"
            recipe = replace(recipe, optimisation=replace(recipe.optimisation, chunk_tokens=budget))
        return recipe, [line]

    def __str__(self) -> str:
        train, memory = self.recipe.optimisation, self.memory
        how = "the whole batch at once"
        if isinstance(train.chunk_tokens, int):
            how = f"chunks of {train.chunk_tokens:,} tokens"
        elif train.chunk_size is not None:
            how = f"chunks of {train.chunk_size} texts"
        checkpointing = (
            "gradient checkpointing" if train.gradient_checkpointing else "no checkpointing"
        )
        return (
            f"memory: {memory.weights / GIB:,.1f} GiB weights, {memory.states / GIB:,.1f} GiB of "
            f"trained ones with AdamW's moments, {memory.a_token / MIB:,.1f} MiB per token, {how}, "
            f"{checkpointing}: {memory.total / GIB:,.1f} of {self.device / GIB:,.1f} GiB"
        )


def trained_length(config: OptimisationConfig, longest: int) -> int:
    """Return the tokens per text in training, for a model that accepts `longest`.

    Raises `ConfigError` if the config wants more.
    """
    length = config.max_length
    if length is not None and length > longest:
        allowed = f"at most model.max_length ({longest})"
        raise ConfigError("optimisation.max_length", length, allowed)
    return length or longest


def tokens_at_once(recipe: RetrieverRecipe, longest: int) -> int:
    """Count the most tokens of a forward pass, as if all texts had the longest length."""
    train = recipe.optimisation
    sources = 1 + train.negatives if train.train == "both" else 0
    views = 1 if recipe.losses.needing("translations") else 0
    texts = train.batch_size * (1 + views + sources)
    if isinstance(train.chunk_tokens, int):
        return min(texts * longest, max(train.chunk_tokens, longest))
    if train.chunk_size is not None:
        texts = min(texts, train.chunk_size)
    return texts * longest


def plan_memory(
    recipe: RetrieverRecipe, model: PreTrainedModel, longest: int, device: float
) -> MemoryPlan:
    """Replace `auto` by values that fit `device` bytes; texts have at most `longest` tokens.

    It takes the first that fits: all activations kept; chunks (GradCache); checkpointing, which
    like chunks repeats the forward pass once; both, which repeat it twice. If none fits, the last.
    """
    train, plans = recipe.optimisation, []
    open_keys = ("chunk_tokens", "gradient_checkpointing")
    auto = tuple(key for key in open_keys if getattr(train, key) == "auto")
    is_auto = train.gradient_checkpointing == "auto"
    for checkpointing in (False, True) if is_auto else (bool(train.gradient_checkpointing),):
        setting, chunks = replace(train, gradient_checkpointing=checkpointing), [train.chunk_tokens]
        if train.chunk_tokens == "auto":
            empty, chunks = Memory.of(model, replace(recipe, optimisation=setting), 0), [None]
            is_large = empty.room(USABLE * device) >= max(longest, LEAST_CHUNK)
            if is_large or checkpointing or not is_auto:
                chunks.append(empty.chunk(USABLE * device, longest))
        for chunk in chunks:
            candidate = replace(recipe, optimisation=replace(setting, chunk_tokens=chunk))
            memory = Memory.of(model, candidate, tokens_at_once(candidate, longest))
            plans.append(MemoryPlan(candidate, memory, device, longest, auto))
    return next((plan for plan in plans if plan.fits), plans[-1])


def plan_memory_here(
    recipe: RetrieverRecipe, model: PreTrainedModel, longest: int, processes: int
) -> MemoryPlan:
    """Replace `auto` by values that fit the model's device, shared by `processes` if it is the CPU.

    Raises `ConfigError` if a key is `auto` and nothing fits.
    """
    device_of_model = next(model.parameters()).device
    if device_of_model.type == "cuda":
        device = float(torch.cuda.get_device_properties(device_of_model).total_memory)
    else:
        device = machine_memory() / processes
    planned = plan_memory(recipe, model, longest, device)
    if planned.auto and not planned.fits:
        allowed = f"a device with more memory, or shorter texts ({planned})"
        raise ConfigError(f"optimisation.{planned.auto[0]}", "auto", allowed)
    return planned


def measure_chunk(encoder: Encoder, recipe: RetrieverRecipe, tokens: int, longest: int) -> Memory:
    """Run one chunk of the longest texts forward and backward on a GPU, and measure its peak.

    If memory runs out, it is run with half as many tokens. Weights, gradients and the random state
    do not change. Memory in use before counts as weights; AdamW's moments are not there yet.
    """
    model, device = encoder.model, encoder.device
    training = model.training
    half = recipe.optimisation.precision == "bf16"
    model.train()
    with torch.random.fork_rng([device]):
        while True:
            texts = [Tokens((1,) * longest)] * max(1, tokens // longest)
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            try:
                with torch.autocast("cuda", torch.bfloat16, enabled=half):
                    vectors = encoder.vectors(encoder.batch(texts).to(device))
                vectors.sum().backward()  # type: ignore[no-untyped-call]
                break
            except torch.OutOfMemoryError as error:
                if len(texts) == 1:
                    reason = "a device with more memory, or shorter texts"
                    raise ConfigError("model.max_length", longest, f"{reason} ({error})") from None
            torch.cuda.empty_cache()
            tokens //= 2
    peak = torch.cuda.max_memory_allocated(device)
    trained = trainable_weights(model).values()
    gradients = sum(p.grad.nbytes for p in trained if p.grad is not None)
    weights = sum(p.numel() for p in trained)
    model.zero_grad(set_to_none=True)
    model.train(training)
    torch.cuda.empty_cache()
    return Memory.measured(len(texts) * longest, before, peak, gradients, weights)
