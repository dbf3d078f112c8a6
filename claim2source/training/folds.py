"""Train a recipe on folds of the training claims, and rank each claim by a model without it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from claim2source.core.config import to_yaml
from claim2source.core.errors import UserError
from claim2source.core.files import require_writable, write_text
from claim2source.core.folders import CHECKPOINTS, is_run, read_run
from claim2source.core.records import Dataset
from claim2source.core.run import Run
from claim2source.core.tables import Cell, TextTable, render
from claim2source.datasets import expected_seen_share, load, read_beir, write_beir
from claim2source.datasets.folds import assign_folds
from claim2source.evaluation.metrics import macro, score_languages
from claim2source.io.store import Store
from claim2source.mining import read_mined, write_mined
from claim2source.models import Manifest, resolve
from claim2source.pipeline.evaluate import METRICS
from claim2source.pipeline.out_of_fold import Fold, OutOfFold, write_out_of_fold
from claim2source.retrieve import Dense
from claim2source.training.config import FinetuneConfig
from claim2source.training.distributed import launched_world
from claim2source.training.finetune import finetune
from claim2source.training.folds_config import FoldsConfig
from claim2source.training.run_folder import refuse_changes, resumable
from claim2source.training.splits import load_data

SETTINGS_FILE = "folds.yaml"
HELD_OUT = "held_out"


def train_folds(config: FoldsConfig) -> str:
    """Train each fold's model, rank its claims, write the rankings; return the scores as text.

    Finished folds are not trained again, stopped ones go on. A fold's run carves its own val
    from what it trains on, and chooses on that: the claims that it ranks are its reported split.
    Raises `UserError` for another recipe than the folder's folds were begun with.
    """
    if launched_world().size > 1:
        raise UserError(
            "folds are trained in one process; several may train one fold by accelerate launch "
            "train/finetune.py --config OUT/fold-1.yaml, and this program takes what is finished"
        )
    out, data = config.out, config.data
    whole, numbers = _dealt(config)
    found: list[tuple[Fold, Run]] = []
    for number in range(config.folds):
        held = [claim for claim in whole.claims if numbers[claim.id] == number]
        print(f"fold {number + 1} of {config.folds}: {len(held)} claims held out", flush=True)
        found.append(_one_fold(config, whole, whole.with_claims(held, HELD_OUT), number + 1))
    run = _joined([run for _, run in found], whole)
    manifest = Manifest.read(out / found[0][0].checkpoint)
    record = OutOfFold(
        dataset=data.dataset,
        split=data.train_split,
        languages=None if config.languages is None else tuple(config.languages),
        data_sha256=whole.fingerprint,
        base_sha256=manifest.base.sha256,
        rendering=manifest.rendering,
        depth=config.depth,
        run_sha256="",
        folds=tuple(fold for fold, _ in found),
    )
    parts = {
        "all": whole,
        "seen": whole.with_claims(c for c in whole.claims if c.id in record.seen),
        "unseen": whole.with_claims(c for c in whole.claims if c.id not in record.seen),
    }
    scores = {}
    for name, part in parts.items():
        judged = part.with_claims(claim for claim in part.claims if claim.golds)
        if judged.claims:
            languages = score_languages(run, judged.claims, judged.qrels, METRICS)
            scores[name] = {**languages, "macro": macro(languages)}
    write_out_of_fold(out, replace(record, scores=scores), run)
    rows: list[list[Cell]] = [
        [name, language, row["mrr@5"], int(row["queries"])]
        for name, table in scores.items()
        for language, row in table.items()
    ]
    title = f"MRR@5 of {data.train_split}, each claim by a model that was not trained on it:"
    table = TextTable(["papers", "language", "mrr@5", "claims"], rows)
    return f"{render([title, table])}\n\nIn {out}; choose a fusion on it with --choose_on {out}."


def train_first_fold(config: FoldsConfig) -> tuple[Fold, Run]:
    """Train the first fold's model as `train_folds` does, and rank its claims; no other fold."""
    whole, numbers = _dealt(config)
    held = whole.with_claims((c for c in whole.claims if numbers[c.id] == 0), HELD_OUT)
    return _one_fold(config, whole, held, 1)


