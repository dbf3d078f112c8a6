"""Read the losses of a training run as a weighted sum."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from claim2source.core.config import Location, YamlMapping, as_plain, make
from claim2source.core.errors import ConfigError, UserError, did_you_mean
from claim2source.core.files import content_hash
from claim2source.core.imports import import_member
from claim2source.core.parts import NamedParts
from claim2source.training.losses import (
    NEEDS,
    Alignment,
    Consistency,
    Distillation,
    InfoNCE,
    KeepBase,
    Loss,
    Need,
)

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

KEY = "losses"
WEIGHT = "weight"
LOSSES: Mapping[str, type] = {
    "info_nce": InfoNCE,
    "distillation": Distillation,
    "keep_base": KeepBase,
    "consistency": Consistency,
    "alignment": Alignment,
}
_INFO_NCE = "info_nce"
_WANTED = "a list such as [{info_nce: {}}, {keep_base: {weight: 0.1}}]"
_OWN = "or the dotted path of your own dataclass"
Kind = TypeVar("Kind")


class Losses(NamedParts):
    """Losses to minimise: their weighted sum.

    Losses of weight 0 are listed but not used. Raises `ConfigError` if none has a weight.
    """

    known: ClassVar[Mapping[str, type]] = LOSSES

    def __init__(self, terms: Sequence[Loss] = (InfoNCE(),)) -> None:
        self.terms = tuple(terms)
        names = [loss_name(loss) for loss in terms]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(KEY, name, "every loss only once")
        if not any(loss.weight for loss in terms):
            raise ConfigError(KEY, self.as_plain(), "at least one loss with a weight above 0")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Losses) and self.terms == other.terms

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Losses({self.terms!r})"

    @property
    def active(self) -> dict[str, Loss]:
        """Return the losses that have a weight, by their names."""
        return {loss_name(loss): loss for loss in self.terms if loss.weight}

    def needing(self, need: Need) -> dict[str, Loss]:
        """Return the losses with a weight that need an input, by their names."""
        return {name: loss for name, loss in self.active.items() if need in needs(loss)}

    def find(self, kind: type[Kind]) -> Kind | None:
        """Return the loss of a class, whatever its weight; None if it is not listed."""
        for loss in self.terms:
            if isinstance(loss, kind):
                return loss
        return None

    def setting(self, need: Need, name: str, default: Any) -> Any:
        """Return the setting `name` of the losses that need an input.

        Raises `ConfigError` if two of them have different values.
        """
        wanted: dict[str, Any] = {}
        for loss_name, loss in self.needing(need).items():
            wanted[loss_name] = getattr(loss, name, default)
        values = list(wanted.values())
        for loss_name, value in wanted.items():
            if value != values[0]:
                first = next(iter(wanted))
                allowed = f"{values[0]}, like losses.{first}.{name}: both use the same input"
                raise ConfigError(f"{KEY}.{loss_name}.{name}", value, allowed)
        return values[0] if values else default

    def code(self) -> dict[str, str]:
        """Hash the modules of the user's own losses, by the losses' names."""
        hashes: dict[str, str] = {}
        for name, loss in self.active.items():
            module = inspect.getmodule(type(loss))
            if module is not None and name not in LOSSES:
                hashes[name] = content_hash([inspect.getsource(module)])
        return hashes

    @classmethod
    def read(cls, key: str, value: object) -> Self:
        """Read a YAML list of losses. A mapping, as in version 1.0, is read with a warning."""
        if isinstance(value, YamlMapping):
            _warn_of_mapping(value)
            value = _listed(value)
        if not isinstance(value, list):
            raise ConfigError(key, value, _WANTED)
        terms: list[Loss] = []
        for part in value:
            if not isinstance(part, YamlMapping) or len(part) != 1:
                raise ConfigError(key, part, _WANTED)
            ((name, settings),) = part.items()
            if any(loss_name(loss) == name for loss in terms):
                raise ConfigError(key, name, "every loss only once").at(part.locations[name])
            terms.append(_made(f"{key}.{name}", name, settings, part.locations[name]))
        return cls(terms)

    @classmethod
    def changed(cls, listed: list[Any], changes: Mapping[str, Any]) -> list[Any]:
        """Change losses of a list by their names; one that is added has weight 0 by default."""
        assert isinstance(changes, YamlMapping)
        parts = list(listed)
        for name, settings in changes.items():
            change = YamlMapping({name: settings}, {name: changes.locations[name]})
            for place, part in enumerate(parts):
                if isinstance(part, YamlMapping) and name in part:
                    parts[place] = part.overlaid(change)
                    break
            else:
                parts.append(_weighted(change, name, 0.0))
        return parts

    def as_plain(self) -> list[Any]:
        return [{loss_name(loss): as_plain(loss)} for loss in self.terms]


def loss_name(loss: Loss) -> str:
    """Return the name of a loss in YAML: a short name, or the dotted path of the user's class."""
    kind = type(loss)
    for name, known in LOSSES.items():
        if kind is known:
            return name
    return f"{kind.__module__}.{kind.__qualname__}"


