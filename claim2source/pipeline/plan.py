"""Plan an evaluation: which systems run over which claim forms, and what each is compared with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from claim2source.core.config import require
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.folders import RUN_FILE
from claim2source.models import ModelConfig
from claim2source.models.resolve import chosen_checkpoint
from claim2source.retrieve import BM25Config, FusionConfig
from claim2source.retrieve.saved import ALL, SavedRunConfig
from claim2source.systems.nodes import (
    CHECKPOINT,
    DEFAULT,
    AnyNode,
    BM25Node,
    DenseNode,
    HybridNode,
    RouteNode,
    RunNode,
)
from claim2source.systems.read import Systems
from claim2source.systems.stages import load_stages
from claim2source.systems.system import System

STEP_0, ROUTED, CHOSEN = "epoch-0", "routed", "chosen"
RETRIEVE, STAGES = "retrieve", "stages"


@dataclass(frozen=True)
class Checkpoint:
    """Name a checkpoint, and its path or model's name; `run` is its training's folder.

    `chosen` tells that the training chose it on val.
    """

    name: str
    path: str
    run: Path | None = None
    chosen: bool = False

    @property
    def is_step_0(self) -> bool:
        """Tell whether it is a training's model before the first step."""
        return self.run is not None and Path(self.path).name == STEP_0


@dataclass(frozen=True)
class Planned:
    """Hold a system to evaluate, its checkpoint, and the name of what it is a variation of."""

    system: System
    checkpoint: Checkpoint | None = None
    varied: str | None = None


def checkpoints_of(names: Sequence[str]) -> list[Checkpoint]:
    """List the checkpoints that are named: of a training run every kept epoch and its soups.

    Raises `UserError` for a run without any.
    """
    found: list[Checkpoint] = []
    several = len(names) > 1
    for name in names:
        folder = Path(name)
        if not (folder / RUN_FILE).is_file():
            own = folder.name or folder.resolve().name
            found.append(Checkpoint(own, name if folder.name else str(folder.resolve())))
            continue
        kept = sorted(
            (path for path in (folder / "checkpoints").glob("epoch-*") if path.is_dir()),
            key=lambda path: (int(path.name.split("-")[1]), path.name),
        )
        if not kept:
            raise UserError(f"{folder}: a training run without checkpoints")
        try:
            chosen = chosen_checkpoint(folder).name
        except UserError:
            chosen = ""  # the run has not ended: its epochs so far are scored all the same
        front = f"{folder.resolve().name}-" if several else ""
        for path in [*kept, *sorted((folder / "checkpoints").glob("soup-*"))]:
            found.append(Checkpoint(f"{front}{path.name}", str(path), folder, path.name == chosen))
    for place, one in enumerate(found):
        twice = any(one.name == other.name for other in found[:place])
        require(not twice, "checkpoint", one.path, f"one checkpoint of the name {one.name}")
    return found


def plan(
    systems: Systems,
    behind: Systems,
    checkpoints: Sequence[Checkpoint],
    dense: Callable[[str], DenseNode],
    *,
    routes: Mapping[str, str] | None = None,
    only: Sequence[str] = (),
    vary: Mapping[str, Sequence[Any]] | None = None,
    run: Path | None = None,
) -> list[Planned]:
    """List what is evaluated: systems, checkpoints, `behind` put on each checkpoint, variations.

    A system with `dense: checkpoint` is put on each checkpoint too. `dense` says how a model is
    read, `routes` maps languages to models that rank in a checkpoint's place, `run` is a ranking
    in place of the first stage, and `only` names the ones that are wanted. Raises `ConfigError`.
    """
    found: list[Planned] = []
    for name, system in systems.items():
        waits = checkpoints and any(_waits(node) for node in system.first.walk())
        if not waits:
            found.append(Planned(system))
        else:
            behind = {**behind, name: system}
    for one in checkpoints:
        name = ROUTED if routes and len(checkpoints) == 1 else one.name
        first: AnyNode = replace(dense(one.path), name=name)
        whole = System(name, first)
        if routes:
            places = {DEFAULT: one.path, **routes}
            parts = {lang: (replace(dense(p), name=f"of {p}"),) for lang, p in places.items()}
            whole = System(name, RouteNode(name=name, routes=parts))
        found.append(Planned(whole, one))
        for system in behind.values():
            found.append(Planned(_on(system, one, name, routes or {}, dense), one))
    found = _wanted(found, only)
    if run is not None:
        node = RunNode(run=SavedRunConfig({ALL: run}))
        found = [
            replace(one, system=replace(one.system, first=replace(node, name=one.system.name)))
            for one in found
        ]
    for key, values in (vary or {}).items():
        own = [one for one in found if one.varied is None]
        found += [
            Planned(_varied(one.system, key, value), one.checkpoint, one.system.name)
            for one in own
            for value in values
        ]
    return found


def _waits(node: AnyNode) -> bool:
    return isinstance(node, DenseNode) and node.model.name == CHECKPOINT


