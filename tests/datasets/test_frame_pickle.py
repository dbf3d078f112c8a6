"""A pickled DataFrame is read as pandas would, and a hostile one runs nothing."""

from __future__ import annotations

import builtins
import functools
import json
import operator
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
from claim2source.datasets import frame_pickle
from claim2source.datasets.frame_pickle import ADMITTED, MOST, Built, read_frame

FIXTURES = Path(__file__).parent / "fixtures"
PICKLES = sorted(FIXTURES.glob("*.pkl"))


def refusal(path: Path) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(InputError) as caught:
        read_frame(path)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path}: ")
    return line


def written(folder: Path, data: bytes) -> Path:
    path = folder / "frame.pkl"
    path.write_bytes(data)
    return path


def test_fixtures_of_all_pandas_versions_are_there() -> None:
    assert {path.name.split("_")[0] for path in PICKLES} == {"pandas1", "pandas2", "pandas3"}
    assert len(PICKLES) == 4 * (2 * 4 + 4)


@pytest.mark.parametrize("path", PICKLES, ids=lambda path: path.stem)
def test_reads_what_pandas_wrote(path: Path) -> None:
    expected = json.loads(path.with_name(path.stem.rsplit("_", 1)[0] + ".json").read_text("utf-8"))
    table = read_frame(path)
    assert list(table) == list(expected)
    assert table == expected
    # 1 == 1.0 == True: the kinds of the cells must agree as well.
    assert {k: [type(c) for c in v] for k, v in table.items()} == {
        k: [type(c) for c in v] for k, v in expected.items()
    }


def test_reads_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ("pandas", "pyarrow")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert len(read_frame(FIXTURES / "pandas3_arrow_whole_p5.pkl")) == 17
    with pytest.raises(ImportError):
        pickle.loads((FIXTURES / "pandas3_arrow_whole_p5.pkl").read_bytes())


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_reads_larger_frames_of_this_pandas(tmp_path: Path, protocol: int) -> None:
    rows = 5000
    frame = pandas.DataFrame(
        {
            "id": [f"p{i}" for i in range(rows)],
            "n": range(rows),
            "m": range(rows, 0, -1),
            "text": [None if i % 3 == 0 else "é" * (i % 50) for i in range(rows)],
        }
    )[::2]
    path = written(tmp_path, pickle.dumps(frame, protocol))
    table = read_frame(path)
    assert table["id"] == [f"p{i}" for i in range(0, rows, 2)]
    assert table["m"] == list(range(rows, 0, -2))
    assert table["text"] == [None if i % 3 == 0 else "é" * (i % 50) for i in range(0, rows, 2)]


