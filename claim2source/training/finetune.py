"""Fine-tune a retriever: set up, mine, train, choose a checkpoint, report."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from claim2source.core.errors import said_once
from claim2source.core.report import Report
from claim2source.mining import MinedRow
from claim2source.models import Manifest, Weights
from claim2source.training.after import check_after, evaluate_after
from claim2source.training.base import LoadedBase, load_base, make_trainable
from claim2source.training.callbacks import EvaluateOnVal, GatherWeights, Remine, score_base
from claim2source.training.choose import ChosenCheckpoint, choose_checkpoint
from claim2source.training.config import FinetuneConfig
from claim2source.training.data import TrainingData, TrainingPairs, load_data, unused_data
from claim2source.training.memory_plan import calibrate
from claim2source.training.module import RetrieverModule
from claim2source.training.negatives import mine_first
from claim2source.training.report import report_run, say_next_steps
from claim2source.training.run import (
    Frame,
    Session,
    fit,
    free_device,
    lightning_trainer,
    make_frame,
    open_session,
    plan_batches,
    provenance,
)
from claim2source.training.self_check import check_device


@dataclass(frozen=True)
class Setup:
    """Hold all that a training begins with, loaded and checked; nothing is written yet.

    `config` has numbers in place of `auto`, and what a resumed run was begun with.
    """

    config: FinetuneConfig
    session: Session
    data: TrainingData
    base: LoadedBase
    frame: Frame
    evaluation: EvaluateOnVal


def finetune(config: FinetuneConfig) -> Report | None:
    """Fine-tune as the config says; return the report (None on later ranks).

    Raises `UserError` for anything the user can correct.
    """
    with said_once():
        check_after(config)
    with open_session(config) as session:
        with session.together():
            setup = set_up(config, session)
            check_device(base=setup.base, train=setup.data.train, world=session.world)
        if config.self_check:
            return None
        session.begin(setup.config)
        rows = mine(setup)
        losses = train(setup, rows)
        chosen = choose(setup)
        return report(setup, losses, chosen)


def set_up(config: FinetuneConfig, session: Session) -> Setup:
    """Load the data, the base and the saved state, and check all that can be wrong."""
    run = session.run
    config = run.settled(config)
    data = load_data(config)
    base = load_base(config, run, session.world, data.val)
    config = base.config
    begun_with = {
        "training data": data.train.fingerprint,
        "val data": data.val.fingerprint,
        "base model": base.base.sha256,
        "teacher's run": None if data.teacher is None else data.teacher.sha256,
        **({} if base.teacher is None else {"teacher": base.teacher.sha256}),
    }
    frame = make_frame(session, config, data, begun_with)
    manifest = Manifest(
        base=base.base,
        weights=Weights(trained=config.optimisation.train),
        encoder=base.encoder.settings,
        rendering=config.rendering,
        epoch=0,
        source_model=None if base.teacher is None else base.teacher.record,
        **provenance(frame),
    )
    evaluation = EvaluateOnVal(
        base.encoder,
        base.folder,
        manifest,
        "full" if config.tuning == "full" else "lora",
        base.untrained,
        data,
        frame.negatives,
        session.store,
        frame.logs,
    )
    return Setup(config, session, data, base, frame, evaluation)


def mine(setup: Setup) -> list[MinedRow]:
    """Score the model before training, then mine with it, or with the teacher.

    A resumed run goes on with the rows of its state.
    """
    config, session, base, frame = setup.config, setup.session, setup.base, setup.frame
    begins = frame.state is None
    if base.teacher is not None:
        folder = session.run.checkpoint(0) if begins else None
        texts = setup.data.train, session.store, session.world
        base.teacher.prepare(*texts, base.untrained, folder)
    if not session.has_history:
        score_base(setup.evaluation, config.chooses)
    if frame.state is not None:
        return frame.negatives.restore(frame.state.mined)
    encoder = base.encoder if base.teacher is None else base.teacher.encoder
    return mine_first(frame.negatives, config, encoder, session.store, setup.data.teacher)


def train(setup: Setup, rows: Sequence[MinedRow]) -> list[float]:
    """Train on the mined rows, from where a run was stopped; return the loss of every step."""
    config, session, data, frame = setup.config, setup.session, setup.data, setup.frame
    base, encoder = setup.base, setup.base.encoder
    vectors = make_trainable(base, data.train, session.store, session.world)
    config, measured = calibrate(config, encoder, base.planned, base.automatic)
    pairs = TrainingPairs(
        data.train,
        rows,
        encoder,
        config.rendering,
        config.optimisation.negatives,
        rotate=config.batches.rotate_negatives,
        losses=config.losses,
        base=vectors,
        query_only=config.optimisation.train == "query_only",
        teacher=None if data.teacher is None else data.teacher.scores,
        mining=config.mining,
        aligned=None if base.teacher is None else base.teacher.aligned,
    )
    callbacks = [
        *([GatherWeights(encoder)] if frame.shards else []),
        Remine(frame.negatives, config, encoder, base.untrained, session.store),
        setup.evaluation,
    ]
    trainer = lightning_trainer(frame, encoder.device, callbacks)
    sampler, steps = plan_batches(pairs, config, session.world, trainer)
    trained = encoder
    if frame.shards:
        # What is sharded cannot be scored and saved: that is done with a whole model.
        trained = copy.copy(encoder)
        trained.model = copy.deepcopy(encoder.model)
        encoder.model.to("cpu")  # type: ignore[arg-type]
    module = RetrieverModule(
        trained, pairs, config.optimisation, config.losses, steps, session.stop
    )
    summary = [
        *filter(None, [base.memory, measured]),
        *unused_data(config, data.train, len(pairs)),
        *frame.negatives.sentences,
        *module.summary(config, sampler),
        *([] if data.teacher is None else data.teacher.sentences()),
        *pairs.taught_sentences(),
    ]
    return fit(frame, trainer, module, sampler, summary)


def choose(setup: Setup) -> ChosenCheckpoint | None:
    """Choose what the run stands for; the first process gets it, the others help to score."""
    session = setup.session
    free_device(setup.base.encoder.model)
    return choose_checkpoint(session.run, setup.data, setup.config, session.store, session.world)


def report(setup: Setup, losses: Sequence[float], chosen: ChosenCheckpoint | None) -> Report | None:
    """Score epoch 0 and the chosen checkpoint from disk, and write the report."""
    if chosen is None:
        return None
    config, run = setup.config, setup.session.run
    found = report_run(
        run, chosen, setup.data, config, setup.session.store, setup.frame.logs, losses
    )
    evaluated = evaluate_after(config, run.path)
    say_next_steps(config, chosen, evaluated)
    return found
