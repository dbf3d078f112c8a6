"""Refuse names that are gone, with one line that says what took their place.

The tables hold the names of the last release, for one release.
"""

from __future__ import annotations

from collections.abc import Mapping

from claim2source.core.errors import UserError

_COPY = "an index is a folder, and a copy of the folder is a copy of it: cp -r INDEX COPY"
_TEACHER = "a student learns by losses.distillation.scores, or by teacher.name"
_ON_VAL = "a fusion is chosen on val of a tuned model, and on all of train of an untrained one"
_AS_THE_FOLDER = "leave it out: a teacher is read as its folder says"
_LATE = "a max_sim stage takes any encoder as it is"
_FINETUNE, _RERANKER = "train/finetune.py", "train/finetune_reranker.py"
# Subcommand -> what to do now.
OLD_PROGRAMS: Mapping[str, str] = {
    "snapshot": _COPY,
    "restore": _COPY,
    "migrate": _COPY,
    "distill": f"{_TEACHER}, in `claim2source finetune`",
    "folds": _ON_VAL,
    "compare": "write report --reports DIR --out DIR",
    "paper-tables": "write report --published --reports DIR",
    "interpolate": "write merge --checkpoints RUN --scales 0 0.25 0.5 0.75 1 --out DIR",
    "soup": "write merge --checkpoints A B --out DIR",
}
# Program as in eval/find.py ("" for any), and key without dashes -> what to do now.
OLD_KEYS: dict[tuple[str, str], str] = {
    ("eval/index.py", "no_check"): "write --no_read_first",
    (_FINETUNE, "refit"): "leave it out: a run stands for the checkpoint that val chose",
    (_FINETUNE, "optimisation.liger_kernels"): "leave it out: chunk_size: auto saves memory",
    (_FINETUNE, "optimisation.compile"): "leave it out",
    ("", "optimisation.optimizer"): "leave it out: it is AdamW; chunk_size: auto saves memory",
    ("eval/hybrid.py", "choose_on"): f"leave it out: {_ON_VAL}",
    ("train/fusion.py", "choose_on"): f"leave it out: {_ON_VAL}",
    ("train/fusion.py", "ranker"): "leave it out: a fusion is linear",
    (_RERANKER, "model.prefixes"): f"leave it out: {_LATE}",
    (_RERANKER, "loss.scale"): f"leave it out: {_LATE}",
    ("train/merge.py", "checkpoint"): "write --checkpoints DIR",
    ("train/merge.py", "scale"): "write --scales NUMBER",
}
OLD_KEYS |= {
    (_FINETUNE, f"teacher.{key}"): _AS_THE_FOLDER
    for key in (
        *("revision", "pooling", "normalize", "max_length", "prompts", "dtype", "bidirectional"),
        *("attention", "quantization", "allow_remote_code", "allow_bin", "template"),
        *(f"template.{part}" for part in ("claim", "source", "pool_prefix", "append_token")),
    )
}
_QDRANT = "an index is a folder now: index the papers again with --out DIR"
# How an address begins -> what to do now.
OLD_ADDRESSES: Mapping[str, str] = {"qdrant": _QDRANT, "qdrants": _QDRANT}


def refuse_old_program(name: str) -> None:
    """Raise `UserError` for a subcommand that is gone."""
    now = OLD_PROGRAMS.get(name.replace("_", "-"))
    if now is not None:
        raise UserError(f"{name}: is gone; {now}")


def successor(program: str, key: str) -> str | None:
    """Say what to do in place of a program's key that is gone; None where it is not."""
    return OLD_KEYS.get((program, key), OLD_KEYS.get(("", key)))


def refuse_old_address(place: str) -> None:
    """Raise `UserError` for an address that is gone; what follows it may hold a password."""
    kind, found, _ = place.partition("://")
    if found and kind in OLD_ADDRESSES:
        raise UserError(f"{kind}://..: is gone; {OLD_ADDRESSES[kind]}")
