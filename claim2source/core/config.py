"""Read configs: dataclasses hold the defaults, YAML files and flags replace them."""

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

import yaml
from annotated_types import Interval

from claim2source.core.errors import ConfigError, InputError, UserError, did_you_mean, report_once
from claim2source.core.files import file_error
from claim2source.core.parts import NamedParts, flag_path, parts_kind
from claim2source.core.program import program_command

log = logging.getLogger(__name__)

# A link to the repository's configs; in an installed package the files themselves.
CONFIGS = Path(__file__).resolve().parents[1] / "configs"
cached: Any = cache  # of classes too, which mypy takes for unhashable
Config = TypeVar("Config")
LARGEST = 10**9  # the largest count
_LIST = "a list, such as [a, b], each {0}"
_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}
_WORDS |= {str: "text", Path: "a path", NoneType: "null", list: _LIST, tuple: _LIST}
_WORDS |= {dict: "a mapping of names to {1}", Any: "any value"}
MOST_VALUES = 100_000  # aliases may stand for billions
NO_TEXT = re.compile("[\0\ud800-\udfff]")
Location = tuple[str, int]  # file and line
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}
_TAG = "tag:yaml.org,2002:"  # before the kind of a node that has no tag of its own
_NUMBER = re.compile(r"(?!.{1000})[-+]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


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
SplitShare = Annotated[float, Between(0, 1, above=True, below=True)]  # not all, not nothing
Seed = Annotated[int, Between(0, 2**32 - 1)]  # NumPy takes none below 0
Repeats = Annotated[int, Between(1, 1_000_000)]


class Settings:
    """Check a dataclass of settings when it is made: bounds of its types, then its own rules."""

    __pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}

    def __post_init__(self) -> None:
        for name, option in config_options(type(self)).items():
            own = "." not in name and option.group is None
            if own and (value := getattr(self, name)) is not option.default:
                try:
                    _refuse_look_alike(option.hint, value)
                    _adapter(option.hint).validate_python(value)
                except (ValueError, OverflowError):
                    raise ConfigError(name, value, allowed_words(option.hint)) from None
        self.check()

    def check(self) -> None:
        """Check the rules between keys; raise `ConfigError` by the key's name within the class."""

    def require_unset(self, but: Collection[str], reason: str) -> None:
        """Raise `ConfigError`, which says `why`, for a key not in `but` that was changed."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            make = field.default_factory
            default = field.default if make is MISSING else make()
            value = getattr(self, field.name)
            if field.name not in but and value != default:
                raise ConfigError(field.name, value, "", reason)


def _refuse_look_alike(hint: Any, value: object) -> None:
    """Raise ValueError for what pydantic would take for a number: true, "5", and 2.0 for 2."""
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
    make: Any = partial(list, default) if default is not None else NoneType
    return dataclasses.field(default_factory=make, metadata={"help": help})


@report_once()
def read_config(
    kind: type[Config],
    argv: Sequence[str] | None,
    *,
    program: str,
    description: str | None,
    common: Sequence[str] = (),
) -> Config:
    """Read `argv` and the YAML files it names into an instance of the dataclass `kind`.

    Flags stand over files, a group's file over `--config`, and what comes later over what came
    before. Unknown keys and wrong values raise `UserError` naming the key; `--print_config` and
    `--help` print and exit. With `common`, the most usual keys, `--help` explains these alone, and
    `--help=all` every key.
    """
    words, options = list(sys.argv[1:] if argv is None else argv), config_options(kind)
    if {"-h", "--help", "--help=all"} & {*words}:
        print(_help(program, description or "", options, () if "--help=all" in words else common))
        sys.exit(0)
    flags: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--") and word != "--":
            key, equals, text = word[2:].partition("=")
            before = flags.pop(key, [])
            goes_on = key == "config" or key in options and _item_type(options[key].hint)
            flags[key] = [*(before if goes_on else ()), *([text] if equals else ())]
        elif flags:
            flags[key].append(word)
        else:
            raise UserError(f"config: {word}: is not an option; --help explains every key")
    prints, values = flags.pop("print_config", None) is not None, YamlMapping()
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


def _overlaid(below: YamlMapping, above: YamlMapping, options: Mapping[str, Option]) -> YamlMapping:
    """Lay values over others; a mapping over a list of named objects changes objects of it."""
    merged = below.overlaid(above)
    for name, value in above.items():
        kind = parts_kind(options[name].hint) if name in options else None
        listed = below.get(name)
        if kind is not None and isinstance(listed, list) and isinstance(value, YamlMapping):
            merged[name] = kind.changed(listed, value)
    return merged


def shipped(path: Path, program: str) -> Path:
    """Return `path`, or the config of the package that `configs/...` names if it is absent.

    Raises `InputError` that lists the configs of `program` if there is neither.
    """
    path = Path(os.path.expanduser(path))
    if path.exists() or path.is_symlink():
        return path
    parts = path.parts
    if parts[:1] == ("configs",) and (packaged := CONFIGS.joinpath(*parts[1:])).is_file():
        log.warning("%s is not here: the one that ships with claim2source is read", path)
        return packaged
    files = sorted(CONFIGS.glob(f"{Path(program).stem}/*.yaml"))
    names = [f"configs/{file.relative_to(CONFIGS).as_posix()}" for file in files]
    reason = "no such file or directory"
    if names:
        reason += f"; these ship with claim2source: {', '.join(names)}"
    raise InputError(path, reason=reason)


def make(kind: type[Config], values: Mapping[str, Any], prefix: str = "") -> Config:
    """Make a dataclass of plain values, or of a YAML file's: mappings for its groups.

    Raises `UserError` by file and line, or by key with `prefix` before it, for what is wrong.
    """
    entries = values
    if not isinstance(values, YamlMapping):
        entries = json.loads(json.dumps(as_plain(values)), object_hook=YamlMapping)
    try:
        return _built(kind, config_options(kind), entries)
    except ConfigError as error:
        if isinstance(entries, YamlMapping) and (origin := entries.at(error.key)):
            raise error.at(origin) from None
        raise ConfigError(prefix + error.key, error.value, error.allowed, error.reason) from None


def as_plain(value: Any) -> Any:
    """Turn a config into JSON-ready values: dataclasses to dicts, paths to text."""

    def to_builtin(part: Any) -> Any:
        if isinstance(part, Path):
            return str(part)
        if isinstance(part, NamedParts):
            return part.as_plain()
        return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}

    return json.loads(json.dumps(value, default=to_builtin))


def to_yaml(value: Any) -> str:
    """Write a config, or plain values, as YAML that `read_yaml` reads back."""
    return yaml.dump(as_plain(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Put texts in quotes that YAML 1.2 would read as another value, such as 1e-1."""

    def text(self, value: str) -> yaml.ScalarNode:
        style = "'" if value.lower() in _CONSTANTS or _NUMBER.fullmatch(value) else None
        return self.represent_scalar(f"{_TAG}str", value, style=style)


