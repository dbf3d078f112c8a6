"""Fine-tuning from a config to a report: what `train/finetune.py` runs."""

from __future__ import annotations

import gc
import logging
import warnings
from dataclasses import replace
from functools import cached_property
from typing import Any

import pytorch_lightning as pl
import torch

from claim2source.core.config import as_plain
from claim2source.core.errors import UserError
from claim2source.core.files import file_hash
from claim2source.core.provenance import git_state, versions
from claim2source.core.threads import use_cores
from claim2source.evaluation.retrieval import evaluate_dense
from claim2source.io.store import Store
from claim2source.io.wandb import table_key
from claim2source.mining import MinedRow
from claim2source.models import (
    DataRecord,
    Encoder,
    Manifest,
    Resolved,
    Weights,
    resolve,
    tokenizer_hash,
)
from claim2source.models.manifest import FILE
from claim2source.models.query_only import base_encoder
from claim2source.training.adapt import adapt, frozen_copy
from claim2source.training.after import check_after, evaluate_after
from claim2source.training.base_vectors import BaseVectors
from claim2source.training.batches import BatchSampler
from claim2source.training.checkpoint import (
    load_state,
    random_state,
    restore_weights,
    save_checkpoint,
    save_state,
    weights_identity,
)
from claim2source.training.checks import check_model, left_aside, missing_translations_of
from claim2source.training.choose import choose
from claim2source.training.config import FinetuneConfig
from claim2source.training.data import PairsModule, TrainingPairs
from claim2source.training.distributed import barrier, gathered, joined_world
from claim2source.training.launch import World, check_same_world, launched_world
from claim2source.training.loggers import (
    end_loggers,
    log_figure,
    log_scores,
    log_table,
    make_loggers,
)
from claim2source.training.module import Progress, RetrieverModule
from claim2source.training.negatives import RunNegatives, shown_negatives
from claim2source.training.report import build_report, plot_scales, report_tables, report_text
from claim2source.training.run_folder import RunFolder
from claim2source.training.splits import TrainingData, load_data

log = logging.getLogger(__name__)


def finetune(config: FinetuneConfig) -> dict[str, Any]:
    """Fine-tune as the config says; returns what `report.json` holds (empty on later ranks).

    Raises `UserError` for anything the user can mend.
    """
    world = launched_world()
    use_cores(world.local_size, config.threads)
    check_after(config)
    data = load_data(config)
    with joined_world(world, config.device):
        run = _open_run(config, world)
        return Finetuning(config, world, data, run).go()


def _open_run(config: FinetuneConfig, world: World) -> RunFolder:
    run = RunFolder.open(config) if world.is_first else RunFolder(config.out)
    barrier(world)
    return run


