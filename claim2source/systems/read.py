"""Read systems from YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from claim2source.core.arguments import is_digits
from claim2source.core.config import (
    CONFIGS,
    Between,
    Location,
    Settings,
    YamlMapping,
    config_options,
    make,
    read_yaml,
    require_one_of,
    shipped,
    union_types,
)
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.imports import import_dataclass
from claim2source.core.languages import by_primary_language
from claim2source.core.stage import Retriever, Stage
from claim2source.llm.config import LLMConfig
from claim2source.models import ModelConfig
from claim2source.search.bm25 import BM25, BM25_GRID
from claim2source.search.choose import Grid
from claim2source.search.dense import Dense
from claim2source.search.fielded import FIELDED_GRID, Fielded
from claim2source.search.fuse import FusionConfig, Hybrid
from claim2source.search.routes import DEFAULT, Routes
from claim2source.search.saved import ALL, Saved
from claim2source.stages import SHARED
from claim2source.systems.choose import MIXES, THRESHOLDS, WEIGHTS
from claim2source.systems.conditions import MARGIN, WhenConfig
from claim2source.systems.own import Own
from claim2source.systems.retrieval import CHECKPOINT, NO_CHECKPOINT, Retrieval
from claim2source.systems.stages import MIX, THRESHOLD, WEIGHT, SystemStage
from claim2source.systems.system import RETRIEVE, System
from claim2source.text import ClaimForm, Rendering, SourceForm

Entry = TypeVar("Entry")
# The systems that the package ships.
SYSTEMS_FOLDER = CONFIGS / "systems"
# A setting with this value is chosen on held-out claims.
FIT = "fit"
# The settings of a stage that can be `fit`, and their values until then: no claim is skipped.
_UNTIL_FIT = {MIX: MIXES[0], WEIGHT: WEIGHTS[0], THRESHOLD: THRESHOLDS[0]}
_ALL = 1.0
# The keys that name a stage, a dataclass of a module of claim2source.stages.
STAGE_KINDS = ("rerank", "verify")
WHEN = "when"
SIMULATED = "simulated"
_INJECT = "inject_gold"
KINDS = ("bm25", "fielded", "dense", "run", "hybrid")
_OWN_PATH = "the dotted path of your own dataclass"
DEEPEST = 10**6
MOST_LEVELS, MOST_NODES = 32, 1_000  # of a system's tree, which is walked recursively
_MOST_NAMED = 12  # systems of a circle
_TOO_LARGE = (
    f"a system can have at most {MOST_LEVELS} levels of systems or hybrids, and {MOST_NODES} nodes"
)
# Keys of a system, or of a rumour pipeline, in version 0.2.
_OLD = {"bm25", "model", "hybrid", "run", "tune", "sources", "rendering", "passages", "index"}
_OLD |= {"rerank", "stance", "verdict", "choose"}


@dataclass(frozen=True)
class SystemEntry(Settings):
    """Describe one system: its retrieval, and the stages that follow.

    Args:
        retrieve: a node: `{bm25: ..}` with BM25's settings; `{dense: ..}`, a checkpoint, a
            training run's folder, a model's name, or its settings (with the further keys `sources`
            and `rendering`); `{run: ..}`, files of another program;
            `{hybrid: [A, B]}`, two nodes, with the fusion's settings as further keys;
            `{fielded: ..}`, BM25 over text and hashtags of tweets; `{my_module.MyRetriever: ..}`,
            the dotted path of your own dataclass, with its settings; or the name of another
            system. If a setting of BM25 or of your own retriever is a list of values, the default
            first, one is chosen on train. `k1: fit` means the usual lists of k1, b and title
            weight. `alpha: fit` chooses the fusion's method, scale, depth and alpha on claims that
            the dense part's training held out. `dense: checkpoint` is the program's --checkpoint.
            A node can have `claims`, its claim form.
        routes: language -> node that ranks its claims; other languages use `retrieve`.
            From a list of nodes, one is chosen on val.
        stages: later stages, in order: `{rerank: NAME, ..settings}` or `{verify: NAME, ..}`.
            NAME is a module of claim2source.stages, or the dotted path of your own dataclass.
            `when: {margin_below: 0.2}` applies a stage only to claims whose first score leads by
            less than this share of their list's range, `when: {disagree: true}` to those
            whose first source the stage before has changed. `simulated: true` excludes a stage,
            and all later ones, from tests and published numbers.
        claims: claim form; none: the one that is evaluated.
        depth: sources that the first stage keeps per claim; none: 100, or the depth of the
            deepest stage.
        label: name of the system in reports and published tables; none: a BM25's own
            name, the model's, or `hybrid:` and the dense part's label (`bm25-tuned` and
            `tuned-hybrid:` if settings are chosen), then every stage with its changed settings.
            The 2025 paper's BM25 is `bm25`.
        unsupported: the reason why this program cannot run it; it is listed as not run.
        advice: the remedy if its weights are missing.
    """

    retrieve: Any
    routes: dict[str, Any] | None = None
    stages: list[dict[str, Any]] = field(default_factory=list)
    claims: ClaimForm | None = None
    depth: Annotated[int, Between(1, DEEPEST)] | None = None
    label: str | None = None
    unsupported: str | None = None
    advice: str | None = None


@dataclass(frozen=True)
class _DenseSettings(Settings):
    sources: SourceForm = "title_abstract"
    rendering: Rendering | None = None
    claim_length: Annotated[int, Between(8, 10**6)] | None = None


Systems = dict[str, System]
# Name -> its entry, and all the values of its file, which know their lines.
Entries = dict[str, tuple[SystemEntry, YamlMapping]]
Config = TypeVar("Config")


def read_systems(
    files: Sequence[Path] | None,
    beside: Sequence[Path] = (),
    llm: LLMConfig | None = None,
) -> Systems:
    """Read the systems of all files, in order; `beside` has further ones that they may name.

    None reads the files that the package ships. `llm` is for stages that do not name a language
    model. Raises `UserError` if a name is ambiguous or unknown.
    """
    entries: Entries = {}
    for path in shipped_files() if files is None else files:
        for name, (entry, values) in _entries(path).items():
            if not name or any(c in name for c in "/\\\0\n") or name.startswith("."):
                raise InputError(path, field=name, reason="must be a valid folder name")
            if entries.setdefault(name, (entry, values))[0] != entry:
                raise InputError(path, field=name, reason="has another definition in another file")
    mine = list(entries)
    for path in beside:
        entries = _entries(path) | entries
    reader = _Reader(entries, llm)
    return {name: reader.system(name) for name in mine}


def shipped_files() -> list[Path]:
    return sorted(SYSTEMS_FOLDER.glob("*.yaml"))


def make_system(name: str, values: Mapping[str, Any]) -> System:
    """Make a system from plain values, as in a YAML file. Raises `UserError`.

    Example:
        >>> import claim2source as c2s
        >>> hybrid = {"hybrid": [{"bm25": {"metadata": True}}, {"dense": "checkpoints/a"}]}
        >>> system = c2s.make_system("Both", {"retrieve": hybrid, "claims": "bilingual"})
        >>> [part.kind for part in system.first.parts]
        ['bm25', 'dense']
    """
    try:
        entry = make(SystemEntry, values)
    except RecursionError:
        raise ConfigError("retrieve", name, "", _TOO_LARGE) from None
    return _Reader({name: (entry, YamlMapping())}).system(name)


def read_entries(kind: type[Entry], path: Path, folder: str = "systems") -> dict[str, Entry]:
    """Read a YAML of named entries, each with the keys of the dataclass `kind`, in file order.

    A file is a single entry with the file's name if its top level has a required key of `kind`, or
    a list under one of the keys. `folder` of configs/ has the shipped files. Raises `UserError`
    with file, line and key.
    """
    return {name: entry for name, (entry, _) in _read_named(kind, path, folder).items()}


def _read_named(kind: type[Entry], path: Path, folder: str) -> dict[str, tuple[Entry, YamlMapping]]:
    """Read entries as `read_entries` does, each with its values and lines."""
    path = shipped(path, folder)
    raw = read_yaml(path)
    keys = config_options(kind)
    if not isinstance(raw, YamlMapping):
        raise InputError(path, reason="must be a mapping of names, each with its keys")
    is_entry = any(
        name in keys and (isinstance(value, list) or keys[name].default is MISSING)
        for name, value in raw.items()
    )
    if is_entry:
        raw = YamlMapping({path.stem: raw}, {path.stem: (str(path), 1)})
    entries: dict[str, tuple[Entry, YamlMapping]] = {}
    for name, values in raw.items():
        try:
            entries[name] = make(kind, values), raw
        except ConfigError as error:
            # The hint at a flag is cut: it does not help in a file of entries.
            reason = f"{error.key}: {error.reason}".partition("; give --")[0]
            raise ConfigError(name, values, "", reason).at(raw.locations[name]) from None
    return entries


def _entries(path: Path) -> Entries:
    try:
        return _read_named(SystemEntry, path, "systems")
    except InputError as error:
        if not _is_old(path):
            raise
        reason = (
            "is written for version 0.2; convert it with scripts/upgrade_systems.py of "
            "version 1.0.0"
        )
        raise InputError(path, reason=reason) from error


def _is_old(path: Path) -> bool:
    """Whether an unreadable file has systems or rumour pipelines of version 0.2."""
    try:
        values = read_yaml(path)
    except InputError:
        return False
    if not isinstance(values, Mapping):
        return False
    return any(_is_old_entry(entry) for entry in (values, *values.values()))


def _is_old_entry(entry: Any) -> bool:
    if not isinstance(entry, Mapping) or "retrieve" in entry:
        return False
    stages = entry.get("stages")
    routes = entry.get("routes")
    first = stages[0] if isinstance(stages, list) and stages else None
    begins_with_retrieval = isinstance(first, Mapping) and RETRIEVE in first
    has_default = isinstance(routes, Mapping) and DEFAULT in routes
    return begins_with_retrieval or has_default or not _OLD.isdisjoint(entry)


class _Reader:
    """Make systems from entries; a system that several entries name is made once."""

    def __init__(self, entries: Entries, llm: LLMConfig | None = None) -> None:
        self.entries = entries
        self._llm = llm
        self._systems: Systems = {}
        self._open: list[str] = []

    def system(self, name: str) -> System:
        """Make the system of a name. Raises `InputError` with the file and the name."""
        for shared in reversed(self._chain(name)):
            self._make(shared)
        return self._make(name)

    def _chain(self, name: str) -> list[str]:
        """List the systems that a name leads to, one alias after the other."""
        chain = {name: None}
        following = self._shared_name(name)
        while following is not None and following not in self._systems:
            if following in chain:
                raise self._circle([*chain, following])
            chain[following] = None
            following = self._shared_name(following)
        return [*chain][1:]

    def _circle(self, names: Sequence[str]) -> UserError:
        name = names[-1]
        path = names if len(names) <= _MOST_NAMED else [*names[: _MOST_NAMED - 2], "..", name]
        _, values = self.entries[name]
        error = ConfigError(name, "", "", f"names itself: {' -> '.join(path)}")
        return error.at(_find_line(values, name, "retrieve"))

    def _shared_name(self, name: str) -> str | None:
        """Return the name of the system whose first stage and stages a system inherits."""
        entry, _ = self.entries[name]
        retrieve = entry.retrieve
        is_name = isinstance(retrieve, str) and retrieve in self.entries and entry.routes is None
        return retrieve if is_name else None

    def _make(self, name: str) -> System:
        if name in self._systems:
            return self._systems[name]
        entry, values = self.entries[name]
        if name in self._open:
            raise self._circle([*self._open, name])
        if len(self._open) >= MOST_LEVELS:
            reason = f"{_TOO_LARGE}, and {self._open[0]} has more"
            raise ConfigError(name, "", "", reason).at(_find_line(values, name, "retrieve"))
        self._open.append(name)
        try:
            system = self._system(name, entry)
        except ConfigError as error:
            if error.key == name and name not in values:  # not from a file: the message is complete
                raise
            reason = f"{error.key}: {error.reason}".partition("; give --")[0]  # no flags in a file
            line = _find_line(values, name, error.key)
            raise ConfigError(name, "", "", reason).at(line) from None
        finally:
            self._open.pop()
        self._systems[name] = system
        return system

    def _system(self, name: str, entry: SystemEntry) -> System:
        stages: tuple[SystemStage, ...] = ()
        depth = entry.depth
        claims = entry.claims
        label = entry.label
        unsupported = entry.unsupported
        advice = entry.advice
        shared_name = self._shared_name(name)
        if shared_name is not None:
            shared = self.system(shared_name)
            first = shared.first
            stages = shared.stages
            depth = depth or shared.depth
            claims = claims or shared.claims
            label = label or (None if entry.stages else shared.label)
            unsupported = unsupported or shared.unsupported
            advice = advice or shared.advice
        else:
            first = self._first_stage(name, entry)
        for number, own in enumerate(entry.stages, 1):
            entry_key = f"stages.{number}"
            stage = read_stage(own, entry_key, is_first=not stages, llm=self._llm)
            stages = (*stages, stage)
        return System(name, first, stages, claims, depth, label, unsupported, advice)

    def _first_stage(self, name: str, entry: SystemEntry) -> Retrieval:
        several = self._several(entry.retrieve, "retrieve")
        if entry.routes is None and len(several) == 1:
            # A label belongs to the whole system; without stages also to its node.
            label = None if entry.stages else entry.label
            only = several[0]
            return replace(only, name=only.name or name, label=only.label or label)
        routes = {DEFAULT: several}
        for language, node in by_primary_language(entry.routes or {}, "routes").items():
            if language == DEFAULT:
                allowed = "a language, such as de; `retrieve` is for other languages"
                raise ConfigError(f"routes.{language}", node, allowed)
            routes[language] = self._several(node, f"routes.{language}")
        for language, nodes in routes.items():
            if any(isinstance(node.retriever, Routes) for node in nodes):
                allowed = "a node without its own routes"
                raise ConfigError(f"routes.{language}", language, allowed)
        node = Retrieval(Routes(routes), name=name)
        _require_small(node, "routes")
        return node

    def _several(self, value: Any, key: str) -> tuple[Retrieval, ...]:
        nodes = value if isinstance(value, list) else [value]
        parts = tuple(self._node(node, key) for node in nodes)
        if not parts or any(part in parts[:i] for i, part in enumerate(parts)):
            raise ConfigError(key, value, "a node, or a list of different nodes")
        return parts

    def _node(self, node: Any, key: str) -> Retrieval:
        if isinstance(node, str):
            if node not in self.entries:
                kinds = ", ".join(f"{{{kind}: ..}}" for kind in KINDS)
                allowed = f"{kinds}, {{{_OWN_PATH}: ..}}, or the name of a system"
                raise ConfigError(key, node, allowed)
            return self._shared_node(node, key)
        if not isinstance(node, Mapping):
            raise ConfigError(key, node, f"one of {', '.join(KINDS)}, {_OWN_PATH}, or a name")
        kind, *other_kinds = [name for name in node if name in KINDS or "." in name] or [""]
        if not kind or other_kinds:
            raise ConfigError(key, node, f"exactly one of {', '.join(KINDS)}, or {_OWN_PATH}")
        claims = node.get("claims")
        if claims is not None:
            require_one_of(f"{key}.claims", claims, get_args(ClaimForm))
        beside = {name: value for name, value in node.items() if name not in (kind, "claims")}
        if kind == "hybrid":
            return replace(self._hybrid(node[kind], beside, f"{key}."), claims=claims)
        if kind == "dense":
            return replace(_dense(node[kind], beside, f"{key}."), claims=claims)
        for name, entry in beside.items():
            raise ConfigError(f"{key}.{name}", entry, "", f"is not a key of a {kind} node")
        return replace(_leaf_node(kind, node[kind], f"{key}.{kind}"), claims=claims)

    def _shared_node(self, name: str, key: str) -> Retrieval:
        system = self.system(name)
        if system.stages:
            raise ConfigError(key, name, "a system without stages")
        return replace(
            system.first,
            name=name,
            label=system.label,
            claims=system.claims or system.first.claims,
            unsupported=system.unsupported or system.first.unsupported,
            advice=system.advice or system.first.advice,
        )

    def _hybrid(self, value: Any, beside: Mapping[str, Any], key: str) -> Retrieval:
        if not isinstance(value, list) or len(value) != 2:
            allowed = "a list of two nodes, the sparse and the dense one"
            raise ConfigError(f"{key}hybrid", value, allowed)
        parts = [self._node(item, f"{key}hybrid.{n}") for n, item in enumerate(value, 1)]
        if any(isinstance(part.retriever, Routes) for part in parts):
            allowed = "parts without routes: set routes of the whole system"
            raise ConfigError(f"{key}hybrid", value, allowed)
        settings = dict(beside)
        fits = settings.get("alpha") == FIT
        if fits:
            del settings["alpha"]
            for name, setting in settings.items():
                allowed = "none with `alpha: fit`, which chooses it"
                raise ConfigError(f"{key}{name}", setting, allowed)
        fusion = make(FusionConfig, settings, key)
        node = Retrieval(Hybrid(parts[0], parts[1], fusion, fits))
        _require_small(node, f"{key}hybrid")
        return node


def _require_small(node: Retrieval, key: str) -> None:
    """Raise `ConfigError` if a tree has too many levels or nodes."""
    levels = nodes = 0
    level = [node]
    while level:
        levels += 1
        nodes += len(level)
        if levels > MOST_LEVELS or nodes > MOST_NODES:
            raise ConfigError(key, node.display_name, "", _TOO_LARGE)
        level = [part for parent in level for part in parent.parts]


def _dense(value: Any, beside: Mapping[str, Any], key: str) -> Retrieval:
    settings = {"name": value} if isinstance(value, str) else _mapping(value, f"{key}dense")
    missing = settings.get("name", CHECKPOINT) == CHECKPOINT
    dense_settings = make(_DenseSettings, beside, key)
    retriever = Dense(
        make(ModelConfig, {"name": CHECKPOINT, **settings}, f"{key}dense."),
        sources=dense_settings.sources,
        rendering=dense_settings.rendering,
        claim_length=dense_settings.claim_length,
    )
    return Retrieval(retriever, unsupported=NO_CHECKPOINT if missing else None)


def _leaf_node(kind: str, value: Any, key: str) -> Retrieval:
    if "." in kind:
        return _own(kind, value, key)
    if kind == "bm25":
        bm25, grid = _read_grid(BM25, value, key, BM25_GRID)
        return Retrieval(bm25, grid=grid)
    if kind == "fielded":
        fielded, grid = _read_grid(Fielded, value, key, FIELDED_GRID)
        return Retrieval(fielded, grid=grid)
    settings = _mapping({"files": {ALL: value}} if isinstance(value, str) else value, key)
    if not {spec.name for spec in fields(Saved)} & set(settings):  # files by language
        settings = {"files": dict(settings)}
    return Retrieval(make(Saved, settings, f"{key}."))


def _own(path: str, value: Any, key: str) -> Retrieval:
    """Make the node of a custom retriever with the dotted `path`."""
    allowed = f"{', '.join(KINDS)}, or {_OWN_PATH}"
    kind = import_dataclass(key, path, "index", allowed)
    retriever: Retriever
    retriever, grid = _read_grid(kind, value, key, ())
    own = Own(path, retriever)
    if grid and own.fits_itself:
        name, values = grid[0]
        reason = f"one value, because {path} chooses its settings by its own fit(val)"
        raise ConfigError(f"{key}.{name}", list(values), reason)
    return Retrieval(own, grid=grid)


def _takes_list(kind: type, name: str) -> bool:
    """Whether a setting's value is itself a list, not a list of values to choose from."""
    option = config_options(kind).get(name)
    if option is None:
        return False
    types = union_types(option.hint)
    return any((get_origin(part) or part) in (list, tuple) for part in types)


