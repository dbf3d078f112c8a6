"""Reports that evaluation programs wrote, read back as systems with scores, cost and runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from claim2source.core.errors import InputError, UserError
from claim2source.core.records import Dataset
from claim2source.core.report import SystemCost
from claim2source.core.run import Run
from claim2source.datasets import folder_of
from claim2source.evaluation.metrics import coverage
from claim2source.io.trec import read_run

REPORT = "report.json"
_TUNED = "bm25-tuned"
_REWRITTEN = "rewritten"


@dataclass(frozen=True)
class SavedSystem:
    """One system of a report.

    `model` is the name it can be found by: a model's or checkpoint's, `bm25`, or
    `hybrid:NAME` for BM25 fused with NAME; `bm25-tuned` and `tuned-hybrid:NAME` where anything
    was chosen. `system` is what the report calls it whatever the
    representation of claims, else `model`. `languages` and `macro` are the report's scores,
    `runs` its run files by language (those that are there), `intervals` the 95 % intervals it
    holds: metric -> language or `macro` -> (low, high).
    """

    name: str
    model: str
    system: str
    folder: Path
    dataset: str
    split: str
    claims: str
    sources: str
    style: str
    languages: Mapping[str, Mapping[str, float]]
    macro: Mapping[str, float]
    cost: SystemCost | None = None
    runs: Mapping[str, Path] = field(default_factory=dict)
    intervals: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)

    @property
    def queries(self) -> dict[str, int]:
        """Language -> claims scored."""
        return {lang: int(row.get("queries", 0)) for lang, row in self.languages.items()}


def read_reports(folders: Sequence[Path]) -> list[SavedSystem]:
    """The systems of every report, in order; systems without scores are left out.

    A folder holds a `report.json` as `eval/checkpoint.py` (of one checkpoint or of a training
    run) or `eval/hybrid.py` writes it. Raises `InputError` where there is none or it is
    neither; a name that repeats gets its folder's name in front, or the whole path of the folder.
    """
    distinct = {Path(folder).resolve(): Path(folder) for folder in folders}
    found = [system for folder in distinct.values() for system in _systems(folder)]
    return _told_apart(_told_apart(found, lambda path: path.resolve().name), str)


def _told_apart(systems: Sequence[SavedSystem], front: Callable[[Path], str]) -> list[SavedSystem]:
    """The same with `front` of the folder before every name that repeats."""
    counts = Counter(system.name for system in systems)
    return [
        replace(s, name=f"{front(s.folder)}/{s.name.rpartition('/')[2]}")
        if counts[s.name] > 1
        else s
        for s in systems
    ]


def _systems(folder: Path) -> Iterator[SavedSystem]:
    path = folder / REPORT
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError.at(path, why=(error.strerror or str(error)).lower()) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError.at(path, getattr(error, "lineno", None), why="not JSON") from None
    yield from systems_in(report, folder)


def systems_in(report: Any, folder: Path) -> list[SavedSystem]:
    """The systems of a report that lies, or will lie, in `folder`. Raises `InputError`."""
    try:
        return list(_parts(report, folder))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"not a report of eval/checkpoint.py or eval/hybrid.py: {error}"
        raise InputError.at(folder / REPORT, why=why) from None


def _parts(report: Any, folder: Path) -> Iterator[SavedSystem]:
    if "systems" in report:
        for name, part in report["systems"].items():
            if "macro" in part:
                runs = folder / "runs" / name
                yield _system(name, _model(name, report, part), folder, report, part, runs)
        return
    if "checkpoint" in report and "macro" in report:
        name, model = Path(report["checkpoint"]).name, _found_by(report)
        yield _system(name, model, folder, report, report, folder / "runs")
    elif not {"checkpoint", "checkpoints"} & set(report):
        raise KeyError("macro")
    # A training run's, or what one checkpoint was scored as besides.
    for name, part in report.get("checkpoints", {}).items():
        if "macro" in part:
            inside = folder / name
            yield _system(name, _found_by(part), inside, part, part, inside / "runs")


def _found_by(part: Mapping[str, Any]) -> str:
    return str(part.get("model", part["checkpoint"]))


def _model(name: str, report: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """What a system of several is found by; its own `checkpoint` where it says one."""
    if "checkpoint" in part:
        return str(part["checkpoint"])
    dense = report.get("checkpoint")
    known = {"dense": dense, "hybrid": f"tuned-hybrid:{dense}", "bm25": _TUNED}
    return str(known.get(name) or name)


def _system(
    name: str,
    model: str,
    folder: Path,
    report: Mapping[str, Any],
    part: Mapping[str, Any],
    runs: Path,
) -> SavedSystem:
    rendering = {**report.get("rendering", {}), **part.get("rendering", {})}
    if model == _TUNED and "chosen" in report:
        rendering["claims"] = report["chosen"]["bm25"]["claims"]
    # Texts that were rewritten somehow are no cell of the style grid unless the report says which.
    plain = _REWRITTEN if part.get("rewrites") else "S0C0"
    files = {lang: runs / f"{lang}.trec" for lang in part["languages"]}
    return SavedSystem(
        name=name,
        model=model,
        system=str(part.get("system", model)),
        folder=folder,
        dataset=str(report["dataset"]),
        split=str(report["split"]),
        claims=rendering.get("claims", "original"),
        sources=rendering.get("sources", ""),
        style=str(part.get("style", report.get("style", plain))),
        languages=part["languages"],
        macro=part["macro"],
        cost=SystemCost(**part["cost"]) if part.get("cost") else None,
        runs={lang: path for lang, path in files.items() if path.is_file()},
        intervals={
            metric: {lang: (float(low), float(high)) for lang, (low, high) in bounds.items()}
            for metric, bounds in part.get("intervals", {}).items()
            if isinstance(bounds, dict)
        },
    )


def runs_of(system: SavedSystem, languages: Sequence[str] | None = None) -> dict[str, Run]:
    """Language -> `Run`, for the run files that are there, of the languages or of all."""
    return {
        lang: read_run(path).run
        for lang, path in system.runs.items()
        if languages is None or lang in languages
    }


def whole_run(system: SavedSystem, languages: Sequence[str] | None = None) -> Run:
    """The runs of the languages, by default all, as one.

    Raises `InputError` where a language's file is missing.
    """
    wanted = [lang for lang in system.languages if languages is None or lang in languages]
    if absent := [lang for lang in wanted if lang not in system.runs]:
        raise InputError.at(system.folder, why=f"{system.name}: no runs/.../{absent[0]}.trec")
    rows = [row for run in runs_of(system, wanted).values() for row in run]
    claims, sources, scores = zip(*rows, strict=True) if rows else ((), (), ())
    return Run.from_rows(claims, sources, scores)


def common_data(
    systems: Sequence[SavedSystem], dataset: str | None = None, split: str | None = None
) -> tuple[str, str]:
    """Data set and split: those given, else those that all the reports name.

    Raises `UserError` saying what differs where the reports are of several.
    """
    found = []
    for key, given in (("dataset", dataset), ("split", split)):
        names: dict[str, list[str]] = {}
        for system in systems:
            value = str(getattr(system, key))
            # One folder by two ways to write it, or by its name, is one.
            same = [name for name in names if key == "dataset" and _one_folder(name, value)]
            names.setdefault(same[0] if same else value, []).append(system.name)
        if given is None and len(names) != 1:
            said = "; ".join(f"{value!r} ({_few(who)})" for value, who in names.items())
            raise UserError(f"{key}: the reports differ: {said}; name one with --{key}")
        found.append(given if given is not None else next(iter(names)))
    return found[0], found[1]


def _one_folder(one: str, other: str) -> bool:
    try:
        return one == other or folder_of(one).resolve() == folder_of(other).resolve()
    except InputError:
        return False  # a name without a folder is no other name's


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def judged_run(system: SavedSystem, dataset: Dataset) -> Run:
    """The system's run in the languages of `dataset`.

    Raises `UserError` where it is of another split: it has claims that `dataset` does not have
    and lacks some that are judged.
    """
    run = whole_run(system, dataset.languages)
    met = coverage(run, dataset.qrels, system.name)
    known = {claim.id for claim in dataset.claims}
    strangers = sum(claim not in known for claim in run.claim_ids)
    if strangers and met.missing:
        raise UserError(
            f"{system.name}: its run has {strangers} claims that {dataset.split} does not have "
            f"and lacks {met.missing} that it judges: a run of another split"
        )
    return run
