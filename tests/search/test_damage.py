"""Damaged indexes: an error with the fault and a remedy, never an empty answer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from claim2source.eval.find import main as find
from claim2source.eval.index import main as index
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.errors import InputError, UserError
from claim2source.core.lock import LOCK_FILE
from claim2source.find.finder import Finder
from claim2source.search import files as module
from claim2source.search.engine import Engine, open_index
from claim2source.search.files import Folder, damage_reason, make_seal, read_seal
from claim2source.search.manifest import MANIFEST
from tests.refusals import refused
from tests.search.engines import WIDTH, Corpus, read_any_manifest

PAPERS = 40
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of two writes and a build; do not change it."""
    folder = tmp_path_factory.mktemp("damage") / "index"
    corpus = Corpus.drawn(PAPERS)
    engine = Engine.create(folder, read_any_manifest())
    engine.upsert(corpus.rows(range(20)))
    engine.upsert(corpus.rows(range(20, PAPERS)))
    engine.build()
    engine.close()
    return folder


@pytest.fixture
def copy(intact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "copy"))


NAMES = ["t/a", "t/b/c", "t/b/d", "t/e"]


@settings(max_examples=30)
@given(
    st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=6), min_size=1),
    st.sampled_from(NAMES),
    st.none() | st.binary(max_size=6),
    st.integers(0, 1),
)
def test_a_seal_names_the_file_that_changed(
    contents: dict[str, bytes], name: str, changed: bytes | None, later: int
) -> None:
    """Whatever changed in it, and whether or not its time changed too."""
    with TemporaryDirectory() as folder:
        indexed = Folder(Path(folder))
        for file, data in contents.items():
            (Path(folder) / file).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / file).write_bytes(data)
        seal = make_seal(indexed, "t", {})
        assert seal.keys() == contents.keys()
        indexed.write("seal", json.dumps(seal).encode())
        assert read_seal(indexed, "seal") == seal
        assert damage_reason(indexed, seal, "t", {}) == ""
        path = Path(folder) / name
        if changed is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(changed)
            time = int(seal[name][1]) if name in seal else 0
            os.utime(path, ns=(0, time + later))
        reason = damage_reason(indexed, seal, "t", {})
        assert reason.startswith(f"{name} ") == (contents.get(name, changed) != changed)
        assert bool(reason) == reason.startswith(f"{name} ")
        # A hash is taken over only from a file of the same size and time.
        if later or len(contents.get(name, b"")) != len(changed or b""):
            assert make_seal(indexed, "t", seal) == make_seal(indexed, "t", {})


def files(folder: Path) -> list[Path]:
    paths = sorted(path for path in folder.glob("papers.lance/**/*") if path.is_file())
    # LanceDB rewrites its hint with every version, and works without it.
    return [path for path in paths if "hint" not in path.name]


