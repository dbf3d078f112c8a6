"""Export a tuned re-ranker as a folder that sentence-transformers' `CrossEncoder` loads."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from claim2source.core.errors import UserError
from claim2source.core.files import file_hash
from claim2source.models import Dtype, ModelConfig
from claim2source.models.hub import tokenizer_files, weights_hash
from claim2source.models.manifest import RerankerManifest, base_record
from claim2source.models.weights import with_adapter
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.load import LocalReranker, load_causal, load_cross_encoder
from claim2source.stages.pairs import Pair
from claim2source.stages.yes_no import YesNo
from claim2source.training.export.sentence_transformers import load_export

_PAIRS = (
    Pair("new study: masks work", "Masks in schools. A trial of 31 schools."),
    Pair("new study: masks work", "Sleep of nurses. Diaries of 400 nurses on night shifts."),
    Pair("#schlaf hilft gegen erkältung", "Sleep and the common cold. A cohort of 164 adults."),
    Pair("42 % fewer", "Sugar taxes. Sales of soft drinks before and after the tax of 2018."),
)
# Largest difference of two logits, as a share of the largest logit.
_ROUNDING = 1e-5
_IN_16_BITS = 0.05
# Names of the two texts of a prompt: sentence-transformers' roles.
_ROLES = ("@@query@@", "@@document@@")
_SPECIAL = Pair("what {} means", "A paper with {} in its abstract.")


def export_reranker(
    checkpoint: Path,
    manifest: RerankerManifest,
    folder: Path,
    dtype: Dtype | None,
    model: ModelConfig,
) -> list[str]:
    """Write a tuned re-ranker as a plain model; return notes on it.

    An adapter is added to the weights in its base's files, in float32. `dtype` is the type of the
    written weights, by default the checkpoint's; `model` sets the base's permissions. Raises
    `UserError` if the folder would give other logits, or if the base's weights changed.
    """
    is_cross_encoder = manifest.reranker.kind == "cross_encoder"
    kind = CrossEncoder if is_cross_encoder else YesNo
    stage: Any = kind(model=str(checkpoint), allow_remote_code=model.allow_remote_code)
    stage = stage.with_runtime(None, "cpu")
    base, identity, settings = stage.files
    in_float32 = replace(settings, dtype="float32")
    stage.__dict__["files"] = base, identity, in_float32
    dtype = dtype or manifest.reranker.dtype
    write = _write_cross_encoder if is_cross_encoder else _write_yes_no
    write(stage, folder, dtype)
    if weights_hash(base) != identity["weights"]:
        raise UserError(f"{base}: the base's weights changed while they were exported")
    sha256 = file_hash(folder / "model.safetensors")
    reranker = replace(manifest.reranker, dtype=dtype)
    exported = replace(manifest, reranker=reranker)
    exported.write_export(folder, checkpoint=checkpoint.name, sha256=sha256)
    notes = check_reranker(folder, stage, dtype)
    rendering = manifest.rendering
    base_name = base_record(manifest.base.name)
    return [
        *notes,
        f"{checkpoint.name}, {dtype}, sha256 {sha256}",
        f"base {base_name}: sha256 {manifest.base.sha256}, unchanged",
        "sentence-transformers: CrossEncoder(folder).predict([(claim, source)]) gives its logits; "
        f"trained on {rendering.claims} claims and {rendering.sources} sources",
    ]


def _write_cross_encoder(
    stage: CrossEncoder,
    folder: Path,
    dtype: Dtype,
) -> None:
    base, _, settings = stage.files
    length, instruction = stage.prompt_settings
    without_adapter = replace(settings, adapter=None)
    model = load_cross_encoder(
        base,
        without_adapter,
        length,
        settings.labels,
        trains=True,
    )
    network: Any = model[0]
    network.model = _merged(network.model, settings.adapter, dtype)
    if instruction is not None:
        model.prompts = {"instruction": instruction}
        model.default_prompt_name = "instruction"
    save_cross_encoder(model, folder)


def _write_yes_no(stage: YesNo, folder: Path, dtype: Dtype) -> None:
    from sentence_transformers import CrossEncoder as Theirs

    base, _, settings = stage.files
    length, *_ = stage.prompt_settings
    without_adapter = replace(settings, adapter=None)
    causal = load_causal(base, without_adapter)
    prompt = _prompt_template(stage)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        merged = _merged(causal, settings.adapter, dtype)
        merged.save_pretrained(temporary)
        for file in tokenizer_files(base):
            content = file.read_bytes()
            Path(temporary, file.name).write_bytes(content)
        template = Path(temporary, "chat_template.jinja")
        template.write_text(prompt, encoding="utf-8")
        model = Theirs(
            temporary,
            device="cpu",
            max_length=length,
            local_files_only=True,
        )
        save_cross_encoder(model, folder)


def _prompt_template(stage: YesNo) -> str:
    """Write the stage's prompt as a chat template."""
    # A template drops line ends at its end, which the last tags need; a string in it keeps them.
    example = Pair(*_ROLES)
    text = "".join(stage.prompt(example))
    for role in _ROLES:
        name = role.strip("@")
        message = f"(messages | selectattr('role', 'eq', '{name}') | first).content"
        text = text.replace(role, f"\0{message}\0")
    terms: list[str] = []
    for number, part in enumerate(text.split("\0")):
        is_message = number % 2 == 1
        terms.append(part if is_message else json.dumps(part))
    return "{{ " + " ~ ".join(terms) + " }}"


