"""Read configs: dataclasses hold the defaults, YAML files and flags what differs from them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml
from annotated_types import Interval

from claim2source.core.config_yaml import NO_TEXT, Place, YamlMapping, read_yaml
from claim2source.core.errors import ConfigError, InputError, UserError, said_once
from claim2source.core.keys import did_you_mean
from claim2source.core.old_names import always_holds, successor
from claim2source.core.program import in_our_words, usage_of
from claim2source.core.shipped import shipped

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# pydantic is imported where a value is checked: `--help` does without.
Config = TypeVar("Config")
Function = TypeVar("Function", bound=Callable[..., Any])
MOST = 10**9  # of what is only counted
_NO_OPTION = "is no option; --help explains every key"
_PYDANTIC: Any = {"extra": "forbid", "allow_inf_nan": False}
_NAMES = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}
_NAMES |= {str: "text", Path: "a path"}


def _cached(function: Function) -> Function:
    return cast(Function, cache(function))  # of classes too, which mypy takes for unhashable


def Between(low: float, high: float, *, above: bool = False, below: bool = False) -> Interval:
    """Bound a number, ends included, but not `low` if `above` it and not `high` if `below` it."""
    return Interval(**{"gt" if above else "ge": low, "lt" if below else "le": high})


Count = Annotated[int, Between(0, MOST)]
Number = Annotated[int, Between(1, MOST)]
Amount = Annotated[float, Between(0, MOST)]
Positive = Annotated[float, Between(0, MOST, above=True)]
Share = Annotated[float, Between(0, 1)]
PositiveShare = Annotated[float, Between(0, 1, above=True)]
PartialShare = Annotated[float, Between(0, 1, below=True)]
SplitShare = Annotated[float, Between(0, 1, above=True, below=True)]  # not all, not nothing
Seed = Annotated[int, Between(0, 2**32 - 1)]  # NumPy takes none below 0
Repeats = Annotated[int, Between(1, 1_000_000)]


class Settings:
    """Check a dataclass of settings when it is made: bounds of its types, then its own rules."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _PYDANTIC

    def __post_init__(self) -> None:
        for name, option in options_of(type(self)).items():
            if "." not in name and (value := getattr(self, name)) is not option.default:
                hint = repr(option.hint)
                if "Interval(" in hint or "Literal[" in hint:
                    _check_value(option.hint, name, value)
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
    words, keys = list(sys.argv[1:] if argv is None else argv), options_of(kind)
    if {"-h", "--help", "--help=all"} & {*words}:
        about, some = in_our_words(description or "", program), "--help=all" not in words
        print(_help(usage_of(program), about, _OWN | keys, common if some else None), end="")
        sys.exit(0)
    options: list[tuple[str, list[str]]] = []
    for word in words:
        key, equals, text = word[2:].partition("=")
        if word.startswith("--") and key:
            options.append((key, [text] if equals else []))
        elif options and not word.startswith("--"):
            options[-1][1].append(word)
        else:
            raise UserError(f"config: {word}: {_NO_OPTION}")
    files = ["config", *(key for key, option in keys.items() if option.is_file)]
    options.sort(key=lambda one: files.index(one[0]) if one[0] in files else len(files))
    values, printed = YamlMapping(), False
    for key, texts in options:
        if now := successor(program, key):
            raise UserError(f"config: {key}: is gone; {now}")
        given = _nested(_OWN | keys, key, texts)
        printed |= bool(given.pop("print_config", False))
        for path in (shipped(Path(text), program) for text in given.pop("config", [])):
            if (content := read_yaml(path)) is not None:
                _merge(keys, values, content, (str(path), 1), program)
        _merge(keys, values, given, None, program)
    config = _made(kind, values)
    if printed:
        print(to_yaml(config), end="")
        sys.exit(0)
    return config


def read_entries(kind: type[Config], path: Path, folder: str = "systems") -> dict[str, Config]:
    """Read a YAML of named entries, each with the keys of the dataclass `kind`, in file order.

    A file with a key at its top that `kind` requires, or a list by one of its keys, is one entry,
    named as the file is. `folder` of configs/ has the files that ship. Raises `UserError` with
    file, line and key.
    """
    path = shipped(path, folder)
    named = read_yaml(path)
    if not isinstance(named, YamlMapping):
        raise InputError.at(path, why="must be names, each with its keys below it")
    keys = options_of(kind)
    alone = (
        name in keys and (isinstance(one, list) or keys[name].default is MISSING)
        for name, one in named.items()
    )
    if any(alone):
        named = YamlMapping({path.stem: named}, {path.stem: (str(path), 1)})
    made: dict[str, Config] = {}
    for name, values in named.items():
        place, entry = named.places[name], YamlMapping()
        try:
            _merge(options_of(kind), entry, values, place)
            made[name] = _made(kind, entry)
        except ConfigError as error:
            # A flag is no help in a file of entries.
            why = f"{error.key}: {error.why}".partition("; give --")[0]
            raise ConfigError(name, values, "", why).at(place) from None
    return made