_Dumper.add_representer(str, _Dumper.text)


def require(condition: bool, key: str, value: Any, allowed: str | Sequence[str]) -> None:
    if not condition:
        raise ConfigError(key, value, allowed if isinstance(allowed, str) else ", ".join(allowed))


def require_one_of(key: str, value: object, allowed: Sequence[str]) -> None:
    require(value in allowed, key, value, allowed)


@dataclass(frozen=True)
class Option:
    """Describe a key of a config, or a group of keys."""

    hint: Any
    default: Any  # MISSING where the key is required
    help: str
    group: Any = None  # the dataclass of a group
    is_flag: bool = True  # whether the command line takes `--key`


@cached
def config_options(kind: Any, prefix: str = "") -> dict[str, Option]:
    """Map every key of a config to its description, a group's after the group itself.

    Where a group's class names `FLAGS`, these alone of its keys are flags; the others stand in a
    YAML file that the group's own flag takes.
    """
    options: dict[str, Option] = {}
    hints, helps = get_type_hints(kind, include_extras=True), _helps(kind)
    for field in (field for field in dataclasses.fields(kind) if field.init):
        key, hint = f"{prefix}{field.name}", hints[field.name]
        text = field.metadata.get("help") or helps.get(field.name, "")
        group = next((part for part in union_types(hint) if dataclasses.is_dataclass(part)), None)
        default, factory = field.default, field.default_factory
        if group is None:
            options[key] = Option(hint, default if factory is MISSING else factory(), text)
            parts = parts_kind(options[key].hint)
            for name, part in ({} if parts is None else parts.known).items():
                options |= config_options(part, f"{key}.{name}.")
            continue
        group_options, flags = config_options(group, f"{key}."), getattr(group, "FLAGS", None)
        if flags:
            text = f"{text.rstrip('.')}: a YAML file of {', '.join(config_options(group))}"
            for name, option in group_options.items():
                group_options[name] = replace(option, is_flag=name.removeprefix(f"{key}.") in flags)
        default = MISSING if default is factory is MISSING else None
        own = Option(hint, default, text, group, bool(flags) or NoneType in union_types(hint))
        options |= {key: own, **group_options}
    return options


