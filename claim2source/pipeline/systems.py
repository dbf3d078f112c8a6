"""Read systems from YAML: first stages, a fusion, further stages, routes by language."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from claim2source.core.config import Between, Settings, make, read_entries, require
from claim2source.core.errors import ConfigError, InputError
from claim2source.core.imports import import_named
from claim2source.core.stage import Stage
from claim2source.models.config import ModelConfig
from claim2source.pipeline.when import Conditional, WhenConfig
from claim2source.retrieve import BM25Config, FusionConfig, IndexConfig
from claim2source.retrieve.saved import ALL, SavedRunConfig
from claim2source.text import ClaimForm, Rendering, SourceForm
from claim2source.text.passages import PassageConfig

FIRST_STAGES = ("bm25", "model", "hybrid", "routes", "run")
# Packages of stages that a system may name; each stage is one module of them.
STAGE_KINDS = ("rerank", "verify")
WHEN = "when"
# Of the last stages: what a made-up server says is in no comparison.
SIMULATED = "simulated"
# A first stage that is written as the first of the stages.
RETRIEVE = "retrieve"
DEEPEST = 10**6


@dataclass(frozen=True)
class HybridConfig:
    """Name the two systems that a hybrid fuses.

    Args:
        sparse: the system that `fusion.alpha` weighs.
        dense: the other one.
        fusion: how they are fused; the default is the 2025 paper's: alpha 0.5, min-max scores.
    """

    sparse: str
    dense: str
    fusion: FusionConfig = field(default_factory=FusionConfig)


@dataclass(frozen=True)
class RetrieveConfig(Settings):
    """Describe a first stage that is written as the first of the stages.

    Args:
        depth: sources that it keeps per claim; none: 100, or as deep as a stage looks.
        checkpoint: the dense model: a checkpoint, a training run's folder, or a model's name;
            none: `model`, or the one that the program is given.
        model: the dense model with its settings.
        sources: source representation of a dense model; a checkpoint has its own.
        passages: how a dense model's long sources are cut; none: they are truncated.
        index: how a dense model's source vectors are searched; none: exactly.
        bm25: BM25's settings.
        fusion: how a hybrid fuses both.
    """

    depth: Annotated[int, Between(1, DEEPEST)] | None = None
    checkpoint: str | None = None
    model: ModelConfig | None = None
    sources: SourceForm = "title_abstract"
    passages: PassageConfig | None = None
    index: IndexConfig | None = None
    bm25: BM25Config | None = None
    fusion: FusionConfig = field(default_factory=FusionConfig)

    def check(self) -> None:
        both = self.checkpoint is not None and self.model is not None
        require(not both, "checkpoint", self.checkpoint, "none beside `model`")


@dataclass(frozen=True)
class SystemConfig(Settings):
    """Describe one system: exactly one of `bm25`, `model`, `hybrid`, `routes`
    and `run`, or a first stage `retrieve`.

    Args:
        bm25: BM25's settings; its claim form is the one that is evaluated.
        model: a dense model with its prefixes, pooling, length and type, a checkpoint, or the
            folder of a training run (its chosen checkpoint).
        hybrid: two systems of the same files, fused.
        routes: language -> system of the same files that ranks its claims; `default` for the
            languages that are not named. Beside a stage `retrieve`: language -> `{retrieve: ..}`,
            another system, or those of its settings that differ. A list of them: val chooses one
            for each language, the first is the default.
        run: files that another program ranked into: TREC runs, a lab's TSV, or the 2026 paper's
            own score JSON and selections.
        sources: source representation of a dense model; a checkpoint has its own.
        rendering: both representations of a dense model; one that its checkpoint contradicts is
            refused.
        passages: how a dense model's long sources are cut into passages, of which the best is a
            source's score; none: what is beyond the model's length is not read.
        index: how a dense model's source vectors are searched; an approximate index reports its
            recall; none: exactly.
        claims: claim form; none: the one that is evaluated.
        depth: sources that the first stage keeps per claim; none: 100, or as deep as a stage
            looks.
        stages: what follows the first stage, in order: `{rerank: NAME, ..settings}` or
            `{verify: NAME, ..}`. NAME is a module of claim2source.rerank or claim2source.verify,
            or the dotted path of a dataclass of your own. With `when: {margin_below: 0.2}` a
            stage is asked only about claims whose first score leads by less than that share of
            their list's range, with `when: {disagree: true}` about those whose first source the
            stage before has changed. `simulated: true` keeps a stage, and what follows it, out
            of tests and published numbers. The first may be the first stage itself:
            `{retrieve: NAME, ..}` with a system of these files, or `bm25`, `dense` or `hybrid`
            with the settings of RetrieveConfig.
        tune: choose BM25's k1, b and title weight on train; the hybrid's fusion on all of train
            where the dense part is untrained, else on the claims that its training held out.
        label: name by which reports and published tables know the model; none: a BM25's own
            name, the model's, or `hybrid:` and the dense part's label (`bm25-tuned` and
            `tuned-hybrid:` where settings are chosen), then every stage with what its settings
            change. The 2025 paper's BM25 is `bm25`.
        unsupported: why this program cannot run it; it is listed as not run.
        advice: what to do where its weights are missing.
    """

    bm25: BM25Config | None = None
    model: ModelConfig | None = None
    hybrid: HybridConfig | None = None
    routes: dict[str, Any] | None = None
    run: SavedRunConfig | None = None
    sources: SourceForm = "title_abstract"
    rendering: Rendering | None = None
    passages: PassageConfig | None = None
    index: IndexConfig | None = None
    claims: ClaimForm | None = None
    depth: Annotated[int, Between(1, DEEPEST)] | None = None
    stages: list[dict[str, Any]] = field(default_factory=list)
    tune: bool = False
    label: str | None = None
    unsupported: str | None = None
    advice: str | None = None

    def check(self) -> None:
        given = [kind for kind in FIRST_STAGES if getattr(self, kind) is not None]
        if self.retrieve is not None:
            require(given in ([], ["routes"]), "system", given, "routes or none, with `retrieve`")
            _first_stage(self.retrieve)
        else:
            require(len(given) == 1, "system", given, f"exactly one of {', '.join(FIRST_STAGES)}")
            for language, part in (self.routes or {}).items():
                names = part if isinstance(part, list) else [part]
                good = all(isinstance(name, str) for name in names)
                good = good and len(set(names)) == len(names) > 0
                allowed = "the name of a system, or a list of different ones"
                require(good, f"routes.{language}", part, allowed)
        tunable = self.bm25 is not None or self.hybrid is not None
        for key in ("passages", "index"):
            stray = getattr(self, key) if self.model is None else None
            require(stray is None, key, stray, "none: only a `model` has it")
        require(tunable or not self.tune, "tune", self.tune, "false: only bm25 and hybrid have it")
        # A mistyped stage is found when the file is read, not after the first stage has run.
        load_stages(self.stages[self.retrieve is not None :])

    @property
    def retrieve(self) -> dict[str, Any] | None:
        """Return the first stage, where it is written as the first of the stages."""
        first = self.stages[0] if self.stages else {}
        return first if RETRIEVE in first else None


Systems = dict[str, SystemConfig]
# The systems that the package ships.
SYSTEMS_FOLDER = Path(__file__).resolve().parents[1] / "configs" / "systems"
PAPERS_LABEL = "bm25"
# The BM25 of the papers' hybrids, whatever sources the dense part reads.
PAPERS_BM25 = BM25Config("whitespace", k1=1.2, b=1.0)


def read_systems(files: Sequence[Path], beside: Sequence[Path] = ()) -> Systems:
    """Read the systems of all files, in order; `beside` has further ones that they may name.

    Raises `UserError` where a name means two things, or names a part or route that is not there.
    """
    systems: Systems = {}
    for path in files:
        for name, system in read_entries(SystemConfig, path).items():
            if not name or any(c in name for c in "/\\\0\n") or name.startswith("."):
                raise InputError.at(path, field=name, why="a name must be fit for a folder")
            if systems.setdefault(name, system) != system:
                raise InputError.at(path, field=name, why="is another system in another file")
    for path in beside:
        systems = read_entries(SystemConfig, path) | systems
    shown = ", ".join(map(str, files))
    for name in [name for name, one in systems.items() if one.retrieve is not None]:
        try:
            expanded({name: systems[name]}, systems)
        except ConfigError as error:
            why = f"{error.key}: {error.why}"
            raise InputError.at(shown, field=name, why=why) from None
    for name, system in systems.items():
        kind = "hybrid" if system.hybrid is not None else "routes"
        for part in parts_of(system):
            of_parts = part in systems and kind == "hybrid" and parts_of(systems[part])
            if part not in systems or of_parts or systems[part].routes is not None:
                why = f"{part!r} is no system of these files that could be a part"
                raise InputError.at(shown, field=f"{name}.{kind}", why=why)
    return systems


def load_stages(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, Stage]]:
    """Make the stages that a system names, each with its name.

    Raises `ConfigError` for a name without a module or dataclass, or a setting it does not have.
    """
    found = []
    for place, entry in enumerate(entries):
        kinds = [kind for kind in STAGE_KINDS if kind in entry]
        require(len(kinds) == 1, f"stages.{place}", entry, f"one of {', '.join(STAGE_KINDS)}")
        name = str(entry[kinds[0]])
        kind = _stage_type(f"stages.{place}.{kinds[0]}", kinds[0], name)
        known = (kinds[0], WHEN, SIMULATED)
        settings = {k: value for k, value in entry.items() if k not in known}
        stage: Stage = _made(kind, settings, f"stages.{place}")
        if WHEN in entry:
            stage = Conditional(stage, _when(entry[WHEN], place))
        found.append((f"{kinds[0]} {name}", stage))
    return found


def _when(given: Any, place: int) -> WhenConfig:
    """Read for which claims a stage is asked."""
    key = f"stages.{place}.{WHEN}"
    require(isinstance(given, Mapping), key, given, "such as {margin_below: 0.2}")
    when: WhenConfig = _made(WhenConfig, given, key)
    first = place == 0 and when.disagree
    require(not first, f"{key}.disagree", True, "false: no stage is before the first one")
    return when


def _stage_type(key: str, package: str, name: str) -> type:
    """Import the dataclass of a stage: `cross_encoder` is claim2source.rerank's CrossEncoder."""
    if "." in name:
        module, _, attribute = name.rpartition(".")
    else:
        module = f"claim2source.{package}.{name}"
        attribute = "".join(part.capitalize() for part in name.split("_"))
    allowed = f"a module of claim2source.{package}, or the dotted path of your own dataclass"
    require(all(part.isidentifier() for part in name.split(".")), key, name, allowed)
    try:
        kind = getattr(import_named(module), attribute, None)
    except ModuleNotFoundError as error:
        # A package that the stage itself needs is another problem than a mistyped name.
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise
        raise ConfigError(key, name, f"{allowed}: {error.msg}") from None
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind) and hasattr(kind, "apply")):
        raise ConfigError(key, name, f"{allowed}, with a method `apply`")
    return kind


