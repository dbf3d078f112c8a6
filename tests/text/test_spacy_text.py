"""Lemmas and named entities by spaCy, and what is said where it is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from claim2source.core.errors import UserError
from claim2source.text.spacy_text import (
    entity_sets,
    lemma_texts,
    load_pipeline,
    pipeline_identity,
)
from tests.text.small_pipeline import write_pipeline


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_pipeline(tmp_path_factory.mktemp("spacy") / "pipeline")


def test_lemmas_are_lower_case_without_stop_words_and_signs(pipeline: str) -> None:
    texts = ["The masks worked!", "#quarantine @WHO 1,200 \U0001f637 Tests co-op", ""]
    # The comma goes before the text is cut into tokens; a handle is no word, a hashtag's word is.
    assert lemma_texts(texts, pipeline) == ["mask work", "quarantine 1200 test co op", ""]
    assert pipeline_identity(pipeline)["pipeline"].startswith("en_pipeline-")


def test_entities_are_compared_without_case_and_white_space(pipeline: str) -> None:
    found = entity_sets(["WHO and Boris  Johnson", "in London", "nothing"], pipeline)
    assert found[1:] == [frozenset({"london"}), frozenset()] and "who" in found[0]
    rule = [{"label": "NAME", "pattern": name} for name in ("Zürich", "Zu\u0308rich")]
    load_pipeline(pipeline).get_pipe("entity_ruler").add_patterns(rule)
    one, other = entity_sets(["in Zürich", "in Zu\u0308rich"], pipeline)
    assert one == other == {"zürich"}


def test_a_pipeline_that_is_not_here_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="python -m spacy download en_core_web_xx") as caught:
        lemma_texts(["a"], "en_core_web_xx")
    assert len(caught.value.lines) == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no pipeline"):
        lemma_texts(["a"], str(tmp_path / "empty"))


def test_without_spacy_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['spacy'] = None\n"
        "from claim2source.text.spacy_text import lemma_texts\n"
        "from claim2source.core.errors import UserError\n"
        "try: lemma_texts(['a'])\n"
        "except UserError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "spaCy is not installed: pip install 'claim2source[spacy]'\n"