def _dealt(config: FoldsConfig) -> tuple[Dataset, dict[str, int]]:
    """Load the claims and number each one's fold; begin the folder, or check what is in it."""
    _check_folder(config)
    data = config.data
    whole = load(data.dataset, data.train_split, config.languages, lenient=data.lenient)
    share = config.seen_share
    share = expected_seen_share(whole) if share is None else share
    numbers = assign_folds(whole.claims, config.folds, share, config.fold_seed)
    config.out.mkdir(parents=True, exist_ok=True)
    write_text(config.out / SETTINGS_FILE, to_yaml(config))
    return whole, numbers


def _check_folder(config: FoldsConfig) -> None:
    """Raise `UserError` unless the folder is new, or holds folds of the same settings."""
    require_writable(config.out, "folder")
    settings = config.out / SETTINGS_FILE
    if settings.is_file():
        refuse_changes(settings, config)
    elif config.out.is_dir() and any(config.out.iterdir()):
        raise UserError(f"{config.out}: not empty and holds no folds; choose another --out")


def _one_fold(config: FoldsConfig, whole: Dataset, held: Dataset, number: int) -> tuple[Fold, Run]:
    """Train the model of a fold, unless that is done, and rank the held-out claims by it."""
    recipe = _recipe(config, whole, held, number)
    chosen = read_run(recipe.out).get("chosen")
    if not (isinstance(chosen, str) and resumable(recipe)):
        try:
            finetune(replace(recipe, resume=is_run(recipe.out)))
        except UserError:
            if number == 1 and not is_run(recipe.out):
                _clear(config)
            raise
        chosen = read_run(recipe.out)["chosen"]
    folder = recipe.out / CHECKPOINTS / str(chosen)
    resolved = resolve(config.model.for_checkpoint(folder), config.device)
    trained = load_data(recipe).train
    manifest = Manifest.read(folder)
    ids = {claim.id for claim in held.claims}
    if manifest.data.train_sha256 != trained.fingerprint or any(
        claim.id in ids for claim in trained.claims
    ):
        raise UserError(f"{folder}: was trained on other claims than fold {number} leaves")
    dense = Dense(resolved, store=Store(config.store), progress=True).index(whole.sources)
    golds = trained.golds if resolved.is_trained else frozenset()
    fold = Fold(
        folder.relative_to(config.out).as_posix(),
        trained.fingerprint,
        tuple(claim.id for claim in held.claims),
        tuple(claim.id for claim in held.claims if not golds.isdisjoint(claim.golds)),
    )
    return fold, dense.search(held.claims, config.depth).run


def _clear(config: FoldsConfig) -> None:
    """Remove what was written for folds of which none was begun: a setting or file is wrong."""
    shutil.rmtree(config.out / "data-1")
    for name in ("fold-1.yaml", "mined-1.jsonl", SETTINGS_FILE):
        (config.out / name).unlink(missing_ok=True)
    if not any(config.out.iterdir()):
        config.out.rmdir()


def _recipe(config: FoldsConfig, whole: Dataset, held: Dataset, number: int) -> FinetuneConfig:
    """Write the data of a fold, and return the settings of its training."""
    ids, folder = {claim.id for claim in held.claims}, config.out.resolve()
    rest = whole.with_claims(claim for claim in whole.claims if claim.id not in ids)
    data = folder / f"data-{number}"
    if not (data.is_dir() and _same(data, [rest, held])):
        write_beir([rest, held], data, overwrite=True)
    mined = config.mined
    if mined is not None:
        rows = [row for row in read_mined(mined, whole) if row.claim not in ids]
        mined = folder / f"mined-{number}.jsonl"
        write_mined(rows, mined)
    name = config.wandb.name or config.out.name
    recipe = replace(
        config.recipe(),
        data=replace(config.data, dataset=str(data), report_split=HELD_OUT, lenient=False),
        mined=mined,
        refit=False,
        after=None,
        wandb=replace(config.wandb, name=f"{name}-fold-{number}"),
        out=config.out / f"fold-{number}",
        resume=False,
    )
    write_text(folder / f"fold-{number}.yaml", to_yaml(recipe))
    return recipe


def _same(folder: Path, parts: Sequence[Dataset]) -> bool:
    """Tell whether a folder holds these splits already."""
    try:
        return all(read_beir(folder, part.split).fingerprint == part.fingerprint for part in parts)
    except UserError:
        return False


def _joined(runs: Sequence[Run], data: Dataset) -> Run:
    """Join the folds' runs in the order of the claims."""
    columns = zip(*(row for run in runs for row in run), strict=True)
    return Run.from_rows(*columns, claim_ids=[claim.id for claim in data.claims])