def _made(kind: type, settings: Mapping[str, Any], place: str) -> Any:
    return make(kind, settings, f"{place}.")


def expanded(systems: Systems, known: Systems | None = None) -> Systems:
    """Write first stages that are stages `retrieve` as the systems and parts that they are.

    `known` are systems that they may name, by default these.
    """
    known = systems if known is None else known
    found: Systems = {}
    for name, system in systems.items():
        found |= _expanded(name, system, known)
    return found


def _expanded(name: str, system: SystemConfig, known: Systems) -> Systems:
    if system.retrieve is None:
        return {name: system}
    own = system.retrieve
    others = {other: one for other, one in known.items() if other != name}
    if system.routes is None:
        return _first(name, own, replace(system, stages=system.stages[1:], run=_ANY), others)
    found: Systems = {}
    parts = {f"{name}, {_DEFAULT}": own}
    routes: dict[str, str | list[str]] = {_DEFAULT: f"{name}, {_DEFAULT}"}
    for language, route in system.routes.items():
        several, names = isinstance(route, list) and route, []
        for place, one in enumerate(route if several else [route]):
            good = isinstance(one, Mapping) and set(one) == {RETRIEVE}
            allowed = f"{{{RETRIEVE}: ..}}, or a list of them"
            require(good, f"routes.{language}", route, allowed)
            given = one[RETRIEVE]
            settings = {**own, **given} if isinstance(given, Mapping) else {RETRIEVE: given}
            part = f"{name}, {language}" + (f" {place + 1}" if several else "")
            if several:  # a candidate with nothing of its own is the default itself
                part = next((other for other in parts if parts[other] == settings), part)
            parts[part] = settings
            names.append(part)
        routes[language] = names if several else names[0]
    for part, settings in parts.items():
        # Only the whole has a label, and is deep enough for the stages.
        bare = SystemConfig(run=_ANY, sources=system.sources, rendering=system.rendering)
        found |= _first(part, settings, bare, others)
    depth = _first_stage(own)[1].depth or system.depth
    return found | {name: replace(system, routes=routes, depth=depth, stages=system.stages[1:])}


