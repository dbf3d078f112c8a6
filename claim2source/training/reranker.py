"""Fine-tune a re-ranker on a first stage's candidates; choose by the whole pipeline on val."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytorch_lightning as pl

from claim2source.core.errors import UserError
from claim2source.core.report import Choice, Report
from claim2source.core.run import Result
from claim2source.core.terminal import say
from claim2source.mining import MinedRow, read_mined, write_mined
from claim2source.models import checkpoint_folder
from claim2source.systems.seen import claims_models_saw, require_held_out
from claim2source.training.data import TrainingData
from claim2source.training.fit import fit, free_device, lightning_trainer, provenance
from claim2source.training.negatives import log_negatives, mined_rows, restore_mined
from claim2source.training.plan import plan_batches
from claim2source.training.report import report_pipeline
from claim2source.training.reranker_config import FirstStageConfig, RerankerConfig, RerankerRecipe
from claim2source.training.reranker_data import (
    RerankerPairs,
    first_rankings,
    load_data,
    rankings_hash,
)
from claim2source.training.reranker_models import TrainedReranker, load_to_train
from claim2source.training.reranker_module import PipelineOnVal, RerankerModule, pipeline_scores
from claim2source.training.session import Session, open_session

# As deep as the report's recall of the first stage.
REPORTED_DEPTH = 100


@dataclass(frozen=True)
class RerankerSetup:
    """All that a training begins with, loaded and checked; nothing is written yet.

    `first` names the first stage; `rankings` are its own, of val and of the report split, in the
    first process.
    """

    data: TrainingData
    reranker: TrainedReranker
    first: str
    rankings: tuple[Result, Result] | None
    evaluation: PipelineOnVal
    trainer: pl.Trainer


def finetune_reranker(config: RerankerConfig) -> Report | None:
    """Fine-tune as the config says; return the report (None on later ranks).

    Raises `UserError` for anything the user can correct.
    """
    config.require_mined()
    recipe = config.recipe(RerankerRecipe)
    with open_session(config) as session:
        with session.on_all_ranks():
            setup = set_up(recipe, config.first, config.choose_by, session)
        session.begin()
        if not session.run.is_finished:
            train(setup, session, mine(setup, session))
        if not session.world.is_first:
            return None
        epoch, choice = choose(setup)
        return report(setup, session, epoch, choice)


def set_up(
    recipe: RerankerRecipe, first: FirstStageConfig, choose_by: str, session: Session
) -> RerankerSetup:
    """Load the data, the model and the saved state, rank with the first stage, and check all."""
    data, system = load_data(recipe, first, session.run)
    texts = recipe.rendering.claim_texts(data.train.claims)
    reranker = load_to_train(recipe, texts, first.depth, session.device)
    if not checkpoint_folder(recipe.model.name).exists():
        # A model of the hub says what it was trained on once it is here.
        require_held_out("model.name", [recipe.model.name], data.val, data.settings)
    session.read_state()
    trained_on = claims_models_saw([recipe.model.name], data.settings.dataset)
    manifest = replace(reranker.manifest(provenance(recipe, data, session)), trained_on=trained_on)
    evaluation = PipelineOnVal(session, manifest, data, reranker, choose_by)
    trainer = lightning_trainer(recipe, evaluation, reranker.model.device)
    if session.state is None and not session.run.is_finished:
        assert session.run.config.mined is not None
        rows = read_mined(session.run.config.mined, data.train)
        training_pairs(recipe, data, rows, session.run.config.mined)
    rankings = None
    if session.world.is_first:
        rankings = first_rankings(system, data, session, max(first.depth, REPORTED_DEPTH))
        session.run.require_inputs(
            {
                "training data": data.train.fingerprint,
                "val data": data.val.fingerprint,
                "base model": reranker.base.sha256,
                "first stage": rankings_hash(rankings, first.depth),
                "teacher's run": None if data.teacher is None else data.teacher.sha256,
            }
        )
    return RerankerSetup(data, reranker, system.name, rankings, evaluation, trainer)


def mine(setup: RerankerSetup, session: Session) -> list[MinedRow]:
    """Score the re-ranker before training, and read the mined file.

    A resumed run goes on with the rows of its state.
    """
    data, run = setup.data, session.run
    setup.evaluation.rank(None if setup.rankings is None else setup.rankings[0])
    if (scores := setup.evaluation.score_base()) is not None:
        say(f"before training: val MRR@5  {scores}")
    if session.state is not None:
        return restore_mined(session, session.state.mined, data.train)
    if session.world.is_first and not run.mined.is_file():
        assert run.config.mined is not None
        write_mined(read_mined(run.config.mined, data.train), run.mined)
    return mined_rows(session, data.train)


def training_pairs(
    recipe: RerankerRecipe, data: TrainingData, rows: Sequence[MinedRow], file: Path
) -> RerankerPairs:
    """Make the pairs of mined rows. Raises `UserError` if none has a negative to learn from."""
    scores = None if data.teacher is None else data.teacher.scores
    pairs = RerankerPairs(data.train, rows, recipe, scores)
    if not pairs.rows:
        raise UserError(f"{file}: no pair has a negative to learn from")
    return pairs


def train(setup: RerankerSetup, session: Session, rows: Sequence[MinedRow]) -> None:
    """Train on groups of these rows, from where a run was stopped."""
    data, reranker, teacher = setup.data, setup.reranker, setup.data.teacher
    recipe, seed = reranker.recipe, reranker.recipe.optimisation.seed
    pairs = training_pairs(recipe, data, rows, session.run.mined)
    # All processes start with the same adapters; dropout is seeded by process in `fit`.
    pl.seed_everything(seed, verbose=False)
    reranker.adapt()
    sampler, steps = plan_batches(pairs, recipe, session, setup.trainer)
    module = RerankerModule(reranker, pairs, steps, session.stop)
    summary = [
        *pairs.sentences(),
        *module.summary(data.settings, sampler, len(data.train.claims)),
        *([] if teacher is None else teacher.sentences()),
    ]
    log_negatives(session, pairs.rows, data.train, seed)
    fit(session, setup.trainer, module, sampler, summary)


def choose(setup: RerankerSetup) -> tuple[int, Choice]:
    """Choose an epoch, or the re-ranker before training, by the whole pipeline on val."""
    free_device(setup.reranker.model)
    return setup.evaluation.choose()


def report(setup: RerankerSetup, session: Session, epoch: int, choice: Choice) -> Report:
    """Report the first stage, the re-ranker as it was, and as chosen."""
    data, reranker = setup.data, setup.reranker
    assert setup.rankings is not None
    on_val, reported = setup.rankings
    scores = pipeline_scores(-1, on_val, data, setup.evaluation.metric)
    first = setup.first, reported, scores
    return report_pipeline(
        session, reranker.recipe, data, reranker.stage.depth, first, epoch, choice
    )
