"""Read configs: dataclasses hold the defaults, YAML files and flags what differs from them."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast, get_args, get_origin

import yaml
from annotated_types import Interval

from claim2source.core.config_types import (
    Option,
    allowed_words,
    help_text,
    hints_of,
    is_text,
    item_of,
    options_of,
    parts_of,
)
from claim2source.core.config_yaml import Place, YamlMapping, read_yaml
from claim2source.core.errors import ConfigError, InputError, UserError, said_once
from claim2source.core.keys import did_you_mean
from claim2source.core.old_names import always_holds, successor
from claim2source.core.program import in_our_words, usage_of
from claim2source.core.shipped import shipped

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# pydantic is imported where a value is checked: `--help` does without.
Config = TypeVar("Config")
MOST = 10**9  # of what is only counted
_FILES = Option("config", list[Path], None, "")
_EMPTY = "a name or path; the current folder is ."
_PYDANTIC = {"extra": "forbid", "allow_inf_nan": False}
# Key with its groups, its value, and its place in a file. A key that ends in a dot is a group.
_Entry = tuple[str, Any, Place | None]


def Between(low: float, high: float) -> Interval:
    """Bound a number of a config: `Annotated[float, Between(0, 1)]`, ends included."""
    return Interval(ge=low, le=high)


def Above(low: float, high: float = MOST) -> Interval:
    """Bound a number of a config from below, without that end itself."""
    return Interval(gt=low, le=high)


def Below(high: float, low: float = 0) -> Interval:
    """Bound a number of a config from `low` to `high`, without `high` itself."""
    return Interval(ge=low, lt=high)


Count = Annotated[int, Between(0, MOST)]
Number = Annotated[int, Between(1, MOST)]
Amount = Annotated[float, Between(0, MOST)]
Positive = Annotated[float, Above(0)]
Share = Annotated[float, Between(0, 1)]
PositiveShare = Annotated[float, Above(0, 1)]
SplitShare = Annotated[float, Interval(gt=0, lt=1)]  # not all, not nothing
Seed = Annotated[int, Between(0, 2**32 - 1)]  # NumPy takes none below 0
Repeats = Annotated[int, Between(1, 1_000_000)]


class Settings:
    """Check a dataclass of settings when it is made: bounds of its types, then its own rules."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _PYDANTIC

    def __post_init__(self) -> None:
        from pydantic import ValidationError

        for name, hint in hints_of(type(self)).items():
            value = getattr(self, name, None)
            if "Interval(" in repr(hint) or "Literal[" in repr(hint):
                try:
                    _adapter(hint).validate_python(value)
                except (ValidationError, OverflowError):
                    raise ConfigError(name, value, allowed_words(hint)) from None
        self.check()

    def check(self) -> None:
        """Check the rules between keys; raise `ConfigError` by the key's name within the class."""


def flag(help: str, default: bool = False) -> Any:
    """Declare a dataclass field that is set by `--name` alone and unset by `--no_name`."""
    return dataclasses.field(default=default, metadata={"help": help})


def list_field(default: Sequence[Any] | None = None, *, help: str = "") -> Any:
    """Declare a dataclass field of several values: `--name a b`, or `--name a --name b`."""
    if default is None:
        return dataclasses.field(default=None, metadata={"help": help})
    return dataclasses.field(default_factory=lambda: list(default), metadata={"help": help})


@said_once()
def read_config(
    kind: type[Config],
    argv: Sequence[str] | None,
    *,
    program: str,
    description: str | None,
    common: Mapping[str, str] | None = None,
) -> Config:
    """Read `argv` and the YAML files it names into an instance of the dataclass `kind`.

    Flags stand over files, a group's file over `--config`, and what comes later over what came
    before. Unknown keys and wrong values raise `UserError` naming the key; `--print_config` and
    `--help` print and exit. With `common`, which says what the most usual keys are, `--help`
    prints these alone, and `--help=all` every key.
    """
    words, options = list(sys.argv[1:] if argv is None else argv), options_of(kind)
    if {"-h", "--help", "--help=all"} & {*words}:
        about, some = in_our_words(description or "", program), "--help=all" not in words
        print(help_text(usage_of(program), about, options, common if some else None), end="")
        sys.exit(0)
    given: list[tuple[str, list[str]]] = []
    for word in words:
        key, equals, text = word[2:].partition("=")
        if word.startswith("--") and key:
            given.append((key, [text] if equals else []))
        elif given and not word.startswith("--"):
            given[-1][1].append(word)
        else:
            raise _no_option(word)
    files = [_FILES.key, *(key for key, option in options.items() if option.is_file)]
    given.sort(key=lambda one: files.index(one[0]) if one[0] in files else len(files))
    entries = (_of_words(options, *one, program) for one in given if one[0] != "print_config")
    config = _made(kind, chain.from_iterable(entries))
    if any(key == "print_config" for key, _ in given):
        print(to_yaml(config), end="")
        sys.exit(0)
    return config


