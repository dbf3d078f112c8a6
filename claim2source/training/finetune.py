"""Fine-tune a retriever: set up, mine, train, choose an epoch, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytorch_lightning as pl

from claim2source.core.report import Choice, Report
from claim2source.core.terminal import say
from claim2source.mining import MinedRow
from claim2source.systems.seen import claims_models_saw
from claim2source.training.after import evaluate_after, next_steps
from claim2source.training.base import LoadedBase, check_device, load_base, prepare_to_train
from claim2source.training.config import FinetuneConfig, RetrieverRecipe
from claim2source.training.data import TrainingPairs
from claim2source.training.distributed import trained_encoder
from claim2source.training.early import RetrieverInputs, check_early
from claim2source.training.fit import fit, free_device, lightning_trainer
from claim2source.training.module import RetrieverModule
from claim2source.training.negatives import log_negatives, mine_first, restore_mined
from claim2source.training.on_val import RetrieverOnVal, provenance
from claim2source.training.plan import plan_batches
from claim2source.training.report import report_run
from claim2source.training.session import Session, open_session
from claim2source.training.splits import TrainingData, unused_data


@dataclass(frozen=True)
class Setup:
    """Loaded and checked inputs of a training run; the base's recipe has no `auto`."""

    data: TrainingData
    base: LoadedBase
    evaluation: RetrieverOnVal
    trainer: pl.Trainer


def finetune(config: FinetuneConfig, inputs: RetrieverInputs | None = None) -> Report | None:
    """Fine-tune, run the evaluation that `after` names, and print the next commands.

    `inputs` are what `check_early` found, if it was called before torch was imported. Returns the
    training's report (None on later ranks). Raises `UserError` for anything the user can correct.
    """
    inputs = inputs or check_early(config)
    recipe = config.recipe(RetrieverRecipe)
    after = inputs.after
    with open_session(inputs) as session:
        run = session.run
        with session.on_all_ranks():
            setup = set_up(recipe, inputs.data, session)
            if recipe.self_check or not run.is_finished:
                check_device(setup.base, setup.data.train, session.world)
        if recipe.self_check:
            return None
        # `auto` stays: a resumed run may have another device.
        session.begin()
        if not run.is_finished:
            rows, lines = mine(setup, session)
            train(setup, session, rows, lines)
        if not session.world.is_first:
            return None

        epoch, choice = choose(setup)
        run_report = report_run(
            session,
            setup.base.recipe,
            setup.data,
            epoch,
            choice,
        )
        # The folder is still locked, because the evaluation reads its checkpoints.
        train_split = setup.data.settings.train_split
        evaluated = after is not None and evaluate_after(after, train_split)
        chosen = run.checkpoint(epoch)
        is_trained = epoch > 0
        commands = next_steps(config, chosen, is_trained, evaluated)
        say(commands)
        return run_report


def set_up(
    recipe: RetrieverRecipe,
    data: TrainingData,
    session: Session,
) -> Setup:
    """Load the base and the saved state, and do the checks that need torch.

    Nothing is written yet.
    """
    base = load_base(recipe, data, session)
    recipe = base.recipe
    session.read_state()
    hashes = _input_hashes(base, data)
    session.run.require_inputs(hashes)
    trained_on = claims_models_saw(recipe.models.values(), data.settings.dataset)
    record = provenance(recipe, data, session)
    manifest = base.manifest(record)
    manifest = replace(manifest, trained_on=trained_on)
    evaluation = RetrieverOnVal(session, manifest, data, base)
    trainer = lightning_trainer(recipe, evaluation, base.encoder.device)
    return Setup(data, base, evaluation, trainer)


def _input_hashes(base: LoadedBase, data: TrainingData) -> dict[str, str | None]:
    """Collect the hashes of what a resumed run must share with the first one."""
    hashes: dict[str, str | None] = {
        "training data": data.train.fingerprint,
        "val data": data.val.fingerprint,
        "base model": base.record.sha256,
        "teacher's run": None if data.teacher is None else data.teacher.sha256,
    }
    if base.teacher is not None:
        hashes["teacher"] = base.teacher.sha256
    code_hashes = base.recipe.losses.code()
    for name, code in code_hashes.items():
        hashes[f"code of losses.{name}"] = code
    return hashes


def mine(setup: Setup, session: Session) -> tuple[list[MinedRow], list[str]]:
    """Score the model before training, then mine with it, or with the teacher.

    Returns the rows, and lines that describe them. A resumed run continues with the rows of its
    state.
    """
    data = setup.data
    base = setup.base
    state = session.state
    if base.teacher is not None:
        folder = session.run.checkpoint(0) if state is None else None
        base.teacher.prepare(
            data.train,
            session.store,
            session.world,
            base.untrained,
            folder,
        )
    setup.evaluation.score_base()
    if state is not None:
        rows = restore_mined(session, state.mined, data.train)
        return rows, []
    encoder = base.encoder if base.teacher is None else base.teacher.encoder
    return mine_first(session, base.recipe, data, encoder)


def train(
    setup: Setup,
    session: Session,
    rows: Sequence[MinedRow],
    mined: Sequence[str],
) -> None:
    """Train on the mined rows from the saved state on; `setup.evaluation` scores each epoch.

    `sampler` plans the batches, `pairs` makes them, and `RetrieverModule` takes a step on each.
    """
    data = setup.data
    base = setup.base
    trainer = setup.trainer
    vectors = prepare_to_train(base, data.train, session.store, session.world)
    recipe, measured = base.plan.calibrate(base.encoder)
    settings = recipe.optimisation
    pairs = TrainingPairs(
        data.train,
        rows,
        base.encoder,
        recipe,
        base=vectors,
        teacher=None if data.teacher is None else data.teacher.scores,
        aligned=None if base.teacher is None else base.teacher.aligned,
    )
    sampler, steps = plan_batches(pairs, recipe, session, trainer)
    encoder = trained_encoder(trainer, base.encoder)
    module = RetrieverModule(
        encoder,
        pairs,
        settings,
        recipe.losses,
        steps,
        session.stop,
    )

    summary: list[str] = []
    if base.plan.auto:
        summary.append(str(base.plan))
    summary += measured
    mined_file = session.run.config.mined
    summary += unused_data(recipe, data.train, mined_file, len(pairs))
    summary += mined
    claims = len(data.train.claims)
    summary += module.summary(data.settings, sampler, claims)
    repeats = sampler.repeats()
    summary += pairs.sentences(repeats)
    if data.teacher is not None:
        summary += data.teacher.sentences()
    log_negatives(session, pairs.rows, data.train, settings.seed)
    fit(session, trainer, module, sampler, summary)


def choose(setup: Setup) -> tuple[int, Choice]:
    """Choose the run's epoch, or epoch 0, the base, on val."""
    free_device(setup.base.encoder.model)
    return setup.evaluation.choose()