def _on(
    system: System,
    checkpoint: Checkpoint,
    name: str,
    routes: Mapping[str, str],
    dense: Callable[[str], DenseNode],
) -> System:
    """Put a system on a checkpoint, read as the checkpoint alone is."""
    read = {str(Path(path)): dense(path) for path in (checkpoint.path, *routes.values())}

    def as_read(node: AnyNode) -> AnyNode:
        if isinstance(node, DenseNode) and (own := read.get(node.model.name)) is not None:
            return replace(
                node, model=own.model, sources_form=own.sources_form, rendering=own.rendering
            )
        if isinstance(node, HybridNode):
            return replace(node, sparse=as_read(node.sparse), dense=as_read(node.dense))
        if isinstance(node, RouteNode):
            parts = {lang: tuple(map(as_read, each)) for lang, each in node.routes.items()}
            return replace(node, routes=parts)
        return node

    found = system.on_checkpoint(checkpoint.path, routes)
    named = replace(as_read(found.first), name=f"{name}+{system.name}")
    # The dense part has the checkpoint's name, so that a hybrid is tested against it.
    if isinstance(named, HybridNode):
        named = replace(named, dense=replace(named.dense, name=name))
    return replace(found, name=f"{name}+{system.name}", first=named)


def _wanted(found: Sequence[Planned], only: Sequence[str]) -> list[Planned]:
    """Take the systems that are named; `chosen` is the checkpoint that a training chose."""
    names = [one.system.name for one in found]
    for name in only:
        there = name in names or (name == CHOSEN and any(_is_chosen(one) for one in found))
        require(there, "only", name, ", ".join(names))
    return [
        one
        for one in found
        if not only or one.system.name in only or (CHOSEN in only and _is_chosen(one))
    ]


def _is_chosen(one: Planned) -> bool:
    return one.checkpoint is not None and one.checkpoint.chosen


def _varied(system: System, key: str, value: Any) -> System:
    """Change one setting: `retrieve.KEY` of the first stage, `stages.N.KEY` of a stage from 1.

    Raises `ConfigError` for a setting that is not there.
    """
    where, _, path = key.partition(".")
    allowed = f"`{RETRIEVE}.KEY` or `{STAGES}.N.KEY`, stages being counted from 1"
    require(where in (RETRIEVE, STAGES) and bool(path), "vary", key, allowed)
    name = f"{system.name} {key}={_shown(value)}"
    if where == RETRIEVE and path == "depth":
        return replace(system, name=name, depth=value, label=None)
    if where == RETRIEVE:
        first, found = _with_setting(system.first, path, value)
        require(found, "vary", key, "a setting of a node of the first stage")
        return replace(system, name=name, first=replace(first, name=name), label=None)
    number, _, path = path.partition(".")
    count = len(system.stages)
    good = number.isdecimal() and 1 <= int(number) <= count and bool(path)
    require(good, "vary", key, f"{STAGES}.1.KEY to {STAGES}.{count}.KEY" if count else "no stage")
    place = int(number) - 1
    entry = json.loads(json.dumps(system.stages[place]))
    part = entry
    *outer, last = path.split(".")
    for group in outer:
        part = part.setdefault(group, {})
    part[last] = value
    try:
        load_stages([entry])
    except ConfigError as error:
        raise ConfigError(f"vary {key}", value, error.allowed, error.why) from None
    stages = (*system.stages[:place], entry, *system.stages[place + 1 :])
    return replace(system, name=name, stages=stages, label=None)


def _with_setting(node: AnyNode, key: str, value: Any) -> tuple[AnyNode, bool]:
    """Set a key on every node that has it; tell whether there was one."""
    if isinstance(node, RouteNode):
        changed = {
            lang: [_with_setting(part, key, value) for part in parts]
            for lang, parts in node.routes.items()
        }
        routes = {lang: tuple(part for part, _ in parts) for lang, parts in changed.items()}
        hit = any(found for parts in changed.values() for _, found in parts)
        return replace(node, routes=routes, label=None), hit
    if isinstance(node, HybridNode):
        sparse, in_sparse = _with_setting(node.sparse, key, value)
        dense, in_dense = _with_setting(node.dense, key, value)
        changed_node = replace(node, sparse=sparse, dense=dense, label=None)
        if _has(FusionConfig, key):
            fusion = replace(node.fusion, **{key: value})
            return replace(changed_node, fusion=fusion, fits=False), True
        return changed_node, in_sparse or in_dense
    if isinstance(node, BM25Node) and _has(BM25Config, key):
        return replace(node, bm25=replace(node.bm25, **{key: value}), label=None), True
    if isinstance(node, DenseNode) and key == "sources":
        return replace(node, sources_form=value, label=None), True
    if isinstance(node, DenseNode) and _has(ModelConfig, key):
        return replace(node, model=replace(node.model, **{key: value}), label=None), True
    return node, False


def _has(kind: type, key: str) -> bool:
    return key in {one.name for one in fields(kind)}


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(one)}" for key, one in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def vary_words(words: Sequence[str]) -> list[str]:
    """Turn `--vary KEY=V,V KEY=V` and `--route de=RUN` into the mappings that a config has."""
    found: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, text = word.partition("=")
        if option not in ("--vary", "--route") or text.startswith("{"):
            found.append(word)
            continue
        given = [text] if equals else []
        while rest and not rest[0].startswith("--"):
            given.append(rest.pop(0))
        pairs = dict(_pairs(option, given))
        if option == "--vary":
            found.append(f"--vary={json.dumps(pairs)}")
        else:
            found.append(f"--routes={json.dumps({k: str(v[0]) for k, v in pairs.items()})}")
    return found


def _pairs(option: str, given: Sequence[str]) -> Iterator[tuple[str, list[Any]]]:
    for one in given:
        key, equals, text = one.partition("=")
        if not equals:
            raise UserError(f"config: {option}: {one} is not allowed; allowed: KEY=VALUE,VALUE")
        try:
            values = yaml.safe_load(f"[{text}]") if option == "--vary" else [text]
        except yaml.YAMLError:
            raise UserError(f"config: {option}: {one}: not YAML after the =") from None
        yield key, values