def _merged(model: Any, adapter: Path | None, dtype: Dtype) -> Any:
    import torch

    if adapter is not None:
        adapted = with_adapter(model, adapter)
        model = adapted.merge_and_unload()
    torch_dtype = getattr(torch, dtype)
    return model.to(torch_dtype)


def save_cross_encoder(model: Any, folder: Path, activation: Any = None) -> None:
    """Write the modules with an activation of predictions; None: raw logits."""
    import torch
    from sentence_transformers.util import fullname

    # A sigmoid would make ties of high logits.
    activation = activation or torch.nn.Identity()
    config = model[0].model.config
    own = model.activation_fn
    # Versions of sentence-transformers before 6 read it from here.
    settings = getattr(config, "sentence_transformers", None) or {}
    name = fullname(activation)
    config.sentence_transformers = settings | {"activation_fn": name}
    model.activation_fn = activation
    model.save_pretrained(str(folder), create_model_card=False)
    model.activation_fn = own


def check_reranker(
    folder: Path,
    stage: LocalReranker,
    dtype: Dtype,
) -> list[str]:
    """Load the folder with sentence-transformers, and compare its logits with the checkpoint's.

    Returns unavoidable differences as lines. Raises `UserError` for logits that differ.
    """
    from sentence_transformers import CrossEncoder as Theirs

    model = load_export(Theirs, folder)
    names = " ".join(model.tokenizer.all_special_tokens)
    special = [text.format(names) for text in _SPECIAL]
    pairs = [*_PAIRS, Pair(*special)]
    ours = stage.pair_scores(pairs).scores
    theirs = _their_scores(model, pairs)
    differences = np.abs(ours - theirs)
    tolerance = _ROUNDING if dtype == "float32" else _IN_16_BITS
    largest = float(np.abs(ours[:-1]).max())
    tolerance *= max(1.0, largest)
    worst = float(differences[:-1].max())
    if worst > tolerance:
        raise UserError(f"the logits in sentence-transformers differ by {worst:.2g}")
    is_special_in_theirs = differences[-1] > tolerance
    if not is_special_in_theirs:
        return []
    return ["the name of a special token in a text is special in sentence-transformers"]


def _their_scores(model: Any, pairs: Sequence[Pair]) -> np.ndarray:
    """Score pairs with sentence-transformers, [pairs]: a logit, or the difference of two."""
    texts = [tuple(pair) for pair in pairs]
    logits = np.asarray(model.predict(texts))
    logits = logits.reshape(len(pairs), -1)
    scores = logits[:, -1]
    if logits.shape[1] == 2:
        scores = scores - logits[:, 0]
    return scores
