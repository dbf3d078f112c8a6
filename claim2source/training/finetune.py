"""Fine-tune a retriever: set up, mine, train, choose an epoch, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytorch_lightning as pl

from claim2source.core.report import Choice, Report
from claim2source.core.terminal import say
from claim2source.mining import MinedRow
from claim2source.training.after import evaluate_after, next_steps, read_after
from claim2source.training.base import LoadedBase, load_base, prepare_to_train
from claim2source.training.callbacks import Remine, RetrieverOnVal
from claim2source.training.choose import choose_epoch
from claim2source.training.config import FinetuneConfig
from claim2source.training.data import TrainingData, TrainingPairs, load_data, unused_data
from claim2source.training.fit import (
    fit,
    free_device,
    lightning_trainer,
    plan_batches,
    provenance,
    trained_encoder,
)
from claim2source.training.module import RetrieverModule
from claim2source.training.negatives import log_negatives, mine_first, restore_mined
from claim2source.training.report import report_run
from claim2source.training.self_check import check_device
from claim2source.training.session import Session, open_session


@dataclass(frozen=True)
class Setup:
    """Hold a training's inputs, loaded and checked.

    `config` has numbers in place of `auto`, and what a resumed run was begun with.
    """

    config: FinetuneConfig
    data: TrainingData
    base: LoadedBase
    evaluation: RetrieverOnVal
    trainer: pl.Trainer


def finetune(config: FinetuneConfig) -> Report | None:
    """Fine-tune, run the evaluation that `after` names, and print the next commands.

    Returns the training's report (None on later ranks). Raises `UserError` for anything the user
    can correct.
    """
    after = read_after(config)
    with open_session(config) as session:
        with session.on_all_ranks():
            setup = set_up(config, session)
            if config.self_check or not session.run.is_finished:
                check_device(setup.base, setup.data.train, session.world)
        if config.self_check:
            return None
        # `auto` stays: the run may go on with other memory.
        session.begin(session.run.with_seen_share(config))
        if not session.run.is_finished:
            rows, mined = mine(setup, session)
            train(setup, session, rows, mined)
        if not session.world.is_first:
            return None
        epoch, choice = choose(setup, session)
        run_report = report_run(session, setup.config, setup.data, epoch, choice)
        # The folder is still locked: the evaluation reads its checkpoints.
        evaluated = after is not None and evaluate_after(after, config.data.train_split)
        say(next_steps(config, session.run.checkpoint(epoch), epoch > 0, evaluated))
        return run_report


def set_up(config: FinetuneConfig, session: Session) -> Setup:
    """Load the data, the base and the saved state, and check all settings.

    Nothing is written yet.
    """
    run, world = session.run, session.world
    config = run.with_seen_share(config)
    data = load_data(config)
    base = load_base(config, world, data.val)
    config = base.config
    begun_with = {
        "training data": data.train.fingerprint,
        "val data": data.val.fingerprint,
        "base model": base.record.sha256,
        "teacher's run": None if data.teacher is None else data.teacher.sha256,
        **({} if base.teacher is None else {"teacher": base.teacher.sha256}),
    }
    if config.resume:
        session.read_state()
    run.require_inputs(begun_with)
    manifest = base.manifest(provenance(config, data, session))
    evaluation = RetrieverOnVal(session, manifest, data, base)
    callbacks = [Remine(session, config, base, data.train), evaluation]
    trainer = lightning_trainer(config, session, data, base.encoder.device, callbacks)
    return Setup(config, data, base, evaluation, trainer)


def mine(setup: Setup, session: Session) -> tuple[list[MinedRow], list[str]]:
    """Score the model before training, then mine with it, or with the teacher.

    Returns the rows, and how they were mined in lines. A resumed run goes on with the rows of its
    state.
    """
    config, data, base, state = setup.config, setup.data, setup.base, session.state
    if base.teacher is not None:
        folder = session.run.checkpoint(0) if state is None else None
        texts = data.train, session.store, session.world
        base.teacher.prepare(*texts, base.untrained, folder)
    setup.evaluation.score_base(config.chooses)
    if state is not None:
        return restore_mined(session, state.mined, data.train), []
    encoder = base.encoder if base.teacher is None else base.teacher.encoder
    return mine_first(session, config, data.train, encoder, data.teacher)


def train(setup: Setup, session: Session, rows: Sequence[MinedRow], mined: Sequence[str]) -> None:
    """Train on the mined rows, from where a run was stopped."""
    data, base, trainer, world = setup.data, setup.base, setup.trainer, session.world
    encoder = base.encoder
    vectors = prepare_to_train(base, data.train, session.store, world)
    config, measured = base.plan.calibrate(encoder)
    optimisation = config.optimisation
    pairs = TrainingPairs(
        data.train,
        rows,
        encoder,
        config.rendering,
        optimisation.negatives,
        rotate=config.batches.rotate_negatives,
        losses=config.losses,
        base=vectors,
        query_only=optimisation.train == "query_only",
        teacher=None if data.teacher is None else data.teacher.scores,
        mining=config.mining,
        aligned=None if base.teacher is None else base.teacher.aligned,
        length=optimisation.max_length,
    )
    sampler, steps = plan_batches(
        pairs,
        config,
        world,
        trainer,
        gather=optimisation.gather,
        batches=config.batches,
        remine_every=optimisation.remine_every,
    )
    trained = trained_encoder(trainer, encoder)
    module = RetrieverModule(trained, pairs, optimisation, config.losses, steps, session.stop)
    shared = sampler.repeats()
    summary = [
        *([str(base.plan)] if base.plan.auto else []),
        *measured,
        *unused_data(config, data.train, len(pairs)),
        *mined,
        *module.summary(config, sampler, len(data.train.claims)),
        *([f"{shared} pairs share a batch with their own paper (masked)"] if shared else []),
        *([f"{pairs.short_rows} pairs have too few negatives"] if pairs.short_rows else []),
        *([] if data.teacher is None else data.teacher.sentences()),
    ]
    log_negatives(session, pairs.rows, data.train, optimisation.seed)
    fit(session, trainer, module, sampler.loader(module.collate), summary)


def choose(setup: Setup, session: Session) -> tuple[int, Choice]:
    """Choose the epoch that the run stands for, or epoch 0, the base, on val."""
    free_device(setup.base.encoder.model)
    config = setup.config
    return choose_epoch(session.run, setup.data.weighing, config.choose, config.rule)
