"""Read columns of a pickled pandas DataFrame without running anything in it.

Names in a pickle are never imported: those that a frame of text, numbers and times needs stand for
records of what it would call and set, and any other name or opcode is refused. Of the records the
wanted columns are checked and read.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from claim2source.core.errors import InputError

Cell = str | int | float | bool | None

# Bytes of a file: an opcode of one byte can make a list of 64.
MAX_BYTES = 2**28
_DTYPE = re.compile(r"b1|[iu][1248]|f[248]|O8")
# A regular file holds every cell once; reading shared buffers many times over is an attack.
_MOST_READ = 4
# What libraries raise for bytes that are no pickle, or no frame.
_DAMAGED = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, EOFError),
    *(pickle.UnpicklingError, struct.error),
)
# What a name stands for: exact pairs of module and name, as pandas 1.5, 2 and 3 write them for such
# a frame, with numpy 1 or 2, with or without pyarrow.
_NAMES = """
frame: pandas.DataFrame pandas.core.frame.DataFrame
manager: pandas.core.internals.managers.BlockManager
block: pandas._libs.internals._unpickle_block pandas.core.internals.blocks.new_block
new index: pandas.core.indexes.base._new_Index
index: pandas.Index pandas.core.indexes.base.Index pandas.core.indexes.numeric.Int64Index
index: pandas.RangeIndex pandas.core.indexes.range.RangeIndex
backed: pandas._libs.arrays.__pyx_unpickle_NDArrayBacked
string array: pandas.arrays.StringArray pandas.core.arrays.string_.StringArray
string dtype: pandas.StringDtype pandas.core.arrays.string_.StringDtype
arrow strings: pandas.arrays.ArrowStringArray pandas.core.arrays.string_arrow.ArrowStringArray
missing: pandas.NA pandas._libs.missing.NA
time: pandas.arrays.DatetimeArray pandas.core.arrays.datetimes.DatetimeArray
time: pandas._libs.tslibs.nattype._nat_unpickle pandas._libs.tslibs.nattype.__nat_unpickle
time: pandas._libs.tslibs.timestamps._unpickle_timestamp datetime.date datetime.datetime
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
# All that protocols 2 to 5 need for a frame of plain columns.
_OPCODES = """
PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT
SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 EMPTY_LIST APPEND APPENDS
EMPTY_DICT EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET
GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD
""".split()


class RecordedCall:
    """Record a call of an admitted name, and the state of the object that it would make."""

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


# An admitted name stands for a class of its kind: a call of it makes a record.
_KINDS: dict[str, type[RecordedCall]] = {
    kind: type("Name", (RecordedCall,), {"kind": kind, "__slots__": ()})
    for kind in ADMITTED.values()
}


class _Restricted(pickle._Unpickler):
    """Unpickle records, with few opcodes.

    Of pickle's two this is the one written in Python, whose opcodes can be left out: the other
    gives names from a cache of extension codes without asking `find_class`, and makes room for
    a memo of the size that is claimed.
    """

    # The Python class has these; the stubs do not know them.
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
    # pickle's own makes room for as many bytes as are claimed, before it reads them.
    pickle.BYTEARRAY8[0]: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]],
}


def read_frame(path: str | Path, wanted: Collection[str]) -> dict[str, list[Cell]]:
    """Read those of the wanted columns that a frame has: name -> [rows] cells; no row labels.

    Cells are str, int, float, bool or, where the value is missing, None. Raises `InputError` naming
    the file and the (module, name) that is refused, or what makes the file unreadable. Memory stays
    proportional to the size of the file, at most `MAX_BYTES` bytes.
    """
    try:
        size = Path(path).stat().st_size
        if size > MAX_BYTES:
            raise InputError(path, why=f"{size} bytes; a pickle is read up to {MAX_BYTES}")
        data = Path(path).read_bytes()
        frame = _Restricted(io.BytesIO(data)).load()
        return _Reader(_MOST_READ * len(data)).frame(frame, wanted)
    except FileNotFoundError:
        why = "no such file"
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except _DAMAGED as error:
        short = " ".join(str(error).split())[:300] or type(error).__name__
        why = f"not a pickled DataFrame of plain columns, or damaged: {short}"
    except (RecursionError, MemoryError):
        why = "nested too deeply or too large to be read"
    raise InputError(path, why=why)


def _need(holds: bool, why: str) -> None:
    if not holds:
        raise pickle.UnpicklingError(why)


def _built(value: Any, *kinds: str) -> RecordedCall:
    _need(isinstance(value, RecordedCall) and value.kind in kinds, f"no {' or '.join(kinds)}")
    return value