def _helps(kind: type) -> dict[str, str]:
    helps: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, args = inspect.cleandoc(base.__doc__ or "").partition("Args:\n")
        for name, about in re.findall(r"^    (\w+): (.*(?:\n        .*)*)", args, re.MULTILINE):
            helps[name] = " ".join(about.split())
    return helps


def union_types(hint: Any) -> tuple[Any, ...]:
    """Return the types that a value may have one of, each without bounds."""
    if get_origin(hint) not in (Annotated, Union, UnionType):
        return (hint,)
    inner = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
    return tuple(part for member in inner for part in union_types(member))


def _is_text(hint: Any) -> bool:
    return {*union_types(hint)} - {NoneType} in ({str}, {Path}, {str, Path})


def _item_type(hint: Any) -> Any:
    lists = (part for part in union_types(hint) if get_origin(part) in (list, tuple))
    return next((get_args(part)[0] for part in lists), None)


def allowed_words(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(map(str, inner))
    words = [allowed_words(part) for part in inner]
    if isinstance(hint, Interval):
        low = f"above {hint.gt}" if hint.ge is None else hint.ge
        return f"{low} to {hint.le}" if hint.lt is None else f"{low} to below {hint.lt}"
    if origin is Annotated or origin in (Union, UnionType):
        return (", " if origin is Annotated else " or ").join(words)
    return _WORDS.get(origin or hint, getattr(hint, "__name__", str(hint))).format(
        *words, "a value", "a value"
    )


def _help(program: str, about: str, options: Mapping[str, Option], common: Sequence[str]) -> str:
    command, gap = program_command(program), " " * 6
    lines = [f"usage: {command} [--config FILE ..] [--print_config] [--key value ..]", ""]
    lines += [about.strip().replace(f"python {program}", command), ""]
    if common:
        lines += [f"The {len(common)} keys that people change most; --help=all explains every one:"]
    for key in common or options:
        option = options[key]
        if option.is_flag:
            value = allowed_words(Path if option.hint is option.group else option.hint)
            value = f", --no_{key}" if option.hint in (bool, bool | None) else f" {value}"
            lines += textwrap.wrap(f"  --{key}{value}", 110, subsequent_indent=" " * 8)
            default = "required"
            if option.default is not MISSING:
                default = f"default: {json.dumps(as_plain(option.default), ensure_ascii=False)}"
            text = f"{option.help} ({default})".strip()
            lines += textwrap.wrap(text, 110, initial_indent=gap, subsequent_indent=gap)
    return "\n".join(lines)


def _read_flag(options: Mapping[str, Option], key: str, words: list[str]) -> Any:
    """Read a flag as a YAML file of its one key; without a word it is true, `--no_key` false."""
    if key not in options and key != "config" and (guess := did_you_mean(key, ["config"])):
        raise ConfigError(key, words, "", f"no such key; {guess.strip()}")
    unset = () if words or key in options else options
    name = next((name for name in unset if key == f"no_{name}"), key)
    option, origin = options.get(name, Option(Any, None, "")), None
    if not option.is_flag:
        inner = next((f"give --{name}, .." for name in options if name.startswith(f"{key}.")), "")
        raise UserError(f"config: --{key}: is not a flag; {inner or 'write it in a YAML file'}")
    value: Any = name == key
    if words and option.group is not None and words[0] != "null" and not words[0].startswith("{"):
        file = shipped(Path(words[0]), key)
        value, origin = read_mapping(file), (str(file), 1)
    elif words:
        is_null = words == ["null"] and NoneType in union_types(option.hint)
        item = None if is_null or words[0].startswith("[") else _item_type(option.hint)
        if item is None and len(words) > 1 and name in options:
            quotes = ", in quotes where it has spaces" if _is_text(option.hint) else ""
            allowed = f"{allowed_words(option.hint)}{quotes}; other words come first"
            raise ConfigError(key, words, allowed)
        value = [_read_word(key, item or option.hint, word) for word in words]
        value = value if item else value[0]
    first = options.get(name.partition(".")[0])
    for part in reversed(flag_path(name, None if first is None else first.hint)):
        value = YamlMapping({part: value}, {part: origin})
    return value


def _read_word(key: str, hint: Any, word: str) -> Any:
    try:
        text = _is_text(hint) and word != "null" and not NO_TEXT.search(word)
        return word if text else read_yaml(word)
    except InputError as error:
        raise ConfigError(
            key, word, f"a value as YAML has it ({error.problems[0].reason})"
        ) from None


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
            values[name] = _typed_value(key, option, value)  # else null: as if it were not there
    absent = (
        prefix + name for name in config_options(kind) if name not in values and "." not in name
    )
    if key := next((key for key in absent if options[key].default is MISSING), ""):
        raise ConfigError(key, None, "a value", f"is required; give --{key}")
    try:
        return kind(**values)
    except ConfigError as error:  # its key may name the groups that it stands in
        groups, (group, dot, _) = prefix.split(".")[:-1], error.key.partition(".")
        groups = groups[: groups.index(group)] if dot and group in groups else groups
        key = ".".join([*groups, error.key])
        raise ConfigError(key, error.value, error.allowed, error.reason) from None


def _typed_value(key: str, option: Option, value: Any) -> Any:
    """Read a value of YAML's as its type wants it: a number as it is written where text is."""
    parts = parts_kind(option.hint)
    if parts is not None:
        return parts.read(key, value)
    value = _with_home(value, option.hint)
    texts = value if isinstance(value, list) else [value]
    if _is_text(_item_type(option.hint) or option.hint):
        texts = [getattr(text, "text", text) for text in texts]
        value = texts if isinstance(value, list) else texts[0]
        if option.default != "" and any(isinstance(t, str) and not t.strip() for t in texts):
            folder_hint = " (. is this folder)" if Path in union_types(option.hint) else ""
            raise ConfigError(key, value, f"{allowed_words(option.hint)}, not empty{folder_hint}")
    try:
        return _adapter(option.hint).validate_json(json.dumps(value), strict=True)
    except ValueError:  # of pydantic
        raise ConfigError(key, value, allowed_words(option.hint)) from None


def _with_home(value: Any, hint: Any) -> Any:
    """Replace a path's `~` by the home; a name or an address that may be a path is one too."""
    if isinstance(value, list):
        return [_with_home(part, hint) for part in value]
    if isinstance(value, YamlMapping):
        parts = {name: _with_home(part, hint) for name, part in value.items()}
        return YamlMapping(parts, value.locations)
    if not isinstance(value, str) or not (value == "~" or value.startswith("~/")):
        return value
    return os.path.expanduser(value) if _leaves(hint) & {str, Path} else value


def _leaves(hint: Any) -> set[Any]:
    """Return the types that a value may have, or the values within a list or a mapping."""
    leaves: set[Any] = set()
    for part in union_types(hint):
        inner = get_args(part) if get_origin(part) in (list, tuple, dict) else ()
        within = inner[1:] if get_origin(part) is dict else inner
        leaves |= set().union(*map(_leaves, within)) if within else {part}
    return leaves


def _names_in(options: Mapping[str, Option], group: str) -> str:
    names = (key.removeprefix(group) for key in options if key.startswith(group))
    return ", ".join(name for name in names if "." not in name)


@cached
def _adapter(hint: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter  # not above: `--help` does without

    return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True))


