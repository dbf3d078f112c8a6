"""Fill in CLEF's and the ACM's checklists of reproducibility from reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from claim2source.core.report import (
    COST_COLUMNS,
    Report,
    StageReport,
    SystemReport,
    cost_cells,
)
from claim2source.core.tables import Cell, Part, TextTable, markdown_text, render
from claim2source.evaluation.choices import RULES, settings_text

TITLE = "# Reproducibility checklist"
NOT_RECORDED = "not recorded"
# What both ask for, and no report holds.
_UNRECORDED_ITEMS = (
    *("licence of the data and how to get them", "the evaluation's command and settings"),
    *("hashes of pretrained weights", "price in money", "energy"),
)
# Names of re-ranking stages; first stages ask no language model.
_LATER = ("rerank ", "verify ")
# Claim forms that hold a translation.
_TRANSLATED = ("translated", "bilingual", "paired")
# `thinking` is what was sent; `replies` and `reasoned` count replies, and those with reasoning.
_DECODING = (
    *("model", "temperature", "top_p", "max_tokens", "seed", "thinking", "replies", "reasoned"),
)
Row = list[Cell]


class _Section(NamedTuple):
    """Define a table: a report's rows, none if it does not apply, for which `none` says why.

    A cell of None is what the report does not say; the first `labels` columns say what a row is of.
    """

    title: str
    labels: int
    columns: str
    rows: Callable[[Report], list[Row]]
    none: str = ""


def checklist(reports: Mapping[str, Report]) -> str:
    """Write the checklist of reports by name, as Markdown; gaps are marked as not recorded."""
    rows = {
        section.title: {name: section.rows(report) for name, report in reports.items()}
        for section in _SECTIONS
    }
    answers: list[Row] = [[part.title, _answer(part, rows[part.title])] for part in _SECTIONS]
    answers += [[item, NOT_RECORDED] for item in _UNRECORDED_ITEMS]
    parts: list[Part] = [
        TITLE,
        f"Read from {len(reports)} report{'s' * (len(reports) > 1)} alone: {', '.join(reports)}.",
        TextTable(["what", "answer"], answers),
    ]
    for section in _SECTIONS:
        cells = [
            [*map(_written, [name] if len(reports) > 1 else []), *map(_written, row)]
            for name, own in rows[section.title].items()
            for row in own
        ]
        first = ["report"] if len(reports) > 1 else []
        table = TextTable([*first, *section.columns.split("|")], cells)
        parts += [f"## {section.title}", table if cells else section.none]
    notes = {f"- {markdown_text(note)}" for report in reports.values() for note in report.notes}
    parts += ["## Notes", *sorted(notes)] if notes else []
    return f"{render(parts, 'markup')}\n"


def _written(cell: Cell) -> Cell:
    """Return a cell for a page of Markdown, with names escaped."""
    recorded = _recorded(cell)
    return markdown_text(recorded) if isinstance(recorded, str) else recorded


def _recorded(cell: Cell) -> Cell:
    return NOT_RECORDED if cell is None or cell == "" else cell


def _answer(section: _Section, rows: Mapping[str, Sequence[Row]]) -> str:
    """Answer a question: recorded by all reports, by some, in part, or not at all."""
    values = {
        name: [_recorded(cell) for row in own for cell in row[section.labels :]]
        for name, own in rows.items()
        if own
    }
    silent = [name for name, cells in values.items() if {*cells} == {NOT_RECORDED}]
    if not values:
        return "does not apply"
    if len(silent) == len(values):
        return NOT_RECORDED
    if silent:
        return f"recorded, but not by {', '.join(silent)}"
    in_part = any(NOT_RECORDED in cells for cells in values.values())
    return "recorded in part" if in_part else "recorded"


def _data(report: Report) -> list[Row]:
    queries = report.scored[0].queries if report.scored else {}
    claims = ", ".join(f"{language} {count}" for language, count in queries.items())
    hashes = [f"{split} {digest}" for split, digest in report.provenance.data.items() if digest]
    return [[report.dataset, report.split, claims, ", ".join(hashes)]]


def _systems(report: Report) -> list[Row]:
    return [
        [
            *(_name(system), system.model, system.claims, system.sources, system.style),
            *(", ".join(system.parts) or "none", _text(system.settings)),
        ]
        for system in report.systems.values()
    ]


def _name(system: SystemReport) -> str:
    return f"{system.name} (simulated)" if system.simulated else system.name


def _stages(report: Report) -> Iterator[tuple[str, StageReport]]:
    for system in report.systems.values():
        for stage in system.stages:
            if stage.name.startswith(_LATER):
                yield _name(system), stage


def _prompts(report: Report) -> list[Row]:
    rows: list[Row] = []
    for name, stage in _stages(report):
        for key, prompt in stage.settings.items():
            if isinstance(prompt, Mapping) and "sha256" in prompt:
                origin = map(prompt.get, ("name", "version", "sha256"))
                rows.append([name, f"{stage.name}: {key}", *origin])
    return rows + _unrecorded(report, 3)


def _unrecorded(report: Report, columns: int) -> list[Row]:
    """List stages and texts that may come of a language model whose settings no report holds."""
    silent = [(name, stage.name) for name, stage in _stages(report) if not stage.settings]
    return [[*entry, *[None] * columns] for entry in (*silent, *_generated_texts(report))]


def _generated_texts(report: Report) -> Iterator[tuple[str, str]]:
    for system in report.systems.values():
        if system.claims in _TRANSLATED:
            yield _name(system), "translations of claims"
        if system.rewrites is not None:
            yield _name(system), "rewritings of claims"
        elif system.style != "S0C0":
            yield _name(system), f"texts of style {system.style}"


def _decoding(report: Report) -> list[Row]:
    rows: list[Row] = []
    for name, stage in _stages(report):
        llm = stage.settings.get("llm")
        if isinstance(llm, Mapping):
            cells = [_setting_text(llm[key]) if key in llm else None for key in _DECODING]
            rows.append([name, stage.name, *cells])
    return rows + _unrecorded(report, len(_DECODING))


def _setting_text(value: Any) -> Cell:
    return "not set" if value is None else str(value)


def _seeds(report: Report) -> list[Row]:
    seeds: dict[str, Any] = {}
    if of_intervals := {s.intervals.seed for s in report.scored if s.intervals is not None}:
        seeds["bootstrap of intervals"] = ", ".join(map(str, sorted(of_intervals)))
    for test in report.tests:
        seeds["permutations and bootstrap of tests"] = test.seed
    if report.training is not None:
        settings = _flat(report.training.settings)
        own = {key: value for key, value in settings.items() if key.endswith("seed")}
        seeds |= {f"training: {key}": value for key, value in own.items()}
        seeds |= {} if own else {"training": None}
    for name, stage in _stages(report):
        if "seed" in stage.settings:
            seeds[f"{name}, {stage.name}"] = stage.settings["seed"]
    seeds |= {f"{name}, {seed_name}": None for name, seed_name in _unrecorded(report, 0)}
    return [[label, None if seed is None else str(seed)] for label, seed in seeds.items()]


def _training(report: Report) -> list[Row]:
    if report.training is None:
        return []
    rows: list[Row] = [["chosen", f"epoch {report.training.chosen_epoch}"]]
    settings = _flat(report.training.settings)
    rows += [[key, _setting_text(value)] for key, value in settings.items()]
    return rows if settings else [*rows, ["settings", None]]


def _choices(report: Report) -> list[Row]:
    rows: list[Row] = []
    for system in report.systems.values():
        for choice in system.choices:
            settings, rule = settings_text(choice.settings), RULES.get(choice.rule, "the best")
            compared = choice.compared or len(choice.tried) or None
            on = f"{choice.claims} claims of {choice.split}"
            rows.append([_name(system), choice.what, settings, rule, compared, on])
    return rows


def _statistics(report: Report) -> list[Row]:
    bounded = [system.intervals for system in report.scored if system.intervals is not None]
    rows: list[Row] = [
        ["percentile bootstrap, 95 %", "macro, languages", f"{i.papers} papers", "none", i.repeats]
        for i in bounded[:1]
    ]
    for test in report.tests:
        by = f"{test.groups} papers of {test.claims} claims"
        holm = f"Holm over {len(test.comparisons)} at {test.alpha:g}"
        rows.append([f"paired randomisation: {test.family}", test.average, by, holm, test.repeats])
    return rows or [["intervals and tests", None, None, None, None]]


def _costs(report: Report) -> list[Row]:
    rows: list[Row] = []
    for system in report.systems.values():
        rows.append([_name(system), "all", *cost_cells(system.cost)])
        rows += [[_name(system), stage.name, *cost_cells(stage.cost)] for stage in system.stages]
    return rows


def _hardware(report: Report) -> list[Row]:
    machine = report.provenance.hardware
    if machine is None:
        return [[None] * 4]
    gpus = ", ".join(f"{machine.gpus.count(gpu)} x {gpu}" for gpu in dict.fromkeys(machine.gpus))
    return [[machine.cpu, machine.cores, f"{machine.memory / 2**30:.0f} GiB", gpus or "none used"]]


def _software(report: Report) -> list[Row]:
    origin = report.provenance
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    return [[origin.program, origin.git, versions]]


def _flat(settings: Mapping[str, Any], front: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{front}{key}.")
        elif value not in ("", [], ()):
            flat[f"{front}{key}"] = value
    return flat


def _text(settings: Mapping[str, Any]) -> str:
    return "; ".join(f"{key} {_setting_text(value)}" for key, value in _flat(settings).items())


_NO_LLM = "No stage asks a language model, and none made a text."
_COST = "|".join(COST_COLUMNS)
_OF_LLM = "|".join(("system", "stage", *_DECODING))
_SECTIONS = (
    _Section("Data", 2, "data set|split|scored claims|SHA-256", _data),
    _Section("Systems", 1, "system|model|claims|sources|style|parts|settings", _systems, "None."),
    _Section("Prompts", 2, "system|of|prompt|version|SHA-256", _prompts, _NO_LLM),
    _Section("Decoding of language models", 2, _OF_LLM, _decoding, _NO_LLM),
    _Section("Seeds", 1, "of|seed", _seeds, "Nothing was drawn at random."),
    _Section("Training", 1, "setting|value", _training, "Nothing was trained here."),
    _Section(
        *("Settings that were chosen", 2, "system|what|chosen|rule|compared|on", _choices),
        "None was chosen.",
    ),
    _Section("Statistics", 1, "what|average|by|correction|draws", _statistics),
    _Section("Cost", 2, f"system|stage|{_COST}", _costs, "No system."),
    _Section("Hardware", 0, "processor|cores|memory|GPUs", _hardware),
    _Section("Software", 0, "program|commit|versions", _software),
)
