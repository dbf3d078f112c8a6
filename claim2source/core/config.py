"""Read configs: dataclasses define the defaults, YAML files and flags override them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import os
import re
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from functools import cache, partial
from numbers import Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Interval

from claim2source.core.errors import ConfigError, InputError, UserError, did_you_mean, report_once
from claim2source.core.examples import key_example
from claim2source.core.help import WIDTH, help_text, wanted_help
from claim2source.core.parts import flag_path, parts_kind
from claim2source.core.yaml_files import (
    NO_TEXT,
    Location,
    YamlMapping,
    as_plain,
    read_mapping,
    read_yaml,
    to_yaml,
)

log = logging.getLogger(__name__)

_PACKAGE = Path(__file__).resolve().parents[1]
# Inside an installed package; next to the package in a checkout.
CONFIGS = _PACKAGE / "configs"
if not CONFIGS.is_dir():
    CONFIGS = _PACKAGE.parent / "configs"
cached: Any = cache  # mypy believes that classes are not hashable
Config = TypeVar("Config")
LARGEST = 10**9  # the largest count
_LIST = "a list, such as [a, b], each {0}"
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    NoneType: "null",
    list: _LIST,
    tuple: _LIST,
    dict: "a mapping of names to {1}",
    Any: "any value",
}


def Between(low: float, high: float, *, above: bool = False, below: bool = False) -> Interval:
    """Bound a number, ends included, but not `low` if `above` it and not `high` if `below` it."""
    return Interval(**{"gt" if above else "ge": low, "lt" if below else "le": high})


Count = Annotated[int, Between(0, LARGEST)]
Number = Annotated[int, Between(1, LARGEST)]
Amount = Annotated[float, Between(0, LARGEST)]
Positive = Annotated[float, Between(0, LARGEST, above=True)]
Share = Annotated[float, Between(0, 1)]
PositiveShare = Annotated[float, Between(0, 1, above=True)]
PartialShare = Annotated[float, Between(0, 1, below=True)]
SplitShare = Annotated[float, Between(0, 1, above=True, below=True)]  # neither none nor all
Seed = Annotated[int, Between(0, 2**32 - 1)]  # the range that NumPy accepts
Repeats = Annotated[int, Between(1, 1_000_000)]


class Settings:
    """Check a dataclass of settings when it is created: types and bounds, then its own rules."""

    __pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}

    def __post_init__(self) -> None:
        for name, option in config_options(type(self)).items():
            if "." in name or option.group is not None:
                continue
            value = getattr(self, name)
            if value is option.default:
                continue
            try:
                _refuse_look_alike(option.hint, value)
                _adapter(option.hint).validate_python(value)
            except (ValueError, OverflowError):
                raise ConfigError(name, value, allowed_words(option.hint)) from None
        self.check()

    def check(self) -> None:
        """Check the rules between keys; raise `ConfigError` with the field's name as the key."""

    def require_unset(self, but: Collection[str], reason: str) -> None:
        """Raise `ConfigError` if a key outside `but` differs from its default."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            make = field.default_factory
            default = field.default if make is MISSING else make()
            value = getattr(self, field.name)
            if field.name not in but and value != default:
                raise ConfigError(field.name, value, "", reason)


def _refuse_look_alike(hint: Any, value: object) -> None:
    """Raise ValueError for values that pydantic would convert to numbers: true, "5", 2.0 to 2."""
    kinds = {*union_types(hint)}
    only_numbers = kinds <= {int, float, NoneType}
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if only_numbers and value is not None and not is_number:
        raise ValueError("not a number")
    if only_numbers and float not in kinds and isinstance(value, float):
        raise ValueError("not a whole number")


def flag(help: str, default: bool = False) -> Any:
    """Declare a dataclass field that is set by `--name` alone and unset by `--no_name`."""
    return dataclasses.field(default=default, metadata={"help": help})


def list_field(default: Sequence[Any] | None = None, *, help: str = "") -> Any:
    """Declare a dataclass field of several values: `--name a b`, or `--name a --name b`."""
    make: Any = NoneType
    if default is not None:
        make = partial(list, default)
    return dataclasses.field(default_factory=make, metadata={"help": help})


@report_once()
def read_config(
    kind: type[Config],
    argv: Sequence[str] | None,
    *,
    program: str,
    description: str | None,
    common: Sequence[str] = (),
    positionals: Sequence[str] = (),
) -> Config:
    """Read `argv` and the YAML files it names into an instance of the dataclass `kind`.

    Flags override files, a group's file overrides `--config`, and later values override earlier
    ones. Unknown keys and wrong values raise `UserError` with the key. `--print_config` and
    `--help` print and exit. `common` are the keys that people need first: with it, `--help`
    explains only these and lists the others, `--help=GROUP` explains a group, `--help=all` all.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    options = config_options(kind)
    if (wanted := wanted_help(words)) is not None:
        keys = {key: _key_lines(key, option) for key, option in options.items() if option.is_flag}
        examples = _examples(program, options, positionals)
        print(help_text(program, description or "", keys, common, wanted, examples, positionals))
        sys.exit(0)
    flags = _split_flags(options, words)
    prints = "print_config" in flags
    flags.pop("print_config", None)
    values = YamlMapping()
    for file in flags.get("config") or ():
        values = _overlaid(values, read_mapping(shipped(Path(file), program)), options)
    for key in sorted(flags, key=lambda key: key.count(".")):  # a group's file before its keys
        if key != "config" or not flags[key]:
            values = _overlaid(values, _read_flag(options, key, flags[key]), options)
    config = make(kind, values)
    if prints:
        print(to_yaml(config), end="")
        sys.exit(0)
    return config


