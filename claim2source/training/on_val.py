"""Write and score the checkpoint of every epoch on val, and mine again with it."""

# Callbacks take our own modules; Lightning passes any module.
# mypy: disable-error-code="override"

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl

from claim2source.core.config import as_plain
from claim2source.core.provenance import git_state, versions
from claim2source.core.report import MACRO, MAIN_METRIC, Choice, Epoch
from claim2source.core.terminal import say
from claim2source.evaluation.evaluate import METRICS, Scoring, score_encoder
from claim2source.evaluation.training_views import scores_by_split
from claim2source.models import DataRecord, Manifest
from claim2source.models.manifest import RerankerManifest
from claim2source.models.trained_on import TrainedOn
from claim2source.training.base import LoadedBase
from claim2source.training.choose import (
    choose_epoch,
    interval_text,
    scored_epoch,
    scores_text,
    val_size_error,
)
from claim2source.training.config import TrainingRecipe
from claim2source.training.distributed import encode_shares, gather_values
from claim2source.training.module import RetrieverModule, TrainingModule
from claim2source.training.monitors import part_score_name, score_name
from claim2source.training.negatives import log_negatives, mine_pairs, mined_rows, mines_after
from claim2source.training.session import Session
from claim2source.training.splits import TrainingData

log = logging.getLogger(__name__)

# Bootstrap draws for the interval of a small val.
_REPEATS = 2_000