class YamlMapping(dict[str, Any]):
    """Values of a YAML mapping, and the place of each key; None if no file set it."""

    def __init__(self, values: Any = (), locations: Any = ()) -> None:
        super().__init__(values)
        self.locations: dict[str, Location | None] = {**dict.fromkeys(self), **dict(locations)}

    def overlaid(self, over: YamlMapping) -> YamlMapping:
        merged = YamlMapping({**self, **over}, {**self.locations, **over.locations})
        for name, value in over.items():
            if isinstance(value, YamlMapping) and isinstance(self.get(name), YamlMapping):
                merged[name] = self[name].overlaid(value)
        return merged

    def at(self, key: str) -> Location | None:
        """Look up where a dotted key is set."""
        if key in self:
            return self.locations.get(key)
        for name, value in self.items():
            if not key.startswith(f"{name}."):
                continue
            rest = key[len(name) + 1 :]
            if isinstance(value, YamlMapping):
                return value.at(rest)
            for part in value if isinstance(value, list) else ():
                place = part.at_part(rest) if isinstance(part, YamlMapping) else None
                if place is not None:
                    return place
        return None

    def at_part(self, key: str) -> Location | None:
        """Look up where a key of a named part is set, or the part itself if it is not."""
        for name in self:
            if f"{key}.".startswith(f"{name}."):
                return self.at(key) or self.locations[name]
        return None