class Call:
    """Pickles as a call of `function` with `args`."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.args


def sentinel_calls(sentinel: Path) -> dict[str, Any]:
    """Calls that would create the file `sentinel`, through callables that look harmless."""
    touch = f"__import__('pathlib').Path({str(sentinel)!r}).touch()"
    inner = pickle.dumps(Call(builtins.exec, touch))
    nested = sentinel.with_name("nested.pkl")
    nested.write_bytes(inner)
    array = sentinel.with_name("nested.npy")
    numpy.save(array, numpy.array([Call(builtins.exec, touch)], dtype=object), allow_pickle=True)
    return {
        "os.system": Call(os.system, f"touch {sentinel}"),
        "exec": Call(builtins.exec, touch),
        "eval": Call(builtins.eval, touch),
        "pandas.eval": Call(pandas.eval, f"@{touch}"),
        "pandas.read_pickle": Call(pandas.read_pickle, str(nested)),
        "numpy.load": Call(numpy.load, str(array), None, True),
        "pickle.loads": Call(pickle.loads, inner),
        "getattr": Call(builtins.getattr, "touch", "upper"),
        "functools.partial": functools.partial(builtins.exec, touch),
        "operator.attrgetter": operator.attrgetter("system"),
        "DataFrame method": Call(pandas.DataFrame.to_csv, pandas.DataFrame(), str(sentinel)),
        "savetxt": Call(numpy.savetxt, str(sentinel), [1.0]),
        "memmap": Call(numpy.memmap, str(sentinel), "uint8", "w+", 0, (4,)),
        "fromfile": Call(numpy.fromfile, str(nested)),
    }


CALLS = sorted(
    [
        "os.system",
        "exec",
        "eval",
        "pandas.eval",
        "pandas.read_pickle",
        "numpy.load",
        "pickle.loads",
        "getattr",
        "functools.partial",
        "operator.attrgetter",
        "DataFrame method",
        "savetxt",
        "memmap",
        "fromfile",
    ]
)


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("name", CALLS)
def test_calls_are_refused_and_nothing_runs(
    tmp_path: Path, name: str, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentinel = tmp_path / "ran"
    attack = sentinel_calls(sentinel)[name]
    sentinel.unlink(missing_ok=True)
    # Inside an otherwise good frame, where a careless reader would already have begun.
    frame = pandas.DataFrame({"a": pandas.Series([attack, "x"], dtype=object)})
    path = written(tmp_path, pickle.dumps(frame, protocol))
    ran: list[object] = []
    monkeypatch.setattr(builtins, "eval", lambda *a: ran.append(a))
    monkeypatch.setattr(pandas, "eval", lambda *a: ran.append(a))
    monkeypatch.setattr(builtins, "__import__", _no_import(builtins.__import__, ran))
    line = refusal(path)
    assert "refused" in line
    assert not sentinel.exists()
    assert not ran


def _no_import(original: Any, ran: list[object]) -> Any:
    def guarded(name: str, *args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("claim2source.datasets"):
            ran.append(name)
        return original(name, *args, **kwargs)

    return guarded


def test_the_attack_of_the_tests_works_on_pickle(tmp_path: Path) -> None:
    sentinel = tmp_path / "ran"
    pickle.loads(pickle.dumps(sentinel_calls(sentinel)["exec"]))
    assert sentinel.exists()


def test_refusal_names_module_and_name(tmp_path: Path) -> None:
    path = written(tmp_path, pickle.dumps(Call(pandas.eval, "1")))
    assert f"refused '{pandas.eval.__module__}.eval'" in refusal(path)
    path = written(tmp_path, b"cpandas\neval\n(X\x01\x00\x00\x001tR.")
    assert "refused 'pandas.eval'" in refusal(path)


def short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("pandas", "eval"),
        ("pandas", "DataFrame.eval"),
        ("pandas", "DataFrame.to_csv"),
        ("pandas.core.frame", "DataFrame.__init__.__globals__"),
        ("numpy", "ndarray.tofile"),
        ("numpy", "dtype.__class__"),
        ("numpy.f2py.diagnose", "run_command"),
        ("numpy.f2py.crackfortran", "myeval"),
        ("numpy.testing._private.utils", "runstring"),
        ("pandas.io.pickle", "read_pickle"),
        ("pandas.compat.pickle_compat", "load"),
        ("builtins", "getattr"),
        ("builtins", "eval"),
        ("builtins", "slice.__class__"),
        ("_codecs", "decode"),
        ("_codecs", "lookup"),
        ("datetime", "sys"),
        ("os", "system"),
        ("", ""),
        ("Pandas", "DataFrame"),
        ("pandas", "DataFrame "),
    ],
)
def test_only_exact_pairs_are_admitted(tmp_path: Path, module: str, name: str) -> None:
    stack = b"\x80\x04" + short(module) + short(name) + b"\x93)R."
    assert f"refused '{module}.{name}'" in refusal(written(tmp_path, stack))
    old = b"\x80\x02c" + f"{module}\n{name}\n".encode() + b")R."
    assert "refused" in refusal(written(tmp_path, old))


def test_admitted_names_are_data_only() -> None:
    """Every admitted pair is one of pandas', numpy's or pyarrow's data classes and builders."""
    modules = {module.split(".")[0] for module, _ in ADMITTED}
    assert modules == {
        "pandas",
        "numpy",
        "pyarrow",
        "builtins",
        "__builtin__",
        "_codecs",
        "datetime",
    }
    assert not any("." in name for _, name in ADMITTED)


FRAME = b"\x80\x04" + short("pandas") + short("DataFrame") + b"\x93"


