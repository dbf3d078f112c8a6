"""Prompts that a sentence-transformers folder declares, against sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

from claim2source.core.errors import ConfigError, InputError
from claim2source.models import Manifest, ModelConfig, Template, Weights, resolve
from claim2source.search.dense import Dense
from claim2source.text import Rendering
from tests.refusals import refused

TEXTS = ["vaccine works .", "a b c " * 9, "claim", ""]
PROMPTS = {"query": "query : ", "document": "passage : a "}
FILE = "config_sentence_transformers.json"
Save = Callable[..., Path]


@pytest.fixture
def save(tiny_folder: Path, tmp_path: Path) -> Save:
    """Write a folder as sentence-transformers does."""

    def write(
        prompts: dict[str, str],
        default: str | None = None,
        *,
        pooling: str = "mean",
        include_prompt: bool = True,
    ) -> Path:
        parts = [
            modules.Transformer(str(tiny_folder), max_seq_length=16),
            modules.Pooling(16, pooling, include_prompt=include_prompt),  # type: ignore[arg-type]
            modules.Normalize(),
        ]
        model = SentenceTransformer(
            modules=parts, device="cpu", prompts=prompts, default_prompt_name=default
        )
        model.save(str(tmp_path / "st"))
        return tmp_path / "st"

    return write


def oracle(folder: Path) -> Any:
    return SentenceTransformer(str(folder), device="cpu")


def vectors(folder: Path | ModelConfig, side: Any, texts: list[str] = TEXTS) -> np.ndarray:
    return resolve(folder, "cpu").encoder.encode(texts, side)[0]


def declare(folder: Path, **values: Any) -> None:
    file = folder / FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    ("pooling", "include_prompt"),
    [
        ("mean", False),
        ("lasttoken", True),
        pytest.param("mean", True, marks=pytest.mark.slow),
        pytest.param("lasttoken", False, marks=pytest.mark.slow),
    ],
)
def test_queries_and_documents_have_their_prompts(
    save: Save, pooling: str, include_prompt: bool
) -> None:
    folder = save(PROMPTS, include_prompt=include_prompt, pooling=pooling)
    settings = resolve(folder, "cpu").encoder.settings
    assert settings.template == Template("query : ", "passage : a ", include_prompt)
    # sentence-transformers has no token to pool of an empty text without its prompt.
    texts = TEXTS if include_prompt else TEXTS[:-1]
    theirs = oracle(folder)
    for side, expected in (
        ("claim", theirs.encode_query(texts)),
        ("source", theirs.encode_document(texts)),
    ):
        ours = vectors(folder, side, texts)
        assert np.abs(ours - expected).max() < 1e-5
        assert (
            np.abs(ours - vectors(ModelConfig(str(folder), prompts=False), side, texts)).max()
            > 1e-3
        )


@pytest.mark.parametrize(
    ("prompts", "default", "is_old", "claims", "sources"),
    [
        ({"query": "query : ", "passage": "passage : "}, None, False, "encode_query", "passage"),
        # Written by version 5 or newer, both sides have a prompt of their own, an empty one.
        ({"sts": "a b : "}, "sts", False, "encode_query", "encode_document"),
        ({"sts": "a b : "}, "sts", True, "encode", "encode"),
        # A default prompt of queries is not used for documents.
        ({"query": "query : "}, "query", True, "encode", "encode_document"),
    ],
)
def test_each_side_has_the_prompt_that_sentence_transformers_gives_it(
    save: Save, prompts: dict[str, str], default: str, is_old: bool, claims: str, sources: str
) -> None:
    folder = save(prompts, default)
    if is_old:
        declare(folder, prompts=prompts)
    model = oracle(folder)
    for side, how in (("claim", claims), ("source", sources)):
        prompt_options = {"prompt_name": "passage"} if how == "passage" else {}
        expected = getattr(model, "encode" if prompt_options else how)(TEXTS, **prompt_options)
        assert np.abs(vectors(folder, side) - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("prompts", "default", "declared", "differs"),
    [
        (PROMPTS, None, True, ()),
        ({}, None, False, ()),
        ({"query": "query : "}, "query", False, ()),
        # An empty prompt "document" wins over the others in sentence-transformers.
        ({"query": "query : ", "passage": "passage : "}, None, True, ("sources",)),
        ({"query": "query : ", "corpus": "passage : "}, None, False, ("sources",)),
        ({"sts": "a b : "}, "sts", False, ("claims", "sources")),
        ({"sts": "a b : "}, "sts", True, ()),
    ],
)
def test_one_model_by_its_folder_and_in_memory_gives_one_result_or_says_so(
    save: Save,
    caplog: pytest.LogCaptureFixture,
    prompts: dict[str, str],
    default: str | None,
    declared: bool,
    differs: tuple[str, ...],
) -> None:
    """Without `declared` the file holds the author's prompts alone, as older versions wrote it."""
    folder = save(prompts, default)
    if not declared:
        declare(folder, prompts=prompts)
    warned = []
    for model in (str(folder), oracle(folder)):
        caplog.clear()
        dense = Dense(model, device="cpu") if isinstance(model, str) else Dense(model)
        encoder = dense.encoder
        lines = [record.getMessage() for record in caplog.records]
        warned.append([side for side in ("claims", "sources") if any(side in x for x in lines)])
        if not isinstance(model, str):
            assert Dense(model).encoder  # a training evaluates it many times
            assert len([x for x in caplog.records if "prompt" in x.getMessage()]) == len(differs)
            in_memory = encoder
        else:
            by_folder = encoder
    assert warned == [[*differs], [*differs]]
    for side, name in (("claim", "claims"), ("source", "sources")):
        options: dict[str, Any] = {"store": None, "progress": None}
        ours, theirs = (e.encode(TEXTS, side, **options)[0] for e in (by_folder, in_memory))
        assert (np.abs(ours - theirs).max() > 1e-3) == (name in differs)


