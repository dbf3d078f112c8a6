"""The store is shown and pruned: only its own files go, and who uses it goes on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.run import Run
from claim2source.io.store import Store, text_key
from eval.store import main

DAY = 86_400


def fill(root: Path) -> dict[str, Path]:
    """A store of two models, a run, a damaged shard and leftovers, among files that are not its."""
    store = Store(root)
    for model, texts, size in (("MiniLM", 3, 4), ("E5 (trained)", 2, 1000)):
        keys = [text_key(f"{model} {i}") for i in range(texts)]
        store.space({"model": model}, model).put(keys, np.ones((texts, size), np.float32))
        assert Store(root).space({"model": model}).missing(keys) == []  # writes `.verified`
    store.put_run({"x": 1}, Run.from_lists({"q": [("d", 1.0)]}))
    minilm, e5 = sorted(
        (root / "embeddings").glob("*/*.safetensors"), key=lambda p: p.stat().st_size
    )
    (run,) = (root / "runs").glob("*.safetensors")
    files = {"minilm": minilm, "e5": e5, "run": run}
    files["damaged"] = minilm.with_name("0" * 64 + ".safetensors")
    files["damaged"].write_bytes(b"\xff" * 20)
    files["left"] = minilm.with_name(f".{minilm.name}.abcd1234.tmp")
    files["live"] = minilm.with_name(f".{minilm.name}.abcd1235.tmp")
    for name in ("left", "live"):
        files[name].write_bytes(b"half")
    for name, days in (("left", 2), ("minilm", 40), ("run", 20), ("damaged", 20), ("e5", 10)):
        os.utime(files[name], times=(then := time.time() - days * DAY, then))
    others = {
        "note": root / "notes.safetensors",
        "own": root / "runs" / "mine.safetensors",
        "folder": root / "embeddings" / "mine" / minilm.name,
        "below": root / "embeddings" / minilm.name,
    }
    for path in others.values():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    target = root.parent / "elsewhere"
    target.mkdir()
    (target / minilm.name).write_bytes(b"x")
    (root / "embeddings" / ("1" * 64)).symlink_to(target)
    return files | others | {"linked": target / minilm.name}


def kept(files: dict[str, Path]) -> set[str]:
    return {name for name, path in files.items() if path.exists()}


def said(root: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    main(["--store", str(root), *words])
    return capsys.readouterr().out.splitlines()


def test_what_is_there_is_shown_by_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "store"
    assert said(root, capsys) == [f"{root}: 0 files, 0.0 MiB"]
    files = fill(root)
    first, _, head, *rows = said(root, capsys)
    assert first.startswith(f"{root}: 5 files, ") and head.split()[0] == "what"
    shown = {row.split("  ")[0]: row.split()[-5:] for row in rows}
    assert shown["vectors of MiniLM, 4 x F32"] == ["3", "1", "0.0", "40.0", "40.0"]
    assert shown["vectors of E5 (trained), 1000 x F32"][:2] == ["2", "1"]
    assert shown["ranked lists"][:2] == shown["damaged files"][:2] == ["1", "1"]
    assert shown["left by killed processes"][:2] == ["1", "1"] and len(shown) == 5
    assert kept(files) == files.keys()


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        (["--older_than", "15"], {"minilm", "left", "run", "damaged"}),
        (["--at_most", "0.008"], {"minilm", "left", "run"}),
        (["--at_most", "0"], {"minilm", "left", "run", "damaged", "e5"}),
        (["--all"], {"minilm", "left", "run", "damaged", "e5"}),
    ],
)
def test_only_files_of_the_store_are_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], gone: set[str]
) -> None:
    files = fill(tmp_path / "store")
    would = said(tmp_path / "store", capsys, *words, "--dry_run")[-1]
    assert kept(files) == files.keys() and would.startswith(f"would be removed: {len(gone)} file")
    assert said(tmp_path / "store", capsys, *words)[-1] == would.replace("would be ", "")
    assert kept(files) == files.keys() - gone
    assert files["minilm"].with_suffix(".verified").exists() is ("minilm" not in gone)


def test_a_process_that_uses_the_store_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [text_key("a"), text_key("b")]
    space = Store(tmp_path).space({"x": 1}, "m")
    space.put(keys[:1], np.full((1, 2), 7, np.float32))
    said(tmp_path, capsys, "--all")
    assert space.get(keys[:1]).tolist() == [[7, 7]]
    space.put(keys[1:], np.full((1, 2), 8, np.float32))
    assert space.get(keys).tolist() == [[7, 7], [8, 8]]
    assert Store(tmp_path).space({"x": 1}).missing(keys) == [0]
