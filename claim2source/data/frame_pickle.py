"""Read a pickled pandas DataFrame of plain columns without running anything in it.

Names in a pickle are never imported. The names that such a frame needs are replaced by classes
that record what it would call and set; any other name or opcode is refused. The records are then
checked and converted to columns.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np

from claim2source.core.errors import InputError

Cell = str | int | float | bool | None

# Limit of a file in bytes: an opcode of one byte can make a list of 64 bytes.
MAX_BYTES = 2**28
_DTYPE = re.compile(r"b1|[iu][1248]|f[248]|O8|M8|m8")
_UNITS = ("s", "ms", "us", "ns")
_RESOLUTIONS = {7: "s", 8: "ms", 9: "us", 10: "ns"}
# A regular file has every cell once; reading shared buffers many times is an attack.
_MOST_READ = 4
# Errors of libraries for bytes that are not a pickle, or not a frame.
_DAMAGED = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, EOFError),
    *(pickle.UnpicklingError, struct.error),
)
# Kinds of the allowed names: the exact modules and names that pandas 1.5, 2 and 3 write for a frame
# of plain columns, with numpy 1 or 2, with or without pyarrow.
_NAMES = """
frame: pandas.DataFrame pandas.core.frame.DataFrame
manager: pandas.core.internals.managers.BlockManager
block: pandas._libs.internals._unpickle_block pandas.core.internals.blocks.new_block
new index: pandas.core.indexes.base._new_Index
index: pandas.Index pandas.core.indexes.base.Index pandas.core.indexes.numeric.Int64Index
range index: pandas.RangeIndex pandas.core.indexes.range.RangeIndex
backed: pandas._libs.arrays.__pyx_unpickle_NDArrayBacked
array class: pandas.arrays.DatetimeArray pandas.core.arrays.datetimes.DatetimeArray
array class: pandas.arrays.TimedeltaArray pandas.core.arrays.timedeltas.TimedeltaArray
array class: pandas.arrays.StringArray pandas.core.arrays.string_.StringArray
string dtype: pandas.StringDtype pandas.core.arrays.string_.StringDtype
arrow strings: pandas.arrays.ArrowStringArray pandas.core.arrays.string_arrow.ArrowStringArray
missing: pandas.NA pandas._libs.missing.NA
not a time: pandas._libs.tslibs.nattype._nat_unpickle pandas._libs.tslibs.nattype.__nat_unpickle
timestamp: pandas._libs.tslibs.timestamps._unpickle_timestamp
date: datetime.date
datetime: datetime.datetime
ndarray: numpy.ndarray
dtype: numpy.dtype
array: numpy.core.multiarray._reconstruct numpy._core.multiarray._reconstruct
array of buffer: numpy.core.numeric._frombuffer numpy._core.numeric._frombuffer
scalar: numpy.core.multiarray.scalar numpy._core.multiarray.scalar
slice: builtins.slice __builtin__.slice
bytes: builtins.bytes __builtin__.bytes builtins.bytearray __builtin__.bytearray
bytes: _codecs.encode pyarrow.lib.py_buffer
arrow type: pyarrow.lib.type_for_alias
arrow array: pyarrow.lib._restore_array
"""
ADMITTED: dict[tuple[str, str], str] = {
    (name.rpartition(".")[0], name.rpartition(".")[2]): kind
    for kind, _, names in (line.partition(": ") for line in _NAMES.strip().splitlines())
    for name in names.split()
}
# The opcodes that protocols 2 to 5 need for a frame of plain columns.
_OPCODES = """
PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT
SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 EMPTY_LIST APPEND APPENDS
EMPTY_DICT EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET
GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD
""".split()


class RecordedCall:
    """Record of a call of an allowed name, and the state of the object that it would make."""

    __slots__ = ("args", "state")
    kind = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> RecordedCall:
        call = object.__new__(cls)
        call.args, call.state = args, None
        return call

    def __setstate__(self, state: Any) -> None:
        self.state = state


# Each kind of name has a class; calling it makes a record.
_KINDS: dict[str, type[RecordedCall]] = {
    kind: type("Name", (RecordedCall,), {"kind": kind, "__slots__": ()})
    for kind in ADMITTED.values()
}


class _Restricted(pickle._Unpickler):
    """Unpickle records, with few opcodes.

    This is pickle's implementation in Python, whose opcodes can be removed. The one in C returns
    names from a cache of extension codes without calling `find_class`, and allocates a memo of the
    size that the file claims.
    """

    # The Python class has these, but the stubs do not.
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def find_class(self, module: str, name: str) -> type[RecordedCall]:
        kind = ADMITTED.get((module, name))
        _need(kind is not None, f"refused {f'{module}.{name}'[:200]!r}; nothing was run")
        return _KINDS[str(kind)]

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def load_setitems(self) -> None:
        self._update(self.pop_mark())

    def _update(self, items: list[Any]) -> None:
        # Only text keys: hashing a tuple nested a million deep would overflow the C stack.
        keyed = type(self.stack[-1]) is dict and all(type(key) is str for key in items[::2])
        _need(keyed, "entries for something that is not a dict of text keys")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))


class _Dispatch(dict[int, Callable[[Any], None]]):
    def __missing__(self, code: int) -> Callable[[Any], None]:
        raise pickle.UnpicklingError(f"refused opcode {code:#04x}")


_Restricted.dispatch = _Dispatch(
    {
        getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]]
        for name in _OPCODES
    }
)
_Restricted.dispatch |= {
    pickle.SETITEM[0]: _Restricted.load_setitem,  # type: ignore[dict-item]
    pickle.SETITEMS[0]: _Restricted.load_setitems,  # type: ignore[dict-item]
    # pickle's own allocates the claimed number of bytes before it reads them.
    pickle.BYTEARRAY8[0]: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]],
}


def read_frame(path: str | Path) -> dict[str, list[Cell]]:
    """Read the columns of a pickled DataFrame: column name -> [rows] cells; no row labels.

    Cells are str, int, float, bool or None; None, NaN, NA and NaT all become None. Dates are
    ISO 8601 text (`2020-01-31` at midnight, else `2020-01-31T12:00:00`), durations seconds.
    Raises `InputError` with the file and the module and name that is refused, or the reason why
    the file is unreadable. Memory is proportional to the size of the file, which is at most
    `MAX_BYTES` bytes.
    """
    try:
        size = Path(path).stat().st_size
        if size > MAX_BYTES:
            raise InputError(path, reason=f"{size} bytes; a pickle may have at most {MAX_BYTES}")
        data = Path(path).read_bytes()
        return _Reader(_MOST_READ * len(data)).frame(_Restricted(io.BytesIO(data)).load())
    except FileNotFoundError:
        reason = "no such file"
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except _DAMAGED as error:
        short = " ".join(str(error).split())[:300] or type(error).__name__
        reason = f"not a pickled DataFrame of plain columns, or damaged: {short}"
    except (RecursionError, MemoryError):
        reason = "nested too deeply or too large"
    raise InputError(path, reason=reason)


def _need(holds: bool, reason: str) -> None:
    if not holds:
        raise pickle.UnpicklingError(reason)


class _Reader:
    """Convert the records of a DataFrame to columns; `budget` is in bytes or cells."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def spend(self, amount: int) -> None:
        self.budget -= amount
        _need(self.budget >= 0, "it claims more data than the file has")

    def built(self, value: Any, *kinds: str) -> RecordedCall:
        _need(isinstance(value, RecordedCall) and value.kind in kinds, f"no {' or '.join(kinds)}")
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
            block_columns, positions = self.columns(values), self.positions(placement, len(names))
            _need(len(block_columns) == len(positions), "a block and its columns differ in number")
            for position, column in zip(positions, block_columns, strict=True):
                _need(0 <= position < len(names) and columns[position] is None, "columns overlap")
                columns[position] = column
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

    def positions(self, placement: Any, limit: int) -> list[int]:
        if isinstance(placement, RecordedCall) and placement.kind == "slice":
            positions = range(*placement.args)
            _need(len(positions) <= limit, "a block has more columns than the frame")
            return list(positions)
        columns = self.columns(placement)
        _need(len(columns) == 1, "a placement is not a list of columns")
        return [int(position) for position in columns[0] if position is not None]

    def columns(self, values: Any) -> list[list[Cell]]:
        """Return the columns of a block's values, [columns][rows]."""
        node = self.built(values, "array", "array of buffer", "backed", "arrow strings")
        if node.kind == "arrow strings":
            array = node.state["_pa_array"] if "_pa_array" in node.state else node.state["_data"]
            return [self.arrow(array)]
        if node.kind == "backed":
            _need(node.args[0].kind == "array class", "an array of an unknown class")
            arrays = [
                part
                for part in node.state
                if isinstance(part, RecordedCall) and part.kind in ("array", "array of buffer")
            ]
            _need(len(arrays) == 1, "an extension array without its data")
            node = arrays[0]
        if node.kind == "array":
            _, shape, dtype, fortran, data = node.state
        else:
            data, dtype, shape, order = node.args
            fortran = order == "F"
        _need(type(shape) is tuple and len(shape) in (1, 2), "an array without 1 or 2 dimensions")
        _need(all(type(n) is int and n >= 0 for n in shape), "an array has an impossible shape")
        count, width = (1, shape[0]) if len(shape) == 1 else shape
        self.spend(count + count * width)
        kind = self.dtype(dtype)
        if kind.kind == "O":
            # numpy lists objects row by row even if the array is stored column by column.
            _need(type(data) is list and len(data) == count * width, "an array lacks cells")
            return [[self.cell(c) for c in data[i * width : (i + 1) * width]] for i in range(count)]
        flat = np.frombuffer(self.bytes(data), kind)
        _need(flat.size == count * width, "an array is not as long as its shape says")
        return list(map(_cells, flat.reshape((count, width), order="F" if fortran else "C")))

    def dtype(self, node: Any) -> np.dtype[Any]:
        built = self.built(node, "dtype")
        code, state = built.args[0], built.state
        _need(type(code) is str and _DTYPE.fullmatch(code) is not None, "an array of a dtype")
        _need(state[2] is None and state[3] is None and state[4] is None, "a structured array")
        order = ">" if state[1] == ">" else "<"
        if code[0] not in "Mm":
            return np.dtype("O" if code == "O8" else order + code)
        unit = self.bytes(state[8][1][0]).decode("ascii")
        _need(unit in _UNITS and state[8][1][1] == 1, f"a time unit {unit!r}")
        return np.dtype(f"{order}{code}[{unit}]")

    def bytes(self, value: Any) -> bytes:
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
        if type(value) in (str, int, float, bool) or value is None:
            return _plain_value(value)
        if value is _KINDS["missing"]:
            return None
        _need(isinstance(value, RecordedCall), f"a cell is a {type(value).__name__}")
        if value.kind == "not a time":
            return None
        if value.kind == "timestamp":
            ticks, _, zone, *resolution = value.args
            _need(zone is None, "a time with a time zone")
            unit = _RESOLUTIONS[resolution[0] if resolution else 10]
            return _cells(np.array([ticks], f"M8[{unit}]"))[0]
        if value.kind == "scalar":
            kind = self.dtype(value.args[0])
            _need(kind.kind != "O", "a scalar of objects")
            return _cells(np.frombuffer(self.bytes(value.args[1]), kind, 1))[0]
        _need(value.kind in ("date", "datetime"), f"a cell is a {value.kind}")
        raw = self.bytes(*value.args)
        year = int.from_bytes(raw[:2], "big")
        if value.kind == "date":
            return date(year, *raw[2:]).isoformat()
        month, day, hour, minute, second = raw[2:7]
        micro = int.from_bytes(raw[7:], "big")
        return _plain_value(datetime(year, month, day, hour, minute, second, micro))

    def arrow(self, node: Any) -> list[Cell]:
        import pyarrow

        (parts,) = self.built(node, "arrow array").args
        kind, length, _, offset, buffers, *_ = parts
        alias = self.built(kind, "arrow type").args[0]
        _need(alias in ("string", "large_string"), f"an arrow array of {alias!r}")
        _need(type(length) is int and length >= 0, "arrow text of an impossible length")
        _need(type(offset) is int and 0 <= offset <= self.budget, "arrow text lacks rows")
        self.spend(length)
        valid, ends, text = (part if part is None else self.bytes(part) for part in buffers)
        make = pyarrow.LargeStringArray if alias == "large_string" else pyarrow.StringArray
        texts, rows = pyarrow.py_buffer(text or b""), pyarrow.py_buffer(ends)
        mask = None if valid is None else pyarrow.py_buffer(valid)
        array = make.from_buffers(length, rows, texts, mask, -1, offset)
        # Checks that offsets are within the text and do not decrease, and that it is UTF-8.
        array.validate(full=True)
        return array.to_pylist()


def _cells(values: np.ndarray) -> list[Cell]:
    if values.dtype.kind == "m":
        values = values / np.timedelta64(1, "s")
    elif values.dtype.kind == "M":
        years = values.astype("M8[Y]").astype(np.int64) + 1970
        is_date = (years > 0) & (years < 10_000) | np.isnat(values)
        _need(bool(is_date.all()), "a time outside the years 1 to 9999")
        values = values.astype("M8[us]")
    return [_plain_value(value) for value in values.tolist()]


def _plain_value(value: Any) -> Cell:
    if isinstance(value, datetime):
        midnight = value.time() == datetime.min.time()
        return value.date().isoformat() if midnight else value.isoformat()
    missing = isinstance(value, float) and math.isnan(value)
    return None if missing else value