def _read_grid(kind: type[Config], given: Any, key: str, usual: Grid) -> tuple[Config, Grid]:
    """Read settings; lists are values to choose from, `k1: fit` means the usual values."""
    settings = dict(_mapping(given, key))
    lists = dict(usual) if settings.get("k1") == FIT else {}
    for name, value in settings.items():
        if isinstance(value, list) and not _takes_list(kind, name):
            lists[name] = tuple(value)
    for name, values in lists.items():
        if not values:
            raise ConfigError(f"{key}.{name}", list(values), "one or more values")
    settings |= {name: values[0] for name, values in lists.items()}
    for name, values in lists.items():
        for option in values:
            make(kind, {**settings, name: option}, f"{key}.")
    order = [name for name, _ in usual]
    names = sorted(lists, key=lambda name: order.index(name) if name in order else -1)
    return make(kind, settings, f"{key}."), tuple((name, lists[name]) for name in names)


def _find_line(entries: YamlMapping, name: str, key: str) -> Location | None:
    """Return the line of a system's dotted key (items count from 1), or of its parent."""
    value: Any = entries
    line = None
    for part in (name, *key.split(".")):
        if isinstance(value, YamlMapping) and part in value:
            line = value.locations[part]
            value = value[part]
        elif isinstance(value, list) and is_digits(part) and 0 < int(part) <= len(value):
            value = value[int(part) - 1]
        elif part != name:
            break
    return line


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    value = {} if value is None else value
    if not isinstance(value, Mapping):
        raise ConfigError(key, value, "its settings")
    return value