def make(kind: type[Config], values: Mapping[str, Any], prefix: str = "") -> Config:
    """Make a dataclass of plain values: mappings for its groups, lists, text, numbers.

    Raises `ConfigError`, with `prefix` before the key, for what is unknown, missing or wrong.
    """
    try:
        _merge(options_of(kind), nested := YamlMapping(), as_plain(values), None)
        return _made(kind, nested)
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error.key}", error.value, error.allowed, error.why) from None


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


@dataclass(frozen=True)
class Option:
    """Describe a key of a config, or a group of keys."""

    hint: Any
    default: Any  # MISSING where the key is required
    help: str
    group: Any = None  # the dataclass of a group
    within: str = ""  # the flag whose YAML file alone has the key

    @property
    def is_file(self) -> bool:
        """Tell whether the flag takes a YAML file of the group's keys."""
        return hasattr(self.group, "FLAGS")

    @property
    def is_flag(self) -> bool:
        """Tell whether `--key` takes a value: of groups a file, or null."""
        null = NoneType in parts_of(self.hint)
        return not self.within and (self.group is None or self.is_file or null)


_FILES = "YAML files with what differs from the defaults; of several the later ones win"
_OWN = {
    "config": Option(list[Path], None, _FILES),
    "print_config": Option(bool, False, "print every key and its value"),
}


@_cached
def options_of(kind: Any, prefix: str = "") -> dict[str, Option]:
    """Map every key of a config to its description, a group's after the group itself.

    Where a group's class names `FLAGS`, these alone of its keys are flags, and the group itself
    takes a YAML file.
    """
    options: dict[str, Option] = {}
    hints, helps = get_type_hints(kind, include_extras=True), _helps(kind)
    for field in (field for field in dataclasses.fields(kind) if field.init):
        key, hint = f"{prefix}{field.name}", hints[field.name]
        text = field.metadata.get("help") or helps.get(field.name, "")
        group = next((part for part in parts_of(hint) if dataclasses.is_dataclass(part)), None)
        if group is None:
            factory = field.default_factory
            options[key] = Option(hint, field.default if factory is MISSING else factory(), text)
            continue
        inside = options_of(group, f"{key}.")
        if flags := getattr(group, "FLAGS", None):
            text = f"{text.rstrip('.')}: a YAML file of {', '.join(options_of(group))}"
            files = {name for name in inside if name.removeprefix(f"{key}.") not in flags}
            inside = inside | {name: replace(inside[name], within=key) for name in files}
        options |= {key: Option(hint, None, text, group), **inside}
    return options


def _helps(kind: type) -> dict[str, str]:
    """Read what a dataclass and its bases say of their fields, under `Args:`."""
    helps: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__doc__ or "")
        _, _, args = re.sub("^Attributes:$", "Args:", text, flags=re.MULTILINE).partition("Args:\n")
        for name, about in re.findall(r"^    (\w+): (.*(?:\n        .*)*)", args, re.MULTILINE):
            helps[name] = " ".join(about.split())
    return helps


