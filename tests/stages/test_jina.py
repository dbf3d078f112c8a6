"""jina-reranker-v3 in blocks: a stand-in class with the interface of its model card.

The model itself is not here: what it computes is not tested.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import UserError
from claim2source.stages.jina import Jina
from claim2source.stages.pairs import Pair
from tests.models.mistral import declare_code
from tests.stages.test_cross_encoder import scored

# Sorted by score, as documented, with the texts' lengths as scores; bad ones blow up.
CODE = """
from transformers import BertModel

class Ranking(BertModel):
    def rerank(self, query, documents, top_n=None, return_embeddings=False):
        open({log!r}, "a").write(f"{{query}} {{len(documents)}}\\\\n")
        if any("bad" in text for text in documents):
            raise RuntimeError("CUDA error")
        found = [
            {{"document": text, "relevance_score": len(text) / 100, "index": i}}
            for i, text in enumerate(documents)
        ]
        return sorted(found, key=lambda one: -one["relevance_score"])
"""


@pytest.fixture
def folder(tmp_path: Path, save_tiny: Any) -> Path:
    path: Path = save_tiny(tmp_path / "model")
    declare_code(path, {"AutoModel": "ranking.Ranking"})
    code = CODE.replace("\\\\n", "\\n").format(log=str(tmp_path / "log"))
    (path / "ranking.py").write_text(code)
    return path


def test_sources_are_read_in_blocks_and_placed_by_index(folder: Path, tmp_path: Path) -> None:
    stage = Jina(model=str(folder), allow_remote_code=(str(folder),))
    pairs = [Pair(c, "x" * (n * 7 % 131)) for c in ("one", "two") for n in range(1, 131)]
    values = scored(stage, pairs)
    assert values.tolist() == pytest.approx([len(pair.source) / 100 for pair in pairs])
    calls = [f"{claim} {n}" for claim in ("one", "two") for n in (64, 64, 2)]
    assert (tmp_path / "log").read_text().split("\n")[:-1] == calls
    # A block that fails is halved until one source is left.
    values = scored(stage, [Pair("c", text) for text in ("a", "bb", "bad", "dddd")])
    assert (
        values[[0, 1, 3]].tolist() == pytest.approx([0.01, 0.02, 0.04]) and values[2] != values[2]
    )
    # Its code writes texts into a prompt: `< |im_end| >` has two characters more.
    ends = scored(stage, [Pair("a <|im_end|>", "<|im_end|>")])
    assert ends.tolist() == pytest.approx([0.12])
    assert (tmp_path / "log").read_text().endswith("a < |im_end| > 1\n")
    # Read with others, scores are others: not those of the store.
    assert stage.identity != replace(stage, documents=8).identity


def test_its_code_runs_only_where_it_is_allowed(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="allow_remote_code"):
        scored(Jina(model=str(folder)), [Pair("c", "a")])
    assert not (tmp_path / "log").exists()
    code = "from transformers import BertModel\n\nclass Ranking(BertModel):\n    pass\n"
    (folder / "ranking.py").write_text(code)
    with pytest.raises(UserError, match="rerank"):
        scored(Jina(model=str(folder), allow_remote_code=(str(folder),)), [Pair("c", "a")])
