"""Read a pickled pandas DataFrame of plain columns without running anything in it.

Names in a pickle are never imported: those that such a frame needs stand for records of what it
would call and set, and any other name or opcode is refused. The records are then checked, and
become columns.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
import struct
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from claim2source.core.errors import InputError

Cell = str | int | float | bool | None

# Bytes of a file: an opcode of one byte can make a list of 64.
MOST = 2**28
_DTYPE = re.compile(r"b1|[iu][1248]|f[248]|O8|M8|m8")
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_RESOLUTIONS = {7: "s", 8: "ms", 9: "us", 10: "ns"}
_NOT_A_TIME = -(2**63)
_EPOCH = datetime(1970, 1, 1)
# A regular file holds every cell once; reading shared buffers many times over is an attack.
_MOST_READ = 4
# What libraries raise for bytes that are no pickle, or no frame.
_DAMAGED = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, EOFError),
    *(pickle.UnpicklingError, struct.error),
)
_NAMES = {
    "frame": "pandas.DataFrame pandas.core.frame.DataFrame",
    "manager": "pandas.core.internals.managers.BlockManager",
    "block": "pandas._libs.internals._unpickle_block pandas.core.internals.blocks.new_block",
    "new index": "pandas.core.indexes.base._new_Index",
    "index": "pandas.Index pandas.core.indexes.base.Index pandas.core.indexes.numeric.Int64Index",
    "range index": "pandas.RangeIndex pandas.core.indexes.range.RangeIndex",
    "backed": "pandas._libs.arrays.__pyx_unpickle_NDArrayBacked",
    "array class": (
        "pandas.arrays.DatetimeArray pandas.core.arrays.datetimes.DatetimeArray "
        "pandas.arrays.TimedeltaArray pandas.core.arrays.timedeltas.TimedeltaArray "
        "pandas.arrays.StringArray pandas.core.arrays.string_.StringArray"
    ),
    "string dtype": "pandas.StringDtype pandas.core.arrays.string_.StringDtype",
    "arrow strings": (
        "pandas.arrays.ArrowStringArray pandas.core.arrays.string_arrow.ArrowStringArray"
    ),
    "missing": "pandas.NA pandas._libs.missing.NA",
    "not a time": (
        "pandas._libs.tslibs.nattype._nat_unpickle pandas._libs.tslibs.nattype.__nat_unpickle"
    ),
    "timestamp": "pandas._libs.tslibs.timestamps._unpickle_timestamp",
    "date": "datetime.date",
    "datetime": "datetime.datetime",
    "ndarray": "numpy.ndarray",
    "dtype": "numpy.dtype",
    "array": "numpy.core.multiarray._reconstruct numpy._core.multiarray._reconstruct",
    "array of buffer": "numpy.core.numeric._frombuffer numpy._core.numeric._frombuffer",
    "scalar": "numpy.core.multiarray.scalar numpy._core.multiarray.scalar",
    "slice": "builtins.slice __builtin__.slice",
    "bytes": (
        "builtins.bytes __builtin__.bytes builtins.bytearray __builtin__.bytearray "
        "_codecs.encode pyarrow.lib.py_buffer"
    ),
    "arrow type": "pyarrow.lib.type_for_alias",
    "arrow array": "pyarrow.lib._restore_array",
}
# (module, name) -> what it stands for: exact pairs, as pandas 1.5, 2 and 3 write them for a frame
# of plain columns, with numpy 1 or 2, with or without pyarrow.
ADMITTED: dict[tuple[str, str], str] = {
    (name.rpartition(".")[0], name.rpartition(".")[2]): kind
    for kind, names in _NAMES.items()
    for name in names.split()
}
# All that protocols 2 to 5 need for a frame of plain columns.
_OPCODES = frozenset(
    """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT
    SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8
    EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE
    BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD
    """.split()
)


class Refused(Exception):
    """Say why a pickle is not read."""


class Built:
    """Record a call of an admitted name, and the state that its object would be given."""

    __slots__ = ("args", "state")
    kind = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> Built:
        """Record a call."""
        made = object.__new__(cls)
        made.args, made.state = args, None
        return made

    def __setstate__(self, state: Any) -> None:
        """Record the state."""
        self.state = state


# An admitted name stands for a class of its kind: a call of it makes a record.
_KINDS: dict[str, type[Built]] = {
    kind: type("Name", (Built,), {"kind": kind, "__slots__": ()}) for kind in _NAMES
}


def _step(name: str, code: int) -> Callable[[Any], None]:
    """Choose what an opcode does."""

    def refuse(_: Any) -> None:
        raise Refused(f"refused opcode {name}: no DataFrame of plain columns needs it")

    # pickle's own makes room for as many bytes as are claimed, before it reads them.
    code = pickle.BINBYTES8[0] if name == "BYTEARRAY8" else code
    return _Restricted.dispatch[code] if name in _OPCODES else refuse


class _Restricted(pickle._Unpickler):
    """Unpickle records.

    Of pickle's two this is the one written in Python, whose opcodes can be left out: the other
    gives names from a cache of extension codes without asking `find_class`, and makes room for
    a memo of the size that is claimed.
    """

    # The Python class has these; the stubs do not know them.
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def find_class(self, module: str, name: str) -> type[Built]:
        """Return the class of an admitted name."""
        kind = ADMITTED.get((module, name))
        if kind is None:
            shown = f"{module}.{name}"[:200]
            raise Refused(
                f"refused {shown!r}: not part of a DataFrame of plain columns; nothing was run "
                "(own data with such columns: save it again with text, numbers and dates only)"
            )
        return _KINDS[kind]

    def load_setitem(self) -> None:
        """Set one entry of a dict."""
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def load_setitems(self) -> None:
        """Set entries of a dict."""
        self._update(self.pop_mark())

    def _update(self, items: list[Any]) -> None:
        # Only text keys: hashing a tuple nested a million deep would overflow the C stack.
        if type(self.stack[-1]) is not dict or any(type(key) is not str for key in items[::2]):
            raise Refused("damaged: entries for something that is not a dict of text keys")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    dispatch = {
        **pickle._Unpickler.dispatch,
        pickle.SETITEM[0]: load_setitem,  # type: ignore[dict-item]
        pickle.SETITEMS[0]: load_setitems,  # type: ignore[dict-item]
    }


_Restricted.dispatch = {
    ord(opcode.code): _step(opcode.name, ord(opcode.code)) for opcode in pickletools.opcodes
}


def read_frame(path: str | Path) -> dict[str, list[Cell]]:
    """Read the columns of a pickled DataFrame: column name -> [rows] cells; no row labels.

    Cells are str, int, float, bool or None; None, NaN, NA and NaT all become None. Dates are
    ISO 8601 text (`2020-01-31` at midnight, else `2020-01-31T12:00:00`), durations seconds.
    Raises `InputError` naming the file and the (module, name) that is refused, or what makes
    the file unreadable. Memory stays proportional to the size of the file, at most `MOST` bytes.
    """
    try:
        size = Path(path).stat().st_size
        if size > MOST:
            raise InputError.at(path, why=f"{size} bytes; a pickle is read up to {MOST}")
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError.at(path, why="no such file") from None
    except OSError as error:
        raise InputError.at(path, why=f"cannot be read: {error.strerror}") from None
    try:
        return _Reader(_MOST_READ * len(data)).frame(_Restricted(io.BytesIO(data)).load())
    except Refused as refusal:
        raise InputError.at(path, why=str(refusal)) from None
    except _DAMAGED as error:
        why = f"not a pickled DataFrame of plain columns, or damaged ({_short(error)})"
        raise InputError.at(path, why=why) from None
    except (RecursionError, MemoryError):
        raise InputError.at(path, why="nested too deeply or too large to be read") from None


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:100] or type(error).__name__


def _need(holds: bool, why: str) -> None:
    if not holds:
        raise Refused(f"not a DataFrame of plain columns: {why}")


class _Reader:
    """Turn the description of a DataFrame into columns; `budget` is in bytes or cells."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def spend(self, amount: int) -> None:
        self.budget -= amount
        _need(self.budget >= 0, "it claims more data than the file holds")

    def built(self, value: Any, *kinds: str) -> Built:
        _need(isinstance(value, Built) and value.kind in kinds, f"no {' or '.join(kinds)}")
        return value

    def frame(self, top: Any) -> dict[str, list[Cell]]:
        state = self.built(top, "frame").state
        _need(type(state) is dict and "_mgr" in state, "its blocks are missing")
        blocks, axes = self.built(state["_mgr"], "manager").args[:2]
        _need(len(axes) == 2, "it does not have two axes")
        names = self.labels(axes[0])
        columns: list[list[Cell] | None] = [None] * len(names)
        for block in blocks:
            values, placement = self.built(block, "block").args[:2]
            found, places = self.columns(values), self.places(placement, len(names))
            _need(len(found) == len(places), "a block and its columns differ in number")
            for place, column in zip(places, found, strict=True):
                _need(0 <= place < len(names) and columns[place] is None, "columns overlap")
                columns[place] = column
        table = {n: c for n, c in zip(names, columns, strict=True) if c is not None}
        _need(len(table) == len(names), "a column is missing or named twice")
        _need(len({len(column) for column in table.values()}) <= 1, "columns differ in length")
        return table

    def labels(self, index: Any) -> list[str]:
        args = self.built(index, "new index").args
        _need(args[0].kind == "index", "its columns have no names")
        columns = self.columns(args[1]["data"])
        _need(len(columns) == 1, "it has several levels of column names")
        for label in columns[0]:
            _need(isinstance(label, str), f"column name {label!r} is not text")
        return [str(label) for label in columns[0]]

    def places(self, placement: Any, most: int) -> list[int]:
        if isinstance(placement, Built) and placement.kind == "slice":
            places = range(*placement.args)
            _need(len(places) <= most, "a block has more columns than the frame")
            return list(places)
        columns = self.columns(placement)
        _need(len(columns) == 1, "a placement is not a list of columns")
        return [int(place) for place in columns[0] if place is not None]

    def columns(self, values: Any) -> list[list[Cell]]:
        """Read the columns of a block's values, [columns][rows]."""
        node = self.built(values, "array", "array of buffer", "backed", "arrow strings")
        if node.kind == "arrow strings":
            array = node.state["_pa_array"] if "_pa_array" in node.state else node.state["_data"]
            return [self.arrow(array)]
        if node.kind == "backed":
            _need(node.args[0].kind == "array class", "an array of an unknown class")
            arrays = [
                part
                for part in node.state
                if isinstance(part, Built) and part.kind in ("array", "array of buffer")
            ]
            _need(len(arrays) == 1, "an extension array without its data")
            node = arrays[0]
        if node.kind == "array":
            _, shape, dtype, fortran, data = node.state
        else:
            data, dtype, shape, order = node.args
            fortran = order == "F"
        _need(type(shape) is tuple and len(shape) in (1, 2), "an array is not of 1 or 2 dimensions")
        _need(all(type(n) is int and n >= 0 for n in shape), "an array has an impossible shape")
        count, width = (1, shape[0]) if len(shape) == 1 else shape
        self.spend(count + count * width)
        code, kind, unit = self.dtype(dtype)
        if kind == "O":
            # numpy lists objects row by row even where the array is stored column by column.
            _need(type(data) is list and len(data) == count * width, "an array lacks cells")
            return [[self.cell(c) for c in data[i * width : (i + 1) * width]] for i in range(count)]
        raw = self.bytes(data)
        numbers = np.frombuffer(raw, dtype=code)
        _need(numbers.size == count * width, "an array is not as long as its shape says")
        table = numbers.reshape((count, width), order="F" if fortran else "C")
        return [[_number(n, kind, unit) for n in row] for row in table.tolist()]

    def dtype(self, node: Any) -> tuple[str, str, str]:
        """Read the numpy code (times as integers), the kind letter and the time unit."""
        built = self.built(node, "dtype")
        code, state = built.args[0], built.state
        _need(type(code) is str and _DTYPE.fullmatch(code) is not None, "an array of a dtype")
        _need(state[2] is None and state[3] is None and state[4] is None, "a structured array")
        if code == "O8":
            return code, "O", ""
        order = ">" if state[1] == ">" else "<"
        if code[0] not in "Mm":
            return order + code, code[0], ""
        unit = self.bytes(state[8][1][0]).decode("ascii")
        _need(unit in _UNITS and state[8][1][1] == 1, f"a time unit {unit!r}")
        return order + "i8", code[0], unit

    def bytes(self, value: Any) -> bytes:
        """Read bytes, in any of the protocols' forms."""
        if type(value) in (bytes, bytearray):
            self.spend(len(value))
            return bytes(value)
        args = self.built(value, "bytes").args
        if not args:
            return b""
        if type(args[0]) is str:
            _need(args[1] in ("latin1", "latin-1"), "bytes in an unknown encoding")
            self.spend(len(args[0]))
            return args[0].encode("latin-1")
        return self.bytes(args[0])

    def cell(self, value: Any) -> Cell:
        if type(value) in (str, int, bool) or value is None:
            return value
        if type(value) is float:
            return None if math.isnan(value) else value
        if value is _KINDS["missing"]:
            return None
        _need(isinstance(value, Built), f"a cell is a {type(value).__name__}")
        return self.object_cell(value)

    def object_cell(self, node: Built) -> Cell:
        if node.kind == "not a time":
            return None
        if node.kind == "timestamp":
            ticks, _, zone, *resolution = node.args
            _need(zone is None, "a time with a time zone")
            return _time(ticks, _RESOLUTIONS[resolution[0] if resolution else 10])
        if node.kind == "scalar":
            code, kind, unit = self.dtype(node.args[0])
            _need(kind != "O", "a scalar of objects")
            (value,) = np.frombuffer(self.bytes(node.args[1]), dtype=code).tolist()
            return _number(value, kind, unit)
        _need(node.kind in ("date", "datetime") and len(node.args) == 1, f"a cell is a {node.kind}")
        raw = self.bytes(node.args[0])
        year = int.from_bytes(raw[:2], "big")
        if node.kind == "date":
            return date(year, *raw[2:]).isoformat()
        _need(len(raw) == 10, "a time that is not one")
        month, day, hour, minute, second = raw[2:7]
        micro = int.from_bytes(raw[7:], "big")
        return _iso(datetime(year, month, day, hour, minute, second, micro))

    def arrow(self, node: Any) -> list[Cell]:
        (parts,) = self.built(node, "arrow array").args
        kind, length, _, offset, buffers, *_ = parts
        alias = self.built(kind, "arrow type").args[0]
        _need(alias in ("string", "large_string"), f"an arrow array of {alias!r}")
        _need(type(length) is int and length >= 0, "arrow text of an impossible length")
        _need(type(offset) is int and 0 <= offset <= self.budget, "arrow text lacks rows")
        self.spend(length)
        valid, ends, text = (part if part is None else self.bytes(part) for part in buffers)
        make = pyarrow.LargeStringArray if alias == "large_string" else pyarrow.StringArray
        given = [part if part is None else pyarrow.py_buffer(part) for part in (text or b"", valid)]
        array = make.from_buffers(length, pyarrow.py_buffer(ends), *given, -1, offset)
        # Checks that every offset lies in the text and none falls, and that the text is UTF-8.
        array.validate(full=True)
        return array.to_pylist()


def _number(value: Any, kind: str, unit: str) -> Cell:
    if kind in "Mm":
        if value == _NOT_A_TIME:
            return None
        return _time(value, unit) if kind == "M" else float(value / _UNITS[unit])
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


def _time(ticks: int, unit: str) -> str:
    return _iso(_EPOCH + timedelta(microseconds=ticks * 10**6 // _UNITS[unit]))


def _iso(moment: datetime) -> str:
    return moment.date().isoformat() if moment.time() == datetime.min.time() else moment.isoformat()
