"""Join a launch's processes, share work among them, and reduce their gradients once."""

from __future__ import annotations

import contextlib
import copy
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.overrides.distributed import prepare_for_backward
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from claim2source.core.errors import EXIT_CODE, ConfigError, UserError
from claim2source.core.records import Dataset
from claim2source.data.store import Store
from claim2source.models import Encoder, Side
from claim2source.models.layers import find_layers
from claim2source.text import Rendering
from claim2source.training.launcher import World

Value = TypeVar("Value")

# Longest lag of a process; while the first one mines or scores, the others wait longer.
_TIMEOUT = timedelta(minutes=15)
# Numbers the exchanges of values; equal in all processes.
_exchanges = count()
# Parts of gloo's errors about a process that has ended.
_BROKEN = "closed by peer", "reset by peer", "Broken pipe", "pair closure", "gloo/transport/tcp"


def check_same_world(world: World, lightning_size: int) -> None:
    """Raise `UserError` unless Lightning sees as many processes as the launcher started."""
    if world.size != lightning_size:
        raise UserError(
            f"the launcher started {world.size} processes, Lightning sees {lightning_size}: "
            "they would train separately; check the launcher's options"
        )


@contextlib.contextmanager
def joined_world(world: World, device: str | None) -> Iterator[None]:
    """Join the processes while the body runs; does nothing for a single process.

    With GPUs each process selects its own before the body loads anything. Raises `UserError`
    if a machine has fewer GPUs than processes, and if the body loses the connection to a process:
    one that is killed closes it, and a machine that fails is noticed after `_TIMEOUT`.
    """
    if world.size == 1:
        yield
        return
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        if world.local_rank >= torch.cuda.device_count():
            raise UserError(
                f"{world.local_size} processes on a machine with {torch.cuda.device_count()} GPUs"
            )
        torch.cuda.set_device(world.local_rank)
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, rank=world.rank, world_size=world.size, timeout=_TIMEOUT)
    try:
        yield
    except RuntimeError as error:
        if (reason := lost_connection(error)) is None:
            raise
        raise UserError(reason) from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def lost_connection(error: Exception) -> str | None:
    """Describe a communication error caused by a lost process; None for any other."""
    text = str(error)
    broken = isinstance(error, dist.DistBackendError | dist.DistNetworkError | dist.DistStoreError)
    if not broken and not any(sign in text for sign in _BROKEN):
        return None
    # Without gloo's source line and its advice.
    reason = re.sub(r"^\[\S+\] ", "", text).partition("\n")[0].partition(". ")[0].rstrip(".")
    return (
        f"the connection to another process was lost ({reason}): check the log of that process or "
        "its machine, and start all processes again (a training run continues with --resume)"
    )


def _wait_for_first(world: World) -> None:
    """Wait until the first process joins, however long it mines or scores.

    A collective ends after `_TIMEOUT`; the store's connection does if its machine is gone.
    """
    store, key = dist.distributed_c10d._get_default_store(), f"exchange {next(_exchanges)}"
    if world.is_first:
        store.set(key, "")
        return
    pause = 0.001
    while not store.check([key]):
        time.sleep(pause)
        pause = min(2 * pause, 0.5)


def barrier(world: World) -> None:
    # On the CPU: a GPU barrier would choose a device before Lightning has set it.
    gather_values(None, world)


@contextlib.contextmanager
def first_before_others(world: World) -> Iterator[None]:
    """Run the body on the first process, then on the others, which read what it stored."""
    if not world.is_first:
        barrier(world)
    yield
    if world.is_first:
        barrier(world)


@contextlib.contextmanager
def synchronised(world: World) -> Iterator[None]:
    """Run the body on every process and wait for all; a `UserError` of one ends them all.

    One process raises it, the others end with the same exit code and no second line.
    """
    error: Exception | None = None
    try:
        yield
    except (UserError, OSError) as raised:
        error = raised
    failed = gather_values(error is not None, world)
    if True not in failed:
        return
    if error is not None and failed.index(True) == world.rank:
        raise error
    raise SystemExit(EXIT_CODE)


def gather_values(value: Value, world: World) -> list[Value]:
    """Collect one value of every process, by rank: plain values or CPU tensors."""
    if world.size == 1:
        return [value]
    _wait_for_first(world)
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value)
    return values


def encode_shares(
    encoder: Encoder, rendering: Rendering, dataset: Dataset, store: Store, world: World
) -> None:
    """Write this process's share of the vectors to the store, and wait for the others'.

    A later encoding of all texts reads them from there; on a machine with another store it encodes
    the rest itself. Does nothing for one process, or while the weights have no name. All processes
    must call it with the same texts.
    """
    if world.size == 1 or encoder.weights is None:
        return
    sides: list[tuple[Side, list[str]]] = [
        ("claim", rendering.claim_texts(dataset.claims)),
        ("source", rendering.source_texts(dataset.sources)),
    ]
    for side, texts in sides:
        distinct = sorted(dict.fromkeys(texts), key=len)  # so that shares take equally long
        share = distinct[world.rank :: world.size]
        if share:
            progress = f"{side}s, in {world.size} processes" if world.is_first else None
            encoder.fill(share, side, store, progress=progress)
    barrier(world)


