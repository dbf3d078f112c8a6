"""Export a checkpoint as a folder that sentence-transformers loads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claim2source.core.errors import UserError
from claim2source.core.files import write_json
from claim2source.core.provenance import version
from claim2source.models import Dtype, EncoderSettings, Side
from claim2source.models.hub import one_line, read_object, tokenizer_files, weights_hash
from claim2source.models.manifest import base_record
from claim2source.training.export.weighted_sum import ScaledCheckpoint

if TYPE_CHECKING:
    from torch import Tensor

    from claim2source.models import Encoder, Tokens

_PROMPTS: tuple[tuple[Side, str], ...] = (("claim", "query"), ("source", "document"))
# Beginnings of posts, before which the prefix must end at a token boundary; then an empty text, and
# spaces at both ends.
_PROBES = ("new study: masks work", "A", "42 % fewer", "@who says", "#covid", "ärztlich", "😷 ok")
_EDGES = ("", "  OK\n")
# Largest difference of vectors, as a share of the largest number; in 16 bits, least cosine.
_ROUNDING, _LEAST_COSINE = 1e-4, 0.98


def export(
    scaled: ScaledCheckpoint,
    folder: Path,
    scale: float | None,
    dtype: Dtype | None,
    name: str | None,
) -> list[str]:
    """Write a checkpoint at a scale as a plain model; return notes on it.

    `scaled` is loaded in float32 on the CPU. Scale and type default to the checkpoint's own.
    `name` is recorded as the export's origin. Raises `UserError` if sentence-transformers would
    compute other vectors, or if the base's weights changed.
    """
    manifest, trained = scaled.manifest, scaled.manifest.encoder
    weights = manifest.weights
    recorded = float(weights.scale if scale is None else scale)
    # Full weights are written as they are, whatever scale the checkpoint records.
    applied = 1.0 if scale is None and weights.kind == "full" else recorded
    # An adapter trained over 4 bits is added to the base's own weights.
    settings = replace(trained, dtype=dtype or trained.dtype, quantization=None)
    sha256 = scaled.save_model(folder, applied, settings.dtype)
    scaled.set(applied)
    encoder = scaled.encoder
    write_tokenizer(folder, scaled.resolved.folder, encoder)
    write_modules(folder, settings, encoder.model.config.hidden_size, encoder.dense)
    exported = replace(manifest, encoder=settings, weights=replace(weights, scale=recorded))
    name = name or scaled.folder.name
    exported.write_export(folder, checkpoint=name, scale=recorded, sha256=sha256)
    claims_only = weights.trained == "query_only"
    base_name = base_record(manifest.base.name)
    lines = check_export(folder, encoder, settings.dtype, claims_only=claims_only)
    base = "not read: the checkpoint has all weights"
    if (base_folder := scaled.base_folder) is not None:
        base = "unchanged: hashed again after the export was written"
        if weights_hash(base_folder) != manifest.base.sha256:
            raise UserError(f"{base_folder}: the base's weights changed while they were exported")
    if claims_only:
        model = manifest.source_model
        name_of_model = f"the base, {base_name}" if model is None else base_record(model.name)
        lines.append(
            f"for claims only; sources are encoded by {name_of_model}: "
            "automatically in this package, but in sentence-transformers you must load it too"
        )
    if trained.quantization:
        lines.append(
            f"trained over a base in {trained.quantization}, merged into the base's own weights: "
            "vectors differ by the rounding to 4 bits"
        )
    prefixed = settings.template.claim or settings.template.source
    prompts = " (prefixes: its prompts `query` and `document`)" if prefixed else ""
    return [
        *lines,
        f"{name} at scale {recorded:g}, {settings.dtype}, sha256 {sha256}",
        f"base {base_name}: sha256 {manifest.base.sha256}, {base}",
        "sentence-transformers: encode_query for claims, encode_document for sources" + prompts,
    ]


def write_tokenizer(folder: Path, source: Path, encoder: Encoder) -> None:
    """Copy the tokenizer from `source`, and configure it to tokenize as the encoder does.

    It pads and cuts at the end, ends a text with the template's token, and treats the names of
    special tokens in a text as plain text.
    """
    for file in tokenizer_files(source):
        shutil.copyfile(file, folder / file.name)
    tokenizer: Any = encoder.tokenizer
    config, core_file = folder / "tokenizer_config.json", folder / "tokenizer.json"
    settings = read_object(config) if config.is_file() else {}
    settings |= {"padding_side": "right", "truncation_side": "right"}
    settings["split_special_tokens"] = all(map(encoder.reads_plainly, _prefixes(encoder)))
    if "pad_token" not in settings and tokenizer.pad_token is not None:
        settings["pad_token"] = tokenizer.pad_token
    if end := encoder.end():
        token = encoder.settings.template.append_token
        if not core_file.is_file():
            tokenizer.save_pretrained(str(folder))
        core = read_object(core_file)
        core["post_processor"] = _ending(core.get("post_processor"), token, end[0])
        write_json(core_file, core)
        if token == tokenizer.eos_token:
            # For versions of transformers before 5.
            settings["add_eos_token"] = True
    write_json(config, settings)


def _ending(processor: Any, token: str, number: int) -> dict[str, Any]:
    """Extend the post-processor of a tokenizer.json to end every text with a token."""
    # A second template would add the token to every part that the first one makes.
    several = processor is not None and processor["type"] == "Sequence"
    parts = processor["processors"] if several else [processor] if processor else []
    template = next((part for part in parts if part["type"] == "TemplateProcessing"), None)
    if template is None:
        texts = [{"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")]
        template = {"type": "TemplateProcessing", "special_tokens": {}}
        template |= {"single": texts[:1], "pair": texts}
        parts.append(template)
    for kind, last in (("single", 0), ("pair", 1)):
        template[kind].append({"SpecialToken": {"id": token, "type_id": last}})
    template["special_tokens"][token] = {"id": token, "ids": [number], "tokens": [token]}
    return {"type": "Sequence", "processors": parts}


def _prefixes(encoder: Encoder) -> list[str]:
    return [encoder.settings.template.prefix(side) for side, _ in _PROMPTS]


def check_export(
    folder: Path, encoder: Encoder, dtype: Dtype, *, claims_only: bool = False
) -> list[str]:
    """Load the folder with sentence-transformers, and compare its tokens and vectors with ours.

    `dtype` is that of its weights. Both read a batch of unequal lengths, with a text that is cut,
    an empty one, the names of special tokens, upper case and accents. Returns unavoidable
    differences as lines. Raises `UserError` for any other difference.
    """
    import torch
    from sentence_transformers import SentenceTransformer

    settings = encoder.settings
    if settings.pooling == "mean" and isinstance(settings.template.pool_prefix, str):
        raise UserError(
            f"template.pool_prefix: {settings.template.pool_prefix}: sentence-transformers pools "
            "the prefixes of both sides or of neither"
        )
    if settings.own_code:
        return ["not compared with sentence-transformers: the model runs its own code"]
    model = load_export(SentenceTransformer, folder, model_kwargs={"dtype": torch.float32})
    ends = f"Ends {' '.join(encoder.tokenizer.all_special_tokens)} here"
    texts = [*_PROBES, *_EDGES, "A Study of Masks in Zürich. " * settings.max_length, ends]
    notes: list[str] = []
    for side, name in _PROMPTS[: 1 if claims_only else None]:
        comparable, side_notes = _compare_tokens(model, encoder, side, texts)
        notes += side_notes
        encode = getattr(model, f"encode_{name}")
        vectors = encode(comparable, batch_size=len(comparable), convert_to_tensor=True)
        expected = torch.from_numpy(encoder.encode(comparable, side)[0])
        reason = _difference(vectors, expected, settings, dtype)
        if reason:
            raise UserError(f"the {side}s' vectors differ in sentence-transformers: {reason}")
    return notes


def _compare_tokens(
    model: Any, encoder: Encoder, side: Side, texts: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Compare the tokens of texts; the last text has the names of special tokens.

    Returns the texts whose vectors can be the same, and notes on the others. Raises `UserError` for
    any other difference.
    """
    prefix = encoder.settings.template.prefix(side)
    read = model.preprocess(list(texts), prompt=prefix or None)
    ours = encoder.tokenize(texts, side)
    prompt_length = _unpooled_length(read, ours, encoder.settings, side)
    mask = read["attention_mask"].bool()
    theirs: list[tuple[int, ...]] = []
    for ids, present in zip(read["input_ids"], mask, strict=True):
        theirs.append(tuple(ids[present].tolist()))
    empty, last = texts.index(""), len(texts) - 1
    apart: set[int] = set()
    notes: list[str] = []
    if len(theirs[empty]) <= prompt_length:
        apart.add(empty)
        notes.append(
            f"an empty {side} has no token to pool in sentence-transformers: its vector is 0"
        )
    # Both sides share a tokenizer: the names are special in both or in neither.
    readings = {encoder.reads_plainly(prefix) for prefix in _prefixes(encoder)}
    if theirs[last] != ours[last].ids and len(readings) > 1:
        apart.add(last)
        notes.append(
            f"the name of a special token in a {side} is special in sentence-transformers, "
            "because the other side's prefix has such tokens"
        )
    comparable: list[str] = []
    for row, text in enumerate(texts):
        if row in apart:
            continue
        if not mask[row, 0] or theirs[row] != ours[row].ids:
            raise UserError(
                f"the {side}s' token ids are not those of the tokenizer itself; "
                "sentence-transformers would compute other vectors"
            )
        comparable.append(text)
    return comparable, notes


