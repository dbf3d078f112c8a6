"""Validate a file's values against a dataclass; errors name file and field."""

from __future__ import annotations

import json
import math
import reprlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from claim2source.core.errors import ConfigError, InputError, did_you_mean_value
from claim2source.core.files import file_error

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

Kind = TypeVar("Kind")
# Limit of a JSON file that is read at once; the largest tokenizers have a tenth of it.
MOST_BYTES = 2**28


class Strict:
    """Make `validated` refuse fields that a subclass does not have."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def read_json(path: Path, *, ours: bool = True) -> object:
    """Read a JSON file. Raises `InputError` if it is missing or damaged.

    With `ours`, for a file that we wrote, numbers must be finite and integers must fit 64 bits.
    """
    if reason := file_error(path):
        raise InputError(path, reason=reason)
    require_size(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(path, reason=(error.strerror or str(error)).lower()) from None
    return parsed_json(data, path, ours=ours)


def require_size(path: Path) -> None:
    """Raise `InputError` if a file is too large to be read at once."""
    try:
        size = path.stat().st_size
    except OSError:
        return
    if reason := size_error(size):
        raise InputError(path, reason=reason)


def size_error(size: int) -> str:
    """Return the reason not to read a file of this many bytes; "" if it is small enough."""
    if size <= MOST_BYTES:
        return ""
    return f"is too large: {size} bytes; a JSON file may have at most {MOST_BYTES}"


def parsed_json(data: bytes, path: str | Path, *, ours: bool = True) -> object:
    """Parse the JSON of a file; `path` is named in errors, as in `read_json`."""
    try:
        text = data.decode()
        if not ours:
            return json.loads(text)
        return json.loads(text, parse_int=_integer, parse_float=_finite, parse_constant=_finite)
    except json.JSONDecodeError as error:
        raise InputError(path, error.lineno, reason=f"not JSON: {error.msg}") from None
    except UnicodeDecodeError:
        raise InputError(path, reason="not JSON: not UTF-8") from None
    except RecursionError:
        raise InputError(path, reason="not readable JSON: nested too deeply") from None
    except ValueError as error:
        raise InputError(path, reason=f"not readable JSON: {error}") from None


def _integer(text: str) -> int:
    if len(text) > 19:
        raise ValueError(f"the number {text[:40]} is too long")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text[:40]} is not finite")
    return number


def validated(kind: type[Kind], values: object, path: str | Path, prefix: str = "") -> Kind:
    """Make a dataclass from values, or strictly from a JSON text.

    Raises `InputError` for a field that is missing, unknown or of another type, with `prefix`
    before its name.
    """
    from pydantic import ValidationError

    hashable: Any = kind
    adapter: TypeAdapter[Kind] = _adapter(hashable)
    try:
        if isinstance(values, str):
            return adapter.validate_json(values, strict=True)
        return adapter.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in ((prefix,) if prefix else ()) + first["loc"])
        raise InputError(path, field=field, reason=_reason(first)) from None


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _reason(error: ErrorDetails) -> str:
    if error["type"] == "missing":
        return "is missing"
    if error["type"] == "json_invalid":
        return f"not JSON: {error['ctx']['error']}"
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return "no such field"
    if error["type"] == "value_error":
        rule = error["ctx"]["error"]
        if isinstance(rule, ConfigError):
            return f"{rule.key}: {rule.reason}"
        return str(rule)
    allowed = error["msg"].removeprefix("Input should be ")
    if error["type"] == "literal_error":
        allowed = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
    near = did_you_mean_value(error["input"], allowed)
    return f"{reprlib.repr(error['input'])} is not allowed; {near}allowed: {allowed}"