@pytest.mark.parametrize(
    ("opcodes", "said"),
    [
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02\x83\x01\x00.", "EXT2"),
        (b"\x80\x02\x84\x01\x00\x00\x00.", "EXT4"),
        (b"Pid\n.", "PERSID"),
        (b"\x80\x02NQ.", "BINPERSID"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
        (b"(ipandas\neval\n.", "INST"),
        (b"\x80\x02(cpandas\nDataFrame\no.", "OBJ"),
        (FRAME + b")}\x92.", "NEWOBJ_EX"),
        (b"I1\n.", "INT"),
        (b"S'x'\n.", "STRING"),
    ],
)
def test_other_opcodes_are_refused(tmp_path: Path, opcodes: bytes, said: str) -> None:
    assert f"refused opcode {said}" in refusal(written(tmp_path, opcodes))


def test_copyreg_cache_is_not_a_way_in(tmp_path: Path) -> None:
    import copyreg

    copyreg.add_extension("os", "system", 77)
    try:
        attack = pickle.dumps(Call(os.system, f"touch {tmp_path / 'ran'}"), 2)
        attack = attack.replace(b"cposix\nsystem\n", b"\x82\x4d")
        path = written(tmp_path, attack)
        assert "EXT1" in refusal(path)
        # Once anybody has looked it up, pickle gives it without asking for its name.
        copyreg._extension_cache[77] = os.system  # type: ignore[attr-defined]
        assert "EXT1" in refusal(path)
    finally:
        copyreg.remove_extension("os", "system", 77)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "opcodes",
    [
        FRAME + b"}\x8c\x04_mgrN\x73b.",  # the state of a class, not of an object
        FRAME + b"R.",  # a call without arguments on the stack
        FRAME + b"]R.",  # arguments that are no tuple
        b"\x80\x04" + short("x") + b")R.",  # a call of text
        FRAME + b")\x81)R.",  # a call of an object
        b"\x80\x04]}b.",  # the state of a list
        b"\x80\x04}]Ns.",  # a key that is not text
        b"\x80\x04e.",
        b"\x80\x04h\x05.",
        b"\x80\x04.",
        b"\x80\x04N",
        b"",
        b"\x00",
        b"not a pickle at all",
        FRAME + b")\x81.",
        FRAME + b")\x81N" + b"b.",
        b"\x80\x04K\x01.",
        b"\x80\x04X\xff\xff\xff\x7fab.",  # says 2 GB of text
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x0fab.",  # says 2**60 bytes
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",
    ],
)
def test_damaged_pickles_are_one_line(tmp_path: Path, opcodes: bytes) -> None:
    refusal(written(tmp_path, opcodes))


@pytest.mark.parametrize(
    "opcodes",
    [
        FRAME + b"}b.",
        FRAME + b"}" + short("kind") + short("x") + b"sb.",  # attributes of a name
        FRAME + b"}N}" + short("kind") + short("x") + b"s\x86b.",  # and as of one with slots
        FRAME + b"}" + short("__setstate__") + b"Nsb.",
        FRAME + b")\x81)\x81.",
        FRAME + b"]R.",
        FRAME + b"}\x81.",
        b"\x80\x04]N}" + short("append") + b"Ns\x86b.",
        b"\x80\x04" + short("os") + b")R.",
        b"\x80\x04" + short("os") + b")\x81.",
        b"\x80\x04)Na.",
        b"\x80\x04}K\x01Ns.",
        b"\x80\x04]K\x01Ns.",
        b"\x80\x04K\x01K\x02\x93.",
    ],
)
def test_only_records_are_called_and_given_a_state(tmp_path: Path, opcodes: bytes) -> None:
    before = [dict(vars(kind)) for kind in (Built, *frame_pickle._KINDS.values())]
    refusal(written(tmp_path, opcodes))
    assert [dict(vars(kind)) for kind in (Built, *frame_pickle._KINDS.values())] == before


@pytest.mark.parametrize(
    "opcodes",
    [
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # a memo of 2**31 entries
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"ab.",  # a bytearray of 1 TB
        b"\x80\x05\x96" + struct.pack("<Q", 2**63) + b"ab.",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"ab.",
        b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"ab.",
        b"\x80\x02\x8b\xff\xff\xff\x7fab.",  # a number of 2 GB
        b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"N.",
        b"\x80\x04" + b"]q\x00" + b"h\x00h\x00\x86q\x00" * 200 + b".",  # 2**200 leaves
        b"\x80\x04" + b"(" * 100_000 + b".",
        b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
        FRAME + b"(" + b"K\x00" * 100_000 + b"tR.",
    ],
)
def test_what_a_pickle_claims_takes_no_memory(tmp_path: Path, opcodes: bytes) -> None:
    path = written(tmp_path, opcodes)
    tracemalloc.start()
    try:
        refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 64 * len(opcodes) + 2**22
    finally:
        tracemalloc.stop()


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "frame.pkl"
    with open(path, "wb") as file:
        file.truncate(MOST + 1)
    assert f"a pickle is read up to {MOST}" in refusal(path)


