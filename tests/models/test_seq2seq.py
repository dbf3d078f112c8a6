"""Encoder-decoder models translate in batches of like length, in order, and report cuts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from claim2source.eval.translate import main

from claim2source.core.errors import UserError
from claim2source.data.loading import load
from claim2source.models.seq2seq import Seq2Seq, Seq2SeqConfig, translations
from claim2source.text.translate import ForeignText
from tests.eval.test_translate import QUERIES, data_set
from tests.refusals import refused

WORDS = "masken die impfung senken risiko masks the vaccine lower risk".split()


@pytest.fixture(scope="module")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5 of random weights with whole words as tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("t5")
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = T5Config(
            vocab_size=len(vocabulary), d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
            decoder_start_token_id=0, initializer_factor=3.0,
        )  # fmt: skip
        T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def foreign(*texts: str) -> list[ForeignText]:
    return [ForeignText(str(i), "claim", text, "de") for i, text in enumerate(texts)]


TEXTS = foreign(
    "masken", "die impfung senken risiko die masken", "die", "impfung senken", "risiko die"
)


def test_batches_are_of_like_length_and_results_in_order(
    tiny_t5: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    alone_each = [
        translations(Seq2SeqConfig(str(tiny_t5), device="cpu", max_length=8), [t])[0] for t in TEXTS
    ]
    model = Seq2Seq(Seq2SeqConfig(str(tiny_t5), batch_size=2, device="cpu", max_length=8), "de")
    generate = model.model.generate

    def watched(**inputs: torch.Tensor) -> torch.Tensor:
        sizes.append(tuple(inputs["input_ids"].shape))
        return generate(**inputs)

    monkeypatch.setattr(model.model, "generate", watched)
    translation_of = dict(model.translated([text.text for text in TEXTS]))
    assert sizes == [(2, 2), (2, 3), (1, 7)]
    assert [translation_of[i] for i in range(len(TEXTS))] == alone_each
    assert len({(translation.text, translation.reason) for translation in alone_each}) > 1


def test_long_texts_and_cut_translations_are_failures(tiny_t5: Path) -> None:
    config = Seq2SeqConfig(str(tiny_t5), device="cpu", max_length=8)
    model = Seq2Seq(config, "de")
    assert dict(model.translated(["die " * 8]))[0].reason == "too long for the model: 9 tokens"
    assert model._decode([0, 3, 4, 1, 0]).text == "masken die"
    assert model._decode([0, 3, 4, 3, 4, 3, 4, 1]).text == "masken die masken die masken die"
    rows = [[0, *[3] * 8], [0, *[3] * 7, 1]]
    assert [model._decode(row).reason for row in rows] == ["cut off by max_length"] * 2


def test_a_model_of_many_languages_is_told_both(tiny_t5: Path) -> None:
    model = Seq2Seq(Seq2SeqConfig(str(tiny_t5), device="cpu"), "de")

    class Many:
        """Extra attributes of NLLB's tokenizer (M2M100's has __en__)."""

        src_lang = "eng_Latn"

        def __init__(self, *tokens: str) -> None:
            self.tokens = tokens

        def get_vocab(self) -> dict[str, int]:
            return {token: i + 5 for i, token in enumerate(self.tokens)}

    for tokens, source in ((("fra_Latn", "eng_Latn"), "deu_Latn"), (("__fr__", "__en__"), "de")):
        model.tokenizer = Many(*tokens)
        assert model._set_languages("m") == 6 and model.tokenizer.src_lang == source
    model.language = "tlh"
    with refused(UserError, "model m: ", "'tlh'"):
        model._set_languages("m")


def test_the_program_needs_no_server(
    tiny_t5: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = data_set(tmp_path / "data", QUERIES[:3])
    report = tmp_path / "report.json"
    words = ["--dataset", str(folder), "--report", str(report), "--seq2seq.device", "cpu"]
    with refused(UserError, "opus-de"):
        main([*words, "--seq2seq.name", str(tiny_t5.parent / "opus-{language}")])
    main([*words, "--seq2seq.name", str(tiny_t5), "--seq2seq.max_length", "20"])
    record = json.loads(report.read_text())
    # Random words: every one is reported, as doubtful at least.
    assert record["texts"] == 2 == len(record["problems"])
    count = sum(bool(claim.translation) for claim in load(folder, "dev").claims)
    assert f"{count} of 2 texts have a new translation" in capsys.readouterr().out
