"""Describe the data in a pickle by its opcodes, without importing or calling anything.

A name is never imported and nothing is ever called. `ADMITTED` lists the exact (module, name)
pairs that pandas 1.5, 2 and 3 (with numpy 1 or 2, with or without pyarrow) write for a
DataFrame of plain columns; anything else, and any opcode that protocols 2 to 5 do not need for
one, is refused.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
# (module, name) -> what it stands for.
ADMITTED: dict[tuple[str, str], str] = {
    (name.rpartition(".")[0], name.rpartition(".")[2]): kind
    for kind, names in _NAMES.items()
    for name in names.split()
}


class Refused(Exception):
    """Say why a pickle is not read."""


@dataclass(frozen=True, slots=True)
class Name:
    """Stand for an admitted global, by its kind."""

    kind: str


@dataclass(slots=True, eq=False)
class Built:
    """Record an object that the pickle would build; it is never built."""

    kind: str
    args: tuple[Any, ...]
    state: Any = None


def _admit(module: str, name: str) -> Name:
    kind = ADMITTED.get((module, name))
    if kind is None:
        shown = f"{module}.{name}"[:200]
        raise Refused(
            f"refused {shown!r}: not part of a DataFrame of plain columns; nothing was run "
            "(own data with such columns: save it again with text, numbers and dates only)"
        )
    return Name(kind)


def described(data: bytes) -> Any:
    """Interpret the opcodes of a pickle; objects it would build are returned as `Built` records."""
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
        if opcode.name == "STOP":
            return machine.stack.pop()
        step = _STEPS.get(opcode.name)
        if step is None:
            raise Refused(f"refused opcode {opcode.name}: no DataFrame of plain columns needs it")
        step(machine, argument)
    raise Refused("ends before its STOP opcode")


class _Machine:
    """Interpret opcodes on the pickle machine's stack and memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def mark(self, _: Any) -> None:
        self.below.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise Refused("damaged: an opcode finds too little on the stack")
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise Refused("damaged: items for something that is not a list")
        target.extend(items)

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        # Only text keys: hashing a tuple nested a million deep would overflow the C stack.
        if type(target) is not dict or any(type(key) is not str for key in items[::2]):
            raise Refused("damaged: entries for something that is not a dict of text keys")
        target.update(zip(items[::2], items[1::2], strict=True))

    def global_(self, pair: str) -> None:
        module, _, name = pair.partition(" ")
        self.push(_admit(module, name))

    def stack_global(self, _: Any) -> None:
        module, name = self.last(2)
        if type(module) is not str or type(name) is not str:
            raise Refused("damaged: a global whose name is not text")
        self.push(_admit(module, name))

    def build_from(self, _: Any) -> None:
        """Record what REDUCE and NEWOBJ would have called."""
        name, args = self.last(2)
        if type(name) is not Name or type(args) is not tuple:
            raise Refused("refused a call of something that is not an admitted name")
        self.push(Built(name.kind, args))

    def state(self, _: Any) -> None:
        (state,) = self.last(1)
        target = self.stack[-1]
        if type(target) is not Built:
            raise Refused("refused to set the state of something that is not an admitted object")
        target.state = state


def _constant(make: Callable[[], Any]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.push(make())


def _tuple(count: int) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.push(tuple(machine.last(count)))


def _memoize(machine: _Machine, argument: Any) -> None:
    key = len(machine.memo) if argument is None else argument
    machine.memo[key] = machine.stack[-1]


_PUSHED = (
    "BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT SHORT_BINUNICODE BINUNICODE BINUNICODE8 "
    "SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8"
).split()
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "MARK": _Machine.mark,
    "NONE": _constant(lambda: None),
    "NEWTRUE": _constant(lambda: True),
    "NEWFALSE": _constant(lambda: False),
    **dict.fromkeys(_PUSHED, _Machine.push),
    "EMPTY_LIST": _constant(list),
    "APPEND": lambda machine, _: machine.extend(machine.last(1)),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "EMPTY_DICT": _constant(dict),
    "SETITEM": lambda machine, _: machine.update(machine.last(2)),
    "SETITEMS": lambda machine, _: machine.update(machine.since_mark()),
    "EMPTY_TUPLE": _tuple(0),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.since_mark())),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), _memoize),
    "BINGET": lambda machine, argument: machine.push(machine.memo[argument]),
    "LONG_BINGET": lambda machine, argument: machine.push(machine.memo[argument]),
    "GLOBAL": _Machine.global_,
    "STACK_GLOBAL": _Machine.stack_global,
    "REDUCE": _Machine.build_from,
    "NEWOBJ": _Machine.build_from,
    "BUILD": _Machine.state,
}