_DEFAULT = "default"
# Settings of a system that belong to its first stage.
_OF_FIRST = ("sources", "rendering", "passages", "index", "tune")
# Stands for the first stage while it is replaced.
_ANY = SavedRunConfig({ALL: Path()})
_NO_CHECKPOINT = (
    "the first stage names no checkpoint: give --checkpoint, or write `checkpoint:` into its "
    "stage `retrieve`"
)


def _first_stage(entry: Mapping[str, Any]) -> tuple[str, RetrieveConfig]:
    """Read a stage `retrieve`: what it names, and its settings."""
    settings = {key: value for key, value in entry.items() if key != RETRIEVE}
    name, config = str(entry[RETRIEVE]), _made(RetrieveConfig, settings, "stages.0")
    lacks: dict[str, tuple[str, ...]] = {"dense": ("bm25", "fusion"), "hybrid": ()}
    lacks["bm25"] = ("checkpoint", "model", "sources", "passages", "index", "fusion")
    for key in lacks.get(name, ("model", "sources", "passages", "index", "bm25", "fusion")):
        require(key not in settings, f"stages.0.{key}", settings.get(key), f"none with {name}")
    return name, config


def _first(name: str, entry: Mapping[str, Any], system: SystemConfig, known: Systems) -> Systems:
    """Give a system the first stage of a stage `retrieve`, with the parts that it needs."""
    kind, config = _first_stage(entry)
    depth = config.depth or system.depth
    system = replace(system, depth=depth)
    if kind == "bm25":
        return {name: replace(system, run=None, bm25=config.bm25 or BM25Config())}
    missing = config.checkpoint is None and config.model is None
    model = config.model or ModelConfig(name=config.checkpoint or ModelConfig().name)
    why = _NO_CHECKPOINT if missing else None
    if kind == "dense":
        unsupported = system.unsupported or why
        dense = replace(system, run=None, model=model, unsupported=unsupported)
        dense = replace(dense, passages=config.passages, index=config.index)
        return {name: replace(dense, sources=config.sources)}
    if kind == "hybrid":
        sparse, second = f"bm25 of {name}", f"dense of {name}"
        return {
            sparse: SystemConfig(bm25=config.bm25 or BM25Config()),
            second: SystemConfig(
                model=model,
                sources=config.sources,
                rendering=system.rendering,
                passages=config.passages,
                index=config.index,
                unsupported=why,
            ),
            name: replace(system, run=None, hybrid=HybridConfig(sparse, second, config.fusion)),
        }
    allowed = "bm25, dense, hybrid, or the name of a system"
    require(kind in known, f"stages.0.{RETRIEVE}", kind, allowed)
    parts = _expanded(kind, known[kind], known)
    named = parts.pop(kind)
    first = {key: getattr(named, key) for key in (*FIRST_STAGES, *_OF_FIRST)}
    found = parts | {
        name: replace(
            system,
            **first,
            claims=system.claims or named.claims,
            # Of a part of routes, which is the named system and no more.
            label=system.label or (None if system.stages or config.checkpoint else named.label),
            depth=depth or named.depth,
            stages=[*named.stages, *system.stages],
            unsupported=system.unsupported or named.unsupported,
            advice=system.advice or named.advice,
        )
    }
    return (
        found
        if config.checkpoint is None
        else on_checkpoint(known | found, name, config.checkpoint)
    )


