"""Exports in sentence-transformers: hard texts in one batch, and a check that can fail."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claim2source.train.merge import MergeConfig, merge

from claim2source.core.errors import UserError
from claim2source.core.files import write_json
from claim2source.models import ModelConfig, Template, resolve
from claim2source.training.export.sentence_transformers import check_export
from tests.models.mistral import save_mistral, save_tokenizer
from tests.models.test_sentence_transformers import declare
from tests.refusals import refused
from tests.training.points import RENDERING, TEMPLATE, byte_level, config, write_point

# Of unequal lengths, so that all but one are padded; one is cut; one names special tokens.
TEXTS = ["a", "Masks WORK in Zürich", "A Study of Öl: " * 30, "ends </s> <unk> [SEP] here", "  b "]


@pytest.fixture
def base(tmp_path: Path, save_tiny: Callable[..., Path]) -> Path:
    """A BERT of absolute positions, with a cased tokenizer of bytes and an end token."""
    folder = save_tiny(tmp_path / "base", vocab_size=300)
    byte_level(folder, pad=True)
    return folder


def say(folder: Path, file: str = "tokenizer_config.json", **values: Any) -> None:
    write_json(folder / file, json.loads((folder / file).read_text()) | values)


def exported(model: ModelConfig, tmp_path: Path, kind: str = "full") -> tuple[Path, list[str]]:
    """Export a checkpoint; its vectors, in sentence-transformers and here, are the checkpoint's."""
    from sentence_transformers import SentenceTransformer

    encoder = write_point(model, tmp_path / "point", kind)
    expected = [resolve(tmp_path / "point", "cpu").encoder.encode(TEXTS, s)[0] for s in SIDES]
    assert np.abs(expected[0] - encoder.encode(TEXTS, "claim")[0]).max() < 1e-5
    lines = merge(MergeConfig([str(tmp_path / "point")], tmp_path / "out"))
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    vectors = [theirs.encode_query(TEXTS), theirs.encode_document(TEXTS)]
    if encoder.settings.truncate_dim:
        vectors = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in vectors]
    reread = resolve(tmp_path / "out", "cpu").encoder
    assert reread.settings == encoder.settings
    for side, theirs_, wanted_vectors in zip(SIDES, vectors, expected, strict=True):
        assert np.abs(theirs_ - wanted_vectors).max() < 1e-4, side
        assert np.abs(reread.encode(TEXTS, side)[0] - wanted_vectors).max() < 1e-5, side
    return tmp_path / "out", lines