def _unpooled_length(
    read: Mapping[str, Any], ours: Sequence[Tokens], settings: EncoderSettings, side: Side
) -> int:
    """Count the tokens of the prefix that are left out of the pooling.

    Raises `UserError` if these differ in sentence-transformers.
    """
    prefix = settings.template.prefix(side)
    if settings.pooling != "mean" or not prefix or settings.template.pool_prefix:
        return 0
    length = int(read["prompt_length"])
    for text in ours:
        if len(text.ids) > length and text.skip != length:
            raise UserError(
                f"template.{side}: {prefix!r} does not end at a token boundary; "
                "sentence-transformers would leave other tokens out of the pooling"
            )
    return length


def load_export(kind: type, folder: Path, **settings: object) -> Any:
    """Load an export as its users will, on the CPU. Raises `UserError` if it does not load."""
    try:
        model: Any = kind(str(folder), device="cpu", local_files_only=True, **settings)
    except Exception as error:  # libraries may raise anything for files that do not fit
        reason = f"sentence-transformers cannot load the export: {one_line(error)}"
        raise UserError(reason) from None
    return model.eval()


def _difference(vectors: Tensor, expected: Tensor, settings: EncoderSettings, dtype: Dtype) -> str:
    from torch.nn.functional import cosine_similarity, normalize

    if vectors.shape != expected.shape:
        return f"{vectors.shape[1]} dimensions, not {expected.shape[1]}"
    if settings.normalize and settings.truncate_dim:
        # Vectors are truncated after normalisation, and compared by cosine.
        vectors = normalize(vectors)
    cosine = float(cosine_similarity(vectors, expected).min())
    difference = float((vectors - expected).abs().max() / expected.abs().max())
    good = difference <= _ROUNDING if dtype == "float32" else cosine >= _LEAST_COSINE
    return "" if good else f"a cosine of {cosine:.4f}, numbers that differ by {difference:.2%}"


