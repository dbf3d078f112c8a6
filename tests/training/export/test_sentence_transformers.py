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
TEXTS = [
    "a",
    "Masks WORK in Zürich",
    "A Study of Öl: " * 30,
    "ends </s> <unk> [SEP] here",
    "  b ",
]


@pytest.fixture
def base(tmp_path: Path, save_tiny: Callable[..., Path]) -> Path:
    """A BERT of absolute positions, with a cased tokenizer of bytes and an end token."""
    folder = save_tiny(tmp_path / "base", vocab_size=300)
    byte_level(folder, pad=True)
    return folder


def say(folder: Path, file: str = "tokenizer_config.json", **values: Any) -> None:
    text = (folder / file).read_text()
    changed = json.loads(text) | values
    write_json(folder / file, changed)


def largest_difference(found: np.ndarray, expected: np.ndarray) -> np.floating:
    """Return the largest absolute difference of two arrays of vectors."""
    differences = np.abs(found - expected)
    return differences.max()


def exported(model: ModelConfig, tmp_path: Path, kind: str = "full") -> tuple[Path, list[str]]:
    """Export a checkpoint; its vectors, in sentence-transformers and here, are the checkpoint's."""
    from sentence_transformers import SentenceTransformer

    point = tmp_path / "point"
    out = tmp_path / "out"
    encoder = write_point(model, point, kind)
    expected = []
    for side in SIDES:
        read_again = resolve(point, "cpu").encoder
        wanted, _ = read_again.encode(TEXTS, side)
        expected.append(wanted)
    in_memory, _ = encoder.encode(TEXTS, "claim")
    assert largest_difference(expected[0], in_memory) < 1e-5

    lines = merge(MergeConfig([str(point)], out))
    theirs = SentenceTransformer(str(out), device="cpu")
    vectors = [
        theirs.encode_query(TEXTS),
        theirs.encode_document(TEXTS),
    ]
    if encoder.settings.truncate_dim:
        vectors = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in vectors]
    reread = resolve(out, "cpu").encoder
    assert reread.settings == encoder.settings
    for side, theirs_, wanted in zip(SIDES, vectors, expected, strict=True):
        assert largest_difference(theirs_, wanted) < 1e-4, side
        ours, _ = reread.encode(TEXTS, side)
        assert largest_difference(ours, wanted) < 1e-5, side
    return out, lines


SIDES = ("claim", "source")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        pytest.param("full", {"normalize": False}, marks=pytest.mark.slow),
        pytest.param("base", {"max_length": 20}, marks=pytest.mark.slow),
        pytest.param("lora", {"pooling": "cls"}, marks=pytest.mark.slow),
        ("full", {"pooling": "last", "normalize": False}),
        (
            "lora",
            {"template": replace(TEMPLATE, pool_prefix=False)},
        ),
        (
            "full",
            {"template": Template("", "passage : b c", False)},
        ),
        pytest.param(
            "lora",
            {
                "pooling": "cls",
                "template": replace(TEMPLATE, pool_prefix=False),
            },
            marks=pytest.mark.slow,
        ),
    ],
)
def test_sentence_transformers_and_we_read_the_same_vectors(
    kind: str, settings: dict[str, Any], base: Path, tmp_path: Path
) -> None:
    given = {"max_length": 40} | settings
    model = config(base, **given)
    out, _ = exported(model, tmp_path, kind)
    resolved = resolve(out, "cpu")
    assert resolved.manifest is None
    assert resolved.rendering == RENDERING
    claims, _ = resolved.encoder.encode(TEXTS, "claim")
    sources, _ = resolved.encoder.encode(TEXTS, "source")
    assert largest_difference(claims, sources) > 1e-2  # swapped prompts would show


@pytest.mark.parametrize("kind", [pytest.param("full", marks=pytest.mark.slow), "lora"])
def test_the_sides_of_a_base_are_put_right(kind: str, base: Path, tmp_path: Path) -> None:
    say(base, padding_side="left", truncation_side="left")
    model = config(base, max_length=40)
    out, _ = exported(model, tmp_path, kind)
    text = (out / "tokenizer_config.json").read_text()
    settings = json.loads(text)
    assert settings["padding_side"] == "right"
    assert settings["truncation_side"] == "right"


