"""Make what a student learns from: a teacher's run of training claims, or static embeddings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from claim2source.core.config import require
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.files import atomic_folder, require_writable, write_json
from claim2source.core.records import Dataset
from claim2source.core.terminal import say
from claim2source.core.validate import read_json
from claim2source.datasets import carve_val, load
from claim2source.io.store import Store
from claim2source.models import EncoderSettings, Manifest, Weights, resolve
from claim2source.models.hub import weights_hash
from claim2source.models.manifest import EXPORT_FILE
from claim2source.pipeline.evaluate import write_runs
from claim2source.pipeline.results import RunSettings
from claim2source.pipeline.runner import SystemRunner
from claim2source.pipeline.systems import Systems, expanded
from claim2source.training.distill_config import DistillConfig
from claim2source.training.distributed import launched_world
from claim2source.training.export.weighted_sum import refuse_existing
from claim2source.training.held_out import models_of, require_held_out
from claim2source.training.reranker.first_stage import system_hash

# Beside a run that was written here: whose it is.
RECORD = "teacher.json"
_POOLING = {"mean": "mean", "cls": "first", "last": "last"}


def write_teachers_run(
    config: DistillConfig, systems: Systems, name: str, reported: Dataset
) -> None:
    """Have the system `name` rank the training claims, where `config.scores` has no run yet.

    What it chooses, it chooses for the split that is `reported`. A folder with a run has a record
    of who made it; without one it is the user's own, and is taken as it is. Raises `UserError`
    for the record of another teacher or of other data, for a teacher that was trained on val,
    and in several processes, which would all rank.
    """
    folder = config.scores
    if folder is None:
        return
    file, made = folder / RECORD, folder.exists()
    if made and not file.is_file():
        return
    reranks = config.student == "reranker"
    key = "reranker.loss.scores" if reranks else "losses.distillation.scores"
    recipe = config.reranker_recipe() if reranks else config.recipe()
    data, models = recipe.data, config.reranker.first.models
    systems = expanded(systems)
    train = load(data.dataset, data.train_split, recipe.languages, lenient=data.lenient)
    record: dict[str, str | int] = {
        "teacher": Path(name).name,
        "teacher_sha256": system_hash(name, systems, models),
        "data_sha256": train.fingerprint,
        "depth": config.depth,
    }
    if made:
        _require_same(key, file, record)
    if not config.resume:
        _, val = carve_val(train, data.val_share, data.val_seed, seen_share=recipe.held_out_seen)
        require_held_out("teacher.name", models_of(name, systems, models), val, recipe)
    if made:
        return
    require_one_process(f"{key}: nothing lies at {folder} yet")
    require_writable(folder, "folder")
    settings = RunSettings(
        data.dataset,
        models=models,
        store=Store(config.store),
        device=config.device,
        depth=config.depth,
    )
    found = SystemRunner(systems, reported, settings).run(name, None, train)
    with atomic_folder(folder) as temporary:
        write_runs(found.result.run, train, temporary)
        write_json(temporary / RECORD, record)
    say(f"{folder}: the teacher's run of {len(train.claims)} training claims")


def _require_same(key: str, file: Path, record: Mapping[str, str | int]) -> None:
    """Raise `UserError` where a run was made by another teacher, of other data or to a depth."""
    known = read_json(file)
    if not isinstance(known, dict):
        raise InputError.at(file, why="not a JSON object")
    what = {
        "teacher_sha256": "another teacher",
        "data_sha256": "other training data",
        "depth": "another depth",
    }
    if other := [said for part, said in what.items() if known.get(part) != record[part]]:
        raise UserError(
            f"{key}: {file.parent} has the run of {known.get('teacher')}, made with "
            f"{' and '.join(other)}; name another folder, or remove this one"
        )


def require_one_process(what: str) -> None:
    """Raise `UserError` in one of several processes, which would all write the same files."""
    if launched_world().size > 1:
        raise UserError(f"{what}; that is made in one process: python train/distill.py")


def make_static(config: DistillConfig) -> None:
    """Write static embeddings of the teacher to `config.out`: the vector of each token by itself.

    Of a teacher that was tuned for claims alone it is the claims' side. The folder is read like
    any other model's, here and by model2vec. One that is there is kept with `resume`. Raises
    `UserError`.
    """
    require_one_process("student: static")
    if config.resume and (config.out / EXPORT_FILE).is_file():
        return
    refuse_existing(config.out, EXPORT_FILE, config.overwrite, "static embeddings")
    from claim2source.models.static import MODEL_TYPE

    try:
        from model2vec.distill import distill_from_model
    except ImportError:
        raise UserError("student: static needs pip install 'claim2source[static]'") from None
    assert config.teacher is not None
    teacher = resolve(config.teacher, config.device)
    encoder, static = teacher.encoder, config.static
    if encoder.dense is not None or encoder.model.config.model_type == MODEL_TYPE:
        allowed = "a transformer without a layer behind its pooling"
        raise ConfigError("teacher.name", config.teacher.name, allowed)
    width = encoder.dimensions
    good = static.dimensions is None or static.dimensions <= width
    allowed = f"at most {width}, the teacher's width"
    require(good, "static.dimensions", static.dimensions, allowed)
    model: Any = encoder.model
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    # Its name would be looked up on the hub, and stand in the files.
    model.name_or_path = str(teacher.folder)
    logging.getLogger("skeletoken").setLevel(logging.ERROR)
    tokenizer: Any = encoder.tokenizer
    made = distill_from_model(
        model,
        tokenizer,
        device=str(encoder.device),
        pca_dims="auto" if static.dimensions is None else static.dimensions,
        sif_coefficient=static.sif,
        quantize_to="float32",
        pooling=_POOLING[encoder.settings.pooling],
    )
    made.config["tokenizer_name"] = Path(encoder.name).name
    made.config["max_length"] = static.max_length
    with atomic_folder(config.out) as folder:
        made.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        sha256 = weights_hash(folder)
        settings = EncoderSettings("mean", True, static.max_length)
        rendering = teacher.rendering_for(config.rendering)
        manifest = Manifest(teacher.base, Weights("full", sha256), settings, rendering)
        if (own := teacher.manifest) is not None:
            # Its vectors know the claims that the teacher knows.
            manifest = replace(manifest, epoch=own.epoch, refit=own.refit, data=own.data)
        manifest.write_export(folder, sha256=sha256)
    say(f"{config.out}: static embeddings of {config.teacher.name}, {made.dim} dimensions")
