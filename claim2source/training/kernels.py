"""Save memory and time in training: fewer copies, fused kernels, a compiled model, small states."""

from __future__ import annotations

import importlib
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch
from transformers import PreTrainedModel

from claim2source.core.errors import ConfigError, UserError
from claim2source.models import Encoder
from claim2source.training.config import FinetuneConfig, StepsConfig

# Model types whose norms and gates Liger's kernels replace.
LIGER_TYPES = ("llama", "mistral", "qwen2", "qwen3")


def check_kernels(config: FinetuneConfig, encoder: Encoder) -> None:
    """Raise `UserError` for kernels that this model or machine cannot have."""
    train, on_gpu = config.optimisation, encoder.device.type == "cuda"
    if train.optimizer == "adamw_8bit":
        _require_package("optimizer: adamw_8bit", "bitsandbytes", "claim2source[gpu]")
    if train.liger_kernels:
        kind = encoder.model.config.model_type
        if kind not in LIGER_TYPES:
            allowed = f"false: {kind} models have none, only {', '.join(LIGER_TYPES)}"
            raise ConfigError("optimisation.liger_kernels", True, allowed)
        if not on_gpu:
            raise ConfigError("optimisation.liger_kernels", True, "false: they need a GPU")
        _require_package("liger_kernels", "liger_kernel", "claim2source[liger]")
    if train.compile:
        if on_gpu:
            _require_package("compile", "triton", "triton")
        elif not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
            raise ConfigError("optimisation.compile", True, "false: there is no C++ compiler here")


def _require_package(setting: str, module: str, install: str) -> None:
    if find_spec(module) is None:
        raise UserError(
            f"optimisation.{setting} needs the package {module.replace('_', '-')}: "
            f"pip install '{install}'"
        )


def make_optimizer(groups: list[dict[str, object]], config: StepsConfig) -> torch.optim.Optimizer:
    """Create AdamW for groups of parameters, with means in fp32 or in 8 bits.

    Of a parameter with fewer than 4,096 weights both keep them in fp32.
    """
    if config.optimizer == "adamw_8bit":
        from bitsandbytes.optim import AdamW8bit

        made: torch.optim.Optimizer = AdamW8bit(groups, lr=config.learning_rate)
        return made
    return torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)


@contextmanager
def without_copies(model: torch.nn.Module) -> Iterator[None]:
    """Keep LoRA's layers from copying their inputs to fp32 while the body runs under autocast.

    Autocast would cast the copies back at once: the numbers are the same, and nothing is kept of
    an input beside itself. Without autocast an adapter in fp32 needs its input in fp32. A step's
    backward pass belongs into the body: checkpointing runs the layers again there.
    """
    kind = next(model.parameters()).device.type
    if not (hasattr(model, "peft_config") and torch.is_autocast_enabled(kind)):
        yield
        return
    from peft.helpers import disable_input_dtype_casting

    with disable_input_dtype_casting(model):
        yield


def use_liger(model: PreTrainedModel) -> None:
    """Replace a model's RMS norms and gated layers by Liger's fused ones.

    Models that are loaded later keep transformers' own, and so do rotary positions, which Liger
    replaces for all models of a type.
    """
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    kind = model.config.model_type
    library = importlib.import_module(type(model).__module__)
    names = dict(vars(library))
    try:
        MODEL_TYPE_TO_APPLY_LIGER_FN[kind](
            rope=False, rms_norm=True, swiglu=True, fused_linear_cross_entropy=False, model=model
        )
    finally:
        for name, value in names.items():
            setattr(library, name, value)


def compile_model(model: torch.nn.Module, backend: str = "inductor") -> None:
    """Compile a model in place, so that peft and the names of weights stay."""
    import torch._inductor.config as inductor

    # Dropout must draw as uncompiled: chunks repeat it by the generator's state.
    inductor.fallback_random = True  # type: ignore[assignment]
    warnings.filterwarnings("ignore", module="torch._inductor")
    model.compile(dynamic=True, backend=backend)
