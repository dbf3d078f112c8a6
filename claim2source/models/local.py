"""Load models from the user's folder instead of the hub, wherever a program loads one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from claim2source.core.config import Settings, flag
from claim2source.core.errors import ConfigError
from claim2source.core.files import folder_error
from claim2source.models.config import ModelConfig

# Devices of the drivers of Nvidia, its Jetson boards, AMD and WSL.
_GPUS = ("/dev/nvidiactl", "/dev/nvmap", "/dev/kfd", "/dev/dxg")
# Global, like the hub's own switch: stages load models late, and in threads.
_folder: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Settings):
    """Set the folder of a program's models.

    Args:
        models: folder of models, each named by the last part of its hub name
            (models/all-mpnet-base-v2). Every model that is in it is loaded from there.
    """

    models: Path | None = None
    offline: bool = flag("do not contact the hub; use folders, packages and the hub's cache")


C = TypeVar("C", bound=ModelOptions)
P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def local_models(folder: Path | None, offline: bool = False) -> Iterator[None]:
    """Load models from `folder/NAME` instead of the hub; NAME is the last part of their name.

    This applies to every model that the body loads: first and later stages, bases of adapters,
    tokenizers. With `offline` the hub is not contacted. Without a folder an outer call's folder
    stays in force.
    """
    from huggingface_hub import constants

    global _folder
    if folder is not None and (reason := folder_error(folder)) is not None:
        raise ConfigError("models", str(folder), f"a folder of models ({reason})")
    before = _folder, constants.HF_HUB_OFFLINE
    try:
        _folder = _folder if folder is None else folder
        # The environment variable is read once, when the library is imported.
        constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE or offline
        yield
    finally:
        _folder, constants.HF_HUB_OFFLINE = before


def with_local_models(
    work: Callable[Concatenate[C, P], R],
) -> Callable[Concatenate[C, P], R]:
    """Have a program load models from the folder in its settings; refuse an absent GPU."""

    @wraps(work)
    def within(config: C, *arguments: P.args, **options: P.kwargs) -> R:
        require_device(getattr(config, "device", None))
        with local_models(config.models, config.offline):
            return work(config, *arguments, **options)

    return within


def require_device(device: str | None) -> None:
    """Raise `ConfigError` for a GPU if there is no driver, before PyTorch is imported."""
    wants_gpu = device is not None and device.startswith("cuda")
    if wants_gpu and sys.platform == "linux" and not any(map(os.path.exists, _GPUS)):
        raise ConfigError("device", device, "cpu: there is no GPU here")


def local_name(name: str) -> str:
    """Return the folder that replaces a model's name, if there is one; else the name itself.

    The name of an existing folder stays.
    """
    if _folder is None or Path(name).exists() or not Path(name).name:
        return name
    path = _folder / Path(name).name
    if path.is_dir():
        return str(path)
    return name


def local_model(model: ModelConfig) -> ModelConfig:
    """Return a model with its folder in the folder of models as the name, if it is there.

    Permissions by the model's name apply to that folder, and it needs no commit.
    """
    path = local_name(model.name)
    if path == model.name:
        return model

    def trusted(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(path if name == model.name else name for name in names)

    return replace(
        model,
        name=path,
        revision=None,
        allow_bin=trusted(model.allow_bin),
        allow_remote_code=trusted(model.allow_remote_code),
    )
