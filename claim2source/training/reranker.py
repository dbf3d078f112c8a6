"""Fine-tune a re-ranker on a first stage's candidates; choose by the whole pipeline on val."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytorch_lightning as pl

from claim2source.core.errors import UserError
from claim2source.core.report import Choice, Report
from claim2source.core.run import Result
from claim2source.core.terminal import say
from claim2source.mining import MinedRow, read_mined, write_mined
from claim2source.systems.heldout import require_held_out
from claim2source.text.views import untranslated_sentences
from claim2source.training.choose import choose_epoch
from claim2source.training.data import TrainingData
from claim2source.training.fit import fit, free_device, lightning_trainer, plan_batches, provenance
from claim2source.training.negatives import log_negatives, mined_rows, restore_mined
from claim2source.training.report import report_pipeline
from claim2source.training.reranker_config import RerankerConfig
from claim2source.training.reranker_data import (
    FirstStage,
    RerankerPairs,
    load_data,
    rankings_hash,
)
from claim2source.training.reranker_models import TrainedReranker, load_to_train
from claim2source.training.reranker_module import (
    PipelineOnVal,
    RerankerModule,
    pipeline_scores,
)
from claim2source.training.session import Session, open_session

VAL, REPORTED = "val", "reported"
REPORTED_DEPTH = 100


@dataclass(frozen=True)
class Setup:
    """Hold all that a training begins with, loaded and checked; nothing is written yet.

    `rankings` are the first stage's, by split, for the first process.
    """

    config: RerankerConfig
    data: TrainingData
    first: FirstStage
    reranker: TrainedReranker
    rankings: dict[str, Result]
    trainer: pl.Trainer
    evaluation: PipelineOnVal


def finetune_reranker(config: RerankerConfig) -> Report | None:
    """Fine-tune as the config says; return the report (None on later ranks).

    Raises `UserError` for anything the user can correct.
    """
    with open_session(config) as session:
        with session.on_all_ranks():
            setup = set_up(config, session)
        session.begin(setup.config)
        if not session.run.is_finished:
            train(setup, session, mine(setup, session))
        if not session.world.is_first:
            return None
        epoch, choice = choose(setup, session)
        return report(setup, session, epoch, choice)


def set_up(config: RerankerConfig, session: Session) -> Setup:
    """Load the data, the model and the saved state, rank with the first stage, and check all."""
    run, world = session.run, session.world
    config.require_mined()
    config = run.with_seen_share(config)
    data = load_data(config)
    # As deep as the report's recall of the first stage.
    first = FirstStage.of(config.first, REPORTED_DEPTH)
    key = "first.system" if config.first.checkpoint is None else "first.checkpoint"
    require_held_out("model.name", [config.model.name], data.val, config.data)
    require_held_out(key, first.models, data.val, config.data)
    reranker = load_to_train(config, config.rendering.claim_texts(data.train.claims))
    if config.resume:
        session.read_state()
    manifest = reranker.manifest(provenance(config, data, session))
    evaluation = PipelineOnVal(session, manifest, data, reranker, config)
    trainer = lightning_trainer(config, session, data, reranker.device, [evaluation])
    rankings = {}
    if world.is_first:
        splits, settings = {VAL: data.val, REPORTED: data.report}, config.data
        rankings = first.rank(
            splits,
            data.report,
            settings.dataset,
            session.store,
            lenient=settings.lenient,
            device=config.device,
        )
        run.require_inputs(
            {
                "training data": data.train.fingerprint,
                "val data": data.val.fingerprint,
                "base model": reranker.base.sha256,
                "first stage": rankings_hash(rankings.values(), config.first.depth),
                "teacher's run": None if data.teacher is None else data.teacher.sha256,
            }
        )
    return Setup(config, data, first, reranker, rankings, trainer, evaluation)


def mine(setup: Setup, session: Session) -> list[MinedRow]:
    """Score the re-ranker before training, and read the mined file.

    A resumed run goes on with the rows of its state.
    """
    config, train, run = setup.config, setup.data.train, session.run
    setup.evaluation.rank(setup.rankings.get(VAL))
    if (scores := setup.evaluation.score_base(config.chooses)) is not None:
        say(f"before training: val MRR@5  {scores}")
    if session.state is not None:
        return restore_mined(session, session.state.mined, train)
    if session.world.is_first and not run.mined.is_file():
        write_mined(read_mined(config.require_mined(), train), run.mined)
    return mined_rows(session, train)


def train(setup: Setup, session: Session, rows: Sequence[MinedRow]) -> None:
    """Train on groups of these rows, from where a run was stopped."""
    config, reranker, teacher = setup.config, setup.reranker, setup.data.teacher
    pairs = RerankerPairs(
        setup.data.train,
        rows,
        config.rendering,
        config.optimisation.negatives,
        None if teacher is None else teacher.scores,
    )
    if not pairs.rows:
        raise UserError(f"{session.run.mined}: no pair has a negative to learn from")
    # All processes start with the same adapters; dropout is seeded by process in `fit`.
    pl.seed_everything(config.optimisation.seed, verbose=False)
    reranker.adapt()
    sampler, steps = plan_batches(pairs, config, session.world, setup.trainer)
    module = RerankerModule(reranker, pairs, config, steps, session.stop)
    claims, left_out = setup.data.train.claims, pairs.untaught
    summary = [
        *untranslated_sentences(claims, config.rendering.claims),
        *module.summary(config, sampler, len(claims)),
        *([f"{left_out} pairs are left out: they have nothing to compare"] if left_out else []),
        *([] if teacher is None else teacher.sentences()),
    ]
    log_negatives(session, pairs.rows, setup.data.train, config.optimisation.seed)
    fit(session, setup.trainer, module, sampler.loader(module.collate), summary)


def choose(setup: Setup, session: Session) -> tuple[int, Choice]:
    """Choose an epoch, or the re-ranker before training, by the whole pipeline on val."""
    free_device(setup.reranker.model)
    config, weighing = setup.config, setup.data.weighing
    epoch, choice = choose_epoch(session.run, weighing, config.choose, config.rule)
    return epoch, replace(choice, metric=config.choose_by)


def report(setup: Setup, session: Session, epoch: int, choice: Choice) -> Report:
    """Report the first stage, the re-ranker as it was, and as chosen."""
    val = pipeline_scores(setup.rankings[VAL], setup.data, setup.config)
    first = setup.first.name, setup.rankings[REPORTED], val
    return report_pipeline(session, setup.config, setup.data, first, epoch, choice)
