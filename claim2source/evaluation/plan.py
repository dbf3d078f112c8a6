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

EPOCH, STEP_0, ROUTED, CHOSEN = "epoch-", "epoch-0", "routed", "chosen"
RETRIEVE, STAGES, SOURCES = "retrieve", "stages", "sources"
# Each checkpoint is also run alone, next to the systems that use it.
_CHECKPOINT_ALONE = System(
    "", Retrieval(Dense(ModelConfig(name=CHECKPOINT), sources="title_abstract"))
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
        return self.run is not None and Path(self.path).name == STEP_0

    @property
    def scores_on_val(self) -> Mapping[str, Table]:
        """Return the scores on val in its manifest; {} without a manifest."""
        folder = checkpoint_folder(self.path)
        has_manifest = self.name != ROUTED and (folder / MANIFEST).is_file()
        return Manifest.read(folder).scores if has_manifest else {}


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
        return row_name(self.system.name, self.form) if self.form else self.system.name

    @property
    def is_chosen(self) -> bool:
        """Whether the row uses the checkpoint that a training chose."""
        return self.checkpoint is not None and self.checkpoint.chosen

    @property
    def suffix(self) -> str:
        """Return the part of the name after the checkpoint's; "" for a checkpoint alone."""
        name = self.checkpoint.name if self.checkpoint is not None else ""
        return self.system.name.removeprefix(name)


def row_name(system: str, form: ClaimForm) -> str:
    """Return the name of a row and of its folder: E5-Large.translated."""
    return f"{system}.{form}"


def over_forms(plans: Iterable[RowPlan], forms: Sequence[ClaimForm]) -> list[RowPlan]:
    """List every system with every claim form; a system with its own form gets only that one."""
    over: list[RowPlan] = []
    for row in plans:
        own = row.system.claims
        given: Sequence[ClaimForm | None] = forms or [None]
        for form in given if own is None else [own]:
            over.append(replace(row, form=form))
    return over


def list_checkpoints(names: Sequence[str]) -> list[Checkpoint]:
    """List the named checkpoints; a training run stands for its kept epochs and its soups.

    Raises `UserError` for a run without checkpoints.
    """
    checkpoints: list[Checkpoint] = []
    for name in names:
        folder = Path(name)
        if not (folder / RUN_FILE).is_file():
            title = folder.name or folder.resolve().name
            path = name if folder.name else str(folder.resolve())
            checkpoints.append(Checkpoint(title, path))
            continue
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
        front = f"{folder.resolve().name}-" if len(names) > 1 else ""
        for epoch in folders:
            title = f"{front}{epoch.name}"
            is_chosen = epoch.name == chosen_name
            checkpoints.append(Checkpoint(title, str(epoch), folder, is_chosen))
    for number, checkpoint in enumerate(checkpoints):
        if any(checkpoint.name == earlier.name for earlier in checkpoints[:number]):
            raise ConfigError(
                "checkpoint",
                checkpoint.path,
                f"checkpoints with different names; {checkpoint.name} occurs twice",
            )
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
        checkpoint = replace(checkpoint, name=ROUTED) if routes else checkpoint
        for system in (_CHECKPOINT_ALONE, *{**staged, **waiting}.values()):
            system = system.on_checkpoint(checkpoint.path, routes, read_as, checkpoint.name)
            plans.append(RowPlan(system, checkpoint=checkpoint))
    plans = _select(plans, only)
    if run is not None:
        plans = _on_run(plans, run)
    variations: list[RowPlan] = []
    for key, values in (vary or {}).items():
        for row in plans:
            for value in values:
                system = _varied(row.system, key, value)
                variations.append(RowPlan(system, None, row.checkpoint, row.system.name))
    return plans + variations


def _on_run(plans: Sequence[RowPlan], run: Path) -> list[RowPlan]:
    """Replace every first stage by a ranking. Raises `InputError` if its file cannot be read."""
    if reason := file_error(run):
        raise InputError(run, reason=reason)
    changed: list[RowPlan] = []
    for row in plans:
        node = Retrieval(Saved({ALL: run}), name=row.system.name)
        changed.append(replace(row, system=replace(row.system, first=node)))
    return changed


def _select(plans: Sequence[RowPlan], only: Sequence[str]) -> list[RowPlan]:
    """Select the named systems.

    `chosen` selects a training's chosen checkpoint and all systems that use it, `chosen+NAME` one
    of these. `epoch-*` selects all names with this prefix.
    """
    names = []
    for row in plans:
        names.append(
            {row.system.name, *((CHOSEN, f"{CHOSEN}{row.suffix}") if row.is_chosen else ())}
        )
    for name in only:
        if not any(_is_named(own, [name]) for own in names):
            all_names = dict.fromkeys(row.system.name for row in plans)
            allowed = f"{did_you_mean(name, all_names)}allowed: {', '.join(all_names)}"
            raise ConfigError("only", name, "", f"{name!r} is not allowed; {allowed}")
    if not only:
        return list(plans)
    return [row for row, own in zip(plans, names, strict=True) if _is_named(own, only)]


def _is_named(names: Iterable[str], only: Sequence[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for name in names for pattern in only)


def _varied(system: System, key: str, value: Any) -> System:
    """Change one setting: `retrieve.KEY` of the first stage, `stages.N.KEY` of a stage from 1.

    Raises `ConfigError` for an unknown setting.
    """
    section, _, path = key.partition(".")
    changed = replace(system, name=f"{system.name} {key}={_value_text(value)}", label=None)
    if section == STAGES and path:
        return replace(changed, stages=_varied_stages(system, key, path, value))
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
        keys = dict.fromkeys(["depth", *(key for node in nodes for key in _keys(node))])
        names = []
        for name in keys:
            names.append(f"{RETRIEVE}.{name}")
        allowed = f"{did_you_mean(key, names)}allowed: {', '.join(names)}"
        raise ConfigError("vary", key, "", f"{key!r} is not allowed; {allowed}")
    first = _rebuild(
        system.first, lambda node: replace(_with_setting(node, path, value) or node, label=None)
    )
    return replace(changed, first=replace(first, name=changed.name))


def _varied_stages(system: System, key: str, path: str, value: Any) -> tuple[SystemStage, ...]:
    stages = system.stages
    number, _, path = path.partition(".")
    if not (is_digits(number) and 1 <= int(number) <= len(stages) and path):
        keys = []
        for n in range(1, len(stages) + 1):
            keys.append(f"{STAGES}.{n}.KEY")
        allowed = ", ".join(keys) or f"none: {system.name} has no stages"
        raise ConfigError("vary", key, allowed)
    position = int(number) - 1
    entry = part = as_plain(stages[position].entry)
    *outer, last = path.split(".")
    for group in outer:
        part = part.setdefault(group, {})
    part[last] = value
    try:
        stage = read_stage(entry, is_first=position == 0)
    except ConfigError as error:
        raise ConfigError(f"vary {key}", value, error.allowed, error.reason) from None
    return (*stages[:position], stage, *stages[position + 1 :])


def _settings_type(part: Retrieval) -> Any:
    """Return the dataclass of a part's settings; None if it has no settings."""
    retriever = part.retriever
    if isinstance(retriever, Own):
        return type(retriever.retriever)
    if isinstance(retriever, Dense):
        return ModelConfig
    if isinstance(retriever, Hybrid):
        return FusionConfig
    return type(retriever) if isinstance(retriever, BM25 | Fielded) else None


def _keys(part: Retrieval) -> list[str]:
    kind = _settings_type(part)
    keys = [] if kind is None else [spec.name for spec in fields(kind) if spec.init]
    return [SOURCES, *keys] if isinstance(part.retriever, BM25 | Dense) else keys


def _with_setting(part: Retrieval, key: str, value: Any) -> Retrieval | None:
    """Return a part with one setting of its retriever changed; None if it lacks the setting."""
    if key not in _keys(part):
        return None
    retriever = part.retriever
    if key == SOURCES and isinstance(retriever, BM25 | Dense):
        return replace(part, retriever=_with_sources(retriever, value))
    if isinstance(retriever, Own):
        own = _changed(retriever.retriever, key, value)
        grid = tuple((name, values) for name, values in part.grid if name != key)
        return replace(part, retriever=replace(retriever, retriever=own), grid=grid)
    if isinstance(retriever, Dense):
        return replace(
            part, retriever=replace(retriever, model=_changed(retriever.model, key, value))
        )
    if isinstance(retriever, Hybrid):
        fusion = _changed(retriever.fusion, key, value)
        return replace(part, retriever=replace(retriever, fusion=fusion, fits=False))
    return replace(part, retriever=_changed(retriever, key, value))


def _changed(settings: Any, key: str, value: Any) -> Any:
    """Return the settings with another value of one key, after checking it."""
    names = [spec.name for spec in fields(settings) if spec.init]
    values = {name: as_plain(getattr(settings, name)) for name in names}
    return make(type(settings), {**values, key: value}, f"vary {RETRIEVE}.")


def _with_sources(retriever: BM25 | Dense, sources: Any) -> BM25 | Dense:
    require_one_of(f"vary {RETRIEVE}.{SOURCES}", sources, get_args(SourceForm))
    if isinstance(retriever, Dense):
        return replace(retriever, other_sources=sources)
    # All forms but these two have authors and venue.
    rich = sources not in ("title_abstract", "title")
    return replace(retriever, metadata=rich, abstracts=sources != "title")


def _rebuild(part: Retrieval, change: Callable[[Retrieval], Retrieval]) -> Retrieval:
    """Rebuild a tree with every part changed, inner parts first."""
    return change(part.with_parts([_rebuild(inner, change) for inner in part.parts]))


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value_text(item)}" for key, item in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


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
            rewritten.append(f"--routes={json.dumps({k: str(v[0]) for k, v in pairs.items()})}")
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