def read_stage(
    entry: Mapping[str, Any],
    key: str = "stage",
    *,
    is_first: bool = False,
    llm: LLMConfig | None = None,
) -> SystemStage:
    """Make a stage from its YAML entry under `key`; `is_first`: whether it is the first stage.

    `llm` is the language model of a stage that needs one and does not name one.
    Raises `ConfigError` for an unknown module or dataclass, or an unknown setting.
    """
    kinds = [kind for kind in STAGE_KINDS if kind in entry]
    if len(kinds) != 1:
        raise ConfigError(key, entry, f"one of {', '.join(STAGE_KINDS)}")
    kind = kinds[0]
    name = str(entry[kind])
    stage_type = _stage_type(f"{key}.{kind}", name)
    if llm is not None and llm.model:
        entry = _with_llm(entry, stage_type, llm)
    settings = {k: value for k, value in entry.items() if k not in (kind, WHEN, SIMULATED)}
    fits = {setting for setting in _UNTIL_FIT if entry.get(setting) == FIT}
    settings |= {setting: _UNTIL_FIT[setting] for setting in fits}
    stage: Stage = make(stage_type, settings, f"{key}.")
    when: WhenConfig | None = None
    if WHEN in entry:
        values = entry[WHEN]
        if not isinstance(values, Mapping):
            raise ConfigError(f"{key}.{WHEN}", values, "such as {margin_below: 0.2}")
        if values.get(MARGIN) == FIT:
            fits = {*fits, MARGIN}
            values = {**values, MARGIN: _ALL}
        when = make(WhenConfig, values, f"{key}.{WHEN}.")
        if getattr(stage_type, "ranks_together", False):
            allowed = "none: this stage ranks all claims of a set together"
            raise ConfigError(f"{key}.{WHEN}", entry[WHEN], allowed)
        if is_first and when.disagree:
            allowed = "false: there is no stage before the first one"
            raise ConfigError(f"{key}.{WHEN}.disagree", True, allowed)
    simulated = bool(entry.get(SIMULATED)) or name == _INJECT
    return SystemStage(f"{kind} {name}", stage, entry, when, frozenset(fits), simulated)


