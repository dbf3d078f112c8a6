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
_RESOLUTIONS = {
    7: "s",
    8: "ms",
    9: "us",
    10: "ns",
}
# A regular file has every cell once; reading shared buffers many times is an attack.
_MOST_READ = 4
# Errors of libraries for bytes that are not a pickle, or not a frame.
_DAMAGED = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    EOFError,
    pickle.UnpicklingError,
    struct.error,
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


def _admitted() -> dict[tuple[str, str], str]:
    """Read the kinds of the allowed names: (module, name) -> kind."""
    kinds: dict[tuple[str, str], str] = {}
    for line in _NAMES.strip().splitlines():
        kind, _, full_names = line.partition(": ")
        for full_name in full_names.split():
            module, _, name = full_name.rpartition(".")
            kinds[module, name] = kind
    return kinds


ADMITTED: dict[tuple[str, str], str] = _admitted()
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
        call.args = args
        call.state = None
        return call

    def __setstate__(self, state: Any) -> None:
        self.state = state


# Each kind of name has a class; calling it makes a record.
_KINDS: dict[str, type[RecordedCall]] = {
    kind: type(
        "Name",
        (RecordedCall,),
        {"kind": kind, "__slots__": ()},
    )
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
        full_name = f"{module}.{name}"[:200]
        _need(kind is not None, f"refused {full_name!r}; nothing was run")
        return _KINDS[str(kind)]

    def load_setitem(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self._update([key, value])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self._update(items)

    def _update(self, items: list[Any]) -> None:
        table = self.stack[-1]
        keys = items[::2]
        values = items[1::2]
        # Only text keys: hashing a tuple nested a million deep would overflow the C stack.
        keyed = type(table) is dict and all(type(key) is str for key in keys)
        _need(keyed, "entries for something that is not a dict of text keys")
        table.update(zip(keys, values, strict=True))


class _Dispatch(dict[int, Callable[[Any], None]]):
    def __missing__(self, code: int) -> Callable[[Any], None]:
        raise pickle.UnpicklingError(f"refused opcode {code:#04x}")


def _dispatch() -> _Dispatch:
    """Make the table of the opcodes that pickle handles itself."""
    table = _Dispatch()
    for name in _OPCODES:
        code = getattr(pickle, name)[0]
        table[code] = pickle._Unpickler.dispatch[code]
    return table


_Restricted.dispatch = _dispatch()
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
        budget = _MOST_READ * len(data)
        reader = _Reader(budget)
        top = _Restricted(io.BytesIO(data)).load()
        return reader.frame(top)
    except FileNotFoundError:
        reason = "no such file"
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except _DAMAGED as error:
        words = str(error).split()
        short = " ".join(words)[:300] or type(error).__name__
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
        is_of_kind = isinstance(value, RecordedCall) and value.kind in kinds
        _need(is_of_kind, f"no {' or '.join(kinds)}")
        return value

    def frame(self, top: Any) -> dict[str, list[Cell]]:
        state = self.built(top, "frame").state
        has_blocks = type(state) is dict and "_mgr" in state
        _need(has_blocks, "its blocks are missing")
        manager = self.built(state["_mgr"], "manager")
        blocks, axes = manager.args[:2]
        _need(len(axes) == 2, "it does not have two axes")
        names = self.labels(axes[0])

        columns: list[list[Cell] | None] = [None] * len(names)
        for block in blocks:
            self.place(block, columns)
        table: dict[str, list[Cell]] = {}
        for name, column in zip(names, columns, strict=True):
            if column is not None:
                table[name] = column

        _need(len(table) == len(names), "a column is missing or named twice")
        lengths = {len(column) for column in table.values()}
        _need(len(lengths) <= 1, "columns differ in length")
        return table

    def place(
        self,
        block: Any,
        columns: list[list[Cell] | None],
    ) -> None:
        """Put the columns of a block at their positions among all columns."""
        record = self.built(block, "block")
        values, placement = record.args[:2]
        count = len(columns)
        block_columns = self.columns(values)
        positions = self.positions(placement, count)
        has_all = len(block_columns) == len(positions)
        _need(has_all, "a block and its columns differ in number")
        for position, column in zip(positions, block_columns, strict=True):
            is_free = 0 <= position < count and columns[position] is None
            _need(is_free, "columns overlap")
            columns[position] = column

    def labels(self, index: Any) -> list[str]:
        args = self.built(index, "new index").args
        _need(args[0].kind == "index", "its columns have no names")
        content = args[1]["data"]
        columns = self.columns(content)
        _need(len(columns) == 1, "it has several levels of column names")
        (labels,) = columns
        for label in labels:
            is_text = isinstance(label, str)
            _need(is_text, f"column name {label!r} is not text")
        return [str(label) for label in labels]

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
        node = self.built(
            values,
            "array",
            "array of buffer",
            "backed",
            "arrow strings",
        )
        if node.kind == "arrow strings":
            key = "_pa_array" if "_pa_array" in node.state else "_data"
            array = node.state[key]
            return [self.arrow(array)]
        if node.kind == "backed":
            node = self.backing_array(node)
        if node.kind == "array":
            _, shape, dtype, fortran, data = node.state
        else:
            data, dtype, shape, order = node.args
            fortran = order == "F"

        count, width = _count_and_width(shape)
        cell_count = count * width
        self.spend(count + cell_count)
        kind = self.dtype(dtype)
        if kind.kind == "O":
            # numpy lists objects row by row even if the array is stored column by column.
            has_all = type(data) is list and len(data) == cell_count
            _need(has_all, "an array lacks cells")
            return self.object_columns(data, count, width)
        flat = np.frombuffer(self.bytes(data), kind)
        _need(flat.size == cell_count, "an array is not as long as its shape says")
        columns = flat.reshape(
            (count, width),
            order="F" if fortran else "C",
        )
        return list(map(_cells, columns))

    def backing_array(self, node: RecordedCall) -> RecordedCall:
        """Return the array in which an extension array has its data."""
        _need(node.args[0].kind == "array class", "an array of an unknown class")
        arrays: list[RecordedCall] = []
        for part in node.state:
            if isinstance(part, RecordedCall) and part.kind in ("array", "array of buffer"):
                arrays.append(part)
        _need(len(arrays) == 1, "an extension array without its data")
        return arrays[0]

    def object_columns(
        self,
        data: list[Any],
        count: int,
        width: int,
    ) -> list[list[Cell]]:
        """Cut a list of objects into columns."""
        columns: list[list[Cell]] = []
        for position in range(count):
            start = position * width
            end = start + width
            columns.append([self.cell(cell) for cell in data[start:end]])
        return columns

    def dtype(self, node: Any) -> np.dtype[Any]:
        built = self.built(node, "dtype")
        code = built.args[0]
        state = built.state
        is_known = type(code) is str and _DTYPE.fullmatch(code) is not None
        _need(is_known, "an array of a dtype")
        is_plain = state[2] is None and state[3] is None and state[4] is None
        _need(is_plain, "a structured array")
        order = ">" if state[1] == ">" else "<"
        if code == "O8":
            return np.dtype("O")
        if code[0] not in "Mm":
            return np.dtype(order + code)

        time_unit = state[8][1]
        raw_unit = self.bytes(time_unit[0])
        unit = raw_unit.decode("ascii")
        is_unit = unit in _UNITS and time_unit[1] == 1
        _need(is_unit, f"a time unit {unit!r}")
        return np.dtype(f"{order}{code}[{unit}]")

    def bytes(self, value: Any) -> bytes:
        if type(value) in (bytes, bytearray):
            self.spend(len(value))
            return bytes(value)
        args = self.built(value, "bytes").args
        if not args:
            return b""
        content = args[0]
        if type(content) is str:
            _need(args[1] in ("latin1", "latin-1"), "bytes in an unknown encoding")
            self.spend(len(content))
            return content.encode("latin-1")
        return self.bytes(content)

    def cell(self, value: Any) -> Cell:
        if type(value) in (str, int, float, bool) or value is None:
            return _plain_value(value)
        if value is _KINDS["missing"]:
            return None
        is_record = isinstance(value, RecordedCall)
        _need(is_record, f"a cell is a {type(value).__name__}")
        if value.kind == "not a time":
            return None
        if value.kind == "timestamp":
            return self.timestamp_cell(value)
        if value.kind == "scalar":
            kind = self.dtype(value.args[0])
            _need(kind.kind != "O", "a scalar of objects")
            content = self.bytes(value.args[1])
            scalars = np.frombuffer(content, kind, 1)
            return _cells(scalars)[0]
        is_date = value.kind in ("date", "datetime")
        _need(is_date, f"a cell is a {value.kind}")
        return self.date_cell(value)

    def timestamp_cell(self, record: RecordedCall) -> Cell:
        """Return the cell of a pandas Timestamp."""
        ticks, _, zone, *resolution = record.args
        _need(zone is None, "a time with a time zone")
        number = resolution[0] if resolution else 10
        unit = _RESOLUTIONS[number]
        times = np.array([ticks], f"M8[{unit}]")
        return _cells(times)[0]

    def date_cell(self, record: RecordedCall) -> Cell:
        """Return the cell of a date or datetime of Python."""
        raw = self.bytes(*record.args)
        year = int.from_bytes(raw[:2], "big")
        if record.kind == "date":
            return date(year, *raw[2:]).isoformat()
        month, day, hour, minute, second = raw[2:7]
        micro = int.from_bytes(raw[7:], "big")
        time = datetime(
            year,
            month,
            day,
            hour,
            minute,
            second,
            micro,
        )
        return _plain_value(time)

    def arrow(self, node: Any) -> list[Cell]:
        import pyarrow

        (parts,) = self.built(node, "arrow array").args
        kind, length, _, offset, buffers, *_ = parts
        alias = self.built(kind, "arrow type").args[0]
        _need(alias in ("string", "large_string"), f"an arrow array of {alias!r}")
        is_length = type(length) is int and length >= 0
        _need(is_length, "arrow text of an impossible length")
        has_rows = type(offset) is int and 0 <= offset <= self.budget
        _need(has_rows, "arrow text lacks rows")
        self.spend(length)

        contents = (part if part is None else self.bytes(part) for part in buffers)
        valid, ends, text = contents
        is_large = alias == "large_string"
        make = pyarrow.LargeStringArray if is_large else pyarrow.StringArray
        texts = pyarrow.py_buffer(text or b"")
        rows = pyarrow.py_buffer(ends)
        mask = None if valid is None else pyarrow.py_buffer(valid)
        array = make.from_buffers(
            length,
            rows,
            texts,
            mask,
            -1,
            offset,
        )
        # Checks that offsets are within the text and do not decrease, and that it is UTF-8.
        array.validate(full=True)
        return array.to_pylist()


def _count_and_width(shape: Any) -> tuple[int, int]:
    """Return the number of columns of an array's shape, and that of the rows."""
    has_shape = type(shape) is tuple and len(shape) in (1, 2)
    _need(has_shape, "an array without 1 or 2 dimensions")
    is_possible = all(type(size) is int and size >= 0 for size in shape)
    _need(is_possible, "an array has an impossible shape")
    if len(shape) == 1:
        return 1, shape[0]
    count, width = shape
    return count, width


def _cells(values: np.ndarray) -> list[Cell]:
    if values.dtype.kind == "m":
        values = values / np.timedelta64(1, "s")
    elif values.dtype.kind == "M":
        years = values.astype("M8[Y]").astype(np.int64) + 1970
        is_in_range = (years > 0) & (years < 10_000)
        is_date = is_in_range | np.isnat(values)
        _need(bool(is_date.all()), "a time outside the years 1 to 9999")
        values = values.astype("M8[us]")
    return [_plain_value(value) for value in values.tolist()]


def _plain_value(value: Any) -> Cell:
    if isinstance(value, datetime):
        is_midnight = value.time() == datetime.min.time()
        return value.date().isoformat() if is_midnight else value.isoformat()
    missing = isinstance(value, float) and math.isnan(value)
    return None if missing else value
