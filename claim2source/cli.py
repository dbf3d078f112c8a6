"""Start every program with one command: `claim2source SUBCOMMAND ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from claim2source import __version__
from claim2source.core.errors import UserError, did_you_mean, run_program

# Group -> subcommand -> (module, description).
GROUPS = {
    "find": {
        "index": ("eval.index", "index papers for find and serve, or update an index"),
        "find": ("eval.find", "find the papers in an index that a post refers to, if any"),
        "serve": ("eval.serve", "serve an index: web page, API, tool for agents"),
        "abstain": (
            "eval.abstain",
            "measure the calibration of find's probability that the paper is in the index",
        ),
    },
    "train": {
        "finetune": (
            "train.finetune",
            "fine-tune a retriever: mine, train, choose on val, report",
        ),
        "finetune-reranker": (
            "train.finetune_reranker",
            "fine-tune a re-ranker on the candidates of a first stage",
        ),
        "fusion": ("train.fusion", "fit a learned fusion of several similarities to a system"),
        "merge": (
            "train.merge",
            "export a weighted sum of checkpoints for sentence-transformers",
        ),
        "mine": ("train.mine", "mine hard negatives without training"),
    },
    "evaluate": {
        "evaluate": (
            "eval.evaluate",
            "evaluate systems, checkpoints and stages in one report",
        ),
        "report": (
            "eval.report",
            "compare evaluated systems as text or HTML, with published scores",
        ),
        "score": ("eval.score", "score run files against qrels"),
        "style-grid": (
            "eval.style_grid",
            "evaluate systems over styles of claims and sources",
        ),
        "rumors": ("eval.rumors", "retrieve authorities' evidence for rumours, and verify them"),
    },
    "prepare": {
        "prepare": ("data.prepare", "convert a task's files to a data set"),
        "translate": ("eval.translate", "translate claims and sources to English"),
        "rewrite": ("eval.rewrite", "rewrite claims and sources in the papers' styles"),
        "encode": ("eval.encode", "encode a data set into the store before an evaluation"),
    },
}
FLAGS = ("--version", "--help")
PROGRAMS = {name: program for group in GROUPS.values() for name, program in group.items()}
HELP = """usage: {command} SUBCOMMAND [--key value ...]

Find the scientific paper that a post refers to: train, mine, retrieve, evaluate.

{programs}

  {command} SUBCOMMAND --help    explains its options
  accelerate launch -m claim2source.train    runs `finetune` in several processes
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the subcommand with the arguments after it."""
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
    """Run as a program, with exit codes and one-line errors."""
    run_program(main)