class _Reader:
    """Read nodes as YAML 1.2 does: 5e-5 is a number; no, off and dates are text."""

    def __init__(self, file: str) -> None:
        self.file, self.left = file, MOST_VALUES

    def read(self, node: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise InputError(self.file, reason=f"holds more than {MOST_VALUES} values")
        if isinstance(node, yaml.SequenceNode):
            self.require_untagged(node, "seq")
            return [self.read(part) for part in node.value]
        if isinstance(node, yaml.MappingNode):
            self.require_untagged(node, "map")
            return self.mapping(node)
        text = self.text(node)
        if node.style is None and text.lower() in _CONSTANTS:
            return _CONSTANTS[text.lower()]
        if node.style is None and _NUMBER.fullmatch(text):
            kind = float if {*text} & {*".eE"} else int
            return type("Number", (kind,), {"text": text})(text)  # for where a text is wanted
        return text

    def mapping(self, node: yaml.MappingNode) -> YamlMapping:
        values, origins = dict[str, Any](), dict[str, Location | None]()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.problem(key, "a key must be plain text")
            self.text(key)
            if key.value in values:
                raise self.problem(key, f"{key.value}: is set twice in this file")
            values[key.value] = self.read(value)
            origins[key.value] = (self.file, key.start_mark.line + 1) if self.file else None
        return YamlMapping(values, origins)

    def text(self, node: yaml.ScalarNode) -> str:
        text: str = node.value
        if NO_TEXT.search(text):
            raise self.problem(node, f"{text[:40]!r} holds a NUL character or half of one")
        self.require_untagged(node, "str")
        return text

    def require_untagged(self, node: yaml.Node, kind: str) -> None:
        if node.tag != f"{_TAG}{kind}":
            tag = node.tag.replace(_TAG, "!!")
            what = repr(node.value[:40]) if kind == "str" else f"what has the tag {tag[:40]}"
            raise self.problem(node, f"{what} cannot be read as a value")

    def problem(self, node: yaml.Node, reason: str) -> InputError:
        return InputError(self.file, node.start_mark.line + 1, reason=reason)


def read_yaml(source: Path | str) -> Any:
    """Read a YAML file, or a text; None if it is empty. Raises `InputError`."""
    line, name = None, str(source) if isinstance(source, Path) else ""
    try:
        if isinstance(source, Path):
            if reason := file_error(source):
                raise InputError(name, reason=reason)
            source = source.read_text(encoding="utf-8")
        node = yaml.compose(source, Loader=yaml.BaseLoader)
        return None if node is None else _Reader(name).read(node)
    except UnicodeDecodeError:
        reason = "not UTF-8"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        reason = f"not YAML: {getattr(error, 'problem', None) or error}"
    except RecursionError:
        reason = "nested too deeply, or within itself"
    raise InputError(name, line, reason=reason)


def read_mapping(path: Path) -> YamlMapping:
    """Read a YAML file of keys; an empty one has none. Raises `InputError`."""
    values = read_yaml(path)
    if values is not None and not isinstance(values, YamlMapping):
        raise InputError(path, 1, reason="must be `key: value` lines")
    return values or YamlMapping()