def chosen_strategy(requested: object, world: World) -> Strategy | str:
    """Return the strategy that `trainer.strategy` names. Raises `ConfigError` for another.

    DDP's reducer is started by `start_reducer`, not at the end of the training step, because
    GradCache runs several backward passes.
    """
    if isinstance(requested, ModelParallelStrategy):
        size = requested._tensor_parallel_size
        if size not in ("auto", 1):
            key = "trainer.strategy.init_args.tensor_parallel_size"
            raise ConfigError(key, size, "1, because every process takes its own part of a batch")
        requested = "fsdp2"
    if requested == "fsdp2":
        return Sharded(world.size, 1, save_distributed_checkpoint=False)
    if requested in (None, "auto", "ddp"):
        if world.size == 1:
            return "auto"
        requested = DDPStrategy()
    if not isinstance(requested, DDPStrategy):
        name = requested if isinstance(requested, str) else type(requested).__name__
        allowed = "auto, ddp, fsdp2, or a DDPStrategy or ModelParallelStrategy by class path"
        raise ConfigError("trainer.strategy", name, allowed)
    if requested._ddp_kwargs.get("static_graph"):
        allowed = "false, because chunks have separate backward passes"
        raise ConfigError("trainer.strategy.init_args.static_graph", True, allowed)
    requested._forward_redirection = _call_method  # type: ignore[assignment]
    # Some weights get no gradient, such as a pooler that is not used.
    requested._ddp_kwargs |= {"find_unused_parameters": True}
    # Gradients are views of the buckets that are sent, not copies.
    requested._ddp_kwargs.setdefault("gradient_as_bucket_view", True)
    return requested


def _call_method(wrapper: nn.Module, module: pl.LightningModule, name: str, *args: Any) -> Any:
    """Call the module's own method: the wrapper's forward pass would start the reducer."""
    return getattr(module, name)(*args)


class Sharded(ModelParallelStrategy):
    """Shard weights, gradients and the optimizer's states over all processes (FSDP2).

    A saved state is one file with the full tensors of the trained weights.
    """

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Gather the trained weights on the first process."""
        return moved_weights(self.model, everywhere=False)

    def teardown(self) -> None:
        """Close the writer of states, as other strategies do."""
        super().teardown()
        self.checkpoint_io.teardown()


def moved_weights(model: nn.Module | None, everywhere: bool) -> dict[str, Any]:
    """Gather the full trained weights by name; all processes must call it.

    They are on the first process's CPU, or with `everywhere` on the device of every process.
    """
    assert model is not None
    options = StateDictOptions(
        full_state_dict=True, cpu_offload=not everywhere, ignore_frozen_params=True
    )
    return get_model_state_dict(model, options=options)


class GatherWeights(pl.Callback):
    """Keep a full model next to the sharded one, on the CPU during training steps.

    A process cannot encode by itself with shards: every pass through these needs all processes.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self._current = encoder, False

    def on_train_epoch_start(self, trainer: pl.Trainer, module: Any) -> None:
        if trainer.current_epoch and not self._current:
            self.on_train_epoch_end(trainer, module)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: Any) -> None:
        weights = moved_weights(module.model, everywhere=True)
        self.encoder.model.load_state_dict(weights, strict=False)
        self.encoder.model.to(module.device)  # type: ignore[arg-type]
        self._current = True

    def on_train_batch_start(self, *arguments: Any) -> None:
        if self._current:
            self.encoder.model.to("cpu")  # type: ignore[arg-type]
            self._current = False


def trained_encoder(trainer: pl.Trainer, encoder: Encoder) -> Encoder:
    """Return the encoder to train; if weights are sharded, a copy of it.

    A sharded model cannot be scored and saved; the full model is used for that.
    """
    if not isinstance(trainer.strategy, Sharded):
        return encoder
    trained = copy.copy(encoder)
    trained.model = copy.deepcopy(encoder.model)
    encoder.model.to("cpu")  # type: ignore[arg-type]
    trainer.callbacks.insert(0, GatherWeights(encoder))  # type: ignore[attr-defined]
    return trained


def shard(model: nn.Module, mesh: DeviceMesh, half: bool) -> None:
    """Shard a model, layer by layer; with `half`, its layers compute in bf16.

    The shards keep the weights' own type: fp32 masters, which the optimizer updates. Gradients are
    reduced in fp32.
    """
    types = (torch.bfloat16, torch.float32) if half else ()
    for part in (*find_layers(model), model):
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(*types))


def start_reducer(strategy: Strategy, output: Tensor) -> None:
    """Have DDP average the gradients over processes in the backward pass that begins at `output`.

    The strategy skips this for the first batches of an accumulation window.
    """
    if isinstance(strategy.model, DistributedDataParallel):
        prepare_for_backward(strategy.model, output)
