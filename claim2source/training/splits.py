"""Load a run's splits, carve val out of train, and read the losses' inputs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Dataset
from claim2source.data.folders import dataset_folder
from claim2source.data.loading import load
from claim2source.mining import MinedRow, read_mined
from claim2source.models.manifest import checkpoint_folder
from claim2source.models.trained_on import TrainedOn
from claim2source.search.choose import SEEN, UNSEEN, Weighing
from claim2source.systems.heldout import SelectionData, carve
from claim2source.systems.seen import require_held_out
from claim2source.text.views import untranslated_sentences
from claim2source.training.config import DataConfig, RetrieverRecipe
from claim2source.training.loss_list import Losses
from claim2source.training.losses import Distillation, KeepBase
from claim2source.training.run_folder import RunFolder
from claim2source.training.teacher_scores import Teacher, read_teacher

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingData:
    """Splits for training, choosing and reporting, and a run's other inputs.

    `mined` are the rows of the user's file of negatives, unless the run has its own copy; `teacher`
    has the scores for distillation.
    """

    settings: DataConfig
    train: Dataset
    selection: SelectionData
    report: Dataset
    mined: list[MinedRow] | None = None
    teacher: Teacher | None = None

    @property
    def val(self) -> Dataset:
        return self.selection.val

    @cached_property
    def weighing(self) -> Weighing:
        return self.selection.weighing()

    @property
    def val_parts(self) -> tuple[str, ...]:
        """Return the names of val's parts that get their own scores: none if it has only one."""
        trained = self.selection.train.golds
        seen = {not trained.isdisjoint(claim.golds) for claim in self.val.claims if claim.golds}
        return (SEEN, UNSEEN) if len(seen) == 2 else ()


def load_data(losses: Losses, run: RunFolder) -> TrainingData:
    """Load the splits, carve val out of train, and read the teacher's scores.

    Raises `ConfigError` if the claims lack an input of a loss, `InputError` if a teacher's run or
    mined negatives do not fit the claims.
    """
    data = load_splits(run)
    _require_translations(losses, data.train)
    _require_languages(losses, data.train)
    return replace(data, teacher=_read_teacher(losses, data.train))


def _require_translations(losses: Losses, train: Dataset) -> None:
    if any(claim.lang != "en" and claim.translation for claim in train.claims):
        return
    for name, loss in losses.needing("translations").items():
        allowed = "0, because no training claim has a translation"
        raise ConfigError(f"losses.{name}.weight", loss.weight, allowed)


def _require_languages(losses: Losses, train: Dataset) -> None:
    keep_base = losses.find(KeepBase)
    if keep_base is None or not keep_base.weight:
        return
    allowed = f"languages of the training claims: {', '.join(train.languages)}"
    for language in sorted(keep_base.by_language.keys() - set(train.languages)):
        raise ConfigError("losses.keep_base.languages", language, allowed)


def _read_teacher(losses: Losses, train: Dataset) -> Teacher | None:
    """Read the teacher's scores from the run that the losses' `scores` names.

    They are divided by their spread within a claim if `temperature` is none.
    """
    needing = losses.needing("teacher_scores")
    if not needing:
        return None
    first = next(iter(needing))
    scores = losses.setting("teacher_scores", "scores", None)
    if scores is None:
        allowed = "a run file with the teacher's scores, in a field `scores`"
        raise ConfigError(f"losses.{first}.scores", scores, allowed)
    divided = [name for name, loss in needing.items() if getattr(loss, "temperature", 1.0) is None]
    if divided and len(divided) < len(needing):
        allowed = "a number, like the other losses that use these scores"
        raise ConfigError(f"losses.{divided[0]}.temperature", None, allowed)
    temperature = None if divided else 1.0
    return read_teacher(Path(scores), train, temperature, f"losses.{first}.scores")


