"""Mine a run's hard negatives, once or again every few epochs, and save them with its state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from claim2source.core.errors import UserError
from claim2source.core.files import atomic_path
from claim2source.core.records import Dataset
from claim2source.core.tables import TextTable
from claim2source.data.pair_files import is_pair_file
from claim2source.mining import (
    MinedRow,
    Miner,
    MiningCounts,
    Negative,
    read_mined,
    write_mined,
)
from claim2source.mining.baseline import sampled_baseline
from claim2source.mining.mine import Origin
from claim2source.models import Encoder
from claim2source.training.config import OptimisationConfig, RetrieverRecipe
from claim2source.training.distributed import barrier, encode_shares, gather_values
from claim2source.training.losses import Distillation
from claim2source.training.resume import MinedFile
from claim2source.training.session import Session
from claim2source.training.splits import TrainingData, users_negatives
from claim2source.training.teacher_scores import teachers_rows

# Origin of negatives that come with a file of pairs.
GIVEN: Origin = "given"
# Training pairs whose negatives are shown in W&B.
SHOWN_PAIRS = 50


def restore_mined(session: Session, state: MinedFile, train: Dataset) -> list[MinedRow]:
    """Restore the rows of a saved state. Raises `UserError` if the mined file was changed."""
    run = session.run
    name = Path(state["file"]).name
    run.mined = run.path / name
    content = state["content"].numpy().tobytes()
    if session.world.is_first:
        if not run.mined.is_file():
            with atomic_path(run.mined) as temporary:
                temporary.write_bytes(content)
        elif run.mined.read_bytes() != content:
            raise UserError(f"{run.mined} is not the file that the run was trained on")
    return mined_rows(session, train)


def mined_rows(session: Session, train: Dataset) -> list[MinedRow]:
    """Read the mined file in every process after the first one has written it."""
    barrier(session.world)
    return read_mined(session.run.mined, train)


def mine_first(
    session: Session,
    recipe: RetrieverRecipe,
    data: TrainingData,
    encoder: Encoder,
) -> tuple[list[MinedRow], list[str]]:
    """Mine with the base model, copy the user's file, or use the teacher's candidates.

    If a file of pairs has negatives, these are used and nothing is mined. Returns the rows, and
    lines that describe them.
    """
    run = session.run
    is_first = session.world.is_first
    train = data.train
    counts: MiningCounts | None = None
    given: list[MinedRow] = []
    needs_negatives = _needs_negatives(recipe, run.config.mined)
    if needs_negatives:
        given = given_rows(data)
    if needs_negatives and not given:
        counts = mine_pairs(session, recipe, train, encoder)
    elif is_first and not run.mined.is_file():
        rows = given or _rows_at_hand(session, recipe, data)
        write_mined(rows, run.mined)

    lines: list[str] = []
    baseline = None
    if counts is not None:
        lines = counts.sentences()
        baseline = counts.baseline
    if given:
        with_negatives = sum(bool(row.negatives) for row in given)
        lines.append(f"{with_negatives} pairs have given negatives")
    if is_first:
        if baseline is None:
            baseline = sampled_baseline(
                train,
                encoder,
                recipe.rendering,
                session.store,
                recipe.mining.seed,
            )
        temperature = recipe.optimisation.temperature
        lines += baseline.temperature_sentences(temperature)
    return mined_rows(session, train), lines


def _takes_candidates(recipe: RetrieverRecipe) -> bool:
    """Whether negatives are the candidates of a teacher's run."""
    distillation = recipe.losses.find(Distillation)
    return distillation is not None and distillation.candidates


def _needs_negatives(recipe: RetrieverRecipe, file: Path | None) -> bool:
    """Whether negatives are needed and neither a file nor a teacher has them."""
    return file is None and not _takes_candidates(recipe) and recipe.optimisation.negatives > 0


def _rows_at_hand(
    session: Session,
    recipe: RetrieverRecipe,
    data: TrainingData,
) -> Sequence[MinedRow]:
    """List the rows of the user's file, of the teacher's candidates, or without negatives."""
    run = session.run
    if run.config.mined is not None:
        return users_negatives(data, run)
    if _takes_candidates(recipe):
        assert data.teacher is not None
        return teachers_rows(data.teacher, data.train, recipe.mining)
    rows: list[MinedRow] = []
    for claim in data.train.claims:
        for gold in claim.golds:
            rows.append(MinedRow(claim.id, gold, ()))
    return rows


