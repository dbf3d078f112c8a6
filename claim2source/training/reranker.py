"""Fine-tune a re-ranker on what a first stage finds; choose by the whole pipeline on val."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytorch_lightning as pl

from claim2source.core.config import require
from claim2source.core.errors import ConfigError, UserError, said_once
from claim2source.core.report import Choice, Report
from claim2source.core.run import Result
from claim2source.mining import MinedRow, read_mined, write_mined
from claim2source.models import Weights
from claim2source.models.reranker_manifest import RerankerManifest
from claim2source.systems.heldout import require_held_out
from claim2source.training.choose import Point, choose_point
from claim2source.training.data import TrainingData, load_splits
from claim2source.training.reranker_config import TAUGHT, RerankerConfig
from claim2source.training.reranker_data import (
    FirstStage,
    RerankerPairs,
)
from claim2source.training.reranker_models import TrainedReranker, load_to_train
from claim2source.training.reranker_module import (
    PipelineOnVal,
    RerankerModule,
    pipeline_scores,
    plan_groups,
)
from claim2source.training.reranker_report import report_pipeline
from claim2source.training.run import (
    Frame,
    Session,
    fit,
    free_device,
    lightning_trainer,
    make_frame,
    open_session,
    provenance,
)
from claim2source.training.teacher import read_teacher

VAL, REPORTED = "val", "reported"
REPORTED_DEPTH = 100


@dataclass(frozen=True)
class Setup:
    """Hold all that a training begins with, loaded and checked; nothing is written yet.

    `rankings` are the first stage's, by split, for the first process.
    """

    config: RerankerConfig
    session: Session
    data: TrainingData
    first: FirstStage
    reranker: TrainedReranker
    rankings: dict[str, Result]
    frame: Frame
    evaluation: PipelineOnVal


def finetune_reranker(config: RerankerConfig) -> Report | None:
    """Fine-tune as the config says; return the report (None on later ranks).

    Raises `UserError` for anything the user can correct.
    """
    with said_once():
        allowed = "a file of train/mine.py, whose negatives are trained on"
        require(config.mined is not None, "mined", config.mined, allowed)
    with open_session(config) as session:
        with session.together():
            setup = set_up(config, session)
        session.begin(setup.config)
        rows = mine(setup)
        losses = train(setup, rows)
        point, choice = choose(setup)
        return report(setup, losses, point, choice)


def set_up(config: RerankerConfig, session: Session) -> Setup:
    """Load the data, the model and the saved state, rank with the first stage, and check all."""
    config = session.run.settled(config)
    data = load_splits(config)
    if config.loss.kind in TAUGHT:
        assert config.loss.scores is not None
        teacher = read_teacher(config.loss.scores, data.train, key="loss.scores")
        data = replace(data, teacher=teacher)
    # As deep as the report's recall of the first stage.
    first = FirstStage(config.first, max(config.first.depth, REPORTED_DEPTH))
    first.check()
    key = "first.system" if config.first.checkpoint is None else "first.checkpoint"
    require_held_out("model.name", [config.model.name], data.val, config.data)
    require_held_out(key, first.models, data.val, config.data)
    reranker = load_to_train(config)
    if missing := reranker.too_long(config.rendering.claim_texts(data.train.claims)):
        allowed = f"more: {missing} claims of train leave no room for a source"
        raise ConfigError("model.max_length", config.model.max_length, allowed)
    begun_with = {
        "training data": data.train.fingerprint,
        "val data": data.val.fingerprint,
        "base model": reranker.base.sha256,
        "first stage": first.hash(),
        "teacher's run": None if data.teacher is None else data.teacher.sha256,
    }
    frame = make_frame(session, config, data, begun_with)
    rankings = {}
    if session.world.is_first:
        splits, named = {VAL: data.val, REPORTED: data.report}, config.data
        rankings = first.rank(
            splits,
            data.report,
            named.dataset,
            session.store,
            lenient=named.lenient,
            device=config.device,
        )
    manifest = RerankerManifest(
        base=reranker.base,
        weights=Weights(),
        reranker=reranker.settings,
        rendering=config.rendering,
        depth=config.first.depth,
        epoch=0,
        **provenance(frame),
    )
    evaluation = PipelineOnVal(reranker, manifest, config, data, frame.negatives, frame.logs)
    return Setup(config, session, data, first, reranker, rankings, frame, evaluation)


def mine(setup: Setup) -> list[MinedRow]:
    """Score the re-ranker before training, and read the mined file.

    A resumed run goes on with the rows of its state.
    """
    session, frame = setup.session, setup.frame
    setup.evaluation.rank(setup.rankings.get(VAL))
    if not session.has_history:
        setup.evaluation.score_base()
    if frame.state is not None:
        return frame.negatives.restore(frame.state.mined)
    if session.world.is_first and not frame.negatives.current.is_file():
        assert setup.config.mined is not None
        write_mined(read_mined(setup.config.mined, setup.data.train), frame.negatives.current)
    return frame.negatives.read()


def train(setup: Setup, rows: Sequence[MinedRow]) -> list[float]:
    """Train on groups of these rows, from where a run was stopped; return every step's loss."""
    config, session, frame, reranker = setup.config, setup.session, setup.frame, setup.reranker
    teacher = setup.data.teacher
    pairs = RerankerPairs(
        setup.data.train,
        rows,
        config.rendering,
        config.optimisation.negatives,
        None if teacher is None else teacher.scores,
    )
    if not pairs.rows:
        raise UserError(f"{frame.negatives.current}: no pair has a negative to learn from")
    # All processes start with the same adapters; dropout is seeded by process in `fit`.
    pl.seed_everything(config.optimisation.seed, verbose=False)
    reranker.adapt()
    trainer = lightning_trainer(frame, reranker.device, [setup.evaluation])
    sampler, steps = plan_groups(pairs, config, session.world, trainer)
    module = RerankerModule(reranker, pairs, config, steps, session.stop)
    summary = module.summary(config, sampler, setup.data, frame.negatives.sentences)
    return fit(frame, trainer, module, sampler, summary)


def choose(setup: Setup) -> tuple[Point, Choice]:
    """Choose an epoch, or the re-ranker before training, by the whole pipeline on val."""
    free_device(setup.reranker.model)
    point, choice = choose_point(setup.session.run, setup.data, setup.config)
    tried = tuple(replace(one, scores={}) for one in choice.tried)
    return point, replace(choice, metric=setup.config.choose_by, tried=tried)


def report(setup: Setup, losses: Sequence[float], point: Point, choice: Choice) -> Report | None:
    """Report the first stage, the re-ranker as it was, and as chosen."""
    session, config = setup.session, setup.config
    if not session.world.is_first:
        return None
    session.run.write(session.run.checkpoint(point.epoch))
    val = pipeline_scores(setup.rankings[VAL], setup.data, config)
    return report_pipeline(
        session.run,
        config,
        setup.data,
        first=(setup.first.name, setup.rankings[REPORTED], val),
        chosen=(point.epoch, choice),
        store=session.store,
        losses=losses,
        logs=setup.frame.logs,
    )
