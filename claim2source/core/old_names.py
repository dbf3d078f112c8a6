"""Refuse names that are gone, with one line that says what took their place.

The tables hold the names of the last release, for one release.
"""

from __future__ import annotations

from collections.abc import Mapping

from claim2source.core.errors import UserError, shown

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
    "news": "write evaluate --config configs/evaluate/news.yaml --systems configs/news/bm25.yaml",
    "paper-tables": "write report --published --reports DIR",
    "interpolate": "write merge --checkpoints RUN --scales 0 0.25 0.5 0.75 1 --out DIR",
    "soup": "write merge --checkpoints A B --out DIR",
    "checkpoint": "write evaluate --checkpoint RUN --out DIR",
    "baselines": "write evaluate --systems FILE --only NAME --claims FORM --out DIR",
    "hybrid": "write evaluate --checkpoint RUN --systems configs/systems/hybrid.yaml --out DIR",
    "rerank": "write evaluate --systems FILE --only NAME --out DIR; `mix: fit` chooses a mix",
    "verify": "write evaluate --systems FILE --only NAME --vary stages.1.KEY=VALUE --out DIR; "
    "`margin_below: fit` chooses a margin",
    "pipeline": "write evaluate --systems FILE --out DIR, or --checkpoint RUN --stages FILE",
}
# Programs whose keys for the search of vectors went to the systems' YAML.
_SEARCHED = ("eval/abstain.py", "eval/style_grid.py", "train/fusion.py")
_INDEX = "write `index:` beside `model:` in the YAML of a system"
# Programs that carve val as the checkpoint's manifest says.
_CARVED = (
    *("eval/abstain.py", "eval/style_grid.py", "eval/tune_bm25.py"),
    "train/fusion.py",
)
_VAL_KEYS = ("train_split", "val_share", "val_seed", "val_seen_share", "seen_share_expected")
_VAL = "the checkpoint's manifest says it, else the training's defaults hold; leave it out"
# Program as in eval/find.py ("" for any), and key without dashes, or a group with its dot -> what
# to do now.
OLD_KEYS: Mapping[tuple[str, str], str] = {
    ("eval/report.py", "baseline"): "write --against NAME",
    ("eval/index.py", "no_check"): "write --no_read_first",
    (_FINETUNE, "refit"): "leave it out: a run stands for the checkpoint that val chose",
    (_FINETUNE, "optimisation.liger_kernels"): "leave it out: chunk_size: auto saves memory",
    (_FINETUNE, "optimisation.compile"): "leave it out",
    ("", "optimisation.optimizer"): "leave it out: it is AdamW; chunk_size: auto saves memory",
    ("train/fusion.py", "choose_on"): f"leave it out: {_ON_VAL}",
    ("train/fusion.py", "ranker"): "leave it out: a fusion is linear",
    (_RERANKER, "model.prefixes."): f"leave it out: {_LATE}",
    (_RERANKER, "loss.scale"): f"leave it out: {_LATE}",
    ("train/merge.py", "checkpoint"): "write --checkpoints DIR",
    ("train/merge.py", "scale"): "write --scales NUMBER",
    (_FINETUNE, "after."): "write what eval/evaluate.py takes in a YAML file: --after FILE",
    **{(program, "index."): _INDEX for program in _SEARCHED},
    **{(program, key): _VAL for program in _CARVED for key in _VAL_KEYS},
    **{
        (_FINETUNE, f"teacher.{key}"): _AS_THE_FOLDER
        for key in (
            *("revision", "pooling", "normalize", "max_length", "prompts", "dtype"),
            *("bidirectional", "attention", "quantization", "allow_remote_code", "allow_bin"),
            "template.",
        )
    },
}
# Keys of trainings that are gone, with the value that always holds now: a file may still state it,
# such as the config.yaml of an older run.
_BM25 = {"abstracts": True, "language": "en", "stop_words": True, "stemmer": True, "clean": False}
_BM25 |= {"pipeline": "en_core_web_sm"}
_ANY = object()
_AFTER: dict[str, object] = {"report": False, "hybrid": False, "models": None}
_AFTER["styles"] = _ANY  # of stages, which are none
_AFTER |= {key: [] for key in ("baselines", "claims", "files", "stages")}
ALWAYS: Mapping[tuple[str, str], object] = {
    **{(_FINETUNE, f"after.{key}"): value for key, value in _AFTER.items()},
    **{
        (program, f"mining.bm25.{key}"): value
        for program in (_FINETUNE, "train/mine.py")
        for key, value in _BM25.items()
    },
    (_FINETUNE, "refit"): False,
    (_FINETUNE, "optimisation.optimizer"): "adamw",
    (_FINETUNE, "optimisation.liger_kernels"): False,
    (_FINETUNE, "optimisation.compile"): False,
    (_FINETUNE, "optimisation.log_every"): 1,
    (_FINETUNE, "losses.info_nce.false_negative_margin"): None,
    (_FINETUNE, "losses.distillation.kind"): "kl",
    (_FINETUNE, "losses.matryoshka.weight"): 1.0,
    (_FINETUNE, "losses.alignment.texts"): ["titles", "sentences"],
    (_FINETUNE, "losses.alignment.batch_size"): 64,
    (_RERANKER, "optimisation.optimizer"): "adamw",
    (_RERANKER, "loss.scale"): 20.0,
    **{(_RERANKER, f"model.prefixes.{key}"): "" for key in ("claim", "source", "append_token")},
    (_RERANKER, "model.prefixes.pool_prefix"): True,
    (_RERANKER, "optimisation.log_every"): 1,
    (_RERANKER, "first.claims"): None,
    (_RERANKER, "candidates.max_title_similarity"): 0.9,
    (_RERANKER, "candidates.seed"): 13,
    (_RERANKER, "loss.k"): 5,
    (_RERANKER, "loss.temperature"): None,
    (_RERANKER, "collapse"): True,
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
    groups = [key[: at + 1] for at, sign in enumerate(key) if sign == "."]
    for name in (key, *groups):
        for owner in (program, ""):
            if (owner, name) in OLD_KEYS:
                return OLD_KEYS[owner, name]
    if (program, key) in ALWAYS:
        return f"it is always {shown(ALWAYS[program, key])} now; leave it out"
    return None


def always_holds(key: str, value: object, program: str | None = None) -> bool:
    """Tell whether a key is gone, and a file gives it the value that always holds now.

    A mapping's keys must all be so. Without a program, the key of any will do.
    """
    held = [
        held for (owner, known), held in ALWAYS.items() if known == key and program in (None, owner)
    ]
    if isinstance(value, dict) and not held:
        parts = [always_holds(f"{key}.{name}", one, program) for name, one in value.items()]
        return bool(parts) and all(parts)
    return any(one in (_ANY, value) for one in held)


def refuse_old_address(place: str) -> None:
    """Raise `UserError` for an address that is gone; what follows it may hold a password."""
    kind, found, _ = place.partition("://")
    if found and kind in OLD_ADDRESSES:
        raise UserError(f"{kind}://..: is gone; {OLD_ADDRESSES[kind]}")
