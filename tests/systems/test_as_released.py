"""The 2026 paper's first stages as its released code runs them: texts and token ids, exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.data.store import Store
from claim2source.evaluation.table import evaluate_systems
from claim2source.models import ModelConfig, Resolved, Tokens, resolve
from claim2source.models.local import local_models
from claim2source.search.dense import Dense
from claim2source.systems.read import read_systems
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.system import RunSettings, System
from claim2source.text import Rendering
from claim2source.text.views import distinct_forms
from tests.models.mistral import INSTRUCTION, save_mistral
from tests.shared_data import REPOSITORY

SYSTEMS = read_systems([REPOSITORY / "configs" / "systems" / "as_released.yaml"])
ENGLISH = Claim("2", "the user", "en")
PAPER = Source("p", "Title", "Abstract.", ("Jane Doe", "Li Wei, Wuhan"), "Nature")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mistral(
        tmp_path_factory.mktemp("models") / "GritLM-7B", max_position_embeddings=512
    )


def dense(name: str) -> Dense:
    retriever = SYSTEMS[name].first.retriever
    assert isinstance(retriever, Dense)
    return retriever


def index_model(name: str) -> ModelConfig:
    return dense(name).model


def tiny(name: str, folder: Path) -> Resolved:
    """The system's model as it is set, over tiny weights."""
    return resolve(replace(index_model(name), name=str(folder), revision=None), "cpu", "float32")


def read_as(resolved: Resolved, text: str, side: str) -> tuple[str, int]:
    """The model's input, without the beginning-of-text token, and the number of unpooled tokens."""
    (tokens,) = resolved.encoder.tokenize([text], side)  # type: ignore[arg-type]
    assert tokens.ids[0] == 1 and not {0, 1, 2} & set(tokens.ids[1:])
    return resolved.encoder.tokenizer.decode(tokens.ids[1:]).lstrip(" "), tokens.skip


@pytest.mark.parametrize(
    ("name", "before", "masked", "source"),
    [
        (
            "GritLM-as-released",
            "\n",
            False,
            "Title Abstract. Venue: Nature Authors: Jane Doe, Li Wei",
        ),
        (
            "GritLM-right-template",
            "<|user|>\n",
            True,
            "Title Abstract. Venue: Nature Authors: Jane Doe, Li Wei",
        ),
        ("GritLM-style-as-released", "icie\n", False, "Title Abstract. Nature Jane Doe, Li Wei"),
        (
            "GritLM-style-right-template",
            "<|user|>\n",
            True,
            "Title Abstract. Nature Jane Doe, Li Wei",
        ),
    ],
)
def test_gritlm_reads_what_the_released_code_gives_it(
    name: str, before: str, masked: bool, source: str, folder: Path
) -> None:
    resolved, system = tiny(name, folder), SYSTEMS[name]
    rendering = Rendering(system.claims or "paired", dense(name).sources)
    (claim,) = rendering.claim_texts([ENGLISH])
    twice = "the user" if system.claims else "the user\nthe user"
    assert read_as(resolved, claim, "claim")[0] == f"{before}{INSTRUCTION}\n<|embed|>\n{twice}"
    prefix = len(resolved.encoder.tokenizer(f"{before}{INSTRUCTION}\n<|embed|>\n")["input_ids"])
    assert read_as(resolved, claim, "claim")[1] == (prefix if masked else 0)
    (paper,) = rendering.source_texts([PAPER])
    assert read_as(resolved, paper, "source") == (f"<|embed|>\n{source}", 7)
    assert index_model(name).attention == "eager" and resolved.encoder.settings.max_length == 512


def test_the_instruction_is_in_a_claims_mean_and_not_in_a_sources(folder: Path) -> None:
    """By hand, and through the store, if the two sides must not share a vector."""
    encoder = tiny("GritLM-as-released", folder).encoder
    for side, first in (("claim", 0), ("source", 7)):
        (tokens,) = encoder.tokenize(["ab the"], side)  # type: ignore[arg-type]
        ids = torch.tensor([tokens.ids])
        with torch.inference_mode():
            states = encoder.model(ids, torch.ones_like(ids)).last_hidden_state[0, first:]
        by_hand = torch.nn.functional.normalize(states.mean(0), dim=0).numpy()
        vector = encoder.encode(["ab the"], side)[0][0]  # type: ignore[arg-type]
        assert np.abs(vector - by_hand).max() < 1e-5, side
    own = replace(encoder.settings.template, source=encoder.settings.template.claim)
    encoder.settings = replace(encoder.settings, template=own)
    assert encoder.text_keys(["x"], "claim") != encoder.text_keys(["x"], "source")
    assert encoder.tokenize(["x"], "source") == [
        Tokens(encoder.tokenize(["x"], "claim")[0].ids, len(encoder.tokenizer(own.claim)[0].ids))
    ]


def test_the_template_is_all_that_differs_beside_a_released_gritlm() -> None:
    for kind in ("", "-style"):
        released, right = (f"GritLM{kind}-{ending}" for ending in ("as-released", "right-template"))
        own, other = SYSTEMS[released], SYSTEMS[right]
        model = replace(index_model(right), template=index_model(released).template)
        retriever = replace(dense(right), model=model)
        twin = replace(other.first, retriever=retriever, name=own.first.name, label=own.first.label)
        system = replace(other, first=twin, name=own.name, label=own.label)
        assert system == own


def test_paired_claims_are_scored_where_english_ones_are_alone(
    folder: Path, tmp_path: Path
) -> None:
    claims = (replace(ENGLISH, golds=("p",)), replace(ENGLISH, id="3", golds=("q",)))
    qrels = Qrels({"2": {"p": 1}, "3": {"q": 1}})
    data = Dataset(claims, (PAPER, replace(PAPER, id="q", title="user")), qrels, "dev")
    assert distinct_forms(["paired", "bilingual"], data.claims)[0] == ["original", "paired"]
    assert distinct_forms(["paired"], data.claims) == (["paired"], [])
    released = replace(index_model("GritLM-as-released"), revision=None, dtype="float32")
    systems = {"G": System("G", Retrieval(Dense(released, sources="released"), name="G"))}
    settings = RunSettings(store=Store(tmp_path), device="cpu")
    with local_models(folder.parent):
        forms = ["original", "bilingual", "paired"]
        report = evaluate_systems(systems, data, forms, settings, repeats=0)
    found = {name: (s.claims, s.sources) for name, s in report.systems.items()}
    assert found == {"G.original": ("original", "released"), "G.paired": ("paired", "released")}
