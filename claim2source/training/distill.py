"""Make what a student learns from: a teacher's run of training claims, or static embeddings."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from claim2source.core.config import require
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.files import atomic_folder, require_writable
from claim2source.core.terminal import say
from claim2source.datasets import load
from claim2source.io.store import Store
from claim2source.models import EncoderSettings, Manifest, Weights, resolve
from claim2source.models.hub import weights_hash
from claim2source.models.manifest import EXPORT_FILE
from claim2source.pipeline.evaluate import write_runs
from claim2source.pipeline.results import RunSettings
from claim2source.pipeline.runner import SystemRunner
from claim2source.pipeline.systems import Systems
from claim2source.training.distill_config import DistillConfig
from claim2source.training.distributed import launched_world
from claim2source.training.export.scaling import refuse_existing

_POOLING = {"mean": "mean", "cls": "first", "last": "last"}


def write_teachers_run(config: DistillConfig, systems: Systems, name: str) -> None:
    """Have the system `name` rank the training claims, where `config.scores` has no run yet.

    Raises `UserError` in several processes, which would all rank.
    """
    folder = config.scores
    if folder is None or folder.exists():
        return
    reranks = config.student == "reranker"
    key = "reranker.loss.scores" if reranks else "losses.distillation.scores"
    require_one_process(f"{key}: nothing lies at {folder} yet")
    require_writable(folder, "folder")
    train = load(
        config.data.dataset, config.data.train_split, config.languages, lenient=config.data.lenient
    )
    settings = RunSettings(
        config.data.dataset, store=Store(config.store), device=config.device, depth=config.depth
    )
    found = SystemRunner(systems, train, settings).run(name)
    with atomic_folder(folder) as temporary:
        write_runs(found.result.run, train, temporary)
    say(f"{folder}: the teacher's run of {len(train.claims)} training claims")


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
        manifest.write_export(folder, sha256=sha256)
    say(f"{config.out}: static embeddings of {config.teacher.name}, {made.dim} dimensions")
