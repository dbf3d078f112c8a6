"""What a training lacks is said before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from claim2source.core.errors import InputError
from claim2source.data.loading import require_golds
from tests.shared_data import REPOSITORY

DEMO = REPOSITORY / "claim2source" / "data" / "demo"
CODE = """
import importlib, sys
from claim2source.core.errors import UserError
main = importlib.import_module(sys.argv[1]).main
try:
    main(sys.argv[2:])
except UserError as error:
    print(error)
print([name for name in ("torch", "transformers", "faiss") if name in sys.modules])
"""


@pytest.fixture
def noq(tmp_path: Path) -> Path:
    """The demo without judgements."""
    folder = tmp_path / "noq"
    folder.mkdir()
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / name).symlink_to(DEMO / name)
    return folder


BOTH = [
    (
        ["--device", "cuda"],
        "config: device: 'cuda' is not allowed; allowed: cpu: there is no GPU",
    ),
    (["--out", "/proc/x"], "/proc/x: cannot be written"),
    (
        ["--model.name", "all-MiniLM-L6v2"],
        "did you mean sentence-transformers/all-MiniLM-L6-v2?",
    ),
    (["--data.dataset", "noq"], "noq: split: no claim of 'train' has a gold"),
    (["--data.report_split", "tset"], "split: no split 'tset'; splits: train, dev, test"),
]
AFTER = (["--after", "end.yaml"], "end.yaml:1: systemz: no such key")


@pytest.mark.parametrize(
    ("program", "words", "message"),
    [
        *(("train.finetune", *case) for case in (*BOTH, AFTER)),
        *(("train.finetune_reranker", *case) for case in BOTH),
    ],
)
def test_what_is_missing_is_said_without_torch(
    program: str, words: list[str], message: str, noq: Path
) -> None:
    if words[0] == "--device" and any(map(Path.exists, map(Path, ("/dev/nvidiactl", "/dev/kfd")))):
        pytest.skip("there is a GPU")
    config = f"{program.removeprefix('train.')}/demo.yaml".replace("finetune_reranker", "reranker")
    extra = ["--config", f"configs/{config}"] if "reranker" not in program else []
    (noq.parent / "end.yaml").write_text("systemz: []\n")
    # Every process of a launch looks, also one that is not the first.
    rank = {"RANK": "1", "WORLD_SIZE": "2"} if "reranker" in program else {}
    process = subprocess.run(
        [sys.executable, "-c", CODE, program, *extra, "--out", "o", *words],
        capture_output=True,
        text=True,
        cwd=noq.parent,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", **rank},
        timeout=120,
    )
    *lines, heavy = process.stdout.splitlines() or [process.stderr]
    assert heavy == "[]" and any(message in line for line in lines), process.stdout + process.stderr
    assert not (noq.parent / "o").exists()


def test_golds_are_looked_for_in_the_judgements(noq: Path) -> None:
    require_golds(DEMO, "dev")
    (noq / "qrels").mkdir()
    header = "query-id\tcorpus-id\tscore\n"
    claim, source, _ = (DEMO / "qrels" / "dev.tsv").read_text().splitlines()[1].split("\t")
    (noq / "qrels" / "dev.tsv").write_text(f"{header}{claim}\t{source}\t0\n")
    with pytest.raises(InputError, match="noq: split: no claim of 'dev' has a gold"):
        require_golds(noq, "dev")
    (noq / "qrels" / "dev.tsv").write_text(f"{header}{claim}\t{source}\t2\n")
    require_golds(noq, "dev")
