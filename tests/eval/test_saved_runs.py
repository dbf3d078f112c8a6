"""The authors' own outputs through the programs: evaluated as a system, compared with ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from claim2source.core.files import write_json
from claim2source.datasets import load, write_beir
from eval import baselines, compare
from tests.training.small import small_splits


@pytest.mark.slow
def test_a_released_run_is_evaluated_and_compared_with_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write_beir(small_splits(), data)
    dev = load(data, "dev")
    others = [source.id for source in dev.sources if source.id not in dev.golds][:4]

    def write(place: int) -> None:
        """Score files whose golds are all at this place."""
        for lang in dev.languages:
            entries = []
            for claim in dev.claims:
                if claim.lang == lang:
                    keys = list(others)
                    keys.insert(place - 1, claim.golds[0])
                    candidates = [
                        {"rank": i, "pubkey": key, "embedding_score": 1 / i}
                        for i, key in enumerate(keys, 1)
                    ]
                    gold = {"ground_truth_pubkey": claim.golds[0], "candidates": candidates}
                    entries.append({"query_index": claim.id, "query_text": claim.text, **gold})
            write_json(tmp_path / f"{lang}.json", entries)

    files = ", ".join(f"{lang}: {tmp_path}/{lang}.json" for lang in dev.languages)
    systems = tmp_path / "systems.yaml"
    systems.write_text(
        f"BM25: {{bm25: {{}}}}\ntheirs: {{run: {{files: {{{files}}}}}, claims: translated}}\n"
    )
    words = [f"--dataset={data}", f"--out={out}", "--repeats=100", "--files", str(systems)]

    def macro() -> float:
        baselines.main([*words, "--claims", "original", "translated"])
        report = json.loads((out / "report.json").read_text())["systems"]
        assert [name for name in report if name.startswith("theirs")] == ["theirs.translated"]
        return float(report["theirs.translated"]["macro"]["mrr@5"])

    write(2)
    assert macro() == 0.5
    compare.main(["--reports", str(out), f"--out={tmp_path / 'compared'}", "--repeats=100"])
    found = json.loads((tmp_path / "compared" / "compare.json").read_text())
    assert found["ranks"]["theirs.translated"]["mean"] == 2.0
    assert "theirs.translated" in capsys.readouterr().out
    # The same file with other content is another run.
    write(4)
    assert macro() == 0.25
