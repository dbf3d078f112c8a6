"""Files are written completely or not at all."""

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from claim2source.core.errors import InputError
from claim2source.core.files import (
    atomic_folder,
    atomic_path,
    clean_leftovers,
    content_hash,
    file_error,
    file_hash,
    folder_error,
    is_leftover,
    require_writable,
    write_json,
    write_text,
)
from tests.refusals import refused


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_and_a_folder_appear_whole_under_their_names(tmp_path):
    target = tmp_path / "new" / "folder" / "a.txt"
    with atomic_path(target) as temporary:
        temporary.write_text("half")
        assert temporary.parent == target.parent
        assert not target.exists()
        temporary.write_text("whole")
    assert target.read_text() == "whole"
    assert listing(target.parent) == ["a.txt"]
    folder = tmp_path / "other" / "a"
    for name in ("one", "two"):
        with atomic_folder(folder) as temporary:
            (temporary / name).write_text(name)
            assert name not in listing(folder)
        assert listing(folder.parent) == ["a", f"a/{name}"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_write_keeps_the_old_file_or_folder_and_no_half_one(tmp_path, error):
    target, folder = tmp_path / "a.txt", tmp_path / "b"
    for before in ([], ["a.txt", "b", "b/old"]):
        with pytest.raises(error), atomic_path(target) as temporary:
            temporary.write_text("half")
            raise error
        with pytest.raises(error), atomic_folder(folder) as temporary:
            (temporary / "half").write_text("half")
            raise error
        assert listing(tmp_path) == before
        assert not before or target.read_text() == "old"
        target.write_text("old")
        folder.mkdir(exist_ok=True)
        (folder / "old").write_text("old")
    # An error about another file names that file.
    with refused(OSError, "absent") as caught, atomic_path(target):
        (tmp_path / "absent").read_text()
    assert caught.value.filename == str(tmp_path / "absent")


def test_the_content_is_on_disk_before_the_name_is(tmp_path, monkeypatch):
    target, synced = tmp_path / "a.txt", []
    fsync = os.fsync

    def noted(file):
        synced.append((target.exists(), os.pread(file, 99, 0)))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    write_text(target, "whole")
    assert synced[0] == (False, b"whole")


def test_permissions_are_those_of_a_plain_file(tmp_path):
    old = os.umask(0o027)
    try:
        write_text(tmp_path / "a.txt", "x")
        with atomic_folder(tmp_path / "b"):
            pass
    finally:
        os.umask(old)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o750


def test_the_old_folder_comes_back_when_the_rename_fails(tmp_path, monkeypatch):
    target = tmp_path / "a"
    target.mkdir()
    (target / "old").write_text("old")
    replace = os.replace

    def refuse_the_new(source, destination):
        if Path(destination) == target and ".old" not in str(source):
            raise OSError("no")
        replace(source, destination)

    monkeypatch.setattr(os, "replace", refuse_the_new)
    with refused(OSError), atomic_folder(target) as temporary:
        (temporary / "new").write_text("new")
    assert listing(tmp_path) == ["a", "a/old"]


KILLED = """
import os, signal, sys
from claim2source.core.files import atomic_folder, atomic_path
calls, real, rmtree = 0, os.replace, __import__("shutil").rmtree
def die_at(wrapped):
    def called(*arguments, **more):
        global calls
        calls += 1
        if calls == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        return wrapped(*arguments, **more)
    return called
with atomic_folder("a") as temporary:
    (temporary / "new").write_text("new")
    os.replace, __import__("shutil").rmtree = die_at(real), die_at(rmtree)
"""


@pytest.mark.parametrize(("call", "name"), [(1, "old"), (2, "old"), (3, "new"), (4, "new")])
def test_a_folder_survives_a_kill_at_any_rename(call, name, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").write_text("old")
    (tmp_path / ".hidden").write_text("theirs")
    (tmp_path / ".b.abcdefgh.tmp").write_text("of another target")
    process = subprocess.run(
        [sys.executable, "-c", KILLED, str(call)],
        cwd=tmp_path,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.returncode == -signal.SIGKILL
    left = [path for path in tmp_path.iterdir() if path.name.startswith(".a.")]
    assert len(left) == {1: 2, 2: 2, 3: 1, 4: 0}[call] and all(map(is_leftover, left))
    assert (tmp_path / "a").exists() == (call != 2)
    clean_leftovers(tmp_path, "a")
    assert listing(tmp_path) == [".b.abcdefgh.tmp", ".hidden", "a", f"a/{name}"]
    clean_leftovers(tmp_path)
    assert listing(tmp_path) == [".hidden", "a", f"a/{name}"]


def test_what_is_no_leftover_is_left_alone(tmp_path):
    names = ["a.abcdefgh.tmp", ".a.ABCDEFGH.tmp", ".a.abcdefgh.tmp.py"]
    for name in names:
        (tmp_path / name).write_text("theirs")
    clean_leftovers(tmp_path)
    assert listing(tmp_path) == sorted(names)
    clean_leftovers(tmp_path / "absent")


def test_text_and_json_are_utf8_and_what_cannot_be_written_leaves_the_old(tmp_path):
    write_text(tmp_path / "a.txt", "é🦠\r\nx\n")
    assert (tmp_path / "a.txt").read_bytes() == "é🦠\r\nx\n".encode()
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.txt", "\ud800")
    assert "é" in (tmp_path / "a.txt").read_text("utf-8")
    write_json(tmp_path / "a.json", {"ü": [1, None]})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert text == '{\n  "ü": [\n    1,\n    null\n  ]\n}\n'
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"x": object()})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == text
    assert listing(tmp_path) == ["a.json", "a.txt"]


@pytest.fixture
def full_disk():
    """A disk that accepts 4 KB of every file and fails during writing, like a full one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


BIG = np.zeros(10_000)
WRITERS = {
    "text": lambda path: path.write_text("x" * 10_000),
    "safetensors": lambda path: save_file({"a": BIG}, path),
    "torch": lambda path: torch.save(torch.from_numpy(BIG), path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_is_said_of_the_target_and_the_old_file_stays(write, tmp_path, full_disk):
    target, folder = tmp_path / "target", tmp_path / "folder"
    target.write_text("old")
    with refused(OSError) as error, atomic_path(target) as temporary:
        write(temporary)
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(target))
    with refused(OSError) as error, atomic_folder(folder) as inside:
        write(inside / "file")
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(folder))
    assert (listing(tmp_path), target.read_text()) == (["target"], "old")
    with refused(InputError, folder, os.strerror(errno.EFBIG).lower()):
        require_writable(folder, "folder")


@pytest.fixture
def folders(tmp_path):
    """A folder with a file, a folder, a loop, a link to nothing, a link to a folder, a pipe."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken").symlink_to("absent")
    (tmp_path / "link").symlink_to("folder")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