def needs(loss: Loss) -> tuple[Need, ...]:
    """Return the inputs that a loss needs besides vectors and positives."""
    return tuple(getattr(loss, "needs", ()))


def differing_losses(before: object, now: object) -> Iterator[tuple[str, object, object]]:
    """Compare the losses of two configs as plain values; yield differing keys, old and new.

    Ignores losses without weight. Raises `ConfigError` for losses that cannot be read.
    """
    old, new = (make_losses(written).active for written in (before, now))
    for name in sorted(old.keys() | new.keys()):
        settings = [as_plain(losses[name]) if name in losses else None for losses in (old, new)]
        one, other = (values or {WEIGHT: 0.0} for values in settings)
        for key in sorted(one.keys() | other.keys()):
            if one.get(key) != other.get(key) and (all(settings) or key == WEIGHT):
                yield f"{KEY}.{name}.{key}", one.get(key), other.get(key)
    # Sums in another order differ in the last bit.
    if list(old) != list(new):
        yield KEY, list(old), list(new)


def make_losses(written: object) -> Losses:
    """Make losses from plain values. Raises `ConfigError`."""
    return Losses.read(KEY, json.loads(json.dumps(written), object_hook=YamlMapping))


def _warn_of_mapping(value: YamlMapping) -> None:
    """Warn of a file with losses in the form of version 1.0."""
    places = [place for place in value.locations.values() if place is not None]
    if places:
        file, line = places[0]
        log.warning(
            "%s:%d: losses: write %s; only this version still reads this mapping",
            file,
            line,
            _WANTED,
        )


def _listed(mapping: YamlMapping) -> list[YamlMapping]:
    """List the losses of a mapping by name, as 1.0 did: InfoNCE, and what has a weight."""
    names = [*(name for name in LOSSES if name in mapping or name == _INFO_NCE)]
    names += [name for name in mapping if name not in LOSSES]
    parts: list[YamlMapping] = []
    for name in names:
        part = YamlMapping({name: mapping.get(name)}, {name: mapping.locations.get(name)})
        part = _weighted(part, name, 1.0 if name == _INFO_NCE else 0.0)
        if not _is_unused(name, part[name]):
            parts.append(part)
    return parts


def _weighted(part: YamlMapping, name: str, weight: float) -> YamlMapping:
    """Add a weight to a loss's settings unless they have one."""
    settings = YamlMapping() if part[name] is None else part[name]
    if not isinstance(settings, YamlMapping):
        return part
    return YamlMapping({name: YamlMapping({WEIGHT: weight}).overlaid(settings)}, part.locations)


def _is_unused(name: str, settings: object) -> bool:
    """Whether a loss of ours has weight 0 and default settings."""
    if name not in LOSSES or not isinstance(settings, YamlMapping) or settings[WEIGHT] != 0:
        return False
    try:
        return bool(make(LOSSES[name], settings) == LOSSES[name](weight=0.0))
    except UserError:
        return False


def _made(key: str, name: str, settings: object, place: Location | None) -> Loss:
    """Make a loss from its name and settings. Raises `UserError` with the file's line, if any."""
    settings = YamlMapping() if settings is None else settings
    try:
        kind = _loss_class(key, name)
        if not isinstance(settings, YamlMapping):
            raise ConfigError(key, settings, "a mapping of the loss's settings, such as {}")
        loss: Loss = make(kind, dict(settings), f"{key}.")
        _check_loss(key, loss)
    except ConfigError as error:
        if isinstance(settings, YamlMapping):
            place = settings.at(error.key[len(key) + 1 :]) or place
        raise error.at(place) from None
    return loss


def _check_loss(key: str, loss: Loss) -> None:
    """Raise `ConfigError` for a weight that is not a number, or an unknown need."""
    weight: object = loss.weight
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight >= 0:
        raise ConfigError(f"{key}.{WEIGHT}", weight, "a number, 0 or above")
    for need in needs(loss):
        if need not in NEEDS:
            raise ConfigError(key, need, f"in `needs`: {', '.join(NEEDS)}")


def _loss_class(key: str, name: str) -> type:
    """Find the class of a loss by its name, or import it by a dotted path."""
    if name in LOSSES:
        return LOSSES[name]
    allowed = f"{', '.join(LOSSES)}, {_OWN}"
    if "." not in name:
        advice = did_you_mean(name, LOSSES)
        raise ConfigError(key, name, "", f"no such loss; {advice}allowed: {allowed}")
    try:
        kind = import_member(name)
    except ModuleNotFoundError as error:
        raise ConfigError(key, name, f"{allowed}: {error.msg}") from None
    allowed += ", with a number `weight` and a method `compute`"
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise ConfigError(key, name, allowed)
    if WEIGHT not in {spec.name for spec in fields(kind)} or not hasattr(kind, "compute"):
        raise ConfigError(key, name, allowed)
    return kind
