"""Plan an evaluation: the systems, their claim forms, and the baseline of each."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, get_args

from claim2source.core.arguments import is_digits
from claim2source.core.config import as_plain, make, read_yaml, require_one_of
from claim2source.core.errors import ConfigError, InputError, UserError, did_you_mean
from claim2source.core.files import file_error
from claim2source.core.folders import RUN_FILE, checkpoints_in
from claim2source.core.report import Table
from claim2source.models import Manifest, ModelConfig
from claim2source.models.manifest import FILE as MANIFEST
from claim2source.models.manifest import checkpoint_folder, chosen_checkpoint
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.fielded import Fielded
from claim2source.search.fuse import FusionConfig, Hybrid
from claim2source.search.saved import ALL, Saved
from claim2source.systems.own import Own
from claim2source.systems.read import DEEPEST, Systems, read_stage
from claim2source.systems.retrieval import CHECKPOINT, Retrieval
from claim2source.systems.stages import SystemStage
from claim2source.systems.system import System
from claim2source.text import ClaimForm, SourceForm

log = logging.getLogger(__name__)

EPOCH = "epoch-"
STEP_0 = "epoch-0"
ROUTED = "routed"
CHOSEN = "chosen"
RETRIEVE = "retrieve"
STAGES = "stages"
SOURCES = "sources"
# Each checkpoint is also run alone, next to the systems that use it.
_CHECKPOINT_ALONE = System(
    "",
    Retrieval(
        Dense(
            ModelConfig(name=CHECKPOINT),
            sources="title_abstract",
        )
    ),
)


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint's name, and its path or its model's name; `run` is its training's folder.

    `chosen`: whether the training chose it on val.
    """

    name: str
    path: str
    run: Path | None = None
    chosen: bool = False

    @property
    def is_step_0(self) -> bool:
        """Whether it is a training's model before the first step."""
        if self.run is None:
            return False
        folder = Path(self.path)
        return folder.name == STEP_0

    @property
    def scores_on_val(self) -> Mapping[str, Table]:
        """Return the scores on val in its manifest; {} without a manifest."""
        folder = checkpoint_folder(self.path)
        if self.name == ROUTED or not (folder / MANIFEST).is_file():
            return {}
        return Manifest.read(folder).scores


@dataclass(frozen=True)
class RowPlan:
    """Row of the report: a system and its claim form; None is the system's own form.

    `varied` is the name of the system that it is a variation of.
    """

    system: System
    form: ClaimForm | None = None
    checkpoint: Checkpoint | None = None
    varied: str | None = None

    @property
    def name(self) -> str:
        """Return the row's name, without the form if it is the system's own."""
        if not self.form:
            return self.system.name
        return row_name(self.system.name, self.form)

    @property
    def is_chosen(self) -> bool:
        """Whether the row uses the checkpoint that a training chose."""
        return self.checkpoint is not None and self.checkpoint.chosen

    @property
    def suffix(self) -> str:
        """Return the part of the name after the checkpoint's; "" for a checkpoint alone."""
        if self.checkpoint is None:
            return self.system.name
        return self.system.name.removeprefix(self.checkpoint.name)


def row_name(system: str, form: ClaimForm) -> str:
    """Return the name of a row and of its folder: E5-Large.translated."""
    return f"{system}.{form}"


def over_forms(plans: Iterable[RowPlan], forms: Sequence[ClaimForm]) -> list[RowPlan]:
    """List every system with every claim form; a system with its own form gets only that one."""
    over: list[RowPlan] = []
    given: Sequence[ClaimForm | None] = forms or [None]
    for row in plans:
        own = row.system.claims
        if own is not None:
            over.append(replace(row, form=own))
            continue
        for form in given:
            over.append(replace(row, form=form))
    return over


def list_checkpoints(names: Sequence[str]) -> list[Checkpoint]:
    """List the named checkpoints; a training run stands for its kept epochs and its soups.

    Raises `UserError` for a run without checkpoints.
    """
    checkpoints: list[Checkpoint] = []
    for name in names:
        folder = Path(name)
        if (folder / RUN_FILE).is_file():
            checkpoints += _run_checkpoints(folder, is_only=len(names) <= 1)
        else:
            checkpoints.append(_checkpoint_alone(name))
    for number, checkpoint in enumerate(checkpoints):
        earlier = checkpoints[:number]
        if any(checkpoint.name == other.name for other in earlier):
            raise ConfigError(
                "checkpoint",
                checkpoint.path,
                f"checkpoints with different names; {checkpoint.name} occurs twice",
            )
    return checkpoints