def _split_flags(options: Mapping[str, Option], words: Sequence[str]) -> dict[str, list[str]]:
    """Assign to every flag the words after it; a repeated flag moves to its last position.

    A list and `--config` collect the words of all their flags; any other key uses its last flag.
    """
    flags: dict[str, list[str]] = {}
    last = ""
    for word in words:
        if word.startswith("--") and word != "--":
            last, equals, text = word[2:].partition("=")
            kept = flags.pop(last, [])
            flags[last] = kept if is_cumulative(options, last) else []
            if equals:
                flags[last].append(text)
        elif flags:
            flags[last].append(word)
        else:
            raise UserError(f"config: {word}: is not an option; --help explains every key")
    return flags


def is_cumulative(options: Mapping[str, Option], key: str) -> bool:
    """Whether a key collects the words of all its flags: a list, or `--config`."""
    if key == "config":
        return True
    return key in options and _item_type(options[key].hint) is not None


def _overlaid(below: YamlMapping, above: YamlMapping, options: Mapping[str, Option]) -> YamlMapping:
    """Override values by others; a mapping changes objects in a list of named objects."""
    merged = below.overlaid(above)
    for name, value in above.items():
        kind = None
        if name in options:
            kind = parts_kind(options[name].hint)
        listed = below.get(name)
        if kind is not None and isinstance(listed, list) and isinstance(value, YamlMapping):
            merged[name] = kind.changed(listed, value)
    return merged


def shipped(path: Path, program: str) -> Path:
    """Return `path`, or the shipped config of that name if `path` is a missing `configs/...`.

    Raises `InputError` that lists the configs of `program` if neither exists.
    """
    path = Path(os.path.expanduser(path))
    if path.exists() or path.is_symlink():
        return path
    parts = path.parts
    if parts[:1] == ("configs",):
        packaged = CONFIGS.joinpath(*parts[1:])
        if packaged.is_file():
            log.warning("%s does not exist: using the one that ships with claim2source", path)
            return packaged
    files = sorted(CONFIGS.glob(f"{Path(program).stem}/*.yaml"))
    names = [f"configs/{file.relative_to(CONFIGS).as_posix()}" for file in files]
    reason = "no such file or directory"
    if names:
        near = did_you_mean(path.stem, [file.stem for file in files])
        reason += f"; {near}these ship with claim2source: {', '.join(names)}"
    raise InputError(path, reason=reason)


def make(kind: type[Config], values: Mapping[str, Any], prefix: str = "") -> Config:
    """Make a dataclass from plain values or a YAML file's values; groups are mappings.

    Raises `UserError` with file and line, or with the key after `prefix`, for a wrong value.
    """
    entries = values
    if not isinstance(values, YamlMapping):
        entries = json.loads(json.dumps(as_plain(values)), object_hook=YamlMapping)
    try:
        return _built(kind, config_options(kind), entries)
    except ConfigError as error:
        origin = None
        if isinstance(entries, YamlMapping):
            origin = entries.at(error.key)
        if origin:
            raise error.at(origin) from None
        raise ConfigError(prefix + error.key, error.value, error.allowed, error.reason) from None


