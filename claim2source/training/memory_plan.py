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

GIB = 2**30
MIB = 2**20
# Bytes per trained weight: weight and gradient in fp32, and AdamW's two moments.
TRAINED = 16
MEANS = 8
DTYPES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
# Bytes per weight in NF4 with its scales.
FOUR_BITS = 0.56
# Share of a device's memory to plan with: kernels' working space and fragmentation need the rest.
# A single process that measured a chunk uses more: if a step does not fit, its chunks are halved.
USABLE = 0.9
MEASURED = 0.95
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
        steps = int(self.room(device)) // _STEP
        return max(steps * _STEP, longest)

    @classmethod
    def measured(
        cls,
        tokens: int,
        before: int,
        peak: int,
        gradients: int,
        trained: int,
    ) -> Memory:
        """Compute it from the bytes before a chunk, at its peak, and of its gradients.

        AdamW's moments of the `trained` weights are added.
        """
        states = gradients + MEANS * trained
        kept = max(peak - before - gradients, 1)
        return cls(before, states, kept / tokens, tokens)

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        recipe: RetrieverRecipe,
        tokens: int,
    ) -> Memory:
        """Estimate a training's memory with this many tokens in the forward pass at once.

        The model does not have adapters yet.
        """
        settings = recipe.optimisation
        size = DTYPES[recipe.model.dtype]
        found = linear_layers(model).values()
        layers = model.config.num_hidden_layers
        inside = {id(layer.weight) for layer in found}
        linear = count_weights(found)
        outside = sum(p.numel() for p in model.parameters() if id(p) not in inside)
        total = linear + outside
        trained = float(adapter_weights(model, recipe))
        if recipe.tuning == "full":
            trained = float(total)
            count = settings.train_layers
            if count is not None:
                trained = linear / layers * min(count, layers)
            # Sources that are not trained keep a copy of the base.
            copy = total if settings.train == "query_only" else 0
            weights = (total - trained + copy) * size
        elif recipe.tuning == "qlora":
            weights = linear * FOUR_BITS + outside * size
        else:
            weights = total * size

        a_layer = bytes_per_token(model, recipe)
        a_token = a_layer * layers
        if settings.gradient_checkpointing:
            width = 2 if settings.precision == "bf16" or size < 4 else 4
            of_input = model.config.hidden_size * width
            a_token = of_input * layers + a_layer
        return cls(weights, trained * TRAINED, a_token, tokens)


def adapter_weights(model: torch.nn.Module, recipe: RetrieverRecipe) -> int:
    """Count the weights of the adapters that the recipe will add to a model."""
    if recipe.tuning == "full":
        return 0
    layers = linear_layers(model, recipe.lora.targets).values()
    widths = sum(layer.in_features + layer.out_features for layer in layers)
    return recipe.lora.r * widths


def bytes_per_token(model: PreTrainedModel, recipe: RetrieverRecipe) -> float:
    """Count the bytes that a layer keeps per token until its gradients are computed.

    Without dropout, LoRA adapters keep each input once. Dropout keeps a mask and an output for
    every adapter, and fp32 arithmetic on 16-bit weights a copy, instead of the input. The rank's
    part, and attention's one number per head, are ignored.
    """
    hidden = model.config.hidden_size
    inner = model.config.intermediate_size
    queries, keys = _attention_widths(model)
    low = recipe.optimisation.precision == "bf16" or recipe.model.dtype != "float32"
    size = 2 if low else 4
    # Inputs of attention, its three projections, its output, and the inner layer's input.
    values = hidden + queries + 2 * keys + queries + hidden
    has_gate = any(name.endswith("gate_proj") for name, _ in model.named_modules())
    if has_gate:
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


def _adapter_bytes(
    model: PreTrainedModel,
    recipe: RetrieverRecipe,
    size: int,
) -> float:
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
        usable = USABLE * self.device
        return self.memory.total <= usable

    def calibrate(self, encoder: Encoder) -> tuple[RetrieverRecipe, list[str]]:
        """Measure a chunk of a model that is ready to train; set its tokens, if they are `auto`.

        Returns the recipe and, if there is a GPU, a line with the predicted and measured memory.
        """
        recipe = self.recipe
        settings = recipe.optimisation
        if encoder.device.type != "cuda" or recipe.self_check is False:
            return recipe, []
        measured = measure_chunk(encoder, recipe, self.memory.tokens, self.longest)
        tokens = measured.tokens
        predicted = self.memory.weights + tokens * self.memory.a_token
        peak = measured.weights + tokens * measured.a_token
        line = (
            f"memory of {tokens:,} tokens: predicted {predicted / GIB:,.1f} GiB, measured "
            f"{peak / GIB:,.1f} GiB"
        )
        if "chunk_tokens" in self.auto and isinstance(settings.chunk_tokens, int):
            share = USABLE if torch.distributed.is_initialized() else MEASURED
            budget = measured.chunk(share * self.device, self.longest)
            line += f"; chunks of {budget:,} tokens"
            settings = replace(settings, chunk_tokens=budget)
            recipe = replace(recipe, optimisation=settings)
        return recipe, [line]

    def __str__(self) -> str:
        settings = self.recipe.optimisation
        memory = self.memory
        how = "the whole batch at once"
        if isinstance(settings.chunk_tokens, int):
            how = f"chunks of {settings.chunk_tokens:,} tokens"
        elif settings.chunk_size is not None:
            how = f"chunks of {settings.chunk_size} texts"
        checkpointing = "no checkpointing"
        if settings.gradient_checkpointing:
            checkpointing = "gradient checkpointing"
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
    texts_per_claim = 1 + views + sources
    texts = train.batch_size * texts_per_claim
    if isinstance(train.chunk_tokens, int):
        most = max(train.chunk_tokens, longest)
        return min(texts * longest, most)
    if train.chunk_size is not None:
        texts = min(texts, train.chunk_size)
    return texts * longest