def trim(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """Change one bit, and leave size and time as they are."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("damage", [Path.unlink, trim, flip, lambda path: path.write_bytes(b"")])
def test_every_file_is_missed_and_nothing_replaces_it(
    intact: Path, copy: Path, damage: Callable[[Path], object]
) -> None:
    for path in files(copy):
        original = path.read_bytes()
        damage(path)
        paths = sorted(copy.rglob("*"))
        with refused(InputError, f"{PAPERS} papers", path.name) as error:
            open_index(copy)
        assert "\n" not in str(error.value)
        with pytest.raises(UserError):
            Engine.create(copy, read_any_manifest())
        assert sorted(copy.rglob("*")) == paths
        path.write_bytes(original)
    assert open_index(copy).stats().papers == PAPERS


def test_a_table_that_cannot_be_seen_is_an_error_without_the_note_of_its_files_too(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "papers.files.json").unlink()
    newest = min((copy / "papers.lance/_versions").glob("*.manifest"))
    versions = {path: path.read_bytes() for path in newest.parent.iterdir()}
    # An older state, a broken one, one without versions, and none at all.
    for left in ([*versions][-2:], []):
        for path in versions:
            if path not in left:
                path.unlink()
        with refused(InputError, copy, f"{PAPERS} papers"):
            find(["a post", "--index", str(copy)])
        with refused(InputError, copy, f"{PAPERS} papers"):
            index(["demo", "--out", str(copy), "--model", "no/model"])  # before it is looked for
        for path, data in versions.items():
            path.write_bytes(data)
    newest.write_bytes(b"broken")
    with refused(InputError, copy, f"{PAPERS} papers"):
        open_index(copy)
    shutil.rmtree(copy / "papers.lance")
    with refused(InputError, copy, f"{PAPERS} papers"):
        open_index(copy)
    assert not (copy / "papers.lance").exists() and capsys.readouterr().out == ""


ABSURD: list[tuple[dict[str, object], tuple[str, ...]]] = [
    ({"format": 1}, ("version", "--out")),
    ({"dimensions": 10**12}, ("dimensions",)),
    ({"dimensions": WIDTH + 1}, ("table", "manifest")),
    ({"papers": 10**9}, ("1000000000 papers", f" {PAPERS}")),
    ({"probes": 9}, ("probes",)),
    ({"probes": -1, "partitions": -1}, ("counts",)),
    ({"probes": 10**18, "partitions": 10**18}, ("partitions", "16777216")),
    ({"bm25": {"k1": "much"}}, ("bm25.k1: 'much'",)),
    ({"bm25": {"k1": 1.5}}, ("bm25.k1: 1.5 ", "1.2")),
    ({"bm25": {"b": 0.4}}, ("bm25.b: 0.4 ", "0.75")),
    ({"encoders": "none"}, ("encoders: 'none'",)),
    ({"table": "../../etc"}, ("table",)),
    ({"table": "other"}, ("other.lance/_versions",)),
    ({"sentences": 0}, ("table", "manifest")),
]


@pytest.mark.parametrize(("values", "facts"), ABSURD)
def test_an_absurd_manifest_is_refused(
    copy: Path, values: dict[str, object], facts: tuple[str, ...]
) -> None:
    file = copy / MANIFEST
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    with refused(InputError, copy, *facts) as error:
        open_index(copy)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe{}", b"[" * 100_000, b"[]", b"null"])
def test_a_manifest_or_a_note_that_is_no_json_is_refused(copy: Path, text: bytes) -> None:
    for name in (MANIFEST, "papers.files.json"):
        before = (copy / name).read_bytes()
        (copy / name).write_bytes(text)
        with refused(InputError, name):
            open_index(copy)
        (copy / name).write_bytes(before)


@pytest.mark.parametrize(
    "copied", ["papers.files", "_indices", "_transactions", "_versions", "data"]
)
def test_parts_of_an_index_without_a_manifest_are_not_replaced(copy: Path, copied: str) -> None:
    for path in [path for path in copy.rglob("*") if path.is_file() and copied not in str(path)]:
        path.unlink()
    paths = sorted(copy.rglob("*"))
    with refused(InputError, copy, "--out"):
        Engine.create(copy, read_any_manifest())
    assert sorted(copy.rglob("*")) == paths


def test_an_index_whose_making_was_killed_is_made_by_the_next_run(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    for left in ([], ["papers.lance"], ["papers.lance/_versions"]):
        for name in left:
            (folder / name).mkdir(parents=True)
        for _ in range(2):  # killed twice, before the manifest was written
            Engine.create(folder, read_any_manifest()).close()
            assert open_index(folder).stats().papers == 0
            (folder / MANIFEST).unlink()
        shutil.rmtree(folder)


def test_what_was_written_since_the_last_build_is_read_and_guarded(copy: Path) -> None:
    before, writer = files(copy), open_index(copy)
    writer.upsert(Corpus.drawn(PAPERS + 20).rows(range(PAPERS, PAPERS + 20)))
    # The writer still has it, or was killed here.
    assert open_index(copy).stats().papers == PAPERS + 20
    for path in set(files(copy)) - set(before):
        data = path.read_bytes()
        flip(path)
        with refused(InputError, copy, path.name):
            open_index(copy)
        path.write_bytes(data)
    writer.close()
    hint = copy / "papers.lance/_versions/latest_version_hint.json"
    for text in ('{"version":2}', '{"version":99}', "", "broken"):
        hint.write_text(text)
        assert open_index(copy).stats().papers == PAPERS + 20


def scramble(path: Path) -> None:
    """Fill a fifth of a file with ones: LanceDB panics at some of these, with output on stderr."""
    data = bytearray(path.read_bytes())
    start, end = len(data) // 5, 2 * len(data) // 5
    data[start:end] = b"\xff" * (end - start)
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "harm", [trim, *(pytest.param(harm, marks=SLOW) for harm in (flip, scramble))]
)
@pytest.mark.parametrize(
    "name",
    ["page_data", *(pytest.param(f"part_0_{s}", marks=SLOW) for s in ("invert", "tokens", "docs"))],
)
def test_a_damaged_search_index_without_a_note_is_made_anew_by_the_next_run(
    copy: Path, name: str, harm: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    (copy / "papers.files.json").unlink()  # as of a large index, of which not every bit is read
    for path in copy.glob(f"papers.lance/_indices/*/{name}.lance"):
        harm(path)
    corpus = Corpus.drawn(PAPERS + 20)
    writer = open_index(copy)
    writer.upsert(corpus.rows(range(10, PAPERS + 20)))
    writer.build()
    writer.close()
    engine = open_index(copy)
    stats = engine.stats()
    assert (stats.papers, stats.unbuilt) == (PAPERS + 20, 0)
    scores = corpus.lexical(["w1", "w2"])
    hits = engine.lexical(["w1", "w2"], PAPERS + 20)
    assert len(hits) == (scores > 0).sum() > 5
    assert [score for _, score in hits] == pytest.approx(sorted(scores[scores > 0])[::-1], rel=1e-4)
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.slow
def test_vectors_without_a_note_stay_divided_until_the_next_build(tmp_path: Path) -> None:
    corpus = Corpus.drawn(60)
    engine = Engine.create(tmp_path / "index", read_any_manifest(), exact_below=50)
    engine.upsert(corpus.rows())
    engine.build()
    (tmp_path / "index" / "papers.files.json").unlink()
    for _ in range(2):
        engine.close()
        engine.lock()
        assert engine.manifest.probes and "vector" in engine._index_names()
        assert (engine.manifest.trained, engine.stats().unbuilt) == (0, 0)
    divided = set(tmp_path.glob("index/papers.lance/_indices/*/auxiliary.idx"))
    engine.build()
    assert engine.manifest.trained == 60
    assert set(tmp_path.glob("index/papers.lance/_indices/*/auxiliary.idx")) > divided
    engine.close()


@pytest.mark.parametrize("sealed", [True, False])
def test_a_sparse_file_is_refused_without_being_read(copy: Path, sealed: bool) -> None:
    if not sealed:
        (copy / "papers.files.json").unlink()
    file = next(copy.glob("papers.lance/data/*.lance"))
    os.truncate(file, 20 * 2**30)
    with refused(InputError, f"{file.name}: "):
        open_index(copy)


def test_a_mount_that_counts_no_blocks_has_no_sparse_files(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, stat = next(copy.glob("papers.lance/data/*.lance")), Path.stat

    def without_blocks(path: Path, *, follow_symlinks: bool = True) -> Any:
        status = stat(path, follow_symlinks=follow_symlinks)
        size = 2 * 2**30 if path == file else status.st_size
        mode, stamp = status.st_mode, status.st_mtime_ns
        return SimpleNamespace(st_size=size, st_blocks=0, st_mode=mode, st_mtime_ns=stamp)

    monkeypatch.setattr(Path, "stat", without_blocks)
    assert (
        module.Folder(copy).listed("papers.lance")[file.relative_to(copy).as_posix()][0]
        == 2 * 2**30
    )


def test_a_damaged_abstention_is_refused_with_what_to_do(copy: Path, tmp_path: Path) -> None:
    engine = open_index(copy)
    engine.note(abstain={"weights": "many"})
    manifest = (copy / MANIFEST).read_bytes()
    (tmp_path / "more.jsonl").write_text('{"_id": "new", "title": "t", "text": "x y z"}')
    advice = f"index --claims DATASET --out {copy}"
    for use in (
        lambda: Finder(open_index(copy)),
        lambda: index([str(tmp_path / "more.jsonl"), "--out", str(copy)]),
        lambda: index(["--delete", str(tmp_path / "more.jsonl"), "--out", str(copy)]),
    ):
        with refused(InputError, "abstain", advice):
            use()
    assert (copy / MANIFEST).read_bytes() == manifest


def test_an_index_that_goes_while_it_is_open_is_said(copy: Path) -> None:
    engine = open_index(copy)
    shutil.rmtree(copy)
    for use in (
        lambda: engine.dense(np.ones(WIDTH), 5),
        lambda: engine.lexical(["w1"], 5),
        lambda: engine.fetch(["p1"]),
        lambda: engine.sample(PAPERS, 5),
        lambda: list(engine.rows()),
        engine.stats,
        engine.refresh,
    ):
        with pytest.raises(UserError) as error:
            use()
        assert str(copy) in str(error.value) and "\n" not in str(error.value)
    assert not copy.exists()


def test_links_and_pipes_in_place_of_the_lock_are_refused(copy: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    makers: list[Callable[[Path], object]] = [
        lambda lock: lock.symlink_to(victim),
        lambda lock: os.link(victim, lock),
        os.mkfifo,
        Path.mkdir,
    ]
    for make in makers:
        victim.write_text("precious")
        make(copy / LOCK_FILE)
        with pytest.raises(UserError, match=LOCK_FILE):
            open_index(copy).delete(["p1"])
        assert victim.read_text() == "precious"
        (copy / LOCK_FILE).rmdir() if make is Path.mkdir else (copy / LOCK_FILE).unlink()
    # An atomic write replaces a link, and does not change its target.
    (copy / MANIFEST).rename(tmp_path / "real.json")
    (copy / MANIFEST).symlink_to(tmp_path / "real.json")
    before = (tmp_path / "real.json").read_bytes()
    engine = open_index(copy)
    engine.note(recall=0.5)
    assert (tmp_path / "real.json").read_bytes() == before


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("name", ["latest_version_hint.json", "*.manifest"])
def test_a_pipe_in_place_of_a_file_is_refused_at_once(copy: Path, name: str, sealed: bool) -> None:
    if not sealed:
        (copy / "papers.files.json").unlink()
    (path, *_) = (copy / "papers.lance/_versions").glob(name)
    path.unlink()
    os.mkfifo(path)
    with refused(InputError, f"{path.name}: "):
        open_index(copy)


@pytest.mark.parametrize("sealed", [True, False])
def test_links_that_lead_nowhere_and_folders_are_refused(
    intact: Path, copy: Path, sealed: bool, tmp_path: Path
) -> None:
    seal = copy / "papers.files.json"
    if not sealed:
        seal.unlink()
    for name in ("papers.lance", "papers.lance/data", "papers.lance/_indices"):
        (copy / name).rename(tmp_path / "aside")
        (copy / name).symlink_to(copy / name)
        with refused(InputError, copy):
            open_index(copy)
        (copy / name).unlink()
        (tmp_path / "aside").rename(copy / name)
    for path in (copy / MANIFEST, seal):
        path.unlink(missing_ok=True)
        path.mkdir()
        for use in (open_index, lambda folder: open_index(folder).delete(["p1"])):
            with refused(InputError, f"{path.name}: "):
                use(copy)
        path.rmdir()
        path.write_bytes((intact / path.name).read_bytes())
    assert open_index(copy).stats().papers == PAPERS


def test_an_older_state_that_is_named_as_the_newest_is_refused_and_nothing_is_written(
    copy: Path,
) -> None:
    versions = copy / "papers.lance/_versions"
    oldest = max(versions.glob("*.manifest"))
    shutil.copy(oldest, versions / f"{2**64 - 1 - 500:020}.manifest")
    paths = sorted(copy.rglob("*"))
    for seal in (True, False):
        if not seal:
            (copy / "papers.files.json").unlink()
            paths.remove(copy / "papers.files.json")
        with refused(InputError, copy, "papers.lance/_versions", "newest"):
            open_index(copy)
        assert sorted(copy.rglob("*")) == paths


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, reason in (
        ("none", "no such folder"),
        ("file", "is not a folder"),
        ("empty", "not an index: it has no manifest.json"),
    ):
        with pytest.raises(InputError) as error:
            open_index(tmp_path / name)
        assert str(error.value) == f"{tmp_path / name}: {reason}"


@pytest.mark.slow
def test_of_large_indexes_only_files_that_changed_since_are_read(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_index(copy)
    engine.build()  # the note is of these files, not of those that they were copied from
    engine.close()
    monkeypatch.setattr(module, "HASH_LIMIT", 0)
    hashed: list[str] = []
    monkeypatch.setattr(
        module, "file_hash", lambda path: hashed.append(Path(path).name) or "0" * 64
    )
    open_index(copy)
    assert hashed == []
    os.utime(path := files(copy)[0])
    with refused(InputError, path.name):
        open_index(copy)
    assert hashed == [path.name]
    # The smallest files are always read: a flipped bit of an index of ids would hide a paper.
    monkeypatch.undo()
    paths = sorted(files(copy), key=lambda path: path.stat().st_size)
    monkeypatch.setattr(module, "HASH_LIMIT", sum(path.stat().st_size for path in paths[:-1]))
    flip(paths[-1])
    open_index(copy)
    flip(paths[-2])
    with refused(InputError, paths[-2].name):
        open_index(copy)


@pytest.mark.slow
def test_a_full_disk_is_said_and_what_was_written_stays(copy: Path) -> None:
    """The limit of a file's size simulates a full disk: both fail in the middle of a write."""
    import resource

    corpus = Corpus.drawn(2000, seed=3)
    engine = open_index(copy)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UserError) as error:
            engine.upsert(corpus.rows(range(100, 2000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        engine.close()
    assert "\n" not in str(error.value)
    engine = open_index(copy)
    assert engine.stats().papers == PAPERS and len(engine.dense(np.ones(WIDTH), 99)) == PAPERS
    engine.upsert(corpus.rows(range(100, 200)))
    engine.build()
    engine.close()
    assert open_index(copy).stats().papers == PAPERS + 100


@pytest.mark.slow
def test_a_rebuilt_index_that_is_damaged_is_refused_by_every_search_until_it_is_whole(
    copy: Path,
) -> None:
    reader, writer = open_index(copy), open_index(copy)
    before = reader.manifest
    writer.upsert(Corpus.drawn(PAPERS + 9).rows(range(PAPERS, PAPERS + 9)))
    writer.build()
    writer.close()
    path = next((copy / "papers.lance/data").glob("*.lance"))
    data, status = path.read_bytes(), path.stat()
    path.unlink()
    for _ in range(2):
        with refused(InputError, path.name):
            reader.refresh()
        assert reader.manifest == before
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    reader.refresh()
    assert reader.manifest == writer.manifest and reader.stats().papers == PAPERS + 9