def write_modules(
    folder: Path, settings: EncoderSettings, dimensions: int, dense: Any = None
) -> None:
    """Write modules, pooling and prompts as every version of sentence-transformers reads them.

    `dimensions` is the length of pooled vectors, `dense` are the layers after the pooling.
    """
    from claim2source.models.projection import DenseLayers

    layers: list[Any] = []
    if dense is not None:
        layers = list(dense) if isinstance(dense, DenseLayers) else [dense]
    kinds = ["Transformer", "Pooling", *["Dense"] * len(layers)]
    kinds += ["Normalize"] if settings.normalize else []
    modules = []
    for i, kind in enumerate(kinds):
        path, type_ = f"{i}_{kind}" if i else "", f"sentence_transformers.models.{kind}"
        (folder / path).mkdir(exist_ok=True)
        modules.append({"idx": i, "name": str(i), "path": path, "type": type_})
    write_json(folder / "modules.json", modules)
    for number, layer in enumerate(layers, start=2):
        layer.save(str(folder / f"{number}_Dense"))
    modes = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}
    pooling = {
        "word_embedding_dimension": dimensions,
        **{f"pooling_mode_{name}": settings.pooling == ours for ours, name in modes.items()},
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        "pooling_mode_weightedmean_tokens": False,
        # Only mean pooling can leave out the prefix.
        "include_prompt": settings.pooling != "mean" or bool(settings.template.pool_prefix),
    }
    write_json(folder / "1_Pooling" / "config.json", pooling)
    length = {"max_seq_length": settings.max_length, "do_lower_case": settings.lower_case}
    write_json(folder / "sentence_bert_config.json", length)
    values = {
        "__version__": {name: version(name) for name in ("transformers", "torch")},
        "prompts": {name: settings.template.prefix(side) for side, name in _PROMPTS},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if settings.normalize else "dot",
        "truncate_dim": settings.truncate_dim,
    }
    write_json(folder / "config_sentence_transformers.json", values)
