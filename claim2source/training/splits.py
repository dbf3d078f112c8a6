"""Load the splits of a training run and check that they serve its config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from claim2source.core.config import require
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Dataset
from claim2source.datasets import carve_val, expected_seen_share, load
from claim2source.mining import read_mined
from claim2source.systems.choose import Weighing, weigh
from claim2source.text.views import untranslated_sentences
from claim2source.training.config import FinetuneConfig, RunConfig
from claim2source.training.teacher import Teacher, read_teacher

# Below these the interval of a mean over val is wider than what training gains.
FEWEST_CLAIMS, FEWEST_PAPERS = 30, 10


@dataclass(frozen=True)
class TrainingData:
    """Hold the splits to train on, to choose on and to report on, and a teacher's scores.

    A claim of val has a seen paper where `seen_golds` has its gold; `seen_share` of such claims
    is chosen for.
    """

    train: Dataset
    val: Dataset
    report: Dataset
    teacher: Teacher | None = None
    seen_golds: frozenset[str] = frozenset()
    seen_share: float | None = None

    @cached_property
    def weighing(self) -> Weighing:
        """Weigh the claims of val to choose by."""
        seen = [c.id for c in self.val.claims if not self.seen_golds.isdisjoint(c.golds)]
        return weigh(self.val, frozenset(seen), self.seen_share)


def load_data(config: FinetuneConfig) -> TrainingData:
    """Load the splits, carve val out of train, and read the teacher's scores.

    Raises `ConfigError` where a loss needs what the claims do not have, `InputError` for a
    teacher's run or mined negatives that do not fit the claims.
    """
    data = load_splits(config, lambda train: check_data(config, train))
    distillation = config.losses.distillation
    if distillation.weight and distillation.scores is not None:
        return replace(data, teacher=read_teacher(distillation, data.train))
    return data


def load_splits(config: RunConfig, check: Callable[[Dataset], None]) -> TrainingData:
    """Load the splits and carve val out of train; `check` raises what is wrong with train."""
    data, languages = config.data, config.languages
    whole = load(data.dataset, data.train_split, languages, lenient=data.lenient)
    train, val = carve_val(whole, data.val_share, data.val_seed, seen_share=config.held_out_seen)
    if not val.golds:
        raise UserError(f"{data.dataset}: no claim of val has a gold to choose by")
    seen_golds, mix = train.golds, data.seen_share_expected
    mix = expected_seen_share(whole) if mix is None else mix
    if data.limit is not None:
        train = train.with_claims(train.claims[: data.limit])
    check(train)
    report = load(data.dataset, data.report_split, languages, lenient=data.lenient)
    if not report.golds:
        raise UserError(f"{data.dataset}: split {data.report_split!r} has no golds to report on")
    known = {claim.id for claim in whole.claims}
    if shared := [claim.id for claim in report.claims if claim.id in known]:
        allowed = f"a split without claims of data.train_split ({len(shared)} of its claims, "
        raise ConfigError("data.report_split", data.report_split, f"{allowed}such as {shared[0]})")
    return TrainingData(train, val, report, None, seen_golds, mix)


def why_too_small(val: Dataset) -> str | None:
    """Say that val has too few claims or papers to choose by; None where it has enough."""
    claims, papers = sum(bool(claim.golds) for claim in val.claims), len(val.golds)
    if claims >= FEWEST_CLAIMS and papers >= FEWEST_PAPERS:
        return None
    return (
        f"val has {claims} claims of {papers} papers: under {FEWEST_CLAIMS} claims or "
        f"{FEWEST_PAPERS} papers are too few to choose by (raise data.val_share)"
    )


def check_data(config: FinetuneConfig, train: Dataset) -> None:
    """Raise `ConfigError` for a loss that finds nothing to work on in these claims.

    A file of mined negatives is read too, so that its errors come before any encoding; a
    resumed run has its own copy.
    """
    losses = config.losses
    if config.mined is not None and not config.resume:
        read_mined(config.mined, train)
    if losses.consistency.weight and not any(
        claim.lang != "en" and claim.translation for claim in train.claims
    ):
        allowed = "0: no training claim has a translation to agree with"
        raise ConfigError("losses.consistency.weight", losses.consistency.weight, allowed)
    if losses.keep_base.weight:
        allowed = f"languages of the training claims: {', '.join(train.languages)}"
        for language in losses.keep_base.languages:
            require(language in train.languages, "losses.keep_base.languages", language, allowed)


def unused_data(config: FinetuneConfig, train: Dataset, pairs: int) -> list[str]:
    """List training pairs and teacher's scores that are not used; `pairs` are trained on."""
    lines = []
    available = sum(len(claim.golds) for claim in train.claims)
    if config.mined is not None and pairs < available:
        missing = available - pairs
        lines.append(f"{missing} of {available} training pairs have no row in {config.mined}")
    distillation = config.losses.distillation
    if distillation.scores is not None and not distillation.weight:
        lines.append(f"losses.distillation.weight is 0: {distillation.scores} is not used")
    return lines


def missing_translations(config: FinetuneConfig, train: Dataset) -> list[str]:
    """Count the training claims without the translation that the rendering or a loss needs."""
    form = config.rendering.claims
    if form == "original" and config.losses.consistency.weight:
        form = "bilingual"
    return untranslated_sentences(train.claims, form)
