"""Print a YAML file of systems of 0.2 in today's grammar: `upgrade_systems.py FILE > NEW`.

Comments stay beside their lines. For one release.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

BESIDE = ("sources", "rendering", "passages", "index")
FIRST = ("bm25", "model", "hybrid", "run", "routes", "tune", *BESIDE)
RUMORS = {"rerank", "stance", "verdict", "choose"}
Block = tuple[str, Any, list[str]]  # key, value, lines


def main() -> int:
    """Print the file named on the command line; return the exit code."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        text = Path(sys.argv[1]).read_text("utf-8")
        upgraded = upgrade(text)
    except (OSError, yaml.YAMLError, ValueError) as error:
        print(f"{sys.argv[1]}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except (LookupError, AttributeError, TypeError, StopIteration):
        print(f"{sys.argv[1]}: holds what is no system of 0.2", file=sys.stderr)
        return 2
    print(upgraded, end="")
    return 0


def upgrade(text: str) -> str:
    """Rewrite the systems of a file's text."""
    lines, root, values = text.splitlines(), yaml.compose(text), yaml.safe_load(text)
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("holds no systems")
    named = list(root.value)
    if isinstance(values.get("name"), str) or RUMORS & {*values}:
        head = lines[: named[0][0].start_mark.line]
        return "\n".join([*head, *_rumors(values)]) + "\n"
    if isinstance(values.get("stages"), list):
        head, blocks = _blocks(root, values, lines, 0, len(lines))
        return "\n".join([*head, *_system(blocks, "")]) + "\n"
    found = lines[: named[0][0].start_mark.line]
    starts = [key.start_mark.line for key, _ in named] + [len(lines)]
    for place, (key, node) in enumerate(named):
        start, end, value = starts[place], starts[place + 1], values[key.value]
        if not isinstance(node, yaml.MappingNode) or start == end:
            raise ValueError(f"line {start + 1}: {key.value} must have its keys below it")
        if not node.flow_style:
            indent = " " * node.start_mark.column
            head, blocks = _blocks(node, value, lines, start + 1, end)
            found += [lines[start], *head, *_system(blocks, indent)]
            continue
        blocks = [(name, one, [f"  {name}: {_flow(one)}"]) for name, one in value.items()]
        found += [f"{_flow(key.value)}:", *_system(blocks, "  ")]
        found += [line for line in map(_comment_of, lines[start:end]) if line is not None]
    return "\n".join(found) + "\n"


def _rumors(values: Mapping[str, Any]) -> list[str]:
    """Write a system of `eval/rumors.py`; of its comments only those at the top are left."""
    if values.get("index", "own") != "own":
        raise ValueError("index: shared is gone: write {bm25: ..} for one index of all timelines")
    fielded, verdict = dict(values.get("bm25") or {}), dict(values.get("verdict") or {})
    choose, llm = values.get("choose") or [], values.get("llm")
    grid = values.get("grid") or {}
    if "bm25" in choose:
        lists = {key: grid[key] for key in ("k1", "b", "boost", "shortest") if key in grid}
        fielded |= {} if "k1" in lists else {"k1": "fit"}
        fielded |= {
            k: [*dict.fromkeys([fielded[k], *v] if k in fielded else v)] for k, v in lists.items()
        }
    stages: list[dict[str, Any]] = []
    rerank, stance = dict(values.get("rerank") or {}), dict(values.get("stance") or {})
    if (by := rerank.pop("by", "none")) != "none":
        stage = {"rerank": "relevance" if by == "llm" else by, "depth": values.get("depth", 10)}
        texts = {} if by == "llm" else {"claims": "original", "sources": "title_abstract"}
        stages.append({**stage, **texts, **rerank, **({"llm": llm} if by == "llm" and llm else {})})
    if (by := stance.pop("by", "none")) != "none":
        kept = {"depth": values["keep"]} if "keep" in values else {}
        verdict |= {"threshold": "fit"} if "threshold" in choose else {}
        own = {"llm": llm} if by == "llm" and llm else {}
        stages.append({"verify": "stance", "by": by, **stance, **kept, **verdict, **own})
    found = [f"{_flow(values.get('name', 'BM25'))}:", f"  retrieve: {_flow({'fielded': fielded})}"]
    return [*found, *(["  stages:"] if stages else []), *(f"    - {_flow(one)}" for one in stages)]


def _blocks(
    node: yaml.MappingNode, values: Mapping[str, Any], lines: list[str], start: int, end: int
) -> tuple[list[str], list[Block]]:
    """Cut a mapping's lines by key; comments before the first key are returned apart."""
    starts = [key.start_mark.line for key, _ in node.value]
    found = []
    for place, (key, value) in enumerate(node.value):
        stop = starts[place + 1] if place + 1 < len(starts) else end
        mine = lines[starts[place] : stop]
        if key.value == "stages" and value.flow_style:
            mine = [f"{' ' * key.start_mark.column}stages:"]
            mine += [f"{mine[0][:-7]}  - {_flow(one)}" for one in values["stages"]]
            mine += [c for c in map(_comment_of, lines[starts[place] : stop]) if c is not None]
        found.append((key.value, values[key.value], mine))
    return lines[start : starts[0]] if starts else [], found


def _system(blocks: list[Block], indent: str) -> list[str]:
    """Write a system's blocks: its first stage under `retrieve`, the rest as it is."""
    given = {key: value for key, value, _ in blocks}
    if "retrieve" in given:  # as it is to be
        return [line for _, _, lines in blocks for line in lines]
    stages = given.get("stages") or []
    own = stages[0] if stages and "retrieve" in stages[0] else None
    found: list[str] = []
    written = False
    for key, _, lines in blocks:
        if key in FIRST or (key == "stages" and own is not None):
            made = [] if written else _first(given, own, blocks, indent)
            written = True
            rest = _without_first(lines) if key == "stages" else []
            # Comments that the lines which were written anew do not have.
            known = "\n".join((*found, *made, *rest))
            comments = [one for one in map(_comment_of, lines) if one is not None]
            made += [one for one in comments if not one.strip() or one.strip() not in known]
            found += [*made, *rest]
        elif key != "depth" or own is None or not own.get("depth"):
            found += lines
    return found


def _first(
    given: Mapping[str, Any], own: Mapping[str, Any] | None, blocks: list[Block], indent: str
) -> list[str]:
    of = {key: lines for key, _, lines in blocks}
    if own is not None:
        if "rendering" in given:
            own = {"rendering": given["rendering"], **own}
        found = [f"{indent}retrieve: {_flow(_of_stage(own))}"]
        found += [f"{indent}depth: {own['depth']}"] if own.get("depth") else []
        routes = {lang: _route(own, one) for lang, one in (given.get("routes") or {}).items()}
        return found + ([f"{indent}routes: {_flow(routes)}"] if routes else [])
    tuned = bool(given.get("tune"))
    if given.get("routes") is not None:
        routes, comment = dict(given["routes"]), _comment(of["routes"])
        default = routes.pop("default", None)
        if default is None:
            raise ValueError("routes without `default`: name the system of the other languages")
        found = [f"{indent}retrieve: {_flow(default)}{'' if routes else comment}"]
        return found + ([f"{indent}routes: {_flow(routes)}{comment}"] if routes else [])
    if (hybrid := given.get("hybrid")) is not None:
        node: dict[str, Any] = {"hybrid": [hybrid["sparse"], hybrid["dense"]]}
        node |= {"alpha": "fit"} if tuned else hybrid.get("fusion") or {}
        return [f"{indent}retrieve: {_flow(node)}{_comment(of['hybrid'])}"]
    kind = next(key for key in ("bm25", "model", "run") if key in given)
    name = "dense" if kind == "model" else kind
    beside = [key for key in BESIDE if key in given] if kind == "model" else []
    lines = [_renamed(of[kind][0], kind, name), *of[kind][1:]]
    if tuned:
        lines = _with_fit(lines, given[kind], indent)
    short = len(lines) == 1 and not beside and "{" in lines[0]
    if kind == "model" and set(given["model"]) == {"name"}:
        lines = [f"{indent}dense: {_flow(given['model']['name'])}{_comment(of[kind])}"]
        short = not beside
    if short:
        text, hash_, comment = lines[0].strip().partition(" #")
        return [f"{indent}retrieve: {{{text.rstrip()}}}{hash_ and ' #'}{comment}"]
    for name in beside:
        lines += of[name]
    body = [line for line in lines if not _is_comment(line) or line.startswith(f"{indent}  ")]
    return [f"{indent}retrieve:", *(f"  {line}" for line in body)]


def _with_fit(lines: list[str], value: Mapping[str, Any] | None, indent: str) -> list[str]:
    """Have BM25's k1, b and title weight chosen."""
    if "{" in lines[0]:
        return [f"{indent}bm25: {_flow({**(value or {}), 'k1': 'fit'})}{_comment(lines)}"]
    rest = [line for line in lines[1:] if not re.match(r"\s*k1:", line)]
    return [lines[0], *rest, f"{indent}  k1: fit"]


def _of_stage(own: Mapping[str, Any]) -> Any:
    """Turn a stage `{retrieve: NAME, ..}` into a node."""
    name = own["retrieve"]
    checkpoint = own.get("model") or own.get("checkpoint") or "checkpoint"
    dense: dict[str, Any] = {"dense": checkpoint}
    dense |= {key: own[key] for key in BESIDE if key in own}
    if name == "dense":
        return dense
    if name == "bm25":
        return {"bm25": own.get("bm25") or {}}
    if name == "hybrid":
        return {"hybrid": [{"bm25": own.get("bm25") or {}}, dense], **(own.get("fusion") or {})}
    if "checkpoint" in own:
        raise ValueError(f"{name} with a checkpoint: give --checkpoint when it is run")
    return name


def _route(own: Mapping[str, Any], given: Any) -> Any:
    if isinstance(given, list):
        return [_route(own, one) for one in given]
    part = given["retrieve"]
    return (
        _of_stage({**own, **part}) if isinstance(part, Mapping) else _of_stage({"retrieve": part})
    )


def _without_first(lines: list[str]) -> list[str]:
    """Drop the first item of the list `stages`, and its lines."""
    column = next(len(line) - len(line.lstrip()) for line in lines[1:] if not _is_comment(line))
    items = [place for place, line in enumerate(lines) if line.startswith(" " * column + "-")]
    rest = lines[items[1] :] if len(items) > 1 else []
    return [lines[0], *rest] if rest else []


def _renamed(line: str, old: str, new: str) -> str:
    return re.sub(rf"^(\s*){old}:", rf"\1{new}:", line)


def _is_comment(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _comment(lines: list[str]) -> str:
    found = re.search(r"\s#.*$", lines[0])
    return found.group() if found else ""


def _comment_of(line: str) -> str | None:
    """Return a line's comment, as a line of its own where it stands behind something."""
    return line if _is_comment(line) else _comment([line]).strip() or None


def _flow(value: Any) -> str:
    """Write a value on one line, as people write YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    # In a list: what a flow mapping cannot hold is quoted.
    return yaml.safe_dump([value], default_flow_style=True, width=10**6).strip()[1:-1]


if __name__ == "__main__":
    sys.exit(main())
