"""Collect the sentences of all programs in one file: `python scripts/sentences.py [--out FILE]`.

The file has every text with two words of two letters or more in the code of the library and the
programs: messages, log lines, reasons, headings, and the help texts. It has them by module, in the
order of the code; what the code fills in is in braces. Run the script after a change of words, and
read the difference that git shows.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import Settings, read_config
from claim2source.core.errors import run_program
from claim2source.core.files import write_text
from claim2source.core.folders import require_output_file
from claim2source.core.terminal import say

PROGRAM = "scripts/sentences.py"
REPOSITORY = Path(__file__).resolve().parents[1]
GOLDEN = REPOSITORY / "tests" / "sentences.txt"
FOLDERS = ("claim2source", "train", "eval", "scripts")
TITLE = "# Sentences of all programs"
HEAD = f"""{TITLE}

Made by `python {PROGRAM}`; not to be edited.
"""
_TWO_WORDS = re.compile(r"[^\W\d_]{2,}.*\s.*[^\W\d_]{2,}", re.DOTALL)


@dataclass(frozen=True)
class SentencesConfig(Settings):
    """Settings of `scripts/sentences.py`.

    Args:
        out: file to write.
    """

    out: Path = GOLDEN


def main(argv: Sequence[str] | None = None) -> None:
    """Write the file of sentences."""
    config = read_config(SentencesConfig, argv, program=PROGRAM, description=__doc__ or "")
    require_output_file(config.out, TITLE)
    text = collect(REPOSITORY)
    write_text(config.out, text)
    say(f"sentences in {config.out}")


def collect(root: Path) -> str:
    """Return the text of the file: the sentences of each module below its path."""
    parts = [HEAD]
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            lines = [f"- {one_line(text)}" for text in sentences(path.read_text("utf-8"))]
            if lines:
                name = path.relative_to(root).as_posix()
                parts.append("\n".join([f"## {name}", "", *lines, ""]))
    return "\n".join(parts)


def sentences(code: str) -> Iterator[str]:
    """List the texts of a module that have two words, and its help texts, in their order."""
    module = ast.parse(code)
    finder = _Finder()
    finder.visit(module)
    for text in finder.texts:
        if _TWO_WORDS.search(text):
            yield text


class _Finder(ast.NodeVisitor):
    """Collect string literals, with f-strings in one piece, but docstrings only of settings."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def visit_Module(self, node: ast.Module) -> None:
        # A program's docstring is the description in its help.
        self._visit_body(node, "main" in {getattr(child, "name", "") for child in node.body})

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        is_settings = "Args:\n" in (ast.get_docstring(node) or "")
        self._visit_body(node, is_settings)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_body(node, False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_body(node, False)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pieces: list[str] = []
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                filled = ast.unparse(value.value)
                pieces.append(f"{{{filled}}}")
            elif isinstance(value, ast.Constant):
                pieces.append(str(value.value))
        self.texts.append("".join(pieces))

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.texts.append(node.value)

    def _visit_body(
        self,
        node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
        is_help: bool,
    ) -> None:
        docstring = ast.get_docstring(node)
        if docstring is not None:
            if is_help:
                self.texts.append(docstring)
            del node.body[0]
        self.generic_visit(node)


def one_line(text: str) -> str:
    """Write a text in one line: white space is one space, as in a message."""
    return " ".join(text.split())


if __name__ == "__main__":
    run_program(main)