def on_checkpoint(
    systems: Systems, name: str, checkpoint: str, routes: Mapping[str, str] | None = None
) -> Systems:
    """Put a checkpoint in the place of a system's dense model, for some languages another.

    `systems` are `expanded`. Raises `ConfigError` where the system has no dense model.
    """
    system, found = systems[name], dict(systems)
    own, routes = {}, routes or {}
    for language, parts in candidates(system).items():
        allowed = f"none: {name} chooses among several for {language}"
        require(len(parts) == 1, "checkpoint", checkpoint, allowed)
        own[language] = parts[0]
    if not own and not routes:
        return found | with_checkpoint(found, name, name, checkpoint)
    if not own:
        first = f"first stage of {name}"
        found[first] = replace(system, stages=[], label=None)
        own = {_DEFAULT: first}
        system = replace(system, bm25=None, model=None, hybrid=None, run=None, tune=False)
    taken = {}
    for language in dict.fromkeys((*own, *routes)):
        part = own[language if language in own else _DEFAULT]
        path = routes.get(language, checkpoint)
        taken[language] = f"{part} with {path}"
        found |= with_checkpoint(found, part, taken[language], path)
    # With other checkpoints it is no longer what its label says.
    system = replace(system, routes=taken, label=None, unsupported=None, advice=None)
    return found | {name: system}


