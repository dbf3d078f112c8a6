"""Make Lightning's strategies reduce gradients once, after the last of several backward passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytorch_lightning as pl
from pytorch_lightning.overrides.distributed import prepare_for_backward
from pytorch_lightning.strategies import DDPStrategy, Strategy
from pytorch_lightning.strategies.strategy import _ForwardRedirection
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from claim2source.core.errors import ConfigError
from claim2source.training.distributed import World

STRATEGIES = "auto, ddp, or a DDPStrategy by class path"


def chosen_strategy(asked: object, world: World) -> Strategy | str:
    """Give the strategy that `trainer.strategy` asks for. Raises `ConfigError` for another."""
    if isinstance(asked, DDPStrategy):
        return reducing_once(asked)
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
