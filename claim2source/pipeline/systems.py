"""Read systems from YAML: first stages, a fusion, further stages, routes by language."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from claim2source.core.config import build, parser_for, read_entries, require
from claim2source.core.errors import ConfigError, InputError
from claim2source.core.stage import Stage
from claim2source.models.config import ModelConfig
from claim2source.pipeline.when import Conditional, WhenConfig
from claim2source.retrieve import BM25Config, FusionConfig
from claim2source.retrieve.saved import SavedRunConfig
from claim2source.text import ClaimForm, Rendering, SourceForm

FIRST_STAGES = ("bm25", "model", "hybrid", "routes", "run")
# Packages of stages that a system may name; each stage is one module of them.
STAGE_KINDS = ("rerank", "verify")
WHEN = "when"


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
class SystemConfig:
    """Describe one system: exactly one of `bm25`, `model`, `hybrid`, `routes`
    and `run`.

    Args:
        bm25: BM25's settings; its claim form is the one that is evaluated.
        model: a dense model with its prefixes, pooling, length and type, a checkpoint, or the
            folder of a training run (its chosen checkpoint).
        hybrid: two systems of the same files, fused.
        routes: language -> system of the same files that ranks its claims; `default` for the
            languages that are not named.
        run: files that another program ranked into: TREC runs, a lab's TSV, or the 2026 paper's
            own score JSON and selections.
        sources: source representation of a dense model; a checkpoint has its own.
        rendering: both representations of a dense model; one that its checkpoint contradicts is
            refused.
        claims: claim form; none: the one that is evaluated.
        stages: what follows the first stage, in order: `{rerank: NAME, ..settings}` or
            `{verify: NAME, ..}`. NAME is a module of claim2source.rerank or claim2source.verify,
            or the dotted path of a dataclass of your own. With `when: {margin_below: 0.2}` a
            stage is asked only about claims whose first score leads by less than that share of
            their list's range, with `when: {disagree: true}` about those whose first source the
            stage before has changed.
        tune: choose BM25's k1, b and title weight on train; the hybrid's fusion on all of train
            where the dense part is untrained, else on the claims that its training held out.
        label: name by which reports and published tables know the model; none: a BM25's own
            name, the model's, or `hybrid:` and the dense part's label (`bm25-tuned` and
            `tuned-hybrid:` where settings are chosen). The 2025 paper's BM25 is `bm25`.
        unsupported: why this program cannot run it; it is listed as not run.
        advice: what to do where its weights are missing.
    """

    bm25: BM25Config | None = None
    model: ModelConfig | None = None
    hybrid: HybridConfig | None = None
    routes: dict[str, str] | None = None
    run: SavedRunConfig | None = None
    sources: SourceForm = "title_abstract"
    rendering: Rendering | None = None
    claims: ClaimForm | None = None
    stages: list[dict[str, Any]] = field(default_factory=list)
    tune: bool = False
    label: str | None = None
    unsupported: str | None = None
    advice: str | None = None

    def __post_init__(self) -> None:
        given = [kind for kind in FIRST_STAGES if getattr(self, kind) is not None]
        require(len(given) == 1, "system", given, f"exactly one of {', '.join(FIRST_STAGES)}")
        tunable = self.bm25 is not None or self.hybrid is not None
        require(tunable or not self.tune, "tune", self.tune, "false: only bm25 and hybrid have it")
        # A mistyped stage is found when the file is read, not after the first stage has run.
        load_stages(self.stages)


Systems = dict[str, SystemConfig]
# The systems that the package ships.
SYSTEMS_FOLDER = Path(__file__).resolve().parents[1] / "configs" / "systems"
PAPERS_LABEL = "bm25"
# The BM25 of the papers' hybrids, whatever sources the dense part reads.
PAPERS_BM25 = BM25Config("whitespace", k1=1.2, b=1.0)


def read_systems(files: Sequence[Path]) -> Systems:
    """Read the systems of all files, in order.

    Raises `UserError` where a name means two things, or names a part or route that is not there.
    """
    systems: Systems = {}
    for path in files:
        for name, system in read_entries(SystemConfig, path).items():
            if not name or any(c in name for c in "/\\\0\n") or name.startswith("."):
                raise InputError.at(path, field=name, why="a name must be fit for a folder")
            if systems.setdefault(name, system) != system:
                raise InputError.at(path, field=name, why="is another system in another file")
    shown = ", ".join(map(str, files))
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
        settings = {k: value for k, value in entry.items() if k not in (kinds[0], WHEN)}
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
    try:
        kind = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        # A package that the stage itself needs is another problem than a mistyped name.
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise
        raise ConfigError(key, name, allowed) from None
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind) and hasattr(kind, "apply")):
        raise ConfigError(key, name, f"{allowed}, with a method `apply`")
    return kind


def _made(kind: type, settings: Mapping[str, Any], place: str) -> Any:
    from jsonargparse import ArgumentError

    names = [f.name for f in dataclasses.fields(kind)]
    for key in settings:
        require(key in names, f"{place}.{key}", settings[key], f"one of {', '.join(names)}")
    parser = parser_for(kind, place, kind.__name__)
    try:
        return build(kind, parser, parser.parse_object(dict(settings)))
    except ArgumentError as error:
        raise ConfigError(place, dict(settings), " ".join(str(error).split())) from None


def parts_of(system: SystemConfig) -> tuple[str, ...]:
    """Name the systems that a hybrid or routes need; none for others."""
    if system.hybrid is not None:
        return system.hybrid.sparse, system.hybrid.dense
    return tuple(dict.fromkeys((system.routes or {}).values()))


def all_parts(name: str, systems: Systems) -> list[str]:
    """Name a system and, after it, everything that it is made of."""
    found = [name]
    for part in parts_of(systems[name]):
        found += [other for other in all_parts(part, systems) if other not in found]
    return found


def label_of(name: str, systems: Systems) -> str:
    """Return the name by which reports and published tables know a system's model."""
    system = systems[name]
    if system.label is not None:
        return system.label
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


def is_tuned(name: str, systems: Systems) -> bool:
    """Tell whether anything of a system is chosen on train or on claims carved from it."""
    return any(systems[part].tune for part in all_parts(name, systems))


def ordered(names: Sequence[str], systems: Systems) -> list[str]:
    """Order systems with each hybrid behind its dense part, so that a model is loaded once."""

    def place(name: str) -> tuple[int, int]:
        parts = parts_of(systems[name])
        anchor = parts[-1] if parts else name
        first = names.index(anchor) if anchor in names else names.index(name)
        return first, names.index(name)

    return sorted(names, key=place)


def local_model(model: ModelConfig, folder: Path | None) -> ModelConfig:
    """Take a model from `folder/NAME` if there is such a folder; else leave it as it is.

    NAME is the last part of the model's name: all-mpnet-base-v2.
    """
    if folder is None or not (place := folder / Path(model.name).name).is_dir():
        return model

    def trusted(names: tuple[str, ...]) -> tuple[str, ...]:
        return (str(place),) if model.name in names else ()

    return replace(
        model,
        name=str(place),
        revision=None,
        allow_bin=trusted(model.allow_bin),
        allow_remote_code=trusted(model.allow_remote_code),
    )
