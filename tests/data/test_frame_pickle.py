"""A pickled DataFrame is read as by pandas, and a hostile one runs nothing."""

from __future__ import annotations

import builtins
import functools
import json
import os
import pickle
import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest

from claim2source.core.errors import InputError
from claim2source.data import frame_pickle
from claim2source.data.frame_pickle import ADMITTED, MAX_BYTES, RecordedCall, read_frame

FIXTURES = Path(__file__).parent / "fixtures"
PICKLES = sorted(FIXTURES.glob("*.pkl"))


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as error:
        read_frame(path)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"{path}: ")
    return line


def write(folder: Path, data: bytes) -> Path:
    path = folder / "frame.pkl"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("version", ["pandas1", "pandas2", "pandas3"])
def test_reads_what_pandas_wrote(version: str) -> None:
    paths = [path for path in PICKLES if path.name.startswith(f"{version}_")]
    assert len(paths) >= 12
    for path in paths:
        beside = path.with_name(path.stem.rsplit("_", 1)[0] + ".json")
        expected = json.loads(beside.read_text("utf-8"))
        table = read_frame(path)
        assert list(table) == list(expected), path
        # 1 == 1.0 == True: the kinds of the cells must agree as well.
        assert {k: [(c, type(c)) for c in v] for k, v in table.items()} == {
            k: [(c, type(c)) for c in v] for k, v in expected.items()
        }, path


def test_reads_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "pandas"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert len(read_frame(FIXTURES / "pandas3_arrow_whole_p5.pkl")) == 17
    with pytest.raises(ImportError):
        pickle.loads((FIXTURES / "pandas3_arrow_whole_p5.pkl").read_bytes())


class Call:
    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.args


def sentinel_calls(sentinel: Path) -> list[Any]:
    """Calls that would create the file `sentinel`, through callables that look harmless."""
    touch = f"__import__('pathlib').Path({str(sentinel)!r}).touch()"
    inner = pickle.dumps(Call(builtins.exec, touch))
    nested = sentinel.with_name("nested.pkl")
    nested.write_bytes(inner)
    array = sentinel.with_name("nested.npy")
    numpy.save(array, numpy.array([Call(builtins.exec, touch)], dtype=object), allow_pickle=True)
    return [
        Call(os.system, f"touch {sentinel}"),
        Call(builtins.exec, touch),
        Call(pandas.eval, f"@{touch}"),
        Call(pandas.read_pickle, str(nested)),
        Call(numpy.load, str(array), None, True),
        Call(pickle.loads, inner),
        functools.partial(builtins.exec, touch),
        Call(numpy.memmap, str(sentinel), "uint8", "w+", 0, (4,)),
    ]