def require(condition: bool, key: str, value: Any, allowed: str | Sequence[str]) -> None:
    if not condition:
        raise ConfigError(key, value, allowed if isinstance(allowed, str) else ", ".join(allowed))


def require_one_of(key: str, value: object, allowed: Sequence[str]) -> None:
    require(value in allowed, key, value, allowed)


@dataclass(frozen=True)
class Option:
    """Describe a key of a config, or a group of keys."""

    hint: Any
    default: Any  # MISSING if the key is required
    help: str
    group: Any = None  # the dataclass of a group
    is_flag: bool = True  # whether the command line accepts `--key`


@cached
def config_options(kind: Any, prefix: str = "") -> dict[str, Option]:
    """Map every key of a config to its description; a group's keys follow the group itself.

    If a group's class defines `FLAGS`, only these keys are flags; the others are set in a YAML
    file, which is the value of the group's own flag.
    """
    options: dict[str, Option] = {}
    hints = get_type_hints(kind, include_extras=True)
    helps = _helps(kind)
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        key = f"{prefix}{field.name}"
        hint = hints[field.name]
        text = field.metadata.get("help") or helps.get(field.name, "")
        default = field.default
        factory = field.default_factory
        group = next(filter(dataclasses.is_dataclass, union_types(hint)), None)
        if group is not None:
            has_default = default is not MISSING or factory is not MISSING
            options |= _group_options(key, hint, group, text, has_default)
        else:
            if factory is not MISSING:
                default = factory()
            options[key] = Option(hint, default, text)
            options |= _part_options(key, hint)
    return options


def _part_options(key: str, hint: Any) -> dict[str, Option]:
    """Describe the keys of the named objects that a list allows."""
    parts = parts_kind(hint)
    options: dict[str, Option] = {}
    if parts is not None:
        for name, part in parts.known.items():
            options |= config_options(part, f"{key}.{name}.")
    return options


def _group_options(
    key: str,
    hint: Any,
    group: Any,
    text: str,
    has_default: bool,
) -> dict[str, Option]:
    """Describe a group of keys, and then each key of it."""
    inner = config_options(group, f"{key}.")
    flags = getattr(group, "FLAGS", None)
    if flags:
        text = f"{text.rstrip('.')}: a YAML file of {', '.join(config_options(group))}"
        for name, option in inner.items():
            inner[name] = replace(option, is_flag=name.removeprefix(f"{key}.") in flags)
    is_flag = bool(flags) or NoneType in union_types(hint)
    default = None if has_default else MISSING
    return {key: Option(hint, default, text, group, is_flag), **inner}


def _helps(kind: type) -> dict[str, str]:
    helps: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, args = inspect.cleandoc(base.__doc__ or "").partition("Args:\n")
        for name, about in re.findall(r"^    (\w+): (.*(?:\n        .*)*)", args, re.MULTILINE):
            helps[name] = " ".join(about.split())
    return helps


