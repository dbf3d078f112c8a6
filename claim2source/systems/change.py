"""Change a tree of nodes: any of them, or the checkpoint that it ranks with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from claim2source.core.config import require
from claim2source.systems.nodes import AnyNode, DenseNode, HybridNode, RouteNode


def rebuilt(node: AnyNode, change: Callable[[AnyNode], AnyNode]) -> AnyNode:
    """Rebuild a tree with every node changed, the parts before what they are parts of."""
    if isinstance(node, HybridNode):
        sparse, dense = rebuilt(node.sparse, change), rebuilt(node.dense, change)
        node = replace(node, sparse=sparse, dense=dense)
    elif isinstance(node, RouteNode):
        routes = {
            language: tuple(rebuilt(part, change) for part in parts)
            for language, parts in node.routes.items()
        }
        node = replace(node, routes=routes)
    return change(node)


def with_checkpoint(node: AnyNode, path: str, routes: Mapping[str, str] | None = None) -> AnyNode:
    """Put a checkpoint in the place of a node's dense models, for some languages another.

    Raises `ConfigError` where it has none, or where val chooses among several.
    """
    # With another model it is no longer what its label says.
    bare = replace(node, label=None, unsupported=None, advice=None)
    if isinstance(bare, HybridNode):
        return replace(bare, dense=with_checkpoint(bare.dense, path))
    if isinstance(bare, RouteNode):
        taken, others = {}, routes or {}
        for language in dict.fromkeys((*bare.routes, *others)):
            parts = bare.candidates(language)
            allowed = f"none: val chooses among several for {language}"
            require(len(parts) == 1, "checkpoint", path, allowed)
            taken[language] = (with_checkpoint(parts[0], others.get(language, path)),)
        return replace(bare, routes=taken)
    allowed = f"none: the first stage {node.shown} has no dense model"
    require(isinstance(bare, DenseNode), "checkpoint", path, allowed)
    assert isinstance(bare, DenseNode)
    return replace(bare, model=bare.model.for_checkpoint(Path(path)), rendering=None)