def _checkpoint_alone(name: str) -> Checkpoint:
    """Return a checkpoint or model that is named by the last part of its path."""
    folder = Path(name)
    if folder.name:
        return Checkpoint(folder.name, name)
    resolved = folder.resolve()
    return Checkpoint(resolved.name, str(resolved))


def _run_checkpoints(folder: Path, is_only: bool) -> list[Checkpoint]:
    """List a training run's checkpoints; the names of several runs begin with their folders."""
    folders, others = checkpoints_in(folder)
    if not any(path.name.startswith(EPOCH) for path in folders):
        raise UserError(f"{folder}: the training run has no checkpoints")
    if others:
        names_left = ", ".join(path.name for path in others)
        log.warning("%s: skipped, not checkpoints of this training: %s", folder, names_left)
    try:
        chosen_name = chosen_checkpoint(folder).name
    except UserError:
        chosen_name = ""  # the run has not ended; its epochs so far are scored
    front = "" if is_only else f"{folder.resolve().name}-"

    checkpoints: list[Checkpoint] = []
    for epoch in folders:
        title = f"{front}{epoch.name}"
        is_chosen = epoch.name == chosen_name
        checkpoints.append(Checkpoint(title, str(epoch), folder, is_chosen))
    return checkpoints


def plan_rows(
    systems: Systems,
    staged: Systems,
    checkpoints: Sequence[Checkpoint],
    read_as: Dense | None = None,
    *,
    routes: Mapping[str, str] | None = None,
    only: Sequence[str] = (),
    vary: Mapping[str, Sequence[Any]] | None = None,
    run: Path | None = None,
) -> list[RowPlan]:
    """List the systems to evaluate: systems, checkpoints, `staged` on each of these, variations.

    A system with `dense: checkpoint` is planned once for each checkpoint. `read_as` has the
    settings of a model that is not a checkpoint, `routes` maps languages to models that replace a
    checkpoint, `run` is a ranking that replaces the first stage, and `only` selects systems.
    Raises `ConfigError`.
    """
    waiting: dict[str, System] = {}
    plans: list[RowPlan] = []
    for name, system in systems.items():
        if checkpoints and any(model.name == CHECKPOINT for model in system.dense_models):
            waiting[name] = system
        else:
            plans.append(RowPlan(system))
    for checkpoint in checkpoints:
        if routes:
            checkpoint = replace(checkpoint, name=ROUTED)
        dense_systems = {**staged, **waiting}
        for system in (_CHECKPOINT_ALONE, *dense_systems.values()):
            system = system.on_checkpoint(checkpoint.path, routes, read_as, checkpoint.name)
            plans.append(RowPlan(system, checkpoint=checkpoint))
    plans = _select(plans, only)
    if run is not None:
        plans = _on_run(plans, run)
    return plans + _variations(plans, vary or {})


def _variations(
    plans: Sequence[RowPlan],
    vary: Mapping[str, Sequence[Any]],
) -> list[RowPlan]:
    """List every system with every other value of every setting."""
    variations: list[RowPlan] = []
    for key, values in vary.items():
        for row in plans:
            for value in values:
                system = _varied(row.system, key, value)
                variations.append(RowPlan(system, None, row.checkpoint, row.system.name))
    return variations


def _on_run(plans: Sequence[RowPlan], run: Path) -> list[RowPlan]:
    """Replace every first stage by a ranking. Raises `InputError` if its file cannot be read."""
    reason = file_error(run)
    if reason:
        raise InputError(run, reason=reason)
    changed: list[RowPlan] = []
    for row in plans:
        node = Retrieval(Saved({ALL: run}), name=row.system.name)
        system = replace(row.system, first=node)
        changed.append(replace(row, system=system))
    return changed