def with_checkpoint(systems: Systems, part: str, name: str, checkpoint: str) -> Systems:
    """Describe a part with a checkpoint in the place of its dense model, under a name."""
    system = systems[part]
    bare = replace(system, label=None, unsupported=None, advice=None)
    if system.hybrid is not None:
        dense = f"{system.hybrid.dense} with {checkpoint}"
        hybrid = replace(system.hybrid, dense=dense)
        return with_checkpoint(systems, system.hybrid.dense, dense, checkpoint) | {
            name: replace(bare, hybrid=hybrid)
        }
    allowed = f"none: the first stage {part} has no dense model"
    require(system.model is not None, "checkpoint", checkpoint, allowed)
    assert system.model is not None
    return {
        name: replace(bare, model=system.model.for_checkpoint(Path(checkpoint)), rendering=None)
    }


def stage_depth(system: SystemConfig) -> int:
    """Tell how deep the stages of a system look."""
    stages = (stage for _, stage in load_stages(system.stages))
    return max((int(getattr(stage, "depth", 0)) for stage in stages), default=0)


def dense_of(name: str, systems: Systems) -> str:
    """Name a hybrid's dense part; another system is its own."""
    hybrid = systems[name].hybrid
    return name if hybrid is None else hybrid.dense


def model_of(name: str, systems: Systems) -> dict[str, str]:
    """Name the dense model of a system or of its dense part, as `model`; empty without one."""
    model = systems[dense_of(name, systems)].model
    return {} if model is None else {"model": model.name}


def parts_of(system: SystemConfig) -> tuple[str, ...]:
    """Name the systems that a hybrid or routes need; none for others."""
    if system.retrieve is not None:
        return ()  # a runner has it `expanded`
    if system.hybrid is not None:
        return system.hybrid.sparse, system.hybrid.dense
    return tuple(dict.fromkeys(one for parts in candidates(system).values() for one in parts))