def test_arrays_of_any_size_are_called_for_in_vain(tmp_path: Path) -> None:
    """numpy itself would make room for them."""
    for name in ("_reconstruct", "_frombuffer", "scalar"):
        module = "numpy._core.numeric" if name == "_frombuffer" else "numpy._core.multiarray"
        call = short(module) + short(name) + b"\x93"
        shape = short("numpy") + short("ndarray") + b"\x93(" + number(2**40) + b"tC\x01b\x87R"
        refusal(written(tmp_path, frame_of(call + shape)))
        refusal(written(tmp_path, b"\x80\x04" + call + shape + b"."))


def test_far_memo_index_and_deep_nesting_are_harmless(tmp_path: Path) -> None:
    refusal(written(tmp_path, b"\x80\x02Nr\xff\xff\xff\x7f."))
    deep = b"\x80\x04)" + b"\x85" * 100_000
    refusal(written(tmp_path, deep + b"."))
    assert "text keys" in refusal(written(tmp_path, b"\x80\x04}" + deep[2:] + b"Ns."))
    refusal(written(tmp_path, deep.replace(b"\x80\x04)", FRAME + b")") + b"\x81."))


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
    made = short("numpy._core.multiarray") + short("_reconstruct") + b"\x93"
    made += short("numpy") + short("ndarray") + b"\x93" + b"K\x00\x85C\x01b\x87R"
    dtype = short("numpy") + short("dtype") + b"\x93" + short(code) + b"\x89\x88\x87R"
    end, flags = ("|", 63) if code == "O8" else ("<", 0)
    dtype += b"(K\x03" + short(end) + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK" + bytes([flags])
    dtype += b"tb"
    shaped = b"(" + b"".join(number(n) for n in shape) + b"t"
    return made + b"(K\x01" + shaped + dtype + order + data + b"tb"


def test_hand_made_frame_is_good(tmp_path: Path) -> None:
    """The attacks below differ from this in one place only."""
    good = frame_of(array("i8", (1, 2), b"C\x10" + struct.pack("<2q", 4, 5)))
    assert read_frame(written(tmp_path, good)) == {"c0": [4, 5]}
    real = good.replace(b"Ne\x86R", _range_axis(2) + b"e\x86R")
    assert pickle.loads(real)["c0"].tolist() == [4, 5]
    two = struct.pack("<4q", 1, 2, 3, 4)
    rowwise = frame_of(array("i8", (2, 2), b"C\x20" + two), 2)
    columnwise = frame_of(array("i8", (2, 2), b"C\x20" + two, b"\x88"), 2)
    assert read_frame(written(tmp_path, rowwise)) == {"c0": [1, 2], "c1": [3, 4]}
    assert read_frame(written(tmp_path, columnwise)) == {"c0": [1, 3], "c1": [2, 4]}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (array("i8", (1, 2**60), b"C\x00"), "more data than the file holds"),
        (array("i8", (2**60, 0), b"C\x00"), "more data than the file holds"),
        (array("O8", (1, 2**60), b"]"), "more data than the file holds"),
        (array("i8", (1, 3), b"C\x10" + bytes(16)), "not as long as its shape"),
        (array("i8", (1, 1), b"C\x10" + bytes(16)), "not as long as its shape"),
        (array("i8", (1, -2), b"C\x10" + bytes(16)), "impossible shape"),
        (array("i8", (1, 1, 2), b"C\x10" + bytes(16)), "1 or 2 dimensions"),
        (array("O8", (1, 2), b"]Na"), "lacks cells"),
        (array("O8", (1, 1), b"C\x08" + b"A" * 8), "lacks cells"),
        (array("i8", (1, 1), b"]K\x01a"), "no bytes"),
        (array("V8", (1, 1), b"C\x08" + bytes(8)), "dtype"),
        (array("i8,O", (1, 1), b"C\x08" + bytes(8)), "dtype"),
        (array("O8", (1, 1), b"]]a"), "a cell is a list"),
        (array("O8", (1, 1), b"]}a"), "a cell is a dict"),
        (array("O8", (1, 1), b"]C\x01aa"), "a cell is a bytes"),
        (array("O8", (1, 1), b"]" + FRAME[2:] + b")\x81a"), "a cell is a frame"),
        (array("O8", (1, 1), b"]" + FRAME[2:] + b"a"), "a cell is a type"),
        (array("i8", (2, 1), b"C\x10" + bytes(16)), "differ in number"),
        (b"N", "no array"),
    ],
)
def test_hostile_arrays_are_refused(tmp_path: Path, values: bytes, said: str) -> None:
    assert said in refusal(written(tmp_path, frame_of(values)))