def _select(plans: Sequence[RowPlan], only: Sequence[str]) -> list[RowPlan]:
    """Select the named systems.

    `chosen` selects a training's chosen checkpoint and all systems that use it, `chosen+NAME` one
    of these. `epoch-*` selects all names with this prefix.
    """
    names: list[set[str]] = []
    for row in plans:
        own = {row.system.name}
        if row.is_chosen:
            own.add(CHOSEN)
            own.add(f"{CHOSEN}{row.suffix}")
        names.append(own)
    for name in only:
        if not any(_is_named(own, [name]) for own in names):
            all_names = dict.fromkeys(row.system.name for row in plans)
            allowed = f"{did_you_mean(name, all_names)}allowed: {', '.join(all_names)}"
            raise ConfigError("only", name, "", f"{name!r} is not allowed; {allowed}")
    if not only:
        return list(plans)
    return [row for row, own in zip(plans, names, strict=True) if _is_named(own, only)]


def _is_named(names: Iterable[str], only: Sequence[str]) -> bool:
    for name in names:
        for pattern in only:
            if name == pattern or fnmatchcase(name, pattern):
                return True
    return False


def _varied(system: System, key: str, value: Any) -> System:
    """Change one setting: `retrieve.KEY` of the first stage, `stages.N.KEY` of a stage from 1.

    Raises `ConfigError` for an unknown setting.
    """
    section, _, path = key.partition(".")
    name = f"{system.name} {key}={_value_text(value)}"
    changed = replace(system, name=name, label=None)
    if section == STAGES and path:
        stages = _varied_stages(system, key, path, value)
        return replace(changed, stages=stages)
    if section != RETRIEVE or not path:
        allowed = f"`{RETRIEVE}.KEY`, or `{STAGES}.N.KEY` with N from 1"
        raise ConfigError("vary", key, allowed)
    if path == "depth":
        is_count = isinstance(value, int) and not isinstance(value, bool)
        if not is_count or not 1 <= value <= DEEPEST:
            raise ConfigError(f"vary {key}", value, f"1 to {DEEPEST}")
        return replace(changed, depth=value)
    nodes = list(system.first.walk())
    if not any(_with_setting(node, path, value) for node in nodes):
        raise _unknown_setting(nodes, key)

    def with_value(node: Retrieval) -> Retrieval:
        varied = _with_setting(node, path, value) or node
        return replace(varied, label=None)

    first = _rebuild(system.first, with_value)
    named = replace(first, name=changed.name)
    return replace(changed, first=named)


def _unknown_setting(nodes: Sequence[Retrieval], key: str) -> ConfigError:
    """Return the error that a first stage lacks a setting."""
    keys: dict[str, None] = {"depth": None}
    for node in nodes:
        keys |= dict.fromkeys(_keys(node))
    names = []
    for name in keys:
        names.append(f"{RETRIEVE}.{name}")
    allowed = f"{did_you_mean(key, names)}allowed: {', '.join(names)}"
    return ConfigError("vary", key, "", f"{key!r} is not allowed; {allowed}")


def _varied_stages(
    system: System,
    key: str,
    path: str,
    value: Any,
) -> tuple[SystemStage, ...]:
    stages = system.stages
    number, _, path = path.partition(".")
    is_stage = is_digits(number) and 1 <= int(number) <= len(stages)
    if not is_stage or not path:
        keys = []
        for n in range(1, len(stages) + 1):
            keys.append(f"{STAGES}.{n}.KEY")
        allowed = ", ".join(keys) or f"none: {system.name} has no stages"
        raise ConfigError("vary", key, allowed)

    position = int(number) - 1
    entry = as_plain(stages[position].entry)
    part = entry
    *outer, last = path.split(".")
    for group in outer:
        part = part.setdefault(group, {})
    part[last] = value
    try:
        stage = read_stage(entry, is_first=position == 0)
    except ConfigError as error:
        raise ConfigError(f"vary {key}", value, error.allowed, error.reason) from None
    before = stages[:position]
    after = stages[position + 1 :]
    return (*before, stage, *after)


def _settings_type(part: Retrieval) -> Any:
    """Return the dataclass of a part's settings; None if it has no settings."""
    retriever = part.retriever
    if isinstance(retriever, Own):
        return type(retriever.retriever)
    if isinstance(retriever, Dense):
        return ModelConfig
    if isinstance(retriever, Hybrid):
        return FusionConfig
    if isinstance(retriever, BM25 | Fielded):
        return type(retriever)
    return None


