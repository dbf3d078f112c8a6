"""Import the classes that a config names, only from installed modules and PYTHONPATH."""

from __future__ import annotations

import importlib
import inspect
import os
import site
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from claim2source.core.errors import ConfigError
from claim2source.core.files import content_hash


@contextmanager
def chosen_paths() -> Iterator[None]:
    """Remove the current folder from the import path while the body runs, unless it was chosen.

    `python -m`, `python -c` and an empty part of PYTHONPATH put the current folder before all
    installed modules. It was chosen if PYTHONPATH names it, or if a package was installed from it
    in editable mode.
    """
    before = list(sys.path)
    sys.path[:] = _chosen_folders(before)
    try:
        yield
    finally:
        # The body may have added folders of its own.
        added = [part for part in sys.path if part not in before]
        sys.path[:] = [*before, *added]


def import_named(module: str) -> ModuleType:
    """Import a module that a config names, as `chosen_paths` allows.

    Raises `ModuleNotFoundError`, with a remedy if the module is in the current folder.
    """
    with chosen_paths():
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            own = module.partition(".")[0]
            lies_here = os.path.exists(own) or os.path.exists(f"{own}.py")
            if error.name != own or not lies_here:
                raise
    reason = f"{own!r} is in the current folder, which is not on the path; set PYTHONPATH=."
    raise ModuleNotFoundError(reason, name=own)


def import_dataclass(key: str, name: str, method: str, allowed: str) -> type:
    """Import the dataclass with a `method` that a config names by its dotted path under `key`.

    Raises `ConfigError` with the values that are `allowed` if there is no such class.
    """
    try:
        kind = import_member(name)
    except ModuleNotFoundError as error:
        raise ConfigError(key, name, f"{allowed}: {error.msg}") from None
    except ImportError as error:
        # A missing dependency of the class is a different problem from a mistyped name.
        raise error.__cause__ or error from None
    if not (isinstance(kind, type) and is_dataclass(kind) and hasattr(kind, method)):
        raise ConfigError(key, name, f"{allowed}, with a method `{method}`")
    return kind


def code_hash(kind: type) -> str:
    """Hash the modules of a class and of its bases, since other code gives other results."""
    sources: list[str] = []
    for base in kind.__mro__:
        module = sys.modules[base.__module__]
        if _is_python(module):
            sources.append(inspect.getsource(module))
    return content_hash(sources)


def is_shipped(kind: type) -> bool:
    """Whether a class is part of this package."""
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


def _is_python(module: ModuleType) -> bool:
    has_file = bool(getattr(module, "__file__", None))
    return has_file and module.__name__.partition(".")[0] != "abc"


def import_member(path: str) -> object | None:
    """Import the object that a config names by a dotted path; None if its module lacks it.

    Raises `ModuleNotFoundError` if there is no such module, and `ImportError` if a module that it
    needs is missing.
    """
    module, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")):
        raise ModuleNotFoundError("is not a dotted path", name=module)
    try:
        found: object | None = getattr(import_named(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ImportError(f"{module}: {error.msg}", name=module) from error
        raise
    return found


def find_source(module: str) -> Path | None:
    """Find the Python file of a module that a config names, without importing it.

    None if there is no such module, or if it is built in or compiled.
    """
    folders: Sequence[str] | None = None
    spec = None
    parts = module.split(".")
    with chosen_paths():
        for count in range(1, len(parts) + 1):
            spec = PathFinder.find_spec(".".join(parts[:count]), folders)
            if spec is None:
                return None
            folders = spec.submodule_search_locations
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _chosen_folders(paths: list[str]) -> list[str]:
    current = os.path.realpath(os.curdir)
    variable = ""
    if not sys.flags.ignore_environment:
        variable = os.environ.get("PYTHONPATH", "")
    for part in variable.split(os.pathsep):
        if part and os.path.realpath(part) == current:
            return list(paths)
    own = {*site.getsitepackages(), site.getusersitepackages()}
    searched = list[str]()
    is_installed = False
    for part in paths:
        is_installed |= part in own
        # Folders after a folder of installed modules were added by its .pth files.
        is_current = os.path.realpath(part or os.curdir) == current
        if not is_current or (is_installed and part):
            searched.append(part)
    return searched