class Finetuning:
    """One run: mining, training with evaluation at every epoch's end, the report."""

    def __init__(
        self, config: FinetuneConfig, world: World, data: TrainingData, run: RunFolder
    ) -> None:
        self.config, self.world, self.data, self.run = config, world, data, run
        self.store = Store(config.store)
        model, step_zero = config.model, run.checkpoint(0)
        if config.resume and (step_zero / FILE).is_file():
            # A run of version 0.1.0 did not apply the prompts that its base declares.
            begun = Manifest.read(step_zero).encoder
            model = replace(model, template=begun.template, prompts=False)
        self.resolved: Resolved = resolve(model, config.device)
        self.encoder: Encoder = self.resolved.encoder
        if self.resolved.manifest is not None:
            raise UserError(
                f"model.name: {config.model.name} is a checkpoint of a run; train from its base "
                f"({self.resolved.base.name}) instead"
            )
        if self.encoder.source_encoder is not None:
            raise UserError(
                f"model.name: {config.model.name} was tuned for claims alone; train from its base"
            )
        check_model(config, self.encoder)
        self.module: RetrieverModule
        self.loggers: list[Any] = []
        self.negatives = RunNegatives(config, data.train, run, self.store, world)
        self.query_only = config.optimisation.train == "query_only"

    def go(self) -> dict[str, Any]:
        """Everything, in order."""
        first = self.world.is_first
        if first and not self.run.history:
            self._save_step_zero()
        state = load_state(self.run.state) if self.config.resume and self._has_state() else None
        if state is None:
            rows = self.negatives.first(self.encoder)
        else:
            self._refuse_other_run(state)
            rows = self.negatives.restore(state["mined"])
        pairs = self._pairs(rows)
        sampler = self._sampler(pairs, state)
        self.module = RetrieverModule(
            self.encoder,
            pairs,
            self.config.optimisation,
            self.config.losses,
            sampler.optimizer_steps,
            self._epoch_done,
            self._save,
        )
        torch.manual_seed(self.config.optimisation.seed + self.world.rank)
        self.module.random = random_state()
        if state is not None:
            self._restore(state)
        if first:
            self._say(pairs, sampler)
        if len(sampler):
            self._fit(sampler)
        return self._report() if first else {}

    def _has_state(self) -> bool:
        """A run killed before its first save begins again."""
        there = self.run.state.is_file()
        if not there and self.world.is_first:
            log.warning("%s: nothing was saved yet; the run begins again", self.run.path)
        return there

    def _save_step_zero(self) -> None:
        """The model before training is a checkpoint too: scored first, and perhaps chosen."""
        manifest = self._manifest(0, {})
        save_checkpoint(
            self.run.checkpoint(0), self.encoder, self.resolved.folder, manifest, "base"
        )
        evaluation = evaluate_dense(
            self.encoder, self.data.val, self.config.rendering, store=self.store, progress=True
        )
        self.run.record(0, evaluation.flat(), None)

    def _manifest(self, epoch: int, scores: dict[str, Any]) -> Manifest:
        data = self.config.data
        return Manifest(
            base=self.resolved.base,
            weights=Weights(trained=self.config.optimisation.train),
            encoder=self.encoder.settings,
            rendering=self.config.rendering,
            epoch=epoch,
            data=DataRecord(
                dataset=data.dataset,
                train_split=data.train_split,
                val_share=data.val_share,
                val_seed=data.val_seed,
                languages=None if self.config.languages is None else tuple(self.config.languages),
                train_sha256=self.data.train.fingerprint,
                val_sha256=self.data.val.fingerprint,
                mined_sha256=self.negatives.sha256,
            ),
            scores=scores,
            config=as_plain(self.config),
            git=git_state(),
            versions=versions(),
        )

    def _pairs(self, rows: list[MinedRow]) -> TrainingPairs:
        """Make the model trainable, after taking from the base what losses need of it."""
        config, losses, train = self.config, self.config.losses, self.data.train
        base = None
        if losses.keep_base.weight or self.query_only:
            # The first process encodes; the others then find everything in the store.
            for turn in (True, False):
                if self.world.is_first is turn:
                    base = BaseVectors(
                        self.encoder,
                        config.rendering,
                        train.claims,
                        train.sources,
                        self.store,
                        progress=turn,
                    )
                barrier(self.world)
        untrained = self.encoder.weights
        frozen = frozen_copy(self.encoder) if self.query_only and config.tuning == "full" else None
        # Adapters start alike everywhere; dropout then differs by process.
        pl.seed_everything(config.optimisation.seed, verbose=False)
        adapt(self.encoder, config)
        self.encoder.weights = None
        if self.query_only:
            self.encoder.source_encoder = frozen or base_encoder(self.encoder, untrained)
        return TrainingPairs(
            train,
            rows,
            self.encoder,
            config.rendering,
            config.optimisation.negatives,
            rotate=config.batches.rotate_negatives,
            losses=losses,
            base=base,
            query_only=self.query_only,
            teacher=self.data.teacher,
        )

    def _sampler(self, pairs: TrainingPairs, state: dict[str, Any] | None) -> BatchSampler:
        optimisation = self.config.optimisation
        return BatchSampler(
            pairs.groups(),
            optimisation.batch_size,
            epochs=optimisation.epochs,
            accumulation=optimisation.accumulation,
            seed=optimisation.seed,
            rank=self.world.rank,
            world_size=self.world.size,
            start=0 if state is None else state["batches_done"],
            gather=optimisation.gather,
            config=self.config.batches,
            languages=[pairs.languages[row.claim] for row in pairs.rows],
            lengths=pairs.lengths() if self.config.batches.order == "length" else None,
        )

    def _say(self, pairs: TrainingPairs, sampler: BatchSampler) -> None:
        trained = sum(p.numel() for p in self.module.trainable().values())
        lines = [
            *missing_translations_of(self.config, self.data.train),
            *left_aside(self.config, self.data.train, len(pairs)),
            *self.negatives.sentences,
            f"{len(pairs)} pairs in {sampler.batches} batches an epoch, "
            f"{sampler.optimizer_steps} optimizer steps; "
            f"{trained:,} of {self.encoder.parameters:,} weights are trained",
        ]
        if sampler.repeats():
            lines.append(f"{sampler.repeats()} pairs share a batch with their own paper (masked)")
        if sampler.left_out():
            lines.append(f"{sampler.left_out()} pairs sit an epoch out: shares must be equal")
        if pairs.short_rows:
            lines.append(f"{pairs.short_rows} pairs have fewer negatives than asked")
        if pairs.untaught:
            lines.append(f"the teacher scores no gold of {pairs.untaught} pairs")
        lines += pairs.taught_sentences()
        if self.config.batches.alpha != 1:
            shares = ", ".join(f"{name} {count}" for name, count in sampler.quotas.items())
            lines.append(f"pairs an epoch by language: {shares}")
        if sampler.start:
            lines.append(f"resuming after batch {sampler.start}")
        for line in lines:
            print(line, flush=True)

    def _fit(self, sampler: BatchSampler) -> None:
        on_gpu = self.encoder.device.type == "cuda"
        logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
        # Our stream has a length and is read in this process: nothing to warn of.
        warnings.filterwarnings("ignore", message=".*IterableDataset. has .__len__.*")
        if self.world.is_first:
            self.loggers = make_loggers(self.config, self.run.path, self.module.steps_done)
            if self.module.steps_done == 0:
                # Scored before there were loggers: curves begin with the model before training.
                log_scores(self.loggers, 0, self.run.history[0]["val"], 0)
            self._show_negatives()
        trainer = pl.Trainer(
            max_epochs=1,  # one pass over the batches of all epochs: see RetrieverModule
            accelerator="gpu" if on_gpu else "cpu",
            devices=self.world.local_size,
            num_nodes=self.world.nodes,
            strategy="ddp" if self.world.size > 1 else "auto",
            precision="bf16-mixed" if self.config.optimisation.precision == "bf16" else "32-true",
            logger=self.loggers,
            callbacks=[Progress()],
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            log_every_n_steps=1,
        )
        check_same_world(self.world, trainer.world_size)
        self.encoder.model.train()
        trainer.fit(self.module, datamodule=PairsModule(sampler))
        if self.module.batches_done != sampler.start + len(sampler):
            raise UserError(f"stopped early; go on with --resume --out {self.run.path}")

    def _epoch_done(self, epoch: int) -> None:
        """Keep the epoch's weights, score them on val, then save the state."""
        if self.world.is_first:
            kind = "full" if self.config.tuning == "full" else "lora"
            steps_an_epoch = self.module.optimizer_steps // self.config.optimisation.epochs
            losses = self.module.losses[(epoch - 1) * steps_an_epoch :]
            folder = self.run.checkpoint(epoch)
            manifest = save_checkpoint(
                folder, self.encoder, self.resolved.folder, self._manifest(epoch, {}), kind
            )
            tokenizer = tokenizer_hash(self.resolved.folder)
            self.encoder.weights = weights_identity(self.resolved.base, tokenizer, manifest.weights)
            evaluation = evaluate_dense(
                self.encoder, self.data.val, self.config.rendering, store=self.store, progress=True
            )
            replace(manifest, scores={"val": evaluation.flat()}).write(folder)
            loss = sum(losses) / len(losses) if losses else None
            self.run.record(epoch, evaluation.flat(), loss)
            self._log_epoch(epoch, evaluation.flat())
        if self.negatives.due(epoch):
            self.module.pairs.use(self.negatives.again(self.encoder, epoch))
            if self.world.is_first:
                print("\n".join(self.negatives.sentences), flush=True)
                self._show_negatives()
        self.encoder.weights = None
        barrier(self.world)
        self._save()
        if self.world.is_first:
            # Behind the save: an epoch that is done again may be scored otherwise on a GPU.
            self.run.prune(self.config.keep)

    def _show_negatives(self) -> None:
        if self.config.optimisation.negatives:
            rows, seed = self.module.pairs.rows, self.config.optimisation.seed
            columns, table = shown_negatives(rows, self.data.train, seed)
            log_table(self.loggers, "mined negatives", columns, table)

    def _log_epoch(self, epoch: int, table: dict[str, dict[str, float]]) -> None:
        log_scores(self.loggers, epoch, table, self.module.steps_done)
        shown = "  ".join(f"{lang} {row['mrr@5']:.4f}" for lang, row in table.items())
        print(f"epoch {epoch}: val MRR@5  {shown}", flush=True)

    def _save(self) -> None:
        """Save all that a resumed run needs; every process gives its random state."""
        states = gathered(random_state(), self.world)
        if not self.world.is_first:
            return
        module = self.module
        save_state(
            self.run.state,
            {
                "batches_done": module.batches_done,
                "steps_done": module.steps_done,
                "losses": module.losses,
                "world_size": self.world.size,
                "begun_with": self._begun_with,
                "mined": self.negatives.state(),
                "weights": {n: p.detach().cpu() for n, p in module.trainable().items()},
                "optimizer": module.optimizers().optimizer.state_dict(),  # type: ignore[union-attr]
                "scheduler": module.lr_schedulers().state_dict(),  # type: ignore[union-attr]
                "random": states,
            },
        )

    def _refuse_other_run(self, state: dict[str, Any]) -> None:
        if state["world_size"] != self.world.size:
            raise UserError(
                f"the run was begun with {state['world_size']} processes, not {self.world.size}: "
                "batches would differ"
            )
        for what, sha256 in self._begun_with.items():
            if state["begun_with"][what] != sha256:
                raise UserError(f"the {what} is not what the run was begun with")

    @cached_property
    def _begun_with(self) -> dict[str, str | None]:
        """Hashes of what lies outside the run and decides its losses and its choice."""
        distillation = self.config.losses.distillation
        taught = distillation.scores if distillation.weight else None
        if taught is not None and not taught.is_file():
            taught = None
        return {
            "training data": self.data.train.fingerprint,
            "val data": self.data.val.fingerprint,
            "base model": self.resolved.base.sha256,
            "teacher's run": None if taught is None else file_hash(taught),
        }

    def _restore(self, state: dict[str, Any]) -> None:
        restore_weights(self.encoder.model, state["weights"])
        self.module.batches_done = state["batches_done"]
        self.module.steps_done = state["steps_done"]
        self.module.losses = list(state["losses"])
        self.module.restored = state
        self.module.random = state["random"][self.world.rank]

    def _report(self) -> dict[str, Any]:
        """Score step 0 and the chosen epoch as anybody would load them, and write the report."""
        if not self.loggers:
            # Resumed after its last step: tables and the plot belong to the same page.
            self.loggers = make_loggers(self.config, self.run.path, self.module.steps_done)
        del self.module
        self.encoder.model.to(torch.device("cpu"))  # type: ignore[arg-type]
        gc.collect()
        torch.cuda.empty_cache()
        chosen = choose(self.run, self.data, self.config, self.store)
        self.run.write(chosen.folder)
        report = build_report(self.run, chosen, self.data, self.config, self.store)
        for name, table in report_tables(report).items():
            log_table(self.loggers, table_key(name), table.columns, table.rows)
        if report["scales"]:
            log_figure(self.loggers, "scales_plot", plot_scales(report, self.run.path))
        end_loggers(self.loggers)
        print(report_text(report), flush=True)
        evaluate_after(self.config, self.run)
        return report