def candidates(system: SystemConfig) -> dict[str, tuple[str, ...]]:
    """Name the systems that may rank each language's claims; of several, val chooses."""
    routes = (system.routes or {}).items()
    return {lang: (part,) if isinstance(part, str) else tuple(part) for lang, part in routes}


def all_parts(name: str, systems: Systems) -> list[str]:
    """Name a system and, after it, everything that it is made of."""
    found = [name]
    for part in parts_of(systems[name]):
        found += [other for other in all_parts(part, systems) if other not in found]
    return found


def label_of(name: str, systems: Systems, stages: int | None = None) -> str:
    """Return the name by which reports and published tables know a system's model.

    `stages` is the number of stages after the first one that it is the name of; none: all.
    """
    system = systems[name]
    taken = system.stages if stages is None else system.stages[:stages]
    if system.label is not None and taken == system.stages:
        return system.label
    if system.retrieve is not None:
        return name  # its parts are known once it is `expanded`
    first = _label_of_first(name, systems)
    return " + ".join([first, *(_label_of_stage(*stage) for stage in load_stages(taken))])


def _label_of_first(name: str, systems: Systems) -> str:
    system = systems[name]
    if system.routes is not None:
        found = {
            language: "|".join(label_of(part, systems) for part in parts)
            for language, parts in candidates(system).items()
        }
        return f"routes({', '.join(f'{lang}={found[lang]}' for lang in sorted(found))})"
    if system.hybrid is not None:
        sparse = label_of(system.hybrid.sparse, systems)
        kind = "tuned-hybrid" if is_tuned(name, systems) else "hybrid"
        # Fused with another BM25 than the papers' it is not their hybrid.
        kind = kind if sparse in (PAPERS_LABEL, "bm25-tuned") else f"{sparse}-{kind}"
        return f"{kind}:{label_of(system.hybrid.dense, systems)}"
    if system.model is not None:
        return system.model.name
    if system.bm25 is not None:
        # A name alone does not make it the papers'.
        own = "bm25-own" if name.casefold() == PAPERS_LABEL else name
        return "bm25-tuned" if system.tune else own
    return name


# Settings of stages that say how they are run: they change no score.
_RUNTIME = (
    *("url", "key_env", "concurrency", "timeout", "retries", "retry_failed", "batch_tokens"),
    *("max_wait", "max_requests", "max_tokens_total", "allow_remote_code"),
)


def _label_of_stage(name: str, stage: Any) -> str:
    """Name a stage, its models, and the settings that are not its defaults."""
    if isinstance(stage, Conditional):
        return f"{_label_of_stage(name, stage.stage)} when {_label_of_stage('', stage.when)}"

    def changed(config: Any, front: str = "") -> Iterator[str]:
        for one in dataclasses.fields(config):
            value = getattr(config, one.name)
            made = one.default_factory
            default = one.default if made is dataclasses.MISSING else made()
            if one.name == "model" and value:
                yield f"{front}model={Path(value).name}"
            elif dataclasses.is_dataclass(value):
                yield from changed(value, f"{front}{one.name}.")
            elif one.name not in _RUNTIME and value != default:
                yield f"{front}{one.name}={value}"

    return f"{name}({', '.join(changed(stage))})"


def is_tuned(name: str, systems: Systems) -> bool:
    """Tell whether anything of a system is chosen on train or on claims carved from it."""
    parts = [systems[part] for part in all_parts(name, systems)]
    routed = (len(names) > 1 for part in parts for names in candidates(part).values())
    return any(part.tune for part in parts) or any(routed)


def ordered(names: Sequence[str], systems: Systems) -> list[str]:
    """Order systems with each hybrid behind its dense part, so that a model is loaded once."""

    def place(name: str) -> tuple[int, int]:
        parts = parts_of(systems[name])
        anchor = parts[-1] if parts else name
        first = names.index(anchor) if anchor in names else names.index(name)
        return first, names.index(name)

    return sorted(names, key=place)
