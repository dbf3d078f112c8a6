"""Settings that the data or the model cannot serve, refused before anything is trained."""

from __future__ import annotations

from claim2source.core.config import require
from claim2source.core.errors import ConfigError
from claim2source.core.records import Dataset
from claim2source.mining import read_mined
from claim2source.models import Encoder
from claim2source.text.render import untranslated_sentences
from claim2source.training.adapt import check_adaptable
from claim2source.training.config import FinetuneConfig


def check_data(config: FinetuneConfig, train: Dataset) -> None:
    """Raise `ConfigError` for a loss that would find nothing to work on in these claims.

    A named file of mined negatives is read too, so that its errors do not come hours later; a
    run that is resumed has its own copy.
    """
    losses = config.losses
    if config.mined is not None and not config.resume:
        read_mined(config.mined, train)
    if losses.consistency.weight and not any(
        c.lang != "en" and c.translation for c in train.claims
    ):
        allowed = "0: no training claim has a translation to agree with"
        raise ConfigError("losses.consistency.weight", losses.consistency.weight, allowed)
    if losses.keep_base.weight:
        for language in losses.keep_base.languages:
            require(
                language in train.languages,
                "losses.keep_base.languages",
                language,
                f"languages of the training claims: {', '.join(train.languages)}",
            )


def check_model(config: FinetuneConfig, encoder: Encoder) -> None:
    """Raise `ConfigError` for vectors that this model does not have, or that cannot be trained."""
    check_adaptable(encoder, config)
    if encoder.dense is not None:
        allowed = "a model without a Dense layer behind its pooling: such a layer is not trained"
        raise ConfigError("model.name", config.model.name, allowed)
    width = encoder.dimensions
    for size in config.losses.matryoshka.dimensions:
        key, allowed = "losses.matryoshka.dimensions", f"at most {width}, this model's width"
        require(size <= width, key, size, allowed)


def left_aside(config: FinetuneConfig, train: Dataset, pairs: int) -> list[str]:
    """Sentences on what was named or could be trained on, and is not; `pairs` are trained on."""
    lines = []
    whole = sum(len(claim.golds) for claim in train.claims)
    if config.mined is not None and pairs < whole:
        lines.append(f"{whole - pairs} of {whole} training pairs have no row in {config.mined}")
    distillation = config.losses.distillation
    if distillation.scores is not None and not distillation.weight:
        lines.append(f"losses.distillation.weight is 0: {distillation.scores} is not used")
    return lines


def missing_translations_of(config: FinetuneConfig, train: Dataset) -> list[str]:
    """Sentences on the training claims that a rendering or a loss wants a translation of."""
    form = config.rendering.claims
    if form == "original" and config.losses.consistency.weight:
        form = "bilingual"
    return untranslated_sentences(train.claims, form)
