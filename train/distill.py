"""Distil a teacher into a small student: `python train/distill.py --config FILE [--key value]`.

The student reads claims for the teacher's vectors of sources (`student: claims`), learns the
teacher's scores of candidates (`retriever`, or `reranker`: it reads claim and source together), or
adds up the teacher's vectors of single tokens (`static`). It is trained as by train/finetune.py,
whose keys are this program's too, or as by train/finetune_reranker.py, also under `accelerate
launch`; a stopped run continues with `--resume`. At the end a table sets it beside its
teacher: MRR@5 by language, milliseconds a claim, memory, parameters; `OUT/comparison` has that
table, a report, and a chart of quality against milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from claim2source.core.config import read_config, require
from claim2source.core.errors import run_program
from claim2source.core.folders import require_output
from claim2source.core.tables import render
from claim2source.core.terminal import say
from claim2source.datasets import load
from claim2source.io.store import Store
from claim2source.models import ModelConfig, checkpoint_folder
from claim2source.models.manifest import FILE
from claim2source.pipeline.evaluate import require_golds
from claim2source.pipeline.results import RunSettings
from claim2source.pipeline.students import STUDENT, TEACHER, compare_with_teacher
from claim2source.pipeline.systems import SYSTEMS_FOLDER, SystemConfig, Systems, read_systems
from claim2source.training.distill_config import DistillConfig

COMPARISON = "comparison"
COMMON = {
    "teacher": "--teacher.name: a trained run, a checkpoint or a model",
    "student": "claims, retriever, reranker or static",
    "model.name": "the student before training: a folder, a packaged model or a name on the hub",
    "data.dataset": "a folder in BEIR layout, or its name in CLAIM2SOURCE_DATA",
    "out": "folder of the student",
    "beside": "further systems of the table, by name",
    "measured": "claims that are timed one by one",
    "resume": "continue a stopped run; --overwrite begins again",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Train the student, set it beside its teacher, print the table."""
    config = read_config(
        DistillConfig, argv, program="train/distill.py", description=__doc__ or "", common=COMMON
    )
    told = distill(config)
    if told:
        say(told)


def distill(config: DistillConfig) -> str:
    """Train the student and compare it; return the table (empty in later processes).

    Raises `UserError` for anything the user can correct.
    """
    require_output(config.out / COMPARISON)
    data = config.data
    reported = load(data.dataset, data.report_split, config.languages, lenient=data.lenient)
    require_golds(reported, data.dataset)
    systems, names = systems_of(config)
    # torch and all that needs it are imported once the arguments are good.
    from claim2source.training.distill import make_static, write_teachers_run
    from claim2source.training.finetune import finetune
    from claim2source.training.reranker.run import finetune_reranker

    if config.student == "static":
        make_static(config)
    else:
        if config.student != "claims":
            write_teachers_run(config, systems, names[TEACHER], reported)
        reranks = config.student == "reranker"
        trained = (
            finetune_reranker(config.reranker_recipe()) if reranks else finetune(config.recipe())
        )
        if trained is None:
            return ""
    settings = RunSettings(
        data.dataset,
        models=config.reranker.first.models,
        store=Store(config.store),
        device=config.device,
        depth=config.depth,
    )
    parts = compare_with_teacher(
        names,
        systems,
        reported,
        settings,
        config.out / COMPARISON,
        name=data.dataset,
        measured=config.measured,
        repeats=config.repeats,
        program="train/distill.py",
    )
    return render(parts)


def systems_of(config: DistillConfig) -> tuple[Systems, dict[str, str]]:
    """Name the systems of the table: those of the files, and a dense one for each other name."""
    known = read_systems(config.files or sorted(SYSTEMS_FOLDER.glob("*.yaml")))
    teacher = config.teacher or ModelConfig()
    systems = dict(known)
    wanted = {
        TEACHER: teacher,
        **{name: ModelConfig(name=to) for name, to in config.beside.items()},
    }
    if config.student == "reranker":
        # What others call by a name stays what it is.
        systems = {**reranking_systems(config), **known}
    else:
        wanted[STUDENT] = config.model.for_checkpoint(config.out)
    names = {TEACHER: teacher.name, STUDENT: str(config.out)}
    for name, model in wanted.items():
        names[name] = model.name
        if name != STUDENT and model.name not in known and not Path(model.name).exists():
            key = "teacher.name" if name == TEACHER else "beside"
            good = "/" in model.name
            allowed = "a system of `files`, a folder, or a model's name with its owner's"
            require(good, key, model.name, allowed)
        if name == STUDENT or model.name not in known:
            own = name == STUDENT or (checkpoint_folder(model.name) / FILE).is_file()
            systems[model.name] = SystemConfig(
                model=model, rendering=None if own else config.rendering
            )
    return systems, names


def reranking_systems(config: DistillConfig) -> Systems:
    """Describe a first stage and the student that re-ranks it, a system named as its folder."""
    from claim2source.training.reranker.first_stage import FirstStage
    from claim2source.training.reranker.report import stage_entry

    recipe = config.reranker_recipe()
    return FirstStage(recipe).with_stage(stage_entry(recipe), str(config.out))


if __name__ == "__main__":
    run_program(main)