class EvaluateOnVal(pl.Callback, ABC):
    """Write the checkpoint of `model`, a base or a re-ranker, at every epoch's end, and score it.

    `manifest` has the fields that all epochs share, with the claims that the base was trained on;
    `metric` is the metric of the choice; `interval` describes the confidence interval of the
    scores before training, if val is small.
    """

    interval = ""

    def __init__(
        self,
        session: Session,
        manifest: Manifest | RerankerManifest,
        data: TrainingData,
        model: Any,
        metric: str = MAIN_METRIC,
    ) -> None:
        self.session = session
        self.manifest = manifest
        self.data = data
        self.model = model
        self.metric = metric
        self.run = session.run
        self.world = session.world
        trained_on = TrainedOn.on(data.train.claims)
        if manifest.trained_on is not None:
            trained_on = manifest.trained_on | trained_on
        self.trained_on = trained_on

    @abstractmethod
    def score(self, epoch: int) -> Epoch | None:
        """Score the current weights in all processes together; None on later ranks."""

    def choose(self) -> tuple[int, Choice]:
        """Choose the run's epoch, or epoch 0, the base, on val."""
        return choose_epoch(self.run, self.data.weighing, self.metric)

    def score_base(self) -> str | None:
        """Write and score the checkpoint of epoch 0, the model before training, if not done yet.

        The first process records and returns the scores; it warns if a choice uses a small val.
        """
        is_scored = gather_values(bool(self.run.file.history), self.world)[0]
        if is_scored:
            return None
        val = self.data.val
        if self.world.is_first:
            held_out = len(val.claims)
            say(f"val: {held_out} claims are held out; {self.manifest.data.chosen_for}")
        entry = self._save_and_score(0)
        if entry is None:
            return None
        self.run.record(entry)
        if self.run.config.choose == "best":
            small = val_size_error(val)
            if small:
                log.warning("%s%s", small, self.interval)
        return scores_text(entry)

    def on_train_epoch_end(
        self,
        trainer: pl.Trainer,
        module: TrainingModule,
    ) -> None:
        """Save and score the epoch; record its scores, and log them for Lightning's callbacks.

        The names are `val/en/mrr@5`, `val/macro/mrr@5` and so on, for every metric, and
        `val/seen papers/mrr@5`: an EarlyStopping can monitor them, see `monitors`.
        """
        with module.stop.after_step(waits=False):
            entry = self._save_and_score(module.epochs_done)
            if entry is not None:
                self._record(entry, module)
            shared = gather_values(entry, self.world)[0]
        if shared is None:
            return
        for lang, row in shared.val.items():
            values: dict[str, float] = {}
            for metric, value in row.items():
                name = score_name(lang, metric)
                values[name] = float(value)
            # Our logs already have them, by step.
            module.log_dict(values, logger=False)
        for part, table in shared.parts.items():
            name = part_score_name(part)
            score = float(table[MACRO][MAIN_METRIC])
            module.log(name, score, logger=False)

    def _save_and_score(self, epoch: int) -> Epoch | None:
        folder = self.run.checkpoint(epoch)
        manifest = self.manifest
        if self.world.is_first:
            data = replace(manifest.data, mined_sha256=self.run.mined_sha256)
            manifest = replace(manifest, epoch=epoch, data=data)
            # A student's projection was fitted on the claims before the first epoch.
            if epoch or getattr(manifest, "source_model", None) is not None:
                manifest = replace(manifest, trained_on=self.trained_on)
            manifest = self.model.save(folder, manifest)
        entry = self.score(epoch)
        if entry is not None:
            scores = scores_by_split(entry)
            scored = replace(manifest, scores=scores)
            scored.write(folder)
        return entry

    def _record(self, entry: Epoch, module: TrainingModule) -> None:
        trainer = module.trainer
        batches = int(trainer.num_training_batches)
        per_epoch = -(-batches // trainer.accumulate_grad_batches)
        first = (entry.epoch - 1) * per_epoch
        losses = module.losses[first:]
        finite = [loss for loss in losses if not math.isnan(loss)]
        mean: float | None = None
        text = "no loss"
        if finite:
            mean = sum(finite) / len(finite)
            text = f"loss {finite[0]:.4g} to {finite[-1]:.4g}"
        skipped = len(losses) - len(finite)
        skip_note = ""
        if skipped:
            skip_note = f"; {skipped} of {len(losses)} steps skipped (not finite)"
        entry = replace(entry, loss=mean)
        self.run.record(entry)
        self.session.logs.scores(entry, module.steps_done)
        scores = scores_text(entry)
        print(f"epoch {entry.epoch}: {text}, val MRR@5  {scores}{skip_note}", flush=True)


class RetrieverOnVal(EvaluateOnVal):
    """Score a retriever, with every process encoding a share of val, and mine again with it.

    Negatives are mined before an epoch, every `optimisation.remine_every` epochs (ANCE). The
    weights have the name of the previous epoch's checkpoint, so that texts encoded for its scores
    are not encoded again.
    """

    model: LoadedBase

    def on_train_epoch_start(
        self,
        trainer: pl.Trainer,
        module: RetrieverModule,
    ) -> None:
        """Mine again if it is due after the previous epoch, and train on the new negatives."""
        epoch = trainer.current_epoch
        session = self.session
        train = self.data.train
        run = self.run
        recipe = self.model.recipe
        if not mines_after(recipe.optimisation, epoch):
            return
        with module.stop.after_step(waits=False):
            before = run.mined
            run.mined = run.path / f"mined-epoch-{epoch}.jsonl"
            checkpoint = run.checkpoint(epoch)
            with self.model.as_checkpoint(checkpoint, self.world):
                counts = mine_pairs(session, recipe, train, self.model.encoder, before)
            rows = mined_rows(session, train)
            module.pairs.use(rows)
        log_negatives(session, module.pairs.rows, train, recipe.optimisation.seed)
        if counts is None:
            return
        lines = counts.sentences()
        if lines:
            say("\n".join(lines))

    def score(self, epoch: int) -> Epoch | None:
        base = self.model
        val = self.data.val
        store = self.session.store
        world = self.world
        rendering = self.manifest.rendering
        checkpoint = self.run.checkpoint(epoch)
        with base.as_checkpoint(checkpoint, world):
            encode_shares(base.encoder, rendering, val, store, world)
            if not world.is_first:
                return None
            has_interval = epoch == 0 and val_size_error(val)
            repeats = _REPEATS if has_interval else 0
            train_golds = self.data.selection.train.golds
            settings = Scoring(METRICS, repeats, 0, train_golds)
            scored = score_encoder(
                base.encoder,
                val,
                rendering,
                settings,
                store=store,
                progress=True,
            )
        report = scored.report
        self.interval = interval_text(report)
        weighing = self.data.weighing
        values = weighing.of(scored.run)
        return scored_epoch(epoch, report, values, weighing)


def provenance(
    recipe: TrainingRecipe,
    data: TrainingData,
    session: Session,
) -> dict[str, Any]:
    """Record a run's data, held-out claims, settings and versions for a manifest."""
    settings = data.settings
    config = session.run.config
    languages = config.languages
    record = DataRecord(
        dataset=settings.dataset,
        train_split=settings.train_split,
        val_share=settings.val_share,
        val_seed=settings.val_seed,
        languages=None if languages is None else tuple(languages),
        train_sha256=data.train.fingerprint,
        val_sha256=data.val.fingerprint,
        mined_sha256=session.run.mined_sha256,
        val_seen_share=settings.val_seen_share,
        seen_share_expected=data.selection.seen_share,
        train_languages=data.train.languages,
        val_seen_measured=data.selection.measured_share,
    )
    # With numbers in place of `auto`.
    settled = replace(config, optimisation=recipe.optimisation)
    return {
        "data": record,
        "config": as_plain(settled),
        "git": git_state(),
        "versions": versions(),
    }
