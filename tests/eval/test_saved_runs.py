"""The authors' own outputs through the programs: evaluated as systems, and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from claim2source.core.files import write_json
from claim2source.datasets import load, write_beir
from eval import evaluate, report
from tests.training.small import small_splits


@pytest.mark.slow
def test_both_stages_of_a_released_file_are_evaluated_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write_beir(small_splits(), data)
    dev = load(data, "dev")
    rest = [source.id for source in dev.sources if source.id not in dev.golds][:4]

    def write(rank: int) -> None:
        """Score files whose golds are at this place, and moved up by one by the re-ranker."""
        for lang in dev.languages:
            entries = []
            for claim in dev.claims:
                if claim.lang == lang:
                    keys = list(rest)
                    keys.insert(rank - 1, claim.golds[0])
                    swap = {rank: rank - 1, rank - 1: rank}
                    candidates = [
                        {"rank": i, "pubkey": key, "embedding_score": 1 / i}
                        | {"reranker_rank": swap.get(i, i), "reranker_score": None}
                        for i, key in enumerate(keys, 1)
                    ]
                    gold = {"ground_truth_pubkey": claim.golds[0], "candidates": candidates}
                    entries.append({"query_index": claim.id, "query_text": claim.text, **gold})
            write_json(tmp_path / f"{lang}.json", entries)

    files = ", ".join(f"{lang}: {tmp_path}/{lang}.json" for lang in dev.languages)
    systems = tmp_path / "systems.yaml"
    systems.write_text(
        f"first: {{retrieve: {{run: {{files: {{{files}}}, ranked_by: embedding}}}}, claims: original}}\n"
        f"theirs: {{retrieve: {{run: {{{files}}}}}, claims: original}}\n"
    )
    words = [f"--dataset={data}", f"--out={out}", "--repeats=100", "--systems", str(systems)]

    def macro() -> dict[str, float]:
        evaluate.main([*words, "--claims", "original"])
        report = json.loads((out / "report.json").read_text())["systems"]
        return {name: systems["macro"]["mrr@5"] for name, systems in report.items()}

    write(2)
    assert macro() == pytest.approx({"first.original": 0.5, "theirs.original": 1.0})
    report.main(["--reports", str(out), f"--out={tmp_path / 'compared'}", "--repeats=100"])
    record = json.loads((tmp_path / "compared" / "compare.json").read_text())
    assert record["scores"]["macro"]["first.original"]["value"] == pytest.approx(0.5)
    assert "theirs.original" in capsys.readouterr().out
    # The same file with other content is another run.
    write(5)
    assert macro() == pytest.approx({"first.original": 0.2, "theirs.original": 0.25})