class _Reader:
    """Turn the description of a DataFrame into columns; `budget` is in bytes or cells."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def spend(self, amount: int) -> None:
        self.budget -= amount
        _need(self.budget >= 0, "it claims more data than the file holds")

    def frame(self, top: Any, wanted: Collection[str]) -> dict[str, list[Cell]]:
        state = _built(top, "frame").state
        _need(type(state) is dict and "_mgr" in state, "its blocks are missing")
        blocks, axes = _built(state["_mgr"], "manager").args[:2]
        _need(len(axes) == 2, "it does not have two axes")
        names = self.labels(axes[0])
        table: dict[str, list[Cell]] = {}
        for block in blocks:
            values, placement = _built(block, "block").args[:2]
            positions = self.positions(placement, len(names))
            rows = {row: names[at] for row, at in enumerate(positions) if names[at] in wanted}
            columns = self.columns(values) if rows else []
            _need(not rows or len(columns) == len(positions), "a block and its columns differ")
            for row, name in rows.items():
                _need(name not in table, "a column is there twice")
                table[name] = [_cell(value) for value in columns[row]]
        _need(len({len(column) for column in table.values()}) <= 1, "columns differ in length")
        return table

    def labels(self, index: Any) -> list[str]:
        args = _built(index, "new index").args
        _need(args[0].kind == "index", "its columns have no names")
        columns = self.columns(args[1]["data"])
        _need(len(columns) == 1, "it has several levels of column names")
        for label in columns[0]:
            _need(isinstance(label, str), "a column's name is not text")
        return columns[0]

    def positions(self, placement: Any, limit: int) -> list[int]:
        positions: Sequence[int]
        if isinstance(placement, RecordedCall) and placement.kind == "slice":
            positions = range(*placement.args)
            _need(len(positions) <= limit, "a block has more columns than the frame")
        else:
            (positions,) = self.columns(placement)
        _need(all(0 <= position < limit for position in positions), "a column is not there")
        return list(positions)

    def columns(self, values: Any) -> list[list[Any]]:
        """Read the columns of a block's values, [columns][rows]."""
        node = _built(values, "array", "array of buffer", "backed", "arrow strings")
        if node.kind == "arrow strings":
            return [self.arrow(node.state["_pa_array" if "_pa_array" in node.state else "_data"])]
        if node.kind == "backed":
            _need(node.args[0].kind == "string array", f"an array of {node.args[0].kind}")
            parts = [part for part in node.state if isinstance(part, RecordedCall)]
            arrays = [part for part in parts if part.kind in ("array", "array of buffer")]
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
        code, state = _built(dtype, "dtype").args[0], dtype.state
        _need(type(code) is str and _DTYPE.fullmatch(code) is not None, "an array of a dtype")
        _need(state[2] is None and state[3] is None and state[4] is None, "a structured array")
        if code == "O8":
            # numpy lists objects row by row even where the array is stored column by column.
            _need(type(data) is list and len(data) == count * width, "an array lacks cells")
            return [data[i * width : (i + 1) * width] for i in range(count)]
        flat = np.frombuffer(self.bytes(data), (">" if state[1] == ">" else "<") + code)
        _need(flat.size == count * width, "an array is not as long as its shape says")
        columns: list[list[Any]] = flat.reshape(
            (count, width), order="F" if fortran else "C"
        ).tolist()
        return columns

    def arrow(self, node: Any) -> list[Any]:
        import pyarrow

        (parts,) = _built(node, "arrow array").args
        kind, length, _, offset, buffers, *_ = parts
        alias = _built(kind, "arrow type").args[0]
        _need(alias in ("string", "large_string"), f"an arrow array of {alias!r}")
        _need(type(length) is int and length >= 0, "arrow text of an impossible length")
        _need(type(offset) is int and 0 <= offset <= self.budget, "arrow text lacks rows")
        self.spend(length)
        valid, ends, text = (part if part is None else self.bytes(part) for part in buffers)
        make = pyarrow.LargeStringArray if alias == "large_string" else pyarrow.StringArray
        arguments = [
            part if part is None else pyarrow.py_buffer(part) for part in (text or b"", valid)
        ]
        array = make.from_buffers(length, pyarrow.py_buffer(ends), *arguments, -1, offset)
        # Checks that every offset lies in the text and none falls, and that the text is UTF-8.
        array.validate(full=True)
        texts: list[Any] = array.to_pylist()
        return texts

    def bytes(self, value: Any) -> bytes:
        """Read bytes, in any of the protocols' forms."""
        if type(value) in (bytes, bytearray):
            self.spend(len(value))
            return bytes(value)
        args = _built(value, "bytes").args
        if not args:
            return b""
        if type(args[0]) is str:
            _need(args[1] in ("latin1", "latin-1"), "bytes in an unknown encoding")
            self.spend(len(args[0]))
            return args[0].encode("latin-1")
        return self.bytes(args[0])


def _cell(value: Any) -> Cell:
    if value is _KINDS["missing"]:
        return None
    kind = value.kind if isinstance(value, RecordedCall) else type(value).__name__
    _need(value is None or type(value) in (str, int, float, bool), f"a cell is a {kind}")
    return None if value != value else value
