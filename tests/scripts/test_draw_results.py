"""The README's chart shows the scores of BENCHMARKS.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.draw_results import DrawConfig, main, read_scores
from tests.shared_data import REPOSITORY


def test_bars_are_the_scores_of_the_readme_too(tmp_path: Path) -> None:
    scores = read_scores((REPOSITORY / DrawConfig.page).read_text(encoding="utf-8"))
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert all(f"{score:.4f}" in readme for score in scores.values())
    page, chart = REPOSITORY / DrawConfig.page, REPOSITORY / DrawConfig.out
    main(["--page", str(page), "--out", str(tmp_path / "chart.svg")])
    assert (tmp_path / "chart.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert chart.is_file()


def test_a_row_that_is_gone_is_named() -> None:
    page = "## MiniLM fine-tuned on real posts (ct25)\n| step 0 | | 0.4 | 0.5 | 0.4 | 0.5 |\n\n## Next\n"
    with pytest.raises(SystemExit, match="dense, epoch 2"):
        read_scores(page)