def read_entries(
    kind: type[Config], path: Path, alone: str | None = None, folder: str = "systems"
) -> dict[str, Config]:
    """Read a YAML of named entries, each with the keys of the dataclass `kind`, in file order.

    A file with a list `alone` at its top is one entry, named as the file is. `folder` of
    configs/ has the files that ship. Raises `UserError` with file, line and key.
    """
    path = shipped(path, folder)
    named = read_yaml(path)
    if not isinstance(named, YamlMapping):
        raise InputError.at(path, why="must be names, each with its keys below it")
    if alone is not None and isinstance(named.get(alone), list):
        named = YamlMapping({path.stem: (named, (str(path), 1))})
    made: dict[str, Config] = {}
    for name, values in named.items():
        place = named.places[name]
        try:
            made[name] = _made(kind, _of_mapping(options_of(kind), values, place))
        except ConfigError as error:
            raise InputError.at(*place, name, f"{error.key}: {error.why}") from None
    return made


def make(kind: type[Config], values: Mapping[str, Any], prefix: str = "") -> Config:
    """Make a dataclass of plain values: mappings for its groups, lists, text, numbers.

    Raises `ConfigError`, with `prefix` before the key, for what is unknown, missing or wrong.
    """
    return _made(kind, _of_mapping(options_of(kind), as_plain(values), None), prefix)


def as_plain(value: Any) -> Any:
    """Turn a config into JSON-ready values: dataclasses to dicts, paths to text."""

    def plain(part: Any) -> Any:
        return str(part) if isinstance(part, Path) else dataclasses.asdict(part)

    return json.loads(json.dumps(value, default=plain))


def to_yaml(value: Any) -> str:
    """Write a config as YAML text, in field order."""
    return yaml.safe_dump(as_plain(value), sort_keys=False, allow_unicode=True)


def require(condition: bool, key: str, value: Any, allowed: str) -> None:
    """Raise `ConfigError` unless `condition` holds."""
    if not condition:
        raise ConfigError(key, value, allowed)


def require_one_of(key: str, value: object, allowed: Sequence[str]) -> None:
    require(value in allowed, key, value, ", ".join(allowed))


def _of_words(
    options: Mapping[str, Option], key: str, words: list[str], program: str
) -> Iterator[_Entry]:
    """Yield the keys that an option sets: its own, or those of the files that it names."""
    if now := successor(program, key) or (key not in options and successor(program, f"{key}.")):
        raise UserError(f"config: {key}: is gone; {now}")
    switch = options.get(key.removeprefix("no_"))
    if switch is not None and switch.is_switch and not (words and key == switch.key):
        key, words = switch.key, ["true" if key == switch.key else "false", *words]
    option = _FILES if key == _FILES.key else options.get(key) or _entry_of(options, key)
    if option is None:
        meant = did_you_mean(key, options, "--")
        raise UserError(f"config: --{key}: no such key; {meant}--help=all explains every key")
    if option.within:
        why = f"is no flag; write it in a YAML file: --{option.within} FILE"
        raise UserError(f"config: --{key}: {why}")
    item = item_of(option.hint)
    if not words:
        raise UserError(f"config: --{key}: needs a value")
    if len(words) > 1 and item is None:
        raise _no_option(words[1])
    if option is _FILES or option.is_file:
        folder, prefix = (program, "") if option is _FILES else (key, f"{key}.")
        inside = {name: one for name, one in options.items() if name.startswith(prefix)}
        for path in (shipped(Path(word), folder) for word in words):
            if (values := read_yaml(path)) is not None:
                yield from _of_mapping(inside, values, (str(path), 1), program, prefix)
        return
    value = None
    if item is None or (len(words) == 1 and words[0].startswith("[")):
        value = _read_word(key, option.hint, words[0])
    else:
        value = [_read_word(key, item, word) for word in words]
    yield option.key, value if key in options else {key.rpartition(".")[2]: value}, None


def _entry_of(options: Mapping[str, Option], key: str) -> Option | None:
    """Describe the entry that `--routes.de` puts into a mapping."""
    mapping = options.get(key.rpartition(".")[0])
    parts = parts_of(mapping.hint) if mapping else ()
    hints = [get_args(part)[1] for part in parts if get_origin(part) is dict]
    return Option(mapping.key, hints[0], None, "") if mapping and hints else None


def _no_option(word: str) -> UserError:
    return UserError(f"config: {word}: is no option; --help explains every key")


def _read_word(key: str, hint: Any, word: str) -> Any:
    """Read a flag's word as YAML reads it; text stays as it is written."""
    try:
        return word if is_text(hint) and word != "null" else read_yaml(word)
    except InputError as error:
        raise ConfigError(key, word, f"a value as YAML has it ({error.problems[0].why})") from None