LOOP = "too many levels of symbolic links"


def test_what_cannot_be_written_is_said_before_the_work_and_nothing_is_made(folders):
    before = listing(folders)
    absent = "no such file or directory"
    for kind, name, file, *facts in [
        ("file", "folder", "folder"),
        ("file", "file/x", "file"),
        ("file", "loop/x", "loop/x", LOOP),
        ("file", "broken/x", "broken/x", absent),
        ("file", "x" * 250, "x" * 250, "file name too long"),
        ("file", "/dev/null", "/dev/null"),
        ("folder", "file", "file"),
        ("folder", "/proc", "/proc", absent),
    ]:
        with refused(InputError, *facts) as error:
            require_writable(folders / name, kind)
        assert error.value.problems[0].file == str(folders / file)
    for kind in ("file", "folder"):
        require_writable(folders / "link" / "new" / "one", kind)
        require_writable(folders / kind, kind)
    assert listing(folders) == before


def test_what_cannot_be_read_is_said_as_it_is(folders):
    reasons = {}
    for name in ("link", "loop", "broken", "pipe", "a\0b", "file/x"):
        reasons[name] = file_error(folders / name)
    assert all(reasons.values()) and len(set(reasons.values())) == len(reasons)
    assert reasons["loop"] == LOOP
    assert file_error(folders / "file") is None
    assert folder_error(folders / "link") is None
    assert folder_error(folders / "file")
    # A shell's pipe can be read.
    reader, writer = os.pipe()
    assert file_error(Path(f"/dev/fd/{reader}")) is None
    os.close(reader)
    os.close(writer)


def test_hashes(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    # FIPS 180-2, appendix B.1
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_hash(tmp_path / "abc") == digest
    assert content_hash({"a": 1, "b": (1, 2)}) == content_hash({"b": [1, 2], "a": 1})
    different = [{}, {"a": 1}, {"a": "1"}, {"a": None}, {"a": [1]}, {"a": "é"}, {"a": "e\u0301"}]
    assert len({content_hash(value) for value in different}) == len(different)
    content_hash("\ud800")  # a lone surrogate from a post is hashed, not refused