def _keys(part: Retrieval) -> list[str]:
    kind = _settings_type(part)
    keys: list[str] = []
    if isinstance(part.retriever, BM25 | Dense):
        keys.append(SOURCES)
    if kind is not None:
        keys += [spec.name for spec in fields(kind) if spec.init]
    return keys


def _with_setting(part: Retrieval, key: str, value: Any) -> Retrieval | None:
    """Return a part with one setting of its retriever changed; None if it lacks the setting."""
    if key not in _keys(part):
        return None
    retriever = part.retriever
    if key == SOURCES and isinstance(retriever, BM25 | Dense):
        return replace(part, retriever=_with_sources(retriever, value))
    if isinstance(retriever, Own):
        inner = _changed(retriever.retriever, key, value)
        own = replace(retriever, retriever=inner)
        grid = tuple((name, values) for name, values in part.grid if name != key)
        return replace(part, retriever=own, grid=grid)
    if isinstance(retriever, Dense):
        model = _changed(retriever.model, key, value)
        dense = replace(retriever, model=model)
        return replace(part, retriever=dense)
    if isinstance(retriever, Hybrid):
        fusion = _changed(retriever.fusion, key, value)
        hybrid = replace(retriever, fusion=fusion, fits=False)
        return replace(part, retriever=hybrid)
    return replace(part, retriever=_changed(retriever, key, value))


def _changed(settings: Any, key: str, value: Any) -> Any:
    """Return the settings with another value of one key, after checking it."""
    values: dict[str, Any] = {}
    for spec in fields(settings):
        if spec.init:
            current = getattr(settings, spec.name)
            values[spec.name] = as_plain(current)
    values[key] = value
    return make(type(settings), values, f"vary {RETRIEVE}.")


def _with_sources(retriever: BM25 | Dense, sources: Any) -> BM25 | Dense:
    allowed = get_args(SourceForm)
    require_one_of(f"vary {RETRIEVE}.{SOURCES}", sources, allowed)
    if isinstance(retriever, Dense):
        return replace(retriever, other_sources=sources)
    # All forms but these two have authors and venue.
    is_rich = sources not in ("title_abstract", "title")
    has_abstracts = sources != "title"
    return replace(retriever, metadata=is_rich, abstracts=has_abstracts)


def _rebuild(part: Retrieval, change: Callable[[Retrieval], Retrieval]) -> Retrieval:
    """Rebuild a tree with every part changed, inner parts first."""
    parts = [_rebuild(inner, change) for inner in part.parts]
    rebuilt = part.with_parts(parts)
    return change(rebuilt)


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        items = [f"{key} {_value_text(item)}" for key, item in value.items()]
        return ", ".join(items)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def vary_words(words: Sequence[str]) -> list[str]:
    """Turn `--vary KEY=V,V KEY=V` and `--route de=RUN` into the mappings that a config has."""
    rewritten: list[str] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        option, equals, text = word.partition("=")
        if option not in ("--vary", "--route") or text.startswith("{"):
            rewritten.append(word)
            continue
        values = [text] if equals else []
        while remaining and not remaining[0].startswith("--"):
            values.append(remaining.pop(0))
        pairs = dict(_pairs(option, values))
        if option == "--vary":
            rewritten.append(f"--vary={json.dumps(pairs)}")
        else:
            routes = {language: str(runs[0]) for language, runs in pairs.items()}
            rewritten.append(f"--routes={json.dumps(routes)}")
    return rewritten


def _pairs(option: str, texts: Sequence[str]) -> Iterator[tuple[str, list[Any]]]:
    for value in texts:
        key, equals, text = value.partition("=")
        if not equals:
            raise UserError(f"config: {option}: {value} is not allowed; allowed: KEY=VALUE,VALUE")
        try:
            values = read_yaml(f"[{text}]") if option == "--vary" else [text]
        except InputError as error:
            reason = error.problems[0].reason
            raise UserError(f"config: {option}: {value}: after the =: {reason}") from None
        yield key, values
