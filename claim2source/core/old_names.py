"""Refuse names that are gone, with one line that names the replacement.

The tables hold the names of the last release, for one release.
"""

from __future__ import annotations

from collections.abc import Mapping

from claim2source.core.errors import UserError, shown

_COPY = "an index is a folder, and a copy of the folder is a copy of it: cp -r INDEX COPY"
_TEACHER = "a student learns by losses.distillation.scores, or by teacher.name"
_RUMORS = "a file of systems says it: scripts/upgrade_systems.py FILE prints it; --systems FILE"
_ON_VAL = "a fusion is chosen on val of a tuned model, and on all of train of an untrained one"
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
    "pairs": "it helped nothing; docs/log.md has the figures",
    "store": "delete the store's folder: what it held is computed again",
    "soup": "write merge --checkpoints A B --out DIR",
    "checkpoint": "write evaluate --checkpoint RUN --out DIR",
    "baselines": "write evaluate --systems FILE --only NAME --claims FORM --out DIR",
    "hybrid": "write evaluate --checkpoint RUN --systems configs/systems/hybrid.yaml --out DIR",
    "rerank": "write evaluate --systems FILE --only NAME --out DIR; `mix: fit` chooses a mix",
    "verify": "write evaluate --systems FILE --only NAME --vary stages.1.KEY=VALUE --out DIR; "
    "`margin_below: fit` chooses a margin",
    "pipeline": "write evaluate --systems FILE --out DIR, or --checkpoint RUN --stages FILE",
    "tune-bm25": "write {bm25: {k1: fit}} in a file of systems, evaluate --systems FILE --out DIR",
}
_VAL = "the checkpoint's manifest says it, else the training's defaults hold; leave it out"
_GRID = "eval/style_grid.py"
_TEXTS = "write the texts first, by claim2source rewrite; then --styles.texts DIR"
_REPLACED = "leave it out: a rewriting replaces its text; --rewrites FILE appends texts"
# How the program's file begins, and key without dashes, or a group with its dot -> what to do now.
# A program that has the key is not asked.
OLD_KEYS: Mapping[tuple[str, str], str] = {
    ("eval/report.py", "baseline"): "write --against NAME",
    ("eval/index.py", "no_check"): "write --no_read_first",
    ("eval/rumors.py", "against"): "name the systems together: --only A B",
    **{
        ("eval/rumors.py", key): _RUMORS
        for key in (
            *("bm25.", "index", "depth", "keep", "rerank.", "stance.", "verdict.", "llm."),
            *("choose", "grid.", "simulated"),
        )
    },
    ("eval/", "index."): "write `index:` beside `model:` in the YAML of a system",
    ("eval/", "train_split"): _VAL,
    ("eval/", "val_share"): _VAL,
    ("eval/", "val_seed"): _VAL,
    ("eval/", "val_seen_share"): _VAL,
    ("eval/", "seen_share_expected"): _VAL,
    (_GRID, "files"): "write --systems FILE, and --only NAME for some of its systems",
    **{(_GRID, k): f"write --styles.{k}" for k in ("texts", "claim_styles", "source_styles")},
    (_GRID, "keep_title"): "write --styles.keep_title",
    **{(_GRID, key): _TEXTS for key in ("llm.", "versions", "prompts", "answers", "dry_run")},
    **{(_GRID, key): _REPLACED for key in ("combine", "fusion.")},
    (_GRID, "rewritten"): "leave it out: it is the text that --claims reads",
    ("", "vectors"): "leave it out: the store holds float32, and what is deleted is made again",
    ("", "choose_on"): f"leave it out: {_ON_VAL}",
    ("train/fusion.py", "ranker"): "leave it out: a fusion is linear",
    (
        "train/finetune.py",
        "after.",
    ): "write keys of eval/evaluate.py in a YAML file: --after FILE",
    ("train/finetune.py", "scales"): "write merge --checkpoints RUN --scales 0 0.5 1 --out DIR",
    ("train/finetune.py", "soup"): "write merge --checkpoints RUN/checkpoints/epoch-1 ..",
    ("train/finetune.py", "refit"): "leave it out: a run stands for the checkpoint val chose",
    ("train/finetune.py", "teacher."): "leave it out: a teacher is read as its folder says",
    ("train/", "optimisation.liger_kernels"): "leave it out: chunk_tokens: auto saves memory",
    ("train/", "optimisation.compile"): "leave it out",
    ("train/", "optimisation.optimizer"): "leave it out: it is AdamW",
    ("train/", "model.prefixes."): "leave it out: a max_sim stage takes any encoder as it is",
}
# Keys that are gone, with the value that always holds now: a file may still state it, such as the
# config.yaml of an older run.
ALWAYS: Mapping[str, object] = {
    **{f"after.{key}": [] for key in ("baselines", "claims", "files", "stages")},
    **{"after.report": False, "after.hybrid": False, "after.models": None},
    **{"mining.bm25.abstracts": True, "mining.bm25.language": "en", "mining.bm25.clean": False},
    **{"mining.bm25.stop_words": True, "mining.bm25.stemmer": True},
    "mining.bm25.pipeline": "en_core_web_sm",
    "mining.max_gold_similarity": None,
    **{"refit": False, "scales": None, "soup": False},
    **{"optimisation.optimizer": "adamw", "optimisation.liger_kernels": False},
    **{"optimisation.compile": False, "optimisation.log_every": 1},
    **{"losses.info_nce.false_negative_margin": None, "losses.info_nce.both_ways": False},
    "losses.distillation.kind": "kl",
    "losses.keep_base.temperature": None,
    "losses.matryoshka.weight": 1.0,
    **{"losses.alignment.texts": ["titles", "sentences"], "losses.alignment.batch_size": 64},
    **{f"model.prefixes.{key}": "" for key in ("claim", "source", "append_token")},
    "model.prefixes.pool_prefix": True,
    **{"loss.scale": 20.0, "loss.k": 5, "loss.temperature": None},
    **{"first.claims": None, "collapse": True},
    **{"candidates.max_title_similarity": 0.9, "candidates.seed": 13},
}
_FREE = "after.styles"  # of stages, which are none


def refuse_old_program(name: str) -> None:
    """Raise `UserError` for a subcommand that is gone."""
    now = OLD_PROGRAMS.get(name.replace("_", "-"))
    if now is not None:
        raise UserError(f"{name}: is gone; {now}")


def successor(program: str, key: str) -> str | None:
    """Look up the replacement of a key that is gone; None for one that never was."""
    for (owner, name), now in OLD_KEYS.items():
        if program.startswith(owner) and (key == name or name[-1] == "." and key.startswith(name)):
            return now
    if key in ALWAYS:
        return f"it is always {shown(ALWAYS[key])} now; leave it out"
    return None


def always_holds(key: str, value: object) -> bool:
    """Tell whether a key is gone, and a file gives it, or all keys in it, the value that holds."""
    if isinstance(value, dict) and key != _FREE:
        parts = [always_holds(f"{key}.{name}", part) for name, part in value.items()]
        return bool(parts) and all(parts)
    return key == _FREE or key in ALWAYS and ALWAYS[key] == value


def refuse_old_address(place: str) -> None:
    """Raise `UserError` for an address of Qdrant's, without its password."""
    kind, found, _ = place.partition("://")
    if found and kind in ("qdrant", "qdrants"):
        raise UserError(
            f"{kind}://..: is gone; an index is a folder now: index the papers again with --out DIR"
        )
