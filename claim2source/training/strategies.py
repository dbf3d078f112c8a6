"""Make Lightning's strategies reduce gradients once, after the last of several backward passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.overrides.distributed import prepare_for_backward
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from pytorch_lightning.strategies.strategy import _ForwardRedirection
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from claim2source.core.errors import ConfigError
from claim2source.training.adapt import layers_of
from claim2source.training.distributed import World

STRATEGIES = "auto, ddp, fsdp2, or a DDPStrategy or ModelParallelStrategy by class path"


def chosen_strategy(asked: object, world: World) -> Strategy | str:
    """Give the strategy that `trainer.strategy` asks for. Raises `ConfigError` for another."""
    if isinstance(asked, DDPStrategy):
        return reducing_once(asked)
    if isinstance(asked, ModelParallelStrategy):
        size = asked._tensor_parallel_size
        if size not in ("auto", 1):
            key = "trainer.strategy.init_args.tensor_parallel_size"
            raise ConfigError(key, size, "1: every process takes its own part of a batch")
        return Sharded(world)
    if asked == "fsdp2":
        return Sharded(world)
    if asked not in (None, "auto", "ddp"):
        shown = asked if isinstance(asked, str) else type(asked).__name__
        raise ConfigError("trainer.strategy", shown, STRATEGIES)
    return "auto" if world.size == 1 else reducing_once(DDPStrategy())


def reducing_once(strategy: DDPStrategy) -> DDPStrategy:
    """Let `backward_pass` tell DDP's reducer when to work, not the end of the training step.

    GradCache goes backward in pieces: at the end of the step most of them are still to come.
    """
    strategy._forward_redirection = _LeaveReducer()
    # Weights may get no gradient: a pooler that is not used.
    strategy._ddp_kwargs["find_unused_parameters"] = True
    # Gradients lie in the buckets that are sent: there is no copy of them.
    strategy._ddp_kwargs.setdefault("gradient_as_bucket_view", True)
    return strategy


class Sharded(ModelParallelStrategy):
    """Shard weights, gradients and the optimizer's states over all processes (FSDP2).

    A saved state is one file, with whole tensors, of the weights that training moves.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world.size, 1, save_distributed_checkpoint=False)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Gather the weights that training moves, on the first process."""
        return moved_weights(self.model, everywhere=False)

    def teardown(self) -> None:
        """End, as other strategies do, what writes the state."""
        super().teardown()
        self.checkpoint_io.teardown()


def moved_weights(model: nn.Module | None, everywhere: bool) -> dict[str, Any]:
    """Gather the whole weights that training moves, by name; all processes must call it.

    On the CPU of the first process alone, or with `everywhere` on the device of each.
    """
    assert model is not None
    options = StateDictOptions(
        full_state_dict=True, cpu_offload=not everywhere, ignore_frozen_params=True
    )
    return get_model_state_dict(model, options=options)


def shard(model: nn.Module, mesh: DeviceMesh, half: bool) -> None:
    """Shard a model, layer by layer; with `half`, its layers compute in bf16.

    The shards keep the weights' own type: fp32 masters, which the optimizer moves. Gradients are
    reduced in fp32.
    """
    policy = MixedPrecisionPolicy()
    if half:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def most_chunks(count: int, device: torch.device) -> int:
    """Count the most chunks that any process has: sharded, all must run equally many."""
    most = torch.tensor(count, device=device)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    return int(most)


@contextlib.contextmanager
def backward_pass(strategy: Strategy, output: Tensor, last: bool) -> Iterator[None]:
    """Run one backward pass from `output`; with the `last`, gradients are averaged.

    They are averaged over processes by the strategy's own hook, unless a window of accumulated
    batches is still open.
    """
    model = strategy.model
    if not isinstance(model, DistributedDataParallel):
        yield
    elif last:
        prepare_for_backward(model, output)
        yield
    else:
        with model.no_sync():
            yield


class _LeaveReducer(_ForwardRedirection):
    """Call the training step through DDP without preparing its reducer."""

    def __init__(self) -> None:
        self.synchronises = True

    def on_after_inner_forward(
        self, wrapper_module: nn.Module, original_module: pl.LightningModule
    ) -> None:
        """Switch the reducer off before DDP looks at the output."""
        if isinstance(wrapper_module, DistributedDataParallel):
            self.synchronises = wrapper_module.require_backward_grad_sync
            wrapper_module.require_backward_grad_sync = False

    def on_after_outer_forward(
        self, wrapper_module: nn.Module, original_module: pl.LightningModule
    ) -> None:
        """Leave it as Lightning wanted it: off while a window of batches is open."""
        if isinstance(wrapper_module, DistributedDataParallel):
            wrapper_module.require_backward_grad_sync = self.synchronises