def plan_memory(
    recipe: RetrieverRecipe,
    model: PreTrainedModel,
    longest: int,
    device: float,
) -> MemoryPlan:
    """Replace `auto` by values that fit `device` bytes; texts have at most `longest` tokens.

    It takes the first that fits: all activations kept; chunks (GradCache); checkpointing, which
    like chunks repeats the forward pass once; both, which repeat it twice. If none fits, the last.
    """
    train = recipe.optimisation
    usable = USABLE * device
    open_keys = ("chunk_tokens", "gradient_checkpointing")
    auto = tuple(key for key in open_keys if getattr(train, key) == "auto")
    is_auto = train.gradient_checkpointing == "auto"
    choices = (False, True) if is_auto else (bool(train.gradient_checkpointing),)
    plans: list[MemoryPlan] = []
    for checkpointing in choices:
        setting = replace(train, gradient_checkpointing=checkpointing)
        chunks = [train.chunk_tokens]
        if train.chunk_tokens == "auto":
            chunks = [None]
            without_chunks = replace(recipe, optimisation=setting)
            empty = Memory.of(model, without_chunks, 0)
            is_large = empty.room(usable) >= max(longest, LEAST_CHUNK)
            if is_large or checkpointing or not is_auto:
                budget = empty.chunk(usable, longest)
                chunks.append(budget)
        for chunk in chunks:
            with_chunk = replace(setting, chunk_tokens=chunk)
            candidate = replace(recipe, optimisation=with_chunk)
            tokens = tokens_at_once(candidate, longest)
            memory = Memory.of(model, candidate, tokens)
            plans.append(MemoryPlan(candidate, memory, device, longest, auto))
    fitting = (plan for plan in plans if plan.fits)
    return next(fitting, plans[-1])


def plan_memory_here(
    recipe: RetrieverRecipe,
    model: PreTrainedModel,
    longest: int,
    processes: int,
) -> MemoryPlan:
    """Replace `auto` by values that fit the model's device, shared by `processes` if it is the CPU.

    Raises `ConfigError` if a key is `auto` and nothing fits.
    """
    device_of_model = next(model.parameters()).device
    if device_of_model.type == "cuda":
        properties = torch.cuda.get_device_properties(device_of_model)
        device = float(properties.total_memory)
    else:
        device = machine_memory() / processes
    planned = plan_memory(recipe, model, longest, device)
    if planned.auto and not planned.fits:
        key = f"optimisation.{planned.auto[0]}"
        allowed = f"a device with more memory, or shorter texts ({planned})"
        raise ConfigError(key, "auto", allowed)
    return planned


def measure_chunk(
    encoder: Encoder,
    recipe: RetrieverRecipe,
    tokens: int,
    longest: int,
) -> Memory:
    """Run one chunk of the longest texts forward and backward on a GPU, and measure its peak.

    If memory runs out, it is run with half as many tokens. Weights, gradients and the random state
    do not change. Memory in use before counts as weights; AdamW's moments are not there yet.
    """
    model = encoder.model
    device = encoder.device
    training = model.training
    half = recipe.optimisation.precision == "bf16"
    model.train()
    with torch.random.fork_rng([device]):
        while True:
            count = max(1, tokens // longest)
            texts = [Tokens((1,) * longest)] * count
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            try:
                with torch.autocast("cuda", torch.bfloat16, enabled=half):
                    vectors = encoder.vectors(encoder.batch(texts).to(device))
                vectors.sum().backward()  # type: ignore[no-untyped-call]
                break
            except torch.OutOfMemoryError as error:
                if count == 1:
                    allowed = f"a device with more memory, or shorter texts ({error})"
                    raise ConfigError("model.max_length", longest, allowed) from None
            torch.cuda.empty_cache()
            tokens //= 2
    peak = torch.cuda.max_memory_allocated(device)
    trained = trainable_weights(model).values()
    gradients = sum(p.grad.nbytes for p in trained if p.grad is not None)
    weights = sum(p.numel() for p in trained)
    model.zero_grad(set_to_none=True)
    model.train(training)
    torch.cuda.empty_cache()
    return Memory.measured(count * longest, before, peak, gradients, weights)
