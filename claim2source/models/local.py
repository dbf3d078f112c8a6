"""Take models from a folder of the user's in place of the hub, whatever asks for them."""

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

# What the drivers of Nvidia, its Jetson boards, AMD and WSL make.
_GPUS = ("/dev/nvidiactl", "/dev/nvmap", "/dev/kfd", "/dev/dxg")
# Of the process, as the hub's own switch is: stages load models late, and in threads.
_folder: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Settings):
    """Set the folder of a program's models.

    Args:
        models: folder of models by the last part of their name (models/all-mpnet-base-v2), taken
            before the hub's: of first stages, re-rankers and all else that is loaded.
    """

    models: Path | None = None
    offline: bool = flag("do not ask the hub: models from folders, packages and its cache")


C = TypeVar("C", bound=ModelOptions)
P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def local_models(folder: Path | None, offline: bool = False) -> Iterator[None]:
    """Take models from `folder/NAME`, NAME being the last part of their name, before the hub.

    This applies to whatever is loaded within, first stages and later ones, bases of adapters and
    tokenizers. `offline` keeps the hub from being asked for anything. Without a folder the one
    that applies already does.
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
    """Have a program's work take models from where its settings say; refuse an absent GPU."""

    @wraps(work)
    def within(config: C, *arguments: P.args, **options: P.kwargs) -> R:
        require_device(getattr(config, "device", None))
        with local_models(config.models, config.offline):
            return work(config, *arguments, **options)

    return within


def require_device(device: str | None) -> None:
    """Raise `ConfigError` for a GPU that no driver knows, before PyTorch is imported."""
    wants_gpu = device is not None and device.startswith("cuda")
    if wants_gpu and sys.platform == "linux" and not any(map(os.path.exists, _GPUS)):
        raise ConfigError("device", device, "cpu: there is no GPU here")


def local_name(name: str) -> str:
    """Return the folder that replaces a model's name, if there is one; else the name itself.

    A name that is a folder itself is that folder.
    """
    if _folder is None or Path(name).exists() or not Path(name).name:
        return name
    path = _folder / Path(name).name
    if path.is_dir():
        return str(path)
    return name


def local_model(model: ModelConfig) -> ModelConfig:
    """Take a model from the folder of models if it is there; else leave it as it is.

    What is allowed to the model by its name is allowed to that folder; no commit is asked for.
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
