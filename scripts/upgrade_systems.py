"""Print a YAML file of systems of 0.2 in today's grammar: `upgrade_systems.py FILE > NEW`.

The file's comments follow below the systems. For one release.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import as_plain, read_yaml, to_yaml
from claim2source.core.errors import InputError

BESIDE = ("sources", "rendering")
FIRST = ("bm25", "model", "hybrid", "run", "routes", "tune", "index", *BESIDE)
RUMORS = {"rerank", "stance", "verdict", "choose"}
Values = Mapping[str, Any]


def main() -> int:
    """Print the file named on the command line; return the exit code."""
    asks = bool({"-h", "--help"} & {*sys.argv})
    if asks or len(sys.argv) != 2:
        print(__doc__, file=sys.stdout if asks else sys.stderr)
        return 0 if asks else 2
    try:
        upgraded = upgrade(Path(sys.argv[1]).read_text("utf-8"))
    except InputError as error:
        problem = error.problems[0]
        line = "" if problem.line is None else f"{problem.line}: "
        print(f"{sys.argv[1]}: {line}{problem.reason}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"{sys.argv[1]}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except (LookupError, AttributeError, TypeError, StopIteration):
        print(f"{sys.argv[1]}: holds something other than systems of 0.2", file=sys.stderr)
        return 2
    print(upgraded, end="")
    return 0


def upgrade(text: str) -> str:
    """Rewrite the systems of a file's text."""
    values = as_plain(read_yaml(text))
    if not isinstance(values, dict):
        raise ValueError("holds no systems")
    is_single = isinstance(values.get("stages"), list)
    if isinstance(values.get("name"), str) or RUMORS & {*values}:
        systems = {values.get("name", "BM25"): _rumors(values)}
    else:
        systems = (
            _system(values)
            if is_single
            else {name: _system(value) for name, value in values.items()}
        )
    comments = [f"{comment.strip()}\n" for comment in re.findall(r"(?m)(?:^|\s)#.*$", text)]
    if re.search(r"\bindex:", text):
        comments.append("# index: is gone: all vectors are compared, with all their numbers\n")
    return to_yaml(systems) + "".join(comments)


def _rumors(values: Values) -> dict[str, Any]:
    if values.get("index", "own") != "own":
        raise ValueError("index: shared is gone: write {bm25: ..} for one index of all timelines")
    fielded, choose = dict(values.get("bm25") or {}), values.get("choose") or []
    if "bm25" in choose:
        fielded = _with_grid(fielded, values.get("grid") or {})
    asks = {"llm": values["llm"]} if values.get("llm") else {}
    stages = [*_rumor_reranker(values, asks), *_rumor_verifier(values, asks)]
    retrieve = {"retrieve": {"fielded": fielded}}
    return {**retrieve, "stages": stages} if stages else retrieve


def _with_grid(fielded: Values, grid: Values) -> dict[str, Any]:
    """List what is compared of every key of the grid, the key's own value first."""
    lists: dict[str, Any] = {}
    for key in ("k1", "b", "boost", "shortest"):
        if key in grid:
            first = [fielded[key]] if key in fielded else []
            lists[key] = list(dict.fromkeys([*first, *grid[key]]))
    if "k1" not in lists:
        return {**fielded, "k1": "fit", **lists}
    return {**fielded, **lists}


def _rumor_reranker(values: Values, asks: Values) -> list[Values]:
    rerank = dict(values.get("rerank") or {})
    by = rerank.pop("by", "none")
    depth = values.get("depth", 10)
    if by == "none":
        return []
    if by == "llm":
        return [{"rerank": "relevance", "depth": depth, **rerank, **asks}]
    texts = {"claims": "original", "sources": "title_abstract"}
    return [{"rerank": by, "depth": depth, **texts, **rerank}]


def _rumor_verifier(values: Values, asks: Values) -> list[Values]:
    stance, verdict = dict(values.get("stance") or {}), dict(values.get("verdict") or {})
    by = stance.pop("by", "none")
    if by == "none":
        return []
    stage = {"verify": "stance", "by": by, **stance}
    if "keep" in values:
        stage["depth"] = values["keep"]
    stage |= verdict
    if "threshold" in (values.get("choose") or []):
        stage["threshold"] = "fit"
    return [{**stage, **asks} if by == "llm" else stage]


def _system(values: Values) -> dict[str, Any]:
    if "retrieve" in values:  # as it is to be
        return dict(values)
    stages = list(values.get("stages") or [])
    own = stages.pop(0) if stages and "retrieve" in stages[0] else None
    node = _stages_to_node(values, own) if own is not None else _keys_to_node(values)
    rest = {key: value for key, value in values.items() if key not in (*FIRST, *node, "stages")}
    return {**node, **rest, **({"stages": stages} if stages else {})}


def _stages_to_node(values: Values, own: Values) -> dict[str, Any]:
    if "rendering" in values:
        own = {"rendering": values["rendering"], **own}
    routes = {lang: _route(own, route) for lang, route in (values.get("routes") or {}).items()}
    node: dict[str, Any] = {"retrieve": _stage_to_entry(own)}
    node |= {"depth": own["depth"]} if own.get("depth") else {}
    return node | ({"routes": routes} if routes else {})


def _keys_to_node(values: Values) -> dict[str, Any]:
    # Of 0.2, whose YAML was 1.1.
    tuned = str(values.get("tune") or "no").lower() not in ("no", "off", "false")
    if values.get("routes") is not None:
        routes = dict(values["routes"])
        default = routes.pop("default", None)
        if default is None:
            raise ValueError("routes without `default`: name the system of the other languages")
        return {"retrieve": default, **({"routes": routes} if routes else {})}
    if (hybrid := values.get("hybrid")) is not None:
        settings = {"alpha": "fit"} if tuned else hybrid.get("fusion") or {}
        return {"retrieve": {"hybrid": [hybrid["sparse"], hybrid["dense"]], **settings}}
    kind = next(key for key in ("bm25", "model", "run") if key in values)
    if kind != "model":
        fit = {"k1": "fit"} if tuned else {}
        return {"retrieve": {kind: {**(values[kind] or {}), **fit}}}
    model = values["model"]
    node = {"dense": model["name"] if set(model) == {"name"} else model}
    return {"retrieve": node | {key: values[key] for key in BESIDE if key in values}}


def _stage_to_entry(own: Values) -> Any:
    name = own["retrieve"]
    checkpoint = own.get("model") or own.get("checkpoint") or "checkpoint"
    dense = {"dense": checkpoint} | {key: own[key] for key in BESIDE if key in own}
    if name == "dense":
        return dense
    if name == "bm25":
        return {"bm25": own.get("bm25") or {}}
    if name == "hybrid":
        return {"hybrid": [{"bm25": own.get("bm25") or {}}, dense], **(own.get("fusion") or {})}
    if "checkpoint" in own:
        raise ValueError(f"{name} with a checkpoint: give --checkpoint when it is run")
    return name


def _route(own: Values, value: Any) -> Any:
    if isinstance(value, list):
        return [_route(own, route) for route in value]
    part = value["retrieve"]
    return _stage_to_entry({**own, **part} if isinstance(part, Mapping) else {"retrieve": part})


if __name__ == "__main__":
    sys.exit(main())
