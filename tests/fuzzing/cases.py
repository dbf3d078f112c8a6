"""Draw cases: a program, spoilt files and a spoilt command line."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from tests.fuzzing.edits import CONTENTS, PLACES, STRUCTURED, TEXTS, Edit
from tests.fuzzing.world import PROGRAMS, Program

WORDS = (
    *TEXTS,
    *("dev", "mrr@5", "mrr@0", "ndcg@99999999999999999999", "bm25-tuned", "epoch-2"),
    *("\udce9", "[" * 3000, "{}", "[a, b]", "%s"),
)
PATHS = (
    *("data", "model", "lora", "lora/checkpoints/epoch-2", "reports", "a.trec", "systems.yaml"),
    *("user", "user/notes.txt", "user/link", "out", "new/deep/out", "nowhere", "", ".", ".."),
    *("/proc/nothing/out", "a.trec/out", "\x1b[31mred", "\u202ename", "\udce9", "x" * 300),
)
WHOLE = ("-1", "0", "1", "7", "100000", "99999999999999999999", "1.5", "x", "", "9" * 5000)
REAL = ("-1", "0", "0.5", "1", "1e9", "1e-320", "1e999", "nan", "x", "")
# More of these is a long training or a download, which is what was asked for.
FEW = {"optimisation.epochs", "data.repeat"}
# Without these a program takes the demo data set or a large model, and needs minutes.
NEEDED = {
    *("--dataset", "--data.dataset", "--model.name", "--optimisation.epochs"),
    *("--files", "--systems", "--claims", "--config"),
}
LEFT_OUT = {"wandb", "wandb.mode", "help", "hub", "revision", "print_config"}


@dataclass(frozen=True)
class Case:
    """One command and how its inputs are spoilt."""

    program: str
    argv: tuple[str, ...]
    edits: tuple[Edit, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Case:
        read = json.loads(text)
        edits = tuple(Edit(**edit) for edit in read["edits"])
        return cls(read["program"], tuple(read["argv"]), edits)

    def prepare(self, world: Path) -> None:
        for edit in self.edits:
            edit.apply(world)


@functools.cache
def keys_of(program: Program) -> dict[str, Any]:
    """Map every key of a program's settings to its type; groups by dots."""
    return dict(_keys(getattr(program.module(), program.config), ""))


def _keys(kind: Any, prefix: str) -> list[tuple[str, Any]]:
    keys: list[tuple[str, Any]] = []
    hints = get_type_hints(kind)
    for spec in dataclasses.fields(kind):
        name, hint = f"{prefix}{spec.name}", hints[spec.name]
        if name in LEFT_OUT:
            continue
        keys.append((name, hint))
        for part in (hint, *get_args(hint)):
            if dataclasses.is_dataclass(part):
                keys += _keys(part, f"{name}.")
    return keys


def values_of(key: str, hint: Any) -> st.SearchStrategy[list[str]]:
    """Draw the words that follow an option: mostly of its type, some of another."""
    usual = _of_type(key, hint)
    unusual = st.lists(st.sampled_from((*WORDS, *PATHS, *WHOLE, *REAL)), max_size=2)
    return st.one_of(usual, usual, usual, unusual)


def _of_type(key: str, hint: Any) -> st.SearchStrategy[list[str]]:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is bool:
        return st.sampled_from([[], ["true"], ["false"], ["no"]])
    if hint is int:
        return _one(("1", "2", "0", "-1", "x") if key in FEW else WHOLE)
    if hint is float:
        return _one(REAL)
    if hint is Path:
        return _one(PATHS)
    if key.rpartition(".")[2] in ("name", "checkpoint", "dataset"):
        return _one((*PATHS, *WORDS))
    if origin is Literal:
        return _one((*map(str, inner), "x"))
    if origin in (Union, types.UnionType):
        return st.one_of(*(_of_type(key, part) for part in inner))
    if origin in (list, tuple):
        return st.lists(_of_type(key, inner[0]), max_size=3).map(lambda lists: sum(lists, []))
    if origin is dict:
        return _one(('{"de": "model"}', '{"": ""}', '{"en": 1}', "{}", "x"))
    if hint is type(None):
        return _one(("null",))
    return _one(WORDS)


def _one(values: Sequence[str]) -> st.SearchStrategy[list[str]]:
    return st.sampled_from(values).map(lambda value: [value])


def _groups(words: Sequence[str]) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            groups.append([word])
        else:
            groups[-1].append(word)
    return [group for group in groups if group]


def _option(group: Sequence[str]) -> str:
    return group[0].split("=")[0] if group else ""


@st.composite
def commands(draw: st.DrawFn, program: Program) -> list[str]:
    groups = _groups(draw(st.sampled_from(program.commands)))
    keys = keys_of(program)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        at = draw(st.integers(0, len(groups) - 1))
        change = draw(st.sampled_from(["set", "set", "set", "drop", "double", "word"]))
        if change == "set":
            key = draw(st.sampled_from(sorted(keys)))
            values = draw(values_of(key, keys[key]))
            group = [f"--{key}", *values]
            if len(values) == 1 and draw(st.booleans()):
                group = [f"--{key}={values[0]}"]
            groups = [g for g in groups if _option(g) != f"--{key}"] + [group]
        elif change == "drop":
            if _option(groups[at]) not in NEEDED:
                del groups[at]
        elif change == "double":
            groups.append(groups[at])
        else:
            groups.append(draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=2)))
        groups = groups or [[]]
    return [word for group in groups for word in group]


def edits(program: Program) -> st.SearchStrategy[Edit]:
    ops = st.one_of(
        st.sampled_from(STRUCTURED),
        st.sampled_from(STRUCTURED),
        st.sampled_from(STRUCTURED),
        st.sampled_from(sorted(CONTENTS)),
        st.sampled_from(sorted(PLACES)),
    )
    return st.builds(
        Edit, st.sampled_from(program.reads), ops, st.integers(0, 2000), st.integers(0, 254)
    )


@st.composite
def cases(draw: st.DrawFn, names: Sequence[str] = ()) -> Case:
    """Draw a case of one of these programs, or of any by its weight."""
    weighted = [name for name, program in PROGRAMS.items() for _ in range(program.weight)]
    name = draw(st.sampled_from(names or weighted))
    program = PROGRAMS[name]
    argv = draw(commands(program))
    return Case(name, tuple(argv), tuple(draw(st.lists(edits(program), max_size=2))))
