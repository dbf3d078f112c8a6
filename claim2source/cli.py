"""Start every program with one command: `claim2source SUBCOMMAND ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from claim2source import __version__
from claim2source.core.errors import UserError, did_you_mean, run_program

# What one wants -> subcommand -> (module, what it does).
GROUPS = {
    "find": {
        "index": ("eval.index", "make an index of papers that find searches, or let it grow"),
        "find": ("eval.find", "find the papers that a post may mean, or none, in an index"),
        "serve": ("eval.serve", "serve an index: a page, an API, a tool for agents"),
        "abstain": (
            "eval.abstain",
            "measure how well an index's probabilities that a paper is there are calibrated",
        ),
    },
    "train": {
        "finetune": (
            "train.finetune",
            "fine-tune a retriever: mine, train, choose on val, report",
        ),
        "finetune-reranker": (
            "train.finetune_reranker",
            "fine-tune a re-ranker on a first stage's candidates",
        ),
        "fusion": ("train.fusion", "fit a learned fusion of several similarities over a system"),
        "merge": (
            "train.merge",
            "export a weighted sum of checkpoints for sentence-transformers",
        ),
        "mine": ("train.mine", "mine hard negatives without training"),
    },
    "evaluate": {
        "evaluate": (
            "eval.evaluate",
            "evaluate systems, checkpoints and stages: every one is a row of one report",
        ),
        "report": (
            "eval.report",
            "compare evaluated systems: as text, as a page, next to the papers'",
        ),
        "score": ("eval.score", "score files of ranked lists against judgements"),
        "style-grid": (
            "eval.style_grid",
            "evaluate systems over styles of claims and sources",
        ),
        "rumors": ("eval.rumors", "find authorities' evidence for rumours and give verdicts"),
    },
    "prepare": {
        "prepare": ("data.prepare", "turn a task's own files into a data set"),
        "translate": ("eval.translate", "translate claims, and sources, to English"),
        "rewrite": ("eval.rewrite", "rewrite claims and sources in the papers' styles"),
        "encode": ("eval.encode", "encode a data set into the store, ahead of evaluation"),
    },
}
FLAGS = ("--version", "--help")
PROGRAMS = {name: program for group in GROUPS.values() for name, program in group.items()}
HELP = """usage: {command} SUBCOMMAND [--key value ...]

Find the paper that a post means: train, mine, retrieve, evaluate.

{programs}

  {command} SUBCOMMAND --help    explains the keys of one
  accelerate launch -m claim2source.train    is `finetune` in several processes
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the subcommand with the words after it."""
    name, *words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(_help(), end="")
        return
    if name == "--version":
        print(__version__)
        return
    command = name.replace("_", "-")
    if command not in PROGRAMS:
        near = did_you_mean(command, [*PROGRAMS, *FLAGS])
        raise UserError(f"{name}: no such subcommand; {near}there are: {', '.join(PROGRAMS)}")
    import_module(f"claim2source.{PROGRAMS[command][0]}").main(words)


def _help() -> str:
    width = max(map(len, PROGRAMS))
    groups = (
        "\n".join(
            [f"{group}:", *(f"  {name:<{width}}  {text}" for name, (_, text) in programs.items())]
        )
        for group, programs in GROUPS.items()
    )
    by_module = sys.argv[0].endswith("__main__.py")
    command = "python -m claim2source" if by_module else "claim2source"
    return HELP.format(command=command, programs="\n\n".join(groups))


def run() -> None:
    """Run as a program: with its exit codes, and errors of one line."""
    run_program(main)