SIDES = ("claim", "source")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        pytest.param("full", {"normalize": False}, marks=pytest.mark.slow),
        pytest.param("base", {"max_length": 20}, marks=pytest.mark.slow),
        pytest.param("lora", {"pooling": "cls"}, marks=pytest.mark.slow),
        ("full", {"pooling": "last", "normalize": False}),
        ("lora", {"template": replace(TEMPLATE, pool_prefix=False)}),
        ("full", {"template": Template("", "passage : b c", False)}),
        pytest.param(
            "lora",
            {"pooling": "cls", "template": replace(TEMPLATE, pool_prefix=False)},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_sentence_transformers_and_we_read_the_same_vectors(
    kind: str, settings: dict[str, Any], base: Path, tmp_path: Path
) -> None:
    out, _ = exported(config(base, **{"max_length": 40} | settings), tmp_path, kind)
    resolved = resolve(out, "cpu")
    assert resolved.manifest is None and resolved.rendering == RENDERING
    claims, sources = (resolved.encoder.encode(TEXTS, side)[0] for side in SIDES)
    assert np.abs(claims - sources).max() > 1e-2  # swapped prompts would show


@pytest.mark.parametrize("kind", [pytest.param("full", marks=pytest.mark.slow), "lora"])
def test_the_sides_of_a_base_are_put_right(kind: str, base: Path, tmp_path: Path) -> None:
    say(base, padding_side="left", truncation_side="left")
    out, _ = exported(config(base, max_length=40), tmp_path, kind)
    for key in ("padding_side", "truncation_side"):
        assert json.loads((out / "tokenizer_config.json").read_text())[key] == "right"


@pytest.mark.parametrize("kind", ["full", pytest.param("lora", marks=pytest.mark.slow)])
def test_lower_case_and_cut_vectors_are_handed_on(kind: str, base: Path, tmp_path: Path) -> None:
    declare(base, sbert={"do_lower_case": True}, whole={"truncate_dim": 7})
    out, _ = exported(ModelConfig(str(base), template=TEMPLATE), tmp_path, kind)
    assert json.loads((out / "sentence_bert_config.json").read_text())["do_lower_case"] is True


@pytest.mark.parametrize("appended", ["by the config", "by the tokenizer's config"])
def test_an_end_that_was_appended_is_in_the_exports_tokenizer(
    appended: str, tmp_path: Path
) -> None:
    base = save_mistral(tmp_path / "mistral")
    by_config = appended == "by the config"
    save_tokenizer(base, add_eos_token=not by_config)
    template = Template("query: ", "", True, "</s>" if by_config else "")
    model = ModelConfig(
        str(base), pooling="last", max_length=32, template=template, bidirectional=False
    )
    out, _ = exported(model, tmp_path, "lora")
    from transformers import AutoTokenizer

    assert (
        AutoTokenizer.from_pretrained(out)(["b", "b" * 99], max_length=9, truncation=True)[
            "input_ids"
        ][1][-1]
        == 2
    )


def test_special_tokens_of_a_prefix_stay_special(base: Path, tmp_path: Path) -> None:
    """On one side only: then also in posts, because both sides share a tokenizer; noted."""
    template = Template("</s>q: ", "</s>p: ", True)
    out, lines = exported(config(base, template=template, max_length=40), tmp_path)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert not any("special token" in line for line in (*lines, card))
    # Nothing was scored, so no scores are shown.
    assert "post is true" in card and "not evaluated" in card
    shutil.rmtree(tmp_path / "point")
    shutil.rmtree(out)
    spec = config(base, template=replace(template, source=""), max_length=40)
    write_point(spec, tmp_path / "point", "full")
    lines = merge(MergeConfig([str(tmp_path / "point")], out))
    assert any("special token in a source" in line for line in lines)
    assert not any("special token in a claim" in line for line in lines)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "the name of a special token in a source is special" in card


def test_an_empty_text_without_any_token_is_said(base: Path, tmp_path: Path) -> None:
    template = Template("q: ", "", True)
    _, lines = exported(config(base, template=template, max_length=40), tmp_path)
    assert [line for line in lines if "an empty source" in line]
    assert not [line for line in lines if "an empty claim" in line]


def test_the_check_fails_for_a_folder_that_gives_other_vectors(base: Path, tmp_path: Path) -> None:
    """In 16 bits too, where tokens are compared as exactly."""
    encoder = write_point(config(base, max_length=40), tmp_path / "point", "full")
    merge(MergeConfig([str(tmp_path / "point")], out := tmp_path / "out"))
    assert check_export(out, encoder, "bfloat16") == check_export(out, encoder, "float32") == []
    tokenizer, pooling = "tokenizer_config.json", "1_Pooling/config.json"
    sbert, settings_file = "sentence_bert_config.json", "config_sentence_transformers.json"
    harms: list[tuple[Any, str, dict[str, Any]]] = [
        ("bfloat16", tokenizer, {"padding_side": "left"}),
        ("bfloat16", tokenizer, {"truncation_side": "left"}),
        ("bfloat16", tokenizer, {"split_special_tokens": False}),
        ("bfloat16", sbert, {"do_lower_case": True}),
        ("bfloat16", sbert, {"max_seq_length": 41}),
        ("bfloat16", settings_file, {"prompts": {"query": "q: ", "document": ""}}),
        ("bfloat16", settings_file, {"truncate_dim": 8}),
        ("bfloat16", pooling, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}),
        ("float32", "config.json", {"hidden_act": "relu"}),
        ("float32", "modules.json", {}),
    ]
    for dtype, file, values in harms:
        before = (out / file).read_text()
        if file == "modules.json":
            write_json(out / file, json.loads(before)[:-1])
        else:
            say(out, file, **values)
        with refused(UserError, "sentence-transformers"):
            check_export(out, encoder, dtype)
        (out / file).write_text(before)