def given_rows(data: TrainingData) -> list[MinedRow]:
    """Make rows with the negatives of a file of pairs; no rows if it has none."""
    if not is_pair_file(data.settings.dataset):
        return []
    rows: list[MinedRow] = []
    for claim in data.train.claims:
        judged = data.train.qrels.grades[claim.id]
        negatives: list[Negative] = []
        for source, grade in judged.items():
            if grade <= 0:
                negatives.append(Negative(source, 0.0, GIVEN))
        given = tuple(negatives)
        for gold in claim.golds:
            rows.append(MinedRow(claim.id, gold, given))
    has_negatives = any(row.negatives for row in rows)
    return rows if has_negatives else []


def _with_given(before: MinedRow, mined: MinedRow) -> MinedRow:
    """Put the given negatives of a row before newly mined ones."""
    given = [negative for negative in before.negatives if negative.origin == GIVEN]
    if not given:
        return mined
    known = {negative.source for negative in given}
    new = [negative for negative in mined.negatives if negative.source not in known]
    return replace(mined, negatives=(*given, *new))


def mines_after(config: OptimisationConfig, epoch: int) -> bool:
    """Whether to mine again after this epoch; never after the last one."""
    is_due = config.remine_every > 0 and epoch % config.remine_every == 0
    is_between = 0 < epoch < config.epochs
    return is_due and config.negatives > 0 and is_between


def mine_pairs(
    session: Session,
    recipe: RetrieverRecipe,
    train: Dataset,
    encoder: Encoder,
    before: Path | None = None,
) -> MiningCounts | None:
    """Mine all pairs of the data set, or those of the file `before`, in the first process.

    An existing file is from a run that was killed after mining: the same weights mined it.
    """
    rendering = recipe.rendering
    store = session.store
    world = session.world
    run = session.run
    is_mined = gather_values(run.mined.is_file(), world)[0]
    if is_mined:
        return None
    encode_shares(encoder, rendering, train, store, world)
    if not world.is_first:
        return None
    miner = Miner(
        train,
        encoder,
        rendering,
        recipe.mining,
        store,
        progress=True,
    )
    rows: Iterable[MinedRow] = miner.mine()
    if before is not None:
        rows = _in_earlier_order(before, train, rows)
    write_mined(rows, run.mined)
    return miner.counts


def _in_earlier_order(
    before: Path,
    train: Dataset,
    rows: Iterable[MinedRow],
) -> list[MinedRow]:
    """Bring newly mined rows into the pairs and the order of the file `before`."""
    # Batches are planned by row number, and the user's file may lack pairs; a pair that was not
    # mined keeps its row.
    by_pair = {(row.claim, row.positive): row for row in rows}
    ordered: list[MinedRow] = []
    for row in read_mined(before, train):
        pair = (row.claim, row.positive)
        mined = by_pair.get(pair, row)
        ordered.append(_with_given(row, mined))
    return ordered


def log_negatives(
    session: Session,
    rows: Sequence[MinedRow],
    train: Dataset,
    seed: int,
) -> None:
    """Show a sample of the mined negatives in W&B."""
    if session.world.is_first and any(row.negatives for row in rows):
        table = negatives_table(rows, train, seed)
        session.logs.table("mined negatives", table)


def negatives_table(
    rows: Sequence[MinedRow],
    train: Dataset,
    seed: int,
) -> TextTable:
    """Sample pairs and list their negatives, for a reader."""
    claims = {claim.id: claim for claim in train.claims}
    titles = {source.id: source.title or source.id for source in train.sources}
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(rows), generator=generator).tolist()
    table = []
    for number in order[:SHOWN_PAIRS]:
        row = rows[number]
        claim = claims[row.claim]
        pair = [claim.lang, claim.text, titles[row.positive]]
        for negative in row.negatives:
            title = titles[negative.source]
            table.append([*pair, title, negative.score, negative.origin])
    columns = ["language", "claim", "gold", "negative", "score", "origin"]
    return TextTable(columns, table)