def _of_mapping(
    options: Mapping[str, Option],
    values: Any,
    place: Place | None,
    program: str = "",
    prefix: str = "",
) -> Iterator[_Entry]:
    """Yield the keys that nested values set, group by group; `place` is where these stand."""
    parted = (key.rpartition(".") for key in options)
    allowed = ", ".join(name for group, _, name in parted if group == prefix[:-1])
    if not isinstance(values, dict):
        why = f"must be `key: value` lines; allowed keys: {allowed}"
        raise _placed(ConfigError(prefix[:-1], values, allowed, why), place)
    for name, value in values.items():
        key, option = f"{prefix}{name}", options.get(f"{prefix}{name}")
        place = values.places[name] if isinstance(values, YamlMapping) else None
        if always_holds(key, value, program):
            continue
        group = f"{key}." if isinstance(value, dict) else key
        if now := successor(program, key) or successor(program, group):
            raise _placed(ConfigError(key, value, "", f"is gone; {now}"), place)
        if option is None or "." in name:
            meant = did_you_mean(key, options)
            if option is not None:  # as on the command line
                meant = "write `{2}` below `{0}:`; ".format(*key.rpartition("."))
            why = f"no such key; {meant}allowed: {allowed}"
            raise _placed(ConfigError(key, value, allowed, why), place)
        if option.group is None or (value is None and NoneType in parts_of(option.hint)):
            yield key, value, place
        else:
            yield f"{key}.", None, place
            yield from _of_mapping(options, value, place, program, f"{key}.")


def _placed(error: ConfigError, place: Place | None, prefix: str = "") -> UserError:
    """Name the file and line of an error, or else its key after `prefix`."""
    if place is not None:
        return InputError.at(*place, error.key or None, error.why)
    return ConfigError(f"{prefix}{error.key}", error.value, error.allowed, error.why)


def _made(kind: type[Config], entries: Iterable[_Entry], prefix: str = "") -> Config:
    """Make a config of what sets its keys; the later win, but a flag's lists and mappings grow."""
    from pydantic import ValidationError

    options, values = options_of(kind), dict[str, Any]()
    places: dict[str, Place | None] = {}
    try:
        for key, value, place in entries:
            *groups, name = key.split(".")
            group = values
            for part in groups:
                if not isinstance(group.get(part), dict):
                    group[part] = {}
                group = group[part]
            if not name:
                continue
            if value is None is options[key].default:
                group.pop(name, None)
                continue
            before = group.get(name) if place is None else None
            if isinstance(value, dict) and isinstance(before, dict):
                value = {**before, **value}
            if isinstance(value, list) and isinstance(before, list) and places[key] is None:
                value = [*before, *value]
            group[name], places[key] = _as_written(value, options[key].hint), place
            require(not _is_empty(options[key], value), key, value, _EMPTY)
        adapter = _adapter(list[kind])  # type: ignore[valid-type]
        return cast(Config, adapter.validate_json(json.dumps([values]), strict=True)[0])
    except ConfigError as error:
        refused = error
    except ValidationError as error:
        refused = _worded(kind, error.errors(include_url=False)[0], values)
    raise _placed(refused, places.get(refused.key), prefix)


def _as_written(value: Any, hint: Any) -> Any:
    """Return a number as it is written where the type wants text."""
    if isinstance(value, list):
        return [_as_written(part, item_of(hint)) for part in value]
    return getattr(value, "text", value) if is_text(hint) else value


def _is_empty(option: Option, value: Any) -> bool:
    """Tell whether a name or path is empty though its default is not."""
    texts = value if isinstance(value, list) else [value]
    named = is_text(item_of(option.hint) or option.hint) and option.default != ""
    return named and any(isinstance(text, str) and not text.strip() for text in texts)


def _worded(kind: type, error: ErrorDetails, values: dict[str, Any]) -> ConfigError:
    """Say an error of pydantic's as the key, its value and what is allowed."""
    names, options = [str(part) for part in error["loc"][1:]], options_of(kind)
    key, rule = ".".join(names), error.get("ctx", {}).get("error")
    if error["type"] == "missing":
        return ConfigError(key, None, "a value", f"is required; give --{key}")
    if isinstance(rule, ConfigError):  # its key may name the groups that it stands in
        repeated = (".".join([*names[place:], ""]) for place in range(len(names)))
        start = next((start for start in repeated if rule.key.startswith(start)), "")
        within = f"{key}.".removesuffix(start) if names else ""
        return ConfigError(within + rule.key, rule.value, rule.allowed)
    if rule is not None:
        return ConfigError(key or kind.__name__, error["input"], str(rule))
    while key not in options:
        key = key.rpartition(".")[0]
    value = reduce(lambda group, name: group[name], key.split("."), values)
    return ConfigError(key, value, allowed_words(options[key].hint))


@cache
def _adapter(hint: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(hint, config=ConfigDict(**_PYDANTIC, arbitrary_types_allowed=True))
