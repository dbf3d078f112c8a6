"""Write the files that make a folder a sentence-transformers model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claim2source.core.errors import UserError
from claim2source.core.files import write_json
from claim2source.core.provenance import version
from claim2source.models import EncoderSettings, Side
from claim2source.models.hub import tokenizer_files

if TYPE_CHECKING:
    from claim2source.models import Encoder

_PROMPTS: tuple[tuple[Side, str], ...] = (("claim", "query"), ("source", "document"))
# Beginnings of posts: before each of them the prefix must end where a token ends.
_PROBES = ("new study: masks work", "A", "42 % fewer", "@who says", "#covid", "ärztlich", "😷 ok")


def write_tokenizer(folder: Path, source: Path, encoder: Encoder) -> None:
    """Copy the tokenizer from `source`; write the encoder's where it has no padding token."""
    from transformers import AutoTokenizer

    for file in tokenizer_files(source):
        shutil.copyfile(file, folder / file.name)
    if AutoTokenizer.from_pretrained(folder, trust_remote_code=False).pad_token_id is None:
        encoder.tokenizer.save_pretrained(str(folder))


def check_tokens(folder: Path, encoder: Encoder) -> None:
    """Raise `UserError` where the folder's tokenizer would read or pool other tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    template, length = encoder.settings.template, encoder.settings.max_length
    if encoder.settings.pooling == "mean" and isinstance(template.pool_prefix, str):
        raise UserError(
            f"template.pool_prefix: {template.pool_prefix}: sentence-transformers pools the "
            "prefixes of both sides or of neither"
        )
    for side, _ in _PROMPTS:
        prefix = template.prefix(side)
        texts = [prefix + probe for probe in _PROBES]
        theirs = tokenizer(texts, truncation=True, max_length=length)["input_ids"]
        ours = encoder.tokenize(_PROBES, side)
        if [tuple(ids) for ids in theirs] != [tokens.ids for tokens in ours]:
            raise UserError(
                f"the {side}s' token ids are not those that this model's tokenizer gives alone; "
                "sentence-transformers would make other vectors"
            )
        if prefix and _masks_prefix(encoder.settings):
            alone = tokenizer(prefix, truncation=True, max_length=length)["input_ids"]
            # As sentence-transformers counts: the prompt's tokens without a closing special one.
            counted = len(alone) - (alone[-1] in tokenizer.all_special_ids)
            if any(tokens.skip != counted for tokens in ours):
                raise UserError(
                    f"template.{side}: {prefix!r} does not end where a token ends; "
                    "sentence-transformers would leave other tokens out of the pooling"
                )


def write_modules(
    folder: Path, settings: EncoderSettings, dimensions: int, dense: Any = None
) -> None:
    """Write modules, pooling and prompts as every version of sentence-transformers reads them.

    `dimensions` is the length of pooled vectors, `dense` a layer behind the pooling.
    """
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    if dense is not None:
        del kinds["Normalize"]
        kinds |= {"Dense": "2_Dense", "Normalize": "3_Normalize"}
    if not settings.normalize:
        del kinds["Normalize"]
    modules = []
    for i, (kind, path) in enumerate(kinds.items()):
        (folder / path).mkdir(exist_ok=True)
        type_ = f"sentence_transformers.models.{kind}"
        modules.append({"idx": i, "name": str(i), "path": path, "type": type_})
    write_json(folder / "modules.json", modules)
    if dense is not None:
        dense.save(str(folder / "2_Dense"))
    modes = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}
    pooling = {
        "word_embedding_dimension": dimensions,
        **{f"pooling_mode_{name}": settings.pooling == ours for ours, name in modes.items()},
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        "pooling_mode_weightedmean_tokens": False,
        "include_prompt": not _masks_prefix(settings),
    }
    write_json(folder / "1_Pooling" / "config.json", pooling)
    length = {"max_seq_length": settings.max_length, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", length)
    prompts = {
        "__version__": {name: version(name) for name in ("transformers", "torch")},
        "prompts": {name: settings.template.prefix(side) for side, name in _PROMPTS},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if settings.normalize else "dot",
    }
    write_json(folder / "config_sentence_transformers.json", prompts)


def _masks_prefix(settings: EncoderSettings) -> bool:
    """Tell whether the prefix is left out of the pooling, which only a mean can do."""
    return settings.pooling == "mean" and not settings.template.pool_prefix