@pytest.mark.parametrize("kind", ["full", pytest.param("lora", marks=pytest.mark.slow)])
def test_lower_case_and_cut_vectors_are_handed_on(kind: str, base: Path, tmp_path: Path) -> None:
    declare(base, sbert={"do_lower_case": True}, whole={"truncate_dim": 7})
    model = ModelConfig(str(base), template=TEMPLATE)
    out, _ = exported(model, tmp_path, kind)
    text = (out / "sentence_bert_config.json").read_text()
    settings = json.loads(text)
    assert settings["do_lower_case"] is True


@pytest.mark.parametrize("appended", ["by the config", "by the tokenizer's config"])
def test_an_end_that_was_appended_is_in_the_exports_tokenizer(
    appended: str, tmp_path: Path
) -> None:
    base = save_mistral(tmp_path / "mistral")
    by_config = appended == "by the config"
    save_tokenizer(base, add_eos_token=not by_config)
    end = "</s>" if by_config else ""
    template = Template("query: ", "", True, end)
    model = ModelConfig(
        str(base),
        pooling="last",
        max_length=32,
        template=template,
        bidirectional=False,
    )
    out, _ = exported(model, tmp_path, "lora")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out)
    tokens = tokenizer(["b", "b" * 99], max_length=9, truncation=True)
    cut = tokens["input_ids"][1]
    assert cut[-1] == 2


def test_special_tokens_of_a_prefix_stay_special(base: Path, tmp_path: Path) -> None:
    """On one side only: then also in posts, because both sides share a tokenizer; noted."""
    template = Template("</s>q: ", "</s>p: ", True)
    model = config(base, template=template, max_length=40)
    out, lines = exported(model, tmp_path)
    card_file = out / "README.md"
    card = card_file.read_text(encoding="utf-8")
    assert not any("special token" in line for line in (*lines, card))
    # Nothing was scored, so no scores are shown.
    assert "post is true" in card
    assert "not evaluated" in card

    point = tmp_path / "point"
    shutil.rmtree(point)
    shutil.rmtree(out)
    claims_alone = replace(template, source="")
    spec = config(base, template=claims_alone, max_length=40)
    write_point(spec, point, "full")
    lines = merge(MergeConfig([str(point)], out))
    assert any("special token in a source" in line for line in lines)
    assert not any("special token in a claim" in line for line in lines)
    card = card_file.read_text(encoding="utf-8")
    assert "the name of a special token in a source is special" in card


def test_an_empty_text_without_any_token_is_said(base: Path, tmp_path: Path) -> None:
    template = Template("q: ", "", True)
    model = config(base, template=template, max_length=40)
    _, lines = exported(model, tmp_path)
    assert [line for line in lines if "an empty source" in line]
    assert not [line for line in lines if "an empty claim" in line]


def test_the_check_fails_for_a_folder_that_gives_other_vectors(base: Path, tmp_path: Path) -> None:
    """In 16 bits too, where tokens are compared as exactly."""
    point = tmp_path / "point"
    out = tmp_path / "out"
    model = config(base, max_length=40)
    encoder = write_point(model, point, "full")
    merge(MergeConfig([str(point)], out))
    in_16_bits = check_export(out, encoder, "bfloat16")
    assert in_16_bits == check_export(out, encoder, "float32") == []
    tokenizer = "tokenizer_config.json"
    pooling = "1_Pooling/config.json"
    sbert = "sentence_bert_config.json"
    settings_file = "config_sentence_transformers.json"
    prompts = {"query": "q: ", "document": ""}
    pools_first = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    harms: list[tuple[Any, str, dict[str, Any]]] = [
        ("bfloat16", tokenizer, {"padding_side": "left"}),
        ("bfloat16", tokenizer, {"truncation_side": "left"}),
        ("bfloat16", tokenizer, {"split_special_tokens": False}),
        ("bfloat16", sbert, {"do_lower_case": True}),
        ("bfloat16", sbert, {"max_seq_length": 41}),
        ("bfloat16", settings_file, {"prompts": prompts}),
        ("bfloat16", settings_file, {"truncate_dim": 8}),
        ("bfloat16", pooling, pools_first),
        ("float32", "config.json", {"hidden_act": "relu"}),
        ("float32", "modules.json", {}),
    ]
    for dtype, file, values in harms:
        before = (out / file).read_text()
        if file == "modules.json":
            modules = json.loads(before)
            write_json(out / file, modules[:-1])
        else:
            say(out, file, **values)
        with refused(UserError, "sentence-transformers"):
            check_export(out, encoder, dtype)
        (out / file).write_text(before)
