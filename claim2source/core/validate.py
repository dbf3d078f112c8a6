"""Validate a file's values against a dataclass, naming file and field of what is wrong."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from claim2source.core.errors import InputError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Kind = TypeVar("Kind")


def validated(kind: type[Kind], values: object, path: Path, place: str = "") -> Kind:
    """Make a dataclass of values, or strictly of a JSON text; `place` stands before the field.

    Raises `InputError` for a field that is missing, unknown or of another type.
    """
    from pydantic import TypeAdapter, ValidationError

    adapter = TypeAdapter(kind)
    try:
        if isinstance(values, str):
            return adapter.validate_json(values, strict=True)
        return adapter.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in ((place,) if place else ()) + first["loc"])
        raise InputError.at(path, field=field, why=_why(first)) from None


def _why(error: ErrorDetails) -> str:
    """Word pydantic's error as our own are."""
    if error["type"] == "missing":
        return "is missing"
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return "no such field"
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    allowed = error["msg"].removeprefix("Input should be ")
    if error["type"] == "literal_error":
        allowed = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
    return f"{reprlib.repr(error['input'])} is not allowed; allowed: {allowed}"
