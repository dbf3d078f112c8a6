"""The shipped demo set: it is what the generator writes, and it keeps its promises."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "make_demo.py"
DEMO = ROOT / "claim2source" / "datasets" / "demo"
FILES = ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/dev.tsv", "qrels/test.tsv")
LANGS = ("en", "de", "fr")
SPLITS = ("train", "dev", "test")

Row = dict[str, Any]


def generate(out: Path, *arguments: str) -> dict[str, bytes]:
    """Run the generator as a user would; the files by name."""
    # A fresh process has its own hash seed: an order that hangs on hashes would show.
    subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(out), *arguments],
        check=True,
        capture_output=True,
    )
    return {name: (out / name).read_bytes() for name in FILES}


def test_a_data_set_is_not_written_over_unless_asked(tmp_path: Path) -> None:
    out = tmp_path / "set"
    (out / "qrels").mkdir(parents=True)
    (out / "queries.jsonl").write_text("mine\n", encoding="utf-8")
    command = [sys.executable, str(SCRIPT), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "holds queries.jsonl; add --overwrite" in done.stderr
    assert [path.name for path in sorted(out.iterdir())] == ["qrels", "queries.jsonl"]
    assert (out / "queries.jsonl").read_text(encoding="utf-8") == "mine\n"
    assert generate(out, "--overwrite")["queries.jsonl"] == (DEMO / "queries.jsonl").read_bytes()


def rows(path: Path) -> list[Row]:
    """The JSON lines of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def queries() -> dict[str, Row]:
    """Claims by id."""
    return {row["_id"]: row for row in rows(DEMO / "queries.jsonl")}


@pytest.fixture(scope="module")
def golds() -> dict[str, dict[str, str]]:
    """Per split, the gold of each claim."""
    found: dict[str, dict[str, str]] = {}
    for split in SPLITS:
        header, *lines = (DEMO / "qrels" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
        assert header == "query-id\tcorpus-id\tscore"
        cells = [line.split("\t") for line in lines]
        assert all(len(cell) == 3 and cell[2] == "1" for cell in cells)
        found[split] = {cell[0]: cell[1] for cell in cells}
        assert len(found[split]) == len(cells), "one gold per claim"
    return found


def test_the_committed_files_are_what_the_default_seed_writes(tmp_path: Path) -> None:
    """Byte for byte, and nothing else is left in the folder."""
    made = generate(tmp_path / "demo")
    for name in FILES:
        assert made[name] == (DEMO / name).read_bytes(), name
    left = sorted(
        path.relative_to(tmp_path / "demo").as_posix() for path in (tmp_path / "demo").rglob("*.*")
    )
    assert left == sorted(FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["demo"], (
        "a temporary folder was left behind"
    )


def test_templates_are_disjoint(queries: dict[str, Row], golds: dict[str, dict[str, str]]) -> None:
    """Train, dev and test speak differently."""
    used = {
        split: {queries[claim]["metadata"]["template"] for claim in golds[split]}
        for split in SPLITS
    }
    for a, b in itertools.combinations(SPLITS, 2):
        assert not used[a] & used[b]
    assert all(len(used[split]) >= 3 * 8 for split in SPLITS)


def test_seen_and_unseen_golds(queries: dict[str, Row], golds: dict[str, dict[str, str]]) -> None:
    """Dev golds are new; half of test is, in every language."""
    seen = set(golds["train"].values())
    assert not seen & set(golds["dev"].values())
    for lang in LANGS:
        test = [
            gold
            for claim, gold in golds["test"].items()
            if queries[claim]["metadata"]["lang"] == lang
        ]
        assert 2 * sum(gold in seen for gold in test) == len(test)
