"""Fine-tune a re-ranker on a first stage's candidates; choose by the whole pipeline on val."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytorch_lightning as pl

from claim2source.core.report import Choice, Report
from claim2source.core.run import Result
from claim2source.core.terminal import say
from claim2source.mining import MinedRow, write_mined
from claim2source.systems.heldout import ChoosingOn
from claim2source.systems.seen import claims_models_saw
from claim2source.systems.system import RunSettings, System, SystemRunner
from claim2source.training.early import RerankerInputs, check_reranker_early
from claim2source.training.fit import fit, free_device, lightning_trainer
from claim2source.training.negatives import log_negatives, mined_rows, restore_mined
from claim2source.training.on_val import provenance
from claim2source.training.plan import plan_batches
from claim2source.training.report import report_pipeline
from claim2source.training.reranker_config import RerankerConfig, RerankerRecipe
from claim2source.training.reranker_data import (
    RerankerPairs,
    rankings_hash,
)
from claim2source.training.reranker_models import TrainedReranker, load_to_train
from claim2source.training.reranker_module import PipelineOnVal, RerankerModule, pipeline_scores
from claim2source.training.session import Session, open_session
from claim2source.training.splits import TrainingData, require_new_val, users_negatives

# Depth of the report's recall of the first stage.
REPORTED_DEPTH = 100


@dataclass(frozen=True)
class RerankerSetup:
    """Loaded and checked inputs of a training run; nothing is written yet.

    `first` is the name of the first stage; `rankings` are its rankings of val and of the report
    split, only in the first process.
    """

    data: TrainingData
    reranker: TrainedReranker
    first: str
    rankings: tuple[Result, Result] | None
    evaluation: PipelineOnVal
    trainer: pl.Trainer


def finetune_reranker(
    config: RerankerConfig,
    inputs: RerankerInputs | None = None,
) -> Report | None:
    """Fine-tune with a config; return the report (None on later ranks).

    `inputs` are what `check_reranker_early` found, if it was called before torch was imported.
    Raises `UserError` for anything the user can correct.
    """
    inputs = inputs or check_reranker_early(config)
    recipe = config.recipe(RerankerRecipe)
    with open_session(inputs) as session:
        with session.on_all_ranks():
            setup = set_up(recipe, inputs, config, session)
        session.begin()
        if not session.run.is_finished:
            rows = mine(setup, session)
            train(setup, session, rows)
        if not session.world.is_first:
            return None
        epoch, choice = choose(setup)
        return report(setup, session, epoch, choice)


def set_up(
    recipe: RerankerRecipe,
    inputs: RerankerInputs,
    config: RerankerConfig,
    session: Session,
) -> RerankerSetup:
    """Load the model and the saved state, and rank with the first stage."""
    data = inputs.data
    system = inputs.first
    depth = config.first.depth
    texts = recipe.rendering.claim_texts(data.train.claims)
    reranker = load_to_train(recipe, texts, depth, session.device)
    # A hub model's training claims are known only after its download.
    require_new_val(recipe.models, data, downloaded=True)
    session.read_state()
    trained_on = claims_models_saw([recipe.model.name], data.settings.dataset)
    record = provenance(recipe, data, session)
    manifest = reranker.manifest(record)
    manifest = replace(manifest, trained_on=trained_on)
    evaluation = PipelineOnVal(
        session,
        manifest,
        data,
        reranker,
        config.choose_by,
    )
    trainer = lightning_trainer(recipe, evaluation, reranker.model.device)
    rankings = None
    if session.world.is_first:
        deepest = max(depth, REPORTED_DEPTH)
        rankings = first_rankings(system, data, session, deepest)
        hashes: dict[str, str | None] = {
            "training data": data.train.fingerprint,
            "val data": data.val.fingerprint,
            "base model": reranker.base.sha256,
            "first stage": rankings_hash(rankings, depth),
            "teacher's run": None if data.teacher is None else data.teacher.sha256,
        }
        session.run.require_inputs(hashes)
    return RerankerSetup(
        data=data,
        reranker=reranker,
        first=system.name,
        rankings=rankings,
        evaluation=evaluation,
        trainer=trainer,
    )


def first_rankings(
    system: System,
    data: TrainingData,
    session: Session,
    depth: int,
) -> tuple[Result, Result]:
    """Rank the claims of val and of the report split, which no choice uses."""
    settings = RunSettings(
        data.settings.dataset,
        ChoosingOn(lenient=data.settings.lenient),
        store=session.store,
        device=session.device,
        depth=depth,
    )
    runner = SystemRunner(data.report, settings)
    on_val = runner.run(system, None, data.val)
    reported = runner.run(system, None, data.report)
    return on_val.result, reported.result


def mine(setup: RerankerSetup, session: Session) -> list[MinedRow]:
    """Score the re-ranker before training, and read the mined file.

    A resumed run continues with the rows of its state.
    """
    data = setup.data
    run = session.run
    on_val: Result | None = None
    if setup.rankings is not None:
        on_val, _ = setup.rankings
    setup.evaluation.rank(on_val)
    scores = setup.evaluation.score_base()
    if scores is not None:
        say(f"before training: val MRR@5  {scores}")
    if session.state is not None:
        return restore_mined(session, session.state.mined, data.train)
    if session.world.is_first and not run.mined.is_file():
        rows = users_negatives(data, run)
        write_mined(rows, run.mined)
    return mined_rows(session, data.train)


def train(
    setup: RerankerSetup,
    session: Session,
    rows: Sequence[MinedRow],
) -> None:
    """Train on groups of these rows, from the saved state on."""
    data = setup.data
    reranker = setup.reranker
    recipe = reranker.recipe
    seed = recipe.optimisation.seed
    pairs = RerankerPairs.of_training(data, rows, recipe)
    # All processes start with the same adapters; dropout is seeded by process in `fit`.
    pl.seed_everything(seed, verbose=False)
    reranker.adapt()
    sampler, steps = plan_batches(pairs, recipe, session, setup.trainer)
    module = RerankerModule(reranker, pairs, steps, session.stop)
    claims = len(data.train.claims)
    summary = pairs.sentences()
    summary += module.summary(data.settings, sampler, claims)
    if data.teacher is not None:
        summary += data.teacher.sentences()
    log_negatives(session, pairs.rows, data.train, seed)
    fit(session, setup.trainer, module, sampler, summary)


def choose(setup: RerankerSetup) -> tuple[int, Choice]:
    """Choose an epoch, or the re-ranker before training, by the whole pipeline on val."""
    free_device(setup.reranker.model)
    return setup.evaluation.choose()


def report(setup: RerankerSetup, session: Session, epoch: int, choice: Choice) -> Report:
    """Report the first stage, the re-ranker before training, and the chosen one."""
    data = setup.data
    reranker = setup.reranker
    assert setup.rankings is not None
    on_val, reported = setup.rankings
    scores = pipeline_scores(-1, on_val, data, setup.evaluation.metric)
    first = setup.first, reported, scores
    return report_pipeline(
        session,
        reranker.recipe,
        data,
        reranker.stage.depth,
        first,
        epoch,
        choice,
    )
