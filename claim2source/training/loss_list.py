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
        has_weight = any(loss.weight for loss in terms)
        if not has_weight:
            raise ConfigError(KEY, self.as_plain(), "at least one loss with a weight above 0")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Losses):
            return False
        return self.terms == other.terms

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

    def setting(
        self,
        need: Need,
        name: str,
        default: Any,
    ) -> Any:
        """Return the setting `name` of the losses that need an input.

        Raises `ConfigError` if two of them have different values.
        """
        wanted: dict[str, Any] = {}
        for loss_name, loss in self.needing(need).items():
            wanted[loss_name] = getattr(loss, name, default)
        if not wanted:
            return default
        first = next(iter(wanted))
        expected = wanted[first]
        for loss_name, value in wanted.items():
            if value != expected:
                key = f"{KEY}.{loss_name}.{name}"
                allowed = f"{expected}, like losses.{first}.{name}: both use the same input"
                raise ConfigError(key, value, allowed)
        return expected

    def code(self) -> dict[str, str]:
        """Hash the modules of the user's own losses, by the losses' names."""
        hashes: dict[str, str] = {}
        for name, loss in self.active.items():
            kind = type(loss)
            module = inspect.getmodule(kind)
            if module is not None and name not in LOSSES:
                source = inspect.getsource(module)
                hashes[name] = content_hash([source])
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
            place = part.locations[name]
            is_repeated = any(loss_name(loss) == name for loss in terms)
            if is_repeated:
                raise ConfigError(key, name, "every loss only once").at(place)
            loss = _made(f"{key}.{name}", name, settings, place)
            terms.append(loss)
        return cls(terms)

    @classmethod
    def changed(
        cls,
        listed: list[Any],
        changes: Mapping[str, Any],
    ) -> list[Any]:
        """Change losses of a list by their names; one that is added has weight 0 by default."""
        assert isinstance(changes, YamlMapping)
        parts = list(listed)
        for name, settings in changes.items():
            location = changes.locations[name]
            change = YamlMapping({name: settings}, {name: location})
            for place, part in enumerate(parts):
                if isinstance(part, YamlMapping) and name in part:
                    parts[place] = part.overlaid(change)
                    break
            else:
                added = _weighted(change, name, 0.0)
                parts.append(added)
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
    names = getattr(loss, "needs", ())
    return tuple(names)


def differing_losses(
    before: object,
    now: object,
) -> Iterator[tuple[str, object, object]]:
    """Compare the losses of two configs as plain values; yield differing keys, old and new.

    Ignores losses without weight. Raises `ConfigError` for losses that cannot be read.
    """
    old = make_losses(before).active
    new = make_losses(now).active
    for name in sorted(old.keys() | new.keys()):
        old_settings = _plain_settings(old, name)
        new_settings = _plain_settings(new, name)
        are_in_both = bool(old_settings and new_settings)
        one = old_settings or {WEIGHT: 0.0}
        other = new_settings or {WEIGHT: 0.0}
        for key in sorted(one.keys() | other.keys()):
            is_compared = are_in_both or key == WEIGHT
            old_value = one.get(key)
            new_value = other.get(key)
            if old_value != new_value and is_compared:
                yield f"{KEY}.{name}.{key}", old_value, new_value
    # Sums in another order differ in the last bit.
    old_names = list(old)
    new_names = list(new)
    if old_names != new_names:
        yield KEY, old_names, new_names


def _plain_settings(losses: Mapping[str, Loss], name: str) -> Any:
    """Return the settings of a loss as plain values; None if it is not listed."""
    if name not in losses:
        return None
    return as_plain(losses[name])


def make_losses(written: object) -> Losses:
    """Make losses from plain values. Raises `ConfigError`."""
    text = json.dumps(written)
    value = json.loads(text, object_hook=YamlMapping)
    return Losses.read(KEY, value)


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
    names: list[str] = []
    for name in LOSSES:
        if name in mapping or name == _INFO_NCE:
            names.append(name)
    names += [name for name in mapping if name not in LOSSES]
    parts: list[YamlMapping] = []
    for name in names:
        settings = mapping.get(name)
        location = mapping.locations.get(name)
        part = YamlMapping({name: settings}, {name: location})
        weight = 1.0 if name == _INFO_NCE else 0.0
        part = _weighted(part, name, weight)
        if not _is_unused(name, part[name]):
            parts.append(part)
    return parts


def _weighted(
    part: YamlMapping,
    name: str,
    weight: float,
) -> YamlMapping:
    """Add a weight to a loss's settings unless they have one."""
    settings = YamlMapping() if part[name] is None else part[name]
    if not isinstance(settings, YamlMapping):
        return part
    default = YamlMapping({WEIGHT: weight})
    weighted = default.overlaid(settings)
    return YamlMapping({name: weighted}, part.locations)


def _is_unused(name: str, settings: object) -> bool:
    """Whether a loss of ours has weight 0 and default settings."""
    if name not in LOSSES or not isinstance(settings, YamlMapping) or settings[WEIGHT] != 0:
        return False
    kind = LOSSES[name]
    try:
        loss: object = make(kind, settings)
        return bool(loss == kind(weight=0.0))
    except UserError:
        return False


def _made(
    key: str,
    name: str,
    settings: object,
    place: Location | None,
) -> Loss:
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
    known = ", ".join(LOSSES)
    allowed = f"{known}, {_OWN}"
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
    names = {spec.name for spec in fields(kind)}
    if WEIGHT not in names or not hasattr(kind, "compute"):
        raise ConfigError(key, name, allowed)
    return kind