def parts_of(hint: Any) -> tuple[Any, ...]:
    """Return the types that a value may have one of, each without bounds."""
    if get_origin(hint) is Annotated:
        return parts_of(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return tuple(part for inner in get_args(hint) for part in parts_of(inner))
    return (hint,)


def _item_of(hint: Any) -> Any:
    """Return the type of a list's items; None of what is no list."""
    lists = (part for part in parts_of(hint) if get_origin(part) in (list, tuple))
    return next((get_args(part)[0] for part in lists), None)


def _is_text(hint: Any) -> bool:
    return {*parts_of(hint)} - {NoneType} in ({str}, {Path}, {str, Path})


def allowed_words(hint: Any) -> str:
    """Describe a type for a user."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [_bounds(mark) for mark in inner[1:] if isinstance(mark, Interval)]
        return ", ".join([allowed_words(inner[0]), *bounds])
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin in (Union, UnionType):
        return " or ".join(allowed_words(part) for part in inner)
    if origin in (list, tuple):
        item = allowed_words(inner[0])
        if "number" in item:
            return f"a list of numbers, such as [1, 2], each {item}"
        return "a list, such as [a, b]" if inner[0] in (str, Path) else f"a list of {item}"
    if origin is dict:
        return f"a mapping of names to {allowed_words(inner[1])}"
    if dataclasses.is_dataclass(hint):
        return f"its keys: {', '.join(field.name for field in dataclasses.fields(hint))}"
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def _bounds(of: Interval) -> str:
    low = f"above {of.gt}" if of.ge is None else of.ge
    return f"{low} to {of.le}" if of.lt is None else f"{low} to below {of.lt}"


def _help(
    usage: str, about: str, options: Mapping[str, Option], common: Mapping[str, str] | None
) -> str:
    """Write the help of every flag, or of the keys in `common` alone, one line each."""
    lines = [f"usage: {usage} [--config FILE] [--key value ...]", ""]
    if common:
        lines.append(f"The {len(common)} keys that people change most, and their defaults:")
        width = max(map(len, common)) + 2
        for key, what in common.items():
            lines.append(f"  --{key:<{width}}{what} ({_shown(options[key].default)})")
        lines += ["", f"  --config FILE ..   {_FILES}", "  --help=all         every key"]
        return "\n".join([*lines, "", about, ""])
    lines.append(about)
    for key, option in options.items():
        value = allowed_words(Path if option.is_file else option.hint)
        more = f", --no_{key}" if option.hint in (bool, bool | None) else f" {value}"
        default = "required" if option.default is MISSING else f"default: {_shown(option.default)}"
        if option.is_flag:
            lines += textwrap.wrap(f"  --{key}{more}", 110, subsequent_indent=" " * 8)
            text, gap = f"{option.help} ({default})".strip(), " " * 6
            lines += textwrap.wrap(text, 110, initial_indent=gap, subsequent_indent=gap)
    return "\n".join([*lines, ""])


def _shown(default: object) -> str:
    if isinstance(default, list | tuple):
        return f"[{', '.join(map(str, default))}]"
    return json.dumps(default) if default in (None, "", True, False) else str(default)


def _nested(options: Mapping[str, Option], key: str, words: list[str]) -> YamlMapping:
    """Return what a flag sets as nested keys: `--a.b X` as {a: {b: X}}."""
    on = key.removeprefix("no_")
    if on in options and options[on].hint in (bool, bool | None) and not (words and key == on):
        key, words = on, ["true" if key == on else "false", *words]
    option = options.get(key, Option(Any, None, ""))
    item, value, place = _item_of(option.hint), cast(Any, None), None
    if option.within:
        why = f"is no flag; write it in a YAML file: --{option.within} FILE"
        raise UserError(f"config: --{key}: {why}")
    if key in options and not words:
        raise UserError(f"config: --{key}: needs a value")
    if len(words) > 1 and item is None:
        raise UserError(f"config: {words[1]}: {_NO_OPTION}")
    if option.is_file:
        path = shipped(Path(words[0]), key)
        value, place = read_yaml(path) or YamlMapping(), (str(path), 1)
    elif item is None or (len(words) == 1 and words[0].startswith("[")):
        value = _read_word(key, option.hint, "".join(words))
    else:
        value = [_read_word(key, item, word) for word in words]
    for name in reversed(key.split(".")):
        value = YamlMapping({name: value}, {name: place})
    return value


def _read_word(key: str, hint: Any, word: str) -> Any:
    """Read a flag's word as YAML reads it; text stays as it is written."""
    try:
        text = _is_text(hint) and word != "null" and not NO_TEXT.search(word)
        return word if text else read_yaml(word)
    except InputError as error:
        raise ConfigError(key, word, f"a value as YAML has it ({error.problems[0].why})") from None


def _merge(
    options: Mapping[str, Option],
    into: YamlMapping,
    values: Any,
    place: Place | None,
    program: str = "",
    prefix: str = "",
) -> None:
    """Set nested keys over others, group by group; a flag adds to its list and to mappings."""
    parted = (key.rpartition(".") for key in options)
    allowed = ", ".join(name for group, _, name in parted if group == prefix[:-1])
    if not isinstance(values, dict):
        why = f"must be `key: value` lines; allowed keys: {allowed}"
        raise ConfigError(prefix[:-1], values, allowed, why).at(place)
    for name, value in values.items():
        key, place = f"{prefix}{name}", getattr(values, "places", {}).get(name)
        option, before = None if "." in name else options.get(key), into.get(name)
        if place is not None and always_holds(key, value, program):
            continue
        group = f"{key}." if option is None or isinstance(value, dict) else key
        while place is None is option and isinstance(value, dict) and value:  # the whole flag
            part = next(iter(value))
            key, value = f"{key}.{part}", value[part]
        if now := successor(program, key) or successor(program, group):
            raise ConfigError(key, value, allowed, f"is gone; {now}").at(place)
        if option is None:
            dashes = "--" if program and place is None else ""
            meant = did_you_mean(key, options, dashes)
            if key in options:  # as on the command line
                meant = "write `{2}` below `{0}:`; ".format(*key.rpartition("."))
            more = "--help=all explains every key" if dashes else f"allowed: {allowed}"
            why = f"no such key; {meant}{more}"
            raise ConfigError(f"{dashes}{key}", value, allowed, why).at(place)
        null = value is None and NoneType in parts_of(option.hint)
        if option.group is not None and not null:
            below = before if isinstance(before, YamlMapping) else YamlMapping()
            _merge(options, below, value, place, program, f"{key}.")
            value = below
        elif place is None and isinstance(value, dict) and isinstance(before, dict):
            value = {**before, **value}
        elif isinstance(value, list) and name in into and into.places[name] is place is None:
            value = [*(before or []), *value]
        into[name], into.places[name] = _as_written(value, option.hint), place
        texts = value if isinstance(value, list) else [value]
        named = _is_text(_item_of(option.hint) or option.hint) and option.default != ""
        if named and any(isinstance(text, str) and not text.strip() for text in texts):
            raise ConfigError(key, value, "a name or path; the current folder is .").at(place)
        if value is None is option.default and not null:  # as if it were not there
            del into[name]


def _as_written(value: Any, hint: Any) -> Any:
    """Return a number as it is written where the type wants text."""
    if isinstance(value, list):
        return [_as_written(part, _item_of(hint)) for part in value]
    return getattr(value, "text", value) if _is_text(hint) else value


def _check_value(hint: Any, key: str, value: Any) -> None:
    """Raise `ConfigError` for a value of Python's that is not of a type."""
    from pydantic import ValidationError

    try:
        _adapter(hint).validate_python(value)
    except (ValidationError, OverflowError):
        raise ConfigError(key, value, allowed_words(hint)) from None


def _made(kind: type[Config], values: YamlMapping) -> Config:
    """Make a dataclass of nested values. Raises `UserError` by the place that set the key."""
    from pydantic import ValidationError

    adapter = _adapter(list[kind])  # type: ignore[valid-type]
    try:
        return cast(Config, adapter.validate_json(json.dumps([values]), strict=True)[0])
    except ValidationError as error:
        refused = _worded(options_of(kind), values, error.errors(include_url=False)[0])
    raise refused.at(_at(values, refused.key)[1])


def _worded(options: Mapping[str, Option], values: Any, error: ErrorDetails) -> ConfigError:
    """Say an error of pydantic's as the key, its value and what is allowed."""
    names, rule = [str(part) for part in error["loc"][1:]], error.get("ctx", {}).get("error")
    if isinstance(rule, ConfigError):  # its key may name the groups that it stands in
        first, dot, _ = rule.key.partition(".")
        names = names[: names.index(first)] if dot and first in names else names
        return ConfigError(".".join([*names, rule.key]), rule.value, rule.allowed, rule.why)
    key = ".".join(names)
    if error["type"] == "missing":
        return ConfigError(key, None, "a value", f"is required; give --{key}")
    while key and key not in options:
        key = key.rpartition(".")[0]
    value = _at(values, key)[0] if key else values
    allowed = str(rule) if rule is not None or not key else allowed_words(options[key].hint)
    return ConfigError(key, value, allowed)


def _at(values: Any, key: str) -> tuple[Any, Place | None]:
    """Look up what a key is set to, and where; None for what is not there."""
    place: Place | None = None
    for name in key.split("."):
        place = getattr(values, "places", {}).get(name)
        values = values.get(name) if isinstance(values, dict) else None
    return values, place


@_cached
def _adapter(hint: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(hint, config=ConfigDict(**_PYDANTIC, arbitrary_types_allowed=True))
