"""One way to read a config: a dataclass holds the defaults, a YAML and flags what differs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from jsonargparse import ActionYesNo, ArgumentError, ArgumentParser, Namespace

from claim2source.errors import ConfigError, UserError

Config = TypeVar("Config")

REPOSITORY = Path(__file__).resolve().parent.parent


def parser_for(kind: type[Config], program: str, description: str) -> ArgumentParser:
    """A parser whose keys are the fields of the dataclass `kind`, with `--config FILE`."""
    parser = ArgumentParser(prog=program, description=description, exit_on_error=False)
    parser.add_argument("--config", action="config", help="YAML with what differs")
    many = {f.name: f for f in dataclasses.fields(kind) if "several" in f.metadata}  # type: ignore[arg-type]
    flags = {f.name: f for f in dataclasses.fields(kind) if "flag" in f.metadata}  # type: ignore[arg-type]
    parser.add_class_arguments(kind, as_group=False, skip={*many, *flags})
    for name, spec in flags.items():
        action = ActionYesNo(yes_prefix="", no_prefix="no_")
        parser.add_argument(
            f"--{name}", action=action, default=spec.default, help=spec.metadata["flag"]
        )
    for name, spec in many.items():
        parser.add_argument(
            f"--{name}",
            nargs="+",
            type=spec.metadata["several"],
            action="extend" if spec.metadata["repeats"] else "store",
            default=None if spec.default_factory is dataclasses.MISSING else spec.default_factory(),
            help=spec.metadata["help"],
        )
    return parser


def flag(help: str, default: bool = False) -> Any:
    """A dataclass field that is set by `--name` alone and unset by `--no_name`."""
    return dataclasses.field(default=default, metadata={"flag": help})


def several(
    kind: type, default: Sequence[Any] | None = None, *, repeats: bool = False, help: str = ""
) -> Any:
    """A dataclass field that takes several values: `--name a b`, or `--name a --name b`."""
    metadata = {"several": kind, "repeats": repeats, "help": help}
    if default is None:
        return dataclasses.field(default=None, metadata=metadata)
    return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)


def read_config(
    kind: type[Config], argv: Sequence[str] | None, *, program: str, description: str
) -> Config:
    """Parse `argv` (and the YAML it names) into an instance of the dataclass `kind`.

    Unknown keys and wrong types raise `UserError` naming the key; `--print_config` and
    `--help` print and exit.
    """
    parser = parser_for(kind, program, description)
    try:
        parsed = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
        return build(kind, parser, parsed)
    except ArgumentError as error:
        raise UserError(f"config: {_one_line(error)}") from None


def build(kind: type[Config], parser: ArgumentParser, parsed: Namespace) -> Config:
    """Turn parsed values into the dataclass, with its own checks."""
    values = parser.instantiate_classes(parsed)
    fields = {f.name: values[f.name] for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**fields)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def as_plain(value: Any) -> Any:
    """A config as JSON-ready values: dataclasses to dicts, paths to text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def to_yaml(value: Any) -> str:
    """A config as YAML text, in field order."""
    return yaml.safe_dump(as_plain(value), sort_keys=False, allow_unicode=True)


def require(condition: bool, key: str, value: Any, allowed: str) -> None:
    """Raise `ConfigError` unless `condition` holds."""
    if not condition:
        raise ConfigError(key, value, allowed)