def load_splits(run: RunFolder) -> TrainingData:
    """Load the splits and carve val out of train.

    A file of mined negatives is also read, to report its errors before encoding; a resumed run has
    its own copy.
    """
    config, data = run.config, run.config.data
    load_split = partial(load_judged, data.dataset, lenient=data.lenient)
    full = load_split(data.train_split, config.languages)
    report = load_split(data.report_split, config.languages)
    _require_apart(full, report)
    shares = data.val_share, data.val_seed, config.held_out_seen, data.seen_share_expected
    try:
        carved = carve(full, *shares)
    except ConfigError as error:
        key = {"share": "val_share", "seen_share": "val_seen_share"}.get(error.key, error.key)
        raise ConfigError(f"data.{key}", error.value, error.allowed, error.reason) from None
    train = carved.train
    if not carved.val.golds:
        raise UserError(f"{data.dataset}: no claim of val has a gold, so nothing can be chosen")
    if data.limit is not None:
        train = train.with_claims(train.claims[: data.limit])
    # Mixed data sets may have two claims with the same text: val's golds would be trained on.
    unknown = carved.unknown_to(TrainedOn.on(train.claims), "are trained on as other claims")
    if unknown is not carved:
        log.warning("%s: val is %s", data.dataset, unknown.note)
        carved = replace(unknown, note=carved.note)
    mined = None
    if config.mined is not None and not config.resume:
        mined = read_mined(config.mined, train)
    return TrainingData(data, train, carved, report, mined)


def load_judged(
    folder: str, split: str, languages: Sequence[str] | None, *, lenient: bool = False
) -> Dataset:
    """Load a split in some languages. Raises `InputError` if none of its claims has a gold."""
    dataset = load(folder, split, languages, lenient=lenient)
    if not dataset.golds:
        reason = f"no claim of {split!r} has a gold: qrels/{split}.tsv is empty or missing"
        if languages is not None:
            reason += f" (languages: {', '.join(languages)})"
        raise InputError(dataset_folder(folder), field="split", reason=reason)
    return dataset


def _require_apart(full: Dataset, report: Dataset) -> None:
    """Raise `ConfigError` if a claim of the report split is also a training claim."""
    trained = {claim.id for claim in full.claims}
    shared = [claim.id for claim in report.claims if claim.id in trained]
    if shared:
        allowed = (
            "a split without claims of data.train_split "
            f"({len(shared)} of its claims, such as {shared[0]})"
        )
        raise ConfigError("data.report_split", report.split, allowed)


def require_new_val(
    models: Mapping[str, str], data: TrainingData, *, downloaded: bool = False
) -> None:
    """Raise `ConfigError` if a model was trained on claims of val; `models` maps keys to names.

    Checks folders, or with `downloaded` the hub's models, once they are downloaded.
    """
    for key, name in models.items():
        if checkpoint_folder(name).exists() is not downloaded:
            require_held_out(key, [name], data.val, data.settings)


def users_negatives(data: TrainingData, run: RunFolder) -> list[MinedRow]:
    """Return the rows of the user's file, also for a run resumed before its first save."""
    if data.mined is not None:
        return data.mined
    assert run.config.mined is not None
    return read_mined(run.config.mined, data.train)


def unused_data(
    recipe: RetrieverRecipe, train: Dataset, mined: Path | None, pairs: int
) -> list[str]:
    """List missing translations, and training pairs and teacher's scores that are not used.

    `pairs` are the training pairs.
    """
    form = recipe.rendering.claims
    if form == "original" and recipe.losses.needing("translations"):
        form = "bilingual"
    lines = untranslated_sentences(train.claims, form)
    available = sum(len(claim.golds) for claim in train.claims)
    if mined is not None and pairs < available:
        missing = available - pairs
        lines.append(f"{missing} of {available} training pairs have no row in {mined}")
    distillation = recipe.losses.find(Distillation)
    if distillation is not None and distillation.scores is not None and not distillation.weight:
        lines.append(f"losses.distillation.weight is 0: {distillation.scores} is not used")
    return lines