def test_calls_are_refused_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentinel = tmp_path / "ran"
    (tmp_path / "touching.py").write_text(f"open({str(sentinel)!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    calls = sentinel_calls(sentinel)
    for attack in calls:
        # Inside an otherwise good frame, where a careless reader would already have begun.
        frame = pandas.DataFrame({"a": pandas.Series([attack, "x"], dtype=object)})
        for protocol in (2, 4, 5):
            assert "refused" in refusal(write(tmp_path, pickle.dumps(frame, protocol)))
    assert "refused 'touching.x'" in refusal(write(tmp_path, b"ctouching\nx\n)R."))
    assert not sentinel.exists()
    pickle.loads(pickle.dumps(calls[1]))
    assert sentinel.exists(), "the attack does not work on pickle itself"


def short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def test_only_exact_pairs_are_admitted_and_a_refusal_names_them(tmp_path: Path) -> None:
    for module, name in [
        ("pandas", "eval"),
        ("pandas.core.frame", "DataFrame.__init__.__globals__"),
        ("numpy", "ndarray.tofile"),
        ("numpy.f2py.diagnose", "run_command"),
        ("builtins", "slice.__class__"),
        ("_codecs", "decode"),
        ("os", "system"),
        ("pandas", "DataFrame "),
    ]:
        stack = b"\x80\x04" + short(module) + short(name) + b"\x93)R."
        assert f"refused '{module}.{name}'" in refusal(write(tmp_path, stack))
        old = b"\x80\x02c" + f"{module}\n{name}\n".encode() + b")R."
        assert "refused" in refusal(write(tmp_path, old))
    # Every allowed name is a data class or builder of pandas, numpy or pyarrow.
    modules = {module.split(".")[0] for module, _ in ADMITTED}
    assert modules == set("pandas numpy pyarrow builtins __builtin__ _codecs datetime".split())
    assert not any("." in name for _, name in ADMITTED)


FRAME = b"\x80\x04" + short("pandas") + short("DataFrame") + b"\x93"


def test_copyreg_cache_is_not_a_way_in(tmp_path: Path) -> None:
    import copyreg

    copyreg.add_extension("os", "system", 77)
    try:
        attack = pickle.dumps(Call(os.system, f"touch {tmp_path / 'ran'}"), 2)
        attack = attack.replace(b"cposix\nsystem\n", b"\x82\x4d")
        path = write(tmp_path, attack)
        assert "damaged" in refusal(path)
        # After somebody looked it up, pickle returns it without looking up its name.
        copyreg._extension_cache[77] = os.system  # type: ignore[attr-defined]
        assert "damaged" in refusal(path)
    finally:
        copyreg.remove_extension("os", "system", 77)
    assert not (tmp_path / "ran").exists()


def test_files_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "frame.pkl"
    with open(path, "wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert str(MAX_BYTES + 1) in refusal(path) and str(MAX_BYTES) in refusal(path)
    assert refusal(tmp_path / "none.pkl").endswith("no such file")
    assert "cannot be read" in refusal(tmp_path)


def frame_of(values: bytes, columns: int = 1) -> bytes:
    """A frame with one block of these values, as opcodes of protocol 4 with memo 0 unused."""
    names = [f"c{i}" for i in range(columns)]
    labels = (
        b"\x8c\x18pandas.core.indexes.base\x8c\x0a_new_Index\x93"
        b"\x8c\x06pandas\x8c\x05Index\x93}\x8c\x04data"
        + array("O8", (columns,), b"](" + b"".join(short(n) for n in names) + b"e")
        + b"s\x86R"
    )
    block = short("pandas._libs.internals") + short("_unpickle_block") + b"\x93" + values
    block += short("builtins") + short("slice") + b"\x93K\x00K" + bytes([columns]) + b"K\x01\x87R"
    block += b"K\x02\x87R"
    manager = short("pandas.core.internals.managers") + short("BlockManager") + b"\x93"
    manager += block + b"\x85](" + labels + b"Ne\x86R"
    kind = short("_typ") + short("dataframe") + b"s"
    return FRAME + b")\x81}" + short("_mgr") + manager + b"s" + kind + b"b."


def number(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def array(code: str, shape: tuple[int, ...], data: bytes, order: bytes = b"\x89") -> bytes:
    """Opcodes of a numpy array; `data` are the opcodes of its bytes or list."""
    pickled = short("numpy._core.multiarray") + short("_reconstruct") + b"\x93"
    pickled += short("numpy") + short("ndarray") + b"\x93" + b"K\x00\x85C\x01b\x87R"
    dtype = short("numpy") + short("dtype") + b"\x93" + short(code) + b"\x89\x88\x87R"
    end, flags = ("|", 63) if code == "O8" else ("<", 0)
    dtype += b"(K\x03" + short(end) + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK" + bytes([flags])
    dtype += b"tb"
    shaped = b"(" + b"".join(number(n) for n in shape) + b"t"
    return pickled + b"(K\x01" + shaped + dtype + order + data + b"tb"


def huge_arrays() -> list[bytes]:
    """Calls for arrays of 2**40 cells, for which numpy would allocate memory."""
    calls = []
    for name in ("_reconstruct", "_frombuffer", "scalar"):
        module = "numpy._core.numeric" if name == "_frombuffer" else "numpy._core.multiarray"
        call = short(module) + short(name) + b"\x93"
        call += short("numpy") + short("ndarray") + b"\x93(" + number(2**40) + b"tC\x01b\x87R"
        calls += [frame_of(call), b"\x80\x04" + call + b"."]
    return calls


DEEP = b"\x80\x04)" + b"\x85" * 100_000
HARMFUL = {
    "other opcodes": [
        *(b"\x80\x02\x82\x01.", b"Pid\n.", b"\x80\x05\x97.", b"(ipandas\neval\n."),
        *(b"\x80\x02(cpandas\nDataFrame\no.", FRAME + b")}\x92."),
    ],
    "damaged": [
        b"\x80\x04]}b.",  # the state of a list
        b"\x80\x04e.",
        b"\x80\x04.",
        b"",
        b"not a pickle at all",
        FRAME + b")\x81.",
        b"\x80\x04K\x01K\x02\x93.",
    ],
    "only records are called and given a state": [
        FRAME + b"}\x8c\x04_mgrN\x73b.",  # the state of a class, not of an object
        FRAME + b"R.",  # a call without arguments on the stack
        b"\x80\x04" + short("os") + b")R.",  # a call of text
        FRAME + b")\x81)R.",  # a call of an object
        FRAME + b"}" + short("kind") + short("x") + b"sb.",  # attributes of a name
        FRAME + b"}N}" + short("kind") + short("x") + b"s\x86b.",  # and as of one with slots
        FRAME + b"}" + short("__setstate__") + b"Nsb.",
        b"\x80\x04]N}" + short("append") + b"Ns\x86b.",
    ],
    "keys are text": [b"\x80\x04}]Ns.", b"\x80\x04}K\x01Ns.", b"\x80\x04}" + DEEP[2:] + b"Ns."],
    "what is claimed takes no memory": [
        b"\x80\x04X\xff\xff\xff\x7fab.",  # 2 GB of text
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x0fab.",  # 2**60 bytes
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # a memo of 2**31 entries
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"ab.",  # a bytearray of 1 TB
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"ab.",
        b"\x80\x02\x8b\xff\xff\xff\x7fab.",  # a number of 2 GB
        b"\x80\x04" + b"]q\x00" + b"h\x00h\x00\x86q\x00" * 200 + b".",  # 2**200 leaves
        b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
        FRAME + b"(" + b"K\x00" * 100_000 + b"tR.",
        DEEP + b".",
        *huge_arrays(),
    ],
}


def test_a_time_that_is_none_and_an_opcode_are_named(tmp_path: Path) -> None:
    for year, fits in (("0001", True), ("9999", True), ("NaT", True), ("10000", False)):
        times = numpy.array([year], "M8[s]")
        path = write(tmp_path, pickle.dumps(pandas.DataFrame({"t": times}), 5))
        if fits:
            assert read_frame(path) == {"t": [None if year == "NaT" else f"{year}-01-01"]}
        else:
            assert "a time outside the years 1 to 9999" in refusal(path)
    assert "refused opcode 0x82" in refusal(write(tmp_path, b"\x80\x02\x82\x01."))


@pytest.mark.parametrize("kind", HARMFUL)
def test_harmful_pickles_are_one_line_and_take_no_memory(tmp_path: Path, kind: str) -> None:
    before = [dict(vars(kind)) for kind in (RecordedCall, *frame_pickle._KINDS.values())]
    for opcodes in HARMFUL[kind]:
        path = write(tmp_path, opcodes)
        tracemalloc.start()
        try:
            line = refusal(path)
            assert tracemalloc.get_traced_memory()[1] < 64 * len(opcodes) + 2**22
        finally:
            tracemalloc.stop()
        assert kind != "keys are text" or "text keys" in line
    assert [dict(vars(kind)) for kind in (RecordedCall, *frame_pickle._KINDS.values())] == before


def test_hand_made_frame_is_good(tmp_path: Path) -> None:
    """The attacks below differ from this at a single point."""
    good = frame_of(array("i8", (1, 2), b"C\x10" + struct.pack("<2q", 4, 5)))
    assert read_frame(write(tmp_path, good)) == {"c0": [4, 5]}
    real = good.replace(b"Ne\x86R", _range_axis(2) + b"e\x86R")
    assert pickle.loads(real)["c0"].tolist() == [4, 5]
    two = struct.pack("<4q", 1, 2, 3, 4)
    rowwise = frame_of(array("i8", (2, 2), b"C\x20" + two), 2)
    columnwise = frame_of(array("i8", (2, 2), b"C\x20" + two, b"\x88"), 2)
    assert read_frame(write(tmp_path, rowwise)) == {"c0": [1, 2], "c1": [3, 4]}
    assert read_frame(write(tmp_path, columnwise)) == {"c0": [1, 3], "c1": [2, 4]}


def test_hostile_arrays_are_refused(tmp_path: Path) -> None:
    for values, message in [
        (array("i8", (1, 2**60), b"C\x00"), "more data than the file"),
        (array("i8", (2**60, 0), b"C\x00"), "more data than the file"),
        (array("i8", (1, 3), b"C\x10" + bytes(16)), "not as long as its shape"),
        (array("i8", (1, -2), b"C\x10" + bytes(16)), "impossible shape"),
        (array("i8", (1, 1, 2), b"C\x10" + bytes(16)), "1 or 2 dimensions"),
        (array("O8", (1, 2), b"]Na"), "lacks cells"),
        (array("O8", (1, 1), b"C\x08" + b"A" * 8), "lacks cells"),
        (array("i8", (1, 1), b"]K\x01a"), "no bytes"),
        (array("V8", (1, 1), b"C\x08" + bytes(8)), "dtype"),
        (array("O8", (1, 1), b"]]a"), "a cell is a list"),
        (array("O8", (1, 1), b"]" + FRAME[2:] + b")\x81a"), "a cell is a frame"),
        (array("i8", (2, 1), b"C\x10" + bytes(16)), "differ in number"),
        (b"N", "no array"),
    ]:
        assert message in refusal(write(tmp_path, frame_of(values)))


def test_a_buffer_may_not_be_read_many_times(tmp_path: Path) -> None:
    size = 200_000
    data = array("i1", (1, size), b"B" + struct.pack("<I", size) + bytes(size))
    assert len(read_frame(write(tmp_path, frame_of(data)))["c0"]) == size
    # Forty columns that all refer to the same 200 kB.
    pickled = short("pandas._libs.internals") + short("_unpickle_block") + b"\x93"
    slice_call = short("builtins") + short("slice") + b"\x93K"
    blocks = b"".join(
        pickled
        + (data + b"q\x00" if i == 0 else b"h\x00")
        + (slice_call + bytes([i]) + b"K" + bytes([i + 1]) + b"K\x01\x87RK\x02\x87R")
        for i in range(40)
    )
    labels = frame_of(b"N", 40)
    labels = labels[labels.index(b"\x8c\x18pandas.core.indexes") :]
    manager = short("pandas.core.internals.managers") + short("BlockManager") + b"\x93"
    bomb = FRAME + b")\x81}" + short("_mgr") + manager + b"(" + blocks + b"t](" + labels
    real = bomb.replace(b"Ne\x86R", _range_axis(size) + b"e\x86R")
    assert pickle.loads(real).shape == (size, 40)
    assert "more data than the file" in refusal(write(tmp_path, bomb))


def _range_axis(size: int) -> bytes:
    pickled = short("pandas.core.indexes.base") + short("_new_Index") + b"\x93"
    pickled += short("pandas") + short("RangeIndex") + b"\x93}(" + short("start") + b"K\x00"
    return pickled + short("stop") + number(size) + short("step") + b"K\x01u\x86R"


def test_arrow_text_with_overlapping_ends_is_refused(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"a": pandas.array(["aaaa", "bbbb", "cccc"], dtype="str")})
    data = pickle.dumps(frame, 5)
    ends = struct.pack("<4q", 0, 4, 8, 12)
    if ends not in data:
        pytest.skip("this pandas has no pyarrow")
    assert read_frame(write(tmp_path, data)) == {"a": ["aaaa", "bbbb", "cccc"]}
    for bad in ((0, 12, 0, 12), (0, 4, 8, 13), (-4, 4, 8, 12), (0, 4, 8, 2**62)):
        hostile = data.replace(ends, struct.pack("<4q", *bad))
        message = refusal(write(tmp_path, hostile))
        assert "or damaged: " in message and "offset" in message


@pytest.mark.filterwarnings("ignore::DeprecationWarning:pickletools")
@pytest.mark.parametrize("name", ["pandas1_corners_p2", "pandas3_arrow_whole_p5"])
@pytest.mark.parametrize("every", [29, pytest.param(5, marks=pytest.mark.slow)])
def test_cut_pickles_are_refused_and_flipped_bytes_read_or_refused(
    tmp_path: Path, every: int, name: str
) -> None:
    data = (FIXTURES / f"{name}.pkl").read_bytes()
    path = tmp_path / "frame.pkl"
    for end in range(0, len(data), every):
        refusal(write(tmp_path, data[:end]))
    for i in range(0, len(data), every):
        path.write_bytes(data[:i] + bytes([data[i] ^ 0x15]) + data[i + 1 :])
        try:
            read_frame(path)
        except InputError as error:
            assert len(str(error).splitlines()) == 1