def _with_llm(entry: Mapping[str, Any], stage_type: type, llm: LLMConfig) -> Mapping[str, Any]:
    """Set the language model of a stage that needs one and does not name one."""
    own = entry.get("llm") or {}
    option = config_options(stage_type).get("llm")
    is_asking = option is not None and option.hint is LLMConfig
    if not is_asking or not isinstance(own, Mapping) or own.get("model"):
        return entry
    return {**entry, "llm": {**asdict(llm), **own}}


def _stage_type(key: str, name: str) -> type:
    """Import a stage's dataclass: `cross_encoder` is CrossEncoder of claim2source.stages."""
    path = name
    if "." not in name:
        attribute = "".join(part.capitalize() for part in name.split("_"))
        path = f"claim2source.stages.{SHARED.get(name, name)}.{attribute}"
    allowed = "a module of claim2source.stages, or the dotted path of your own dataclass"
    try:
        return import_dataclass(key, path, "apply", allowed)
    except ConfigError as error:
        raise ConfigError(key, name, error.allowed) from None


def read_staged(file: Path, name: str | None = None, llm: LLMConfig | None = None) -> System:
    """Read a file's system with stages: the one with this name, or the only one.

    `llm` is for stages that do not name a language model. The file may name systems of
    configs/systems. Raises `ConfigError` if the system is ambiguous.
    """
    systems = read_systems([file], shipped_files(), llm)
    staged = [system for system in systems.values() if system.stages]
    matching = [system for system in staged if name in (None, system.name)]
    if len(matching) != 1:
        listed = ", ".join(system.name for system in staged)
        raise ConfigError("system", name, f"one of {listed or 'none: it has no stages'}")
    return matching[0]