def test_a_buffer_may_not_be_read_many_times(tmp_path: Path) -> None:
    size = 200_000
    data = array("i1", (1, size), b"B" + struct.pack("<I", size) + bytes(size))
    assert len(read_frame(written(tmp_path, frame_of(data)))["c0"]) == size
    # Forty columns that all say to be the same 200 kB.
    blocks = b"".join(
        short("pandas._libs.internals")
        + short("_unpickle_block")
        + b"\x93"
        + (data + b"q\x00" if i == 0 else b"h\x00")
        + short("builtins")
        + short("slice")
        + b"\x93K"
        + bytes([i])
        + b"K"
        + bytes([i + 1])
        + b"K\x01\x87RK\x02\x87R"
        for i in range(40)
    )
    labels = frame_of(b"N", 40)
    labels = labels[labels.index(b"\x8c\x18pandas.core.indexes") :]
    manager = short("pandas.core.internals.managers") + short("BlockManager") + b"\x93"
    bomb = FRAME + b")\x81}" + short("_mgr") + manager + b"(" + blocks + b"t](" + labels
    real = bomb.replace(b"Ne\x86R", _range_axis(size) + b"e\x86R")
    assert pickle.loads(real).shape == (size, 40)
    assert "more data than the file holds" in refusal(written(tmp_path, bomb))


def _range_axis(size: int) -> bytes:
    made = short("pandas.core.indexes.base") + short("_new_Index") + b"\x93"
    made += short("pandas") + short("RangeIndex") + b"\x93}(" + short("start") + b"K\x00"
    return made + short("stop") + number(size) + short("step") + b"K\x01u\x86R"


def test_arrow_text_with_overlapping_ends_is_refused(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"a": pandas.array(["aaaa", "bbbb", "cccc"], dtype="str")})
    data = pickle.dumps(frame, 5)
    ends = struct.pack("<4q", 0, 4, 8, 12)
    if ends not in data:
        pytest.skip("this pandas has no pyarrow")
    assert read_frame(written(tmp_path, data)) == {"a": ["aaaa", "bbbb", "cccc"]}
    for bad in ((0, 12, 0, 12), (0, 4, 8, 13), (-4, 4, 8, 12), (0, 4, 8, 2**62)):
        hostile = data.replace(ends, struct.pack("<4q", *bad))
        said = refusal(written(tmp_path, hostile))
        assert "or damaged (" in said and "offset" in said


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (pandas.DataFrame({"a": pandas.Categorical(["x", "y"])}), "Categorical"),
        (pandas.DataFrame({"a": pandas.array([1, None], dtype="Int64")}), "IntegerArray"),
        (pandas.DataFrame({"a": [["x"], ["y"]]}), "a cell is a list"),
        (pandas.DataFrame([[1, 2]]), "its columns have no names"),
        (pandas.DataFrame([[1, 2]], columns=["a", 1]), "column name 1 is not text"),
        (pandas.DataFrame([[1, 2]], columns=["a", "a"]), "named twice"),
        (pandas.Series(["a"]), "Series"),
        ({"a": ["x"]}, "no frame"),
        (["x"], "no frame"),
    ],
)
def test_other_objects_are_refused_with_the_reason(
    tmp_path: Path, frame: object, said: str
) -> None:
    assert said in refusal(written(tmp_path, pickle.dumps(frame)))


def test_truncated_fixture_never_leaves_a_traceback(tmp_path: Path) -> None:
    data = (FIXTURES / "pandas2_corners_p4.pkl").read_bytes()
    for end in range(0, len(data), 7):
        refusal(written(tmp_path, data[:end]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:pickletools")
@pytest.mark.parametrize("name", ["pandas1_corners_p2", "pandas3_arrow_whole_p5"])
def test_flipped_bytes_are_read_or_refused(tmp_path: Path, name: str) -> None:
    data = (FIXTURES / f"{name}.pkl").read_bytes()
    path = tmp_path / "frame.pkl"
    for place in range(0, len(data), 5):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x15]) + data[place + 1 :])
        try:
            read_frame(path)
        except InputError as error:
            assert len(str(error).splitlines()) == 1


def test_missing_file_and_folder_are_one_line(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.pkl").endswith("no such file")
    assert "cannot be read" in refusal(tmp_path)