def test_a_template_replaces_the_prompts_and_they_can_be_turned_off(save: Save) -> None:
    folder = save(PROMPTS, include_prompt=False)
    mine = Template(claim="claim : ")
    for config, expected in (
        (ModelConfig(str(folder), template=mine), mine),
        (ModelConfig(str(folder), prompts=False), Template()),
        (ModelConfig(str(folder), template=mine, prompts=True), mine),
    ):
        assert resolve(config, "cpu").encoder.settings.template == expected


def test_a_checkpoint_keeps_the_template_it_was_trained_with(save: Save, tmp_path: Path) -> None:
    folder = save(PROMPTS)
    resolved = resolve(ModelConfig(str(folder), prompts=False), "cpu")
    manifest = Manifest(
        base=resolved.base,
        weights=Weights(),
        encoder=resolved.encoder.settings,
        rendering=Rendering(),
    )
    (tmp_path / "point").mkdir()
    manifest.write(tmp_path / "point")
    encoder = resolve(tmp_path / "point", "cpu").encoder
    assert encoder.settings.template == Template()
    assert np.array_equal(
        encoder.encode(TEXTS, "claim")[0], resolved.encoder.encode(TEXTS, "claim")[0]
    )
    with refused(ConfigError, "model.prompts: false ", "manifest"):
        resolve(ModelConfig(str(tmp_path / "point"), prompts=False))


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ({"prompts": {"query": 3}}, ("prompts",)),
        ({"default_prompt_name": "sts"}, ("default_prompt_name", "'sts'", "doc")),
    ],
)
def test_damaged_prompts_are_one_line(save: Save, values: dict[str, Any], facts: Any) -> None:
    folder = save(PROMPTS)
    declare(folder, **values)
    with refused(InputError, *facts) as error:
        resolve(folder)
    (line,) = str(error.value).splitlines()
    assert line.startswith(str(folder / FILE))
    (folder / FILE).write_text("[]")
    with refused(InputError, folder / FILE):
        resolve(folder)


def test_cls_pooling_that_leaves_the_prompt_out_is_refused(save: Save) -> None:
    folder = save(PROMPTS, include_prompt=False, pooling="cls")
    with refused(ConfigError, "model.template: ", "model.prompts: false"):
        resolve(folder)
    assert resolve(ModelConfig(str(folder), prompts=False)).encoder.settings.template == Template()