def union_types(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, each without bounds."""
    if get_origin(hint) not in (Annotated, Union, UnionType):
        return (hint,)
    members = get_args(hint)
    if get_origin(hint) is Annotated:
        members = members[:1]
    parts: list[Any] = []
    for member in members:
        parts += union_types(member)
    return tuple(parts)


def _is_text(hint: Any) -> bool:
    return {*union_types(hint)} - {NoneType} in ({str}, {Path}, {str, Path})


def _item_type(hint: Any) -> Any:
    """Return the type of the values of a list; None if it is not one."""
    for part in union_types(hint):
        if get_origin(part) in (list, tuple):
            return get_args(part)[0]
    return None


def allowed_words(hint: Any) -> str:
    """Describe the values that a type allows: "a whole number, 1 to 10", "text or null"."""
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin is Literal:
        return ", ".join(map(str, inner))
    if isinstance(hint, Interval):
        low = hint.ge if hint.gt is None else f"above {hint.gt}"
        high = hint.le if hint.lt is None else f"below {hint.lt}"
        return f"{low} to {high}"
    words = [allowed_words(part) for part in inner]
    if origin is Annotated:
        return ", ".join(words)
    if origin in (Union, UnionType):
        return " or ".join(words)
    name = getattr(hint, "__name__", str(hint))
    return _WORDS.get(origin or hint, name).format(*words, "a value", "a value")


def _usage_words(hint: Any) -> str:
    """Describe the words after a flag; null, which leaves a key unset, is not one of them."""
    item = _item_type(hint)
    words = allowed_words(item or hint).removesuffix(" or null")
    return f"{words}, one or more" if item else words


def _key_lines(key: str, option: Option) -> list[str]:
    if option.hint in (bool, bool | None):
        usage = f"  --{key}, --no_{key}"
    elif any(map(dataclasses.is_dataclass, union_types(option.hint))):
        # Its keys are separate options; a file sets several of them.
        usage = f"  --{key} {allowed_words(Path)}"
    else:
        usage = f"  --{key} {_usage_words(option.hint)}"
    default = "required"
    if option.default in (None, []):
        default = "default: none"
    elif option.default is not MISSING:
        default = f"default: {json.dumps(as_plain(option.default), ensure_ascii=False)}"
    text = f"{option.help} ({default})".strip()
    lines = textwrap.wrap(usage, WIDTH, subsequent_indent=" " * 8)
    return lines + textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _examples(
    program: str, options: Mapping[str, Option], positionals: Sequence[str]
) -> dict[str, str]:
    """Write an example of every key that has one; of a positional word without the flag."""
    examples: dict[str, str] = {}
    for key, option in options.items():
        example = key_example(program, key, option.hint, option.default)
        if example is not None:
            is_word = key in positionals
            examples[key] = example.removeprefix(f"--{key} ") if is_word else example
    return examples


def _read_flag(options: Mapping[str, Option], key: str, words: list[str]) -> YamlMapping:
    """Read a flag like a YAML file with one key; without a word it is true, `--no_key` false."""
    if key not in options and key != "config":
        guess = did_you_mean(key, ["config"])
        if guess:
            raise ConfigError(key, words, "", f"no such key; {guess.strip()}")
    name = key
    if not words and key not in options and key.removeprefix("no_") in options:
        name = key.removeprefix("no_")
    option = options.get(name, Option(Any, None, ""))
    if not option.is_flag:
        raise UserError(f"config: --{key}: is not a flag; {_flag_hint(options, key)}")
    value: Any = name == key
    origin: Location | None = None
    if words and _is_file(option, words[0]):
        file = shipped(Path(words[0]), key)
        value = read_mapping(file)
        origin = (str(file), 1)
    elif words:
        value = _read_words(key, option, words, takes_one=name in options)
    first = options.get(name.partition(".")[0], Option(None, None, ""))
    for part in reversed(flag_path(name, first.hint)):
        value = YamlMapping({part: value}, {part: origin})
    return value


def _flag_hint(options: Mapping[str, Option], key: str) -> str:
    for name in options:
        if name.startswith(f"{key}."):
            return f"use --{name}, .."
    return "write it in a YAML file"


def _is_file(option: Option, word: str) -> bool:
    """Whether a word names the file of a group."""
    return option.group is not None and word != "null" and not word.startswith("{")


def _read_words(key: str, option: Option, words: Sequence[str], *, takes_one: bool) -> Any:
    """Read a flag's words: one value of its type, or the items of a list.

    With `takes_one`, several words for a key that is not a list are an error.
    """
    is_null = list(words) == ["null"] and NoneType in union_types(option.hint)
    item = None
    if not is_null and not words[0].startswith("["):
        item = _item_type(option.hint)
    if item:
        return [_read_word(key, item, word) for word in words]
    if takes_one and len(words) > 1:
        quotes = ", in quotes if it has spaces" if _is_text(option.hint) else ""
        allowed = f"{allowed_words(option.hint)}{quotes}; put other words first"
        raise ConfigError(key, words, allowed)
    values = [_read_word(key, option.hint, word) for word in words]
    return values[0]


def _read_word(key: str, hint: Any, word: str) -> Any:
    if _is_text(hint) and word != "null" and not NO_TEXT.search(word):
        return word
    try:
        return read_yaml(word)
    except InputError as error:
        allowed = f"a YAML value ({error.problems[0].reason})"
        raise ConfigError(key, word, allowed) from None


def _built(kind: type[Config], options: Mapping[str, Option], raw: Any, prefix: str = "") -> Config:
    if not isinstance(raw, YamlMapping):
        reason = f"must be `key: value` lines; allowed keys: {_names_in(options, prefix)}"
        raise ConfigError(prefix[:-1], raw, "", reason)
    values: dict[str, Any] = {}
    for name, value in raw.items():
        key = f"{prefix}{name}"
        option = None if "." in name else options.get(key)
        if option is None:
            allowed = f"{did_you_mean(key, options)}allowed: {_names_in(options, prefix)}"
            raise ConfigError(key, value, "", f"no such key; {allowed}")
        nullable = NoneType in union_types(option.hint)
        if option.group is not None and not (value is None and nullable):
            values[name] = _built(option.group, options, value, f"{key}.")
        elif value is not None or nullable or option.default is not None:
            if name in getattr(kind, "ONE_WORD", ()) and isinstance(value, str):
                value = [value]
            values[name] = _typed_value(key, option, value)  # else null: as if it were not there
    for name in config_options(kind):
        key = f"{prefix}{name}"
        if "." not in name and name not in values and options[key].default is MISSING:
            raise ConfigError(key, None, "a value", f"is required; set --{key}")
    try:
        return kind(**values)
    except ConfigError as error:
        key = _full_key(prefix, error.key)
        raise ConfigError(key, error.value, error.allowed, error.reason) from None


def _full_key(prefix: str, key: str) -> str:
    """Put a group's prefix before a key, which may begin with groups of the prefix."""
    groups = prefix.split(".")[:-1]
    first, dot, _ = key.partition(".")
    if dot and first in groups:
        groups = groups[: groups.index(first)]
    return ".".join([*groups, key])


def _typed_value(key: str, option: Option, value: Any) -> Any:
    """Convert a YAML value to the type of its key; a text keeps a number's spelling."""
    parts = parts_kind(option.hint)
    if parts is not None:
        return parts.read(key, value)
    value = _with_home(value, option.hint)
    if _is_text(_item_type(option.hint) or option.hint):
        value = _as_text(key, option, value)
    try:
        return _adapter(option.hint).validate_json(json.dumps(value), strict=True)
    except ValueError:  # pydantic's
        raise ConfigError(key, value, allowed_words(option.hint)) from None


def _as_text(key: str, option: Option, value: Any) -> Any:
    """Restore the spelling of numbers in a text or a list of texts; refuse empty texts."""
    values = value if isinstance(value, list) else [value]
    texts = [getattr(part, "text", part) for part in values]
    value = texts if isinstance(value, list) else texts[0]
    if option.default == "":
        return value
    for text in texts:
        if isinstance(text, str) and not text.strip():
            folder_hint = " (. is this folder)" if Path in union_types(option.hint) else ""
            raise ConfigError(key, value, f"{allowed_words(option.hint)}, not empty{folder_hint}")
    return value


def _with_home(value: Any, hint: Any) -> Any:
    """Expand `~` in paths, and in texts, since a name or an address may be a path."""
    if isinstance(value, list):
        return [_with_home(part, hint) for part in value]
    if isinstance(value, YamlMapping):
        parts = {name: _with_home(part, hint) for name, part in value.items()}
        return YamlMapping(parts, value.locations)
    if not isinstance(value, str) or not (value == "~" or value.startswith("~/")):
        return value
    if not _leaves(hint) & {str, Path}:
        return value
    return os.path.expanduser(value)


def _leaves(hint: Any) -> set[Any]:
    """Return the types of a value, or of the values in a list or a mapping."""
    leaves: set[Any] = set()
    for part in union_types(hint):
        within: tuple[Any, ...] = ()
        if get_origin(part) in (list, tuple):
            within = get_args(part)
        elif get_origin(part) is dict:
            within = get_args(part)[1:]
        if not within:
            leaves.add(part)
        for inner in within:
            leaves |= _leaves(inner)
    return leaves


def _names_in(options: Mapping[str, Option], group: str) -> str:
    names = (key.removeprefix(group) for key in options if key.startswith(group))
    return ", ".join(name for name in names if "." not in name)


@cached
def _adapter(hint: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter  # imported late: `--help` does not need it

    return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True))
