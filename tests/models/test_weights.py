"""A model whose files lack weights is refused by every loader, before a random score is kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from claim2source.core.errors import ConfigError, InputError
from claim2source.models.seq2seq import Seq2SeqConfig, translations
from claim2source.models.weights import with_adapter
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.pairs import Pair
from claim2source.stages.yes_no import YesNo
from claim2source.text.translate import ForeignText
from claim2source.training.reranker_models import load_to_train
from tests.models.layout import change_json
from tests.stages.tiny import save_cross_encoder
from tests.training.reranker.small import small_config, small_rerankers

PAIRS = [Pair("a claim", "a paper"), Pair("masks", "a study of masks")]
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return small_rerankers(tmp_path_factory.mktemp("rerankers"))


def refused(call: Callable[[], object], folder: Path, weight: str) -> None:
    """Check that the error is one line that names the model and a missing weight."""
    with pytest.raises(InputError) as error:
        call()
    (line,) = error.value.lines
    assert line.startswith(str(folder)) and weight in line, line


def without(folder: Path, *parts: str) -> Path:
    """Take weights from a model's file."""
    kept = {
        name: tensor
        for name, tensor in load_file(folder / WEIGHTS).items()
        if not any(part in name for part in parts)
    }
    save_file(kept, folder / WEIGHTS, {"format": "pt"})
    return folder


def score(stage: CrossEncoder | YesNo) -> list[Any]:
    return list(stage.with_runtime(None, "cpu").score(PAIRS))


def test_a_cross_encoder_without_its_head_is_refused(tmp_path: Path, tiny_folder: Path) -> None:
    refused(lambda: score(CrossEncoder(model=str(tiny_folder))), tiny_folder, "classifier.")
    folder = without(save_cross_encoder(tmp_path / "model", tiny_folder), "pooler.")
    refused(lambda: score(CrossEncoder(model=str(folder))), folder, "bert.pooler.dense.")


def test_scores_that_a_random_head_left_in_the_store_are_not_read(
    tmp_path: Path, tiny_folder: Path
) -> None:
    """A model with all of its weights keeps its key."""
    whole = save_cross_encoder(tmp_path / "model", tiny_folder)
    encoder, classifier = (
        CrossEncoder(model=str(folder)).with_runtime(None, "cpu") for folder in (tiny_folder, whole)
    )
    assert "architecture" in encoder.identity and "architecture" not in classifier.identity


def save_decoder(folder: Path, tiny: dict[str, Path], tied: bool) -> Path:
    """Write a decoder alone, in which a language model's head may be tied to its embeddings."""
    from transformers import Qwen3ForCausalLM

    shutil.copytree(tiny["yes_no"], folder)
    model: Any = Qwen3ForCausalLM.from_pretrained(folder)
    model.model.save_pretrained(folder)
    change_json(folder / "config.json", tie_word_embeddings=tied)
    return folder


def test_a_decoder_without_its_head_answers_nothing(tmp_path: Path, tiny: dict[str, Path]) -> None:
    folder = save_decoder(tmp_path / "decoder", tiny, tied=False)
    refused(lambda: score(YesNo(model=str(folder))), folder, "lm_head.weight")
    # A head that is tied to the embeddings is not in any file.
    tied = save_decoder(tmp_path / "tied", tiny, tied=True)
    assert len(score(YesNo(model=str(tied)))) > 0


def test_an_encoder_alone_translates_nothing(tmp_path: Path, tiny_folder: Path) -> None:
    from transformers import T5Config, T5EncoderModel

    folder = Path(shutil.copytree(tiny_folder, tmp_path / "t5"))
    config = T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, pad_token_id=0
    )
    T5EncoderModel(config).save_pretrained(folder)
    texts = [ForeignText("1", "claim", "a claim", "de")]
    settings = Seq2SeqConfig(str(folder), device="cpu", max_length=8)
    refused(lambda: translations(settings, texts), folder, "decoder.")


def test_only_the_training_of_a_new_head_begins_without_one(
    tmp_path: Path, tiny: dict[str, Path]
) -> None:
    def load(base: Path, **options: Any) -> Any:
        config = small_config(tiny, tmp_path / "run", model__name=base, **options)
        return load_to_train(config, ["a claim"], 10)

    assert load(tiny["encoder"]).headless
    whole = load(tiny["cross_encoder"])
    assert not whole.headless
    # The class in the config does not matter.
    claims_more = Path(shutil.copytree(tiny["cross_encoder"], tmp_path / "claims_more"))
    without(claims_more, "classifier")
    assert load(claims_more).headless
    with pytest.raises(ConfigError, match="tuning: 'lora'"):
        load(claims_more, tuning="lora")
    damaged = Path(shutil.copytree(tiny["encoder"], tmp_path / "damaged"))
    without(damaged, "layer.0.output.dense")
    refused(lambda: load(damaged), damaged, "layer.0.output.dense.")


def test_an_adapter_that_lacks_weights_is_refused(tmp_path: Path, tiny_folder: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import BertModel

    adapted = get_peft_model(
        BertModel.from_pretrained(tiny_folder), LoraConfig(r=2, target_modules=["query"])
    )
    adapted.save_pretrained(tmp_path)
    assert with_adapter(BertModel.from_pretrained(tiny_folder), tmp_path) is not None
    file = tmp_path / "adapter_model.safetensors"
    names = sorted(load_file(file))
    kept = {name: tensor for name, tensor in load_file(file).items() if name != names[0]}
    save_file(kept, file)
    base = BertModel.from_pretrained(tiny_folder)
    refused(lambda: with_adapter(base, tmp_path), file, "lora_A")


def test_a_system_whose_model_has_no_head_is_not_run(tmp_path: Path, tiny: dict[str, Path]) -> None:
    from claim2source.eval.evaluate import main

    systems = tmp_path / "systems.yaml"
    systems.write_text(
        "BM25: {retrieve: {bm25: {}}}\n"
        f"R: {{retrieve: BM25, stages: [{{rerank: cross_encoder, model: '{tiny['encoder']}'}}]}}\n"
    )
    out = tmp_path / "out"
    words = [f"--dataset={tiny['data']}", f"--out={out}", "--repeats=50", f"--systems={systems}"]
    main([*words, f"--store={tmp_path / 'store'}"])
    report = json.loads((out / "report.json").read_text())
    (row,) = report["not_run"]
    assert row["system"] == "R" and "classifier" in row["reason"]
