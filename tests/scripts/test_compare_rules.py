"""The comparison of rules scores what a rule chose on papers that it did not choose on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.datasets import write_beir
from claim2source.pipeline.choosing import weigh
from scripts.compare_rules import RulesConfig, _rows, main


def _many(papers: int, claims: int) -> Dataset:
    """Papers with so many claims each."""
    made = [
        Claim(f"{p}-{c}", f"word{p} claim {c}", golds=(f"p{p}",))
        for p in range(papers)
        for c in range(claims)
    ]
    sources = [Source(f"p{p}", f"word{p} paper", "a text") for p in range(papers)]
    golds = Qrels({claim.id: {claim.golds[0]: 1} for claim in made})
    return Dataset(tuple(made), tuple(sources), golds, "train")


def test_what_is_noise_on_the_papers_chosen_on_is_lost_on_the_others() -> None:
    weighing = weigh(_many(12, 3))
    papers = weighing.groups
    # Each other setting is right for one paper alone; on all claims it is still above the default.
    tried = {f"lucky {p}": np.where(papers == p, 1.0, 0.27) for p in sorted(set(papers))}
    # The default is the nearest to itself, wherever it stands in the grid.
    tried["default"] = np.full(len(papers), 0.3)
    far = [*tried][::-1].index
    default, one_se, best = _rows("x", RulesConfig(folds=3, repeats=4), weighing, tried, far)
    assert default[2] == "default" and default[4] == pytest.approx(0.3)
    assert one_se[2] == "default" and str(best[2]).startswith("lucky")
    assert float(best[3] or 0) > 0.3 > float(best[4] or 0)
    assert one_se[4] == pytest.approx(0.3) and best[4] == pytest.approx(0.27)
    assert str(best[7]).startswith("-0.0300") and one_se[7] is None


def test_what_holds_on_all_papers_is_chosen_by_both() -> None:
    weighing = weigh(_many(12, 3))
    tried = {"default": np.full(36, 0.2), "better": np.full(36, 0.6)}
    rows = _rows("x", RulesConfig(folds=3, repeats=2), weighing, tried, list(tried).index)
    assert [row[4] for row in rows[1:]] == pytest.approx([0.6, 0.6])


def test_the_program_compares_both_grids(
    tmp_path: Path, save_tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    write_beir([_many(4, 2)], tmp_path / "data")
    model = save_tiny(tmp_path / "model")
    main(
        [
            f"--dataset={tmp_path / 'data'}",
            f"--model.name={model}",
            "--model.pooling=mean",
            "--model.max_length=32",
            f"--store={tmp_path / 'store'}",
            "--folds=2",
            "--repeats=1",
        ]
    )
    said = capsys.readouterr().out
    assert "8 claims on 4 papers, 1 times 2 folds" in said
    for grid in ("BM25", "hybrid"):
        for rule in ("default", "one_se", "best"):
            assert any(line.split()[:2] == [grid, rule] for line in said.splitlines())
