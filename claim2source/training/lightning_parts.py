"""Make the parts of Lightning that a config names by the paths of their classes.

The path comes from the user, and making a class runs its code: only classes derived from
Lightning's own are called.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from typing import Any

from claim2source.core.imports import find_source, import_named

CLASS, ARGUMENTS = "class_path", "init_args"
_CALLBACKS = "pytorch_lightning.callbacks"


def listed(parts: object) -> list[Any]:
    """List an argument that may be one object, several or none."""
    if parts is None:
        return []
    return parts if isinstance(parts, list) else [parts]


def instances(value: Any) -> Any:
    """Make the objects in a value that have a `class_path`, with their `init_args`.

    Raises `ValueError` for a class that is not derived from one of Lightning's, and any error of
    the import or the class.
    """
    if isinstance(value, list):
        return [instances(part) for part in value]
    if not isinstance(value, dict) or CLASS not in value:
        return value
    if rest := value.keys() - {CLASS, ARGUMENTS}:
        names = ", ".join(sorted(map(str, rest)))
        raise ValueError(f"{names} is not allowed next to {CLASS}; allowed: only {ARGUMENTS}")
    given = value.get(ARGUMENTS) or {}
    if not isinstance(given, dict):
        raise ValueError(f"{ARGUMENTS} of {value[CLASS]} is not a mapping of names to values")
    # Before its arguments, so that none are made for a class that is refused.
    kind = lightning_class(str(value[CLASS]))
    arguments = {key: instances(part) for key, part in given.items()}
    return kind(**arguments)


def lightning_class(path: str) -> type:
    """Import a class by its path; a bare name is one of Lightning's callbacks.

    Raises `ValueError` if it is not derived from a class of Lightning: before the import if the
    module's file shows that, so that its code does not run. Raises any error of the import.
    """
    module, _, name = path.rpartition(".")
    module = module or _CALLBACKS
    if _is_surely_no_part(module, name):
        raise _not_a_part(path)
    kind = getattr(import_named(module), name)
    if not isinstance(kind, type) or not issubclass(kind, _bases()):
        raise _not_a_part(path)
    return kind


def _not_a_part(path: str) -> ValueError:
    return ValueError(
        f"{path} is not a class derived from Lightning's Callback, Strategy, Profiler or plugins"
    )


@cache
def _bases() -> tuple[type, ...]:
    """List the classes whose objects `pl.Trainer` accepts."""
    import pytorch_lightning as pl
    from lightning_fabric.plugins import CheckpointIO, ClusterEnvironment, Precision
    from pytorch_lightning.accelerators import Accelerator
    from pytorch_lightning.plugins import LayerSync
    from pytorch_lightning.profilers import Profiler
    from pytorch_lightning.strategies import Strategy

    plugins = (CheckpointIO, ClusterEnvironment, LayerSync, Precision)
    return (pl.Callback, Strategy, Profiler, Accelerator, *plugins)


def _is_surely_no_part(module: str, name: str) -> bool:
    """Whether a module's file shows that it has no such class."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return True
    file = find_source(module)
    if file is None:
        return False
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    # The last definition counts; imported or computed names are checked after the import.
    last = None
    for statement in tree.body:
        if getattr(statement, "name", None) == name:
            last = statement
    if isinstance(last, ast.FunctionDef | ast.AsyncFunctionDef):
        return True
    return isinstance(last, ast.ClassDef) and not last.bases
