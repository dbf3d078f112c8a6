"""Write CLEF's and the ACM's checklists: `python scripts/checklist.py --reports DIR --out FILE`.

CLEF's working notes and the ACM require authors to state how results were made: data, prompts,
seeds, decoding, hardware, software, costs. All answers come from reports; an item that the reports
lack is "not recorded".
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import Settings, list_field, read_config, require
from claim2source.core.costs import COST_COLUMNS, cost_cells
from claim2source.core.errors import run_program
from claim2source.core.files import write_text
from claim2source.core.folders import require_output_file
from claim2source.core.report import (
    Report,
    StageReport,
    SystemReport,
    TrainingReport,
)
from claim2source.core.tables import Cell, Part, TextTable, markdown_text, render
from claim2source.core.terminal import say
from claim2source.evaluation.choices import RULES, settings_text
from claim2source.evaluation.reports import named_reports

PROGRAM = "scripts/checklist.py"
TITLE = "# Reproducibility checklist"
NOT_RECORDED = "not recorded"
# Questions of both checklists that no report answers.
_UNRECORDED_ITEMS = (
    "licence of the data and how to get them",
    "the evaluation's command and settings",
    "hashes of pretrained weights",
    "price in money",
)
# Names of re-ranking stages; first stages do not call a language model.
_LATER = ("rerank ", "verify ")
# Claim forms with a translation.
_TRANSLATED = ("translated", "bilingual", "paired")
# `thinking` is the setting in requests; `replies` and `reasoned` count replies (with reasoning).
_DECODING = (
    "model",
    "temperature",
    "top_p",
    "max_tokens",
    "seed",
    "thinking",
    "replies",
    "reasoned",
)
Row = list[Cell]


@dataclass(frozen=True)
class ChecklistConfig(Settings):
    """Settings of `scripts/checklist.py`.

    Args:
        out: Markdown file to write.
    """

    out: Path
    reports: list[Path] = list_field((), help="folders of evaluations or training runs")

    def check(self) -> None:
        require(bool(self.reports), "reports", self.reports, "one or more folders")


def main(argv: Sequence[str] | None = None) -> None:
    """Write the checklist of reports."""
    config = read_config(
        ChecklistConfig,
        argv,
        program=PROGRAM,
        description=__doc__ or "",
    )
    require_output_file(config.out, TITLE)
    reports = named_reports(config.reports)
    write_text(config.out, checklist(reports))
    say(f"checklist in {config.out}")


class _Section(NamedTuple):
    """Define a table: a report's rows; `none` is the sentence for a table without rows.

    A cell is None if the report lacks it; the first `labels` columns label a row.
    """

    title: str
    labels: int
    columns: str
    rows: Callable[[Report], list[Row]]
    none: str = ""


def checklist(reports: Mapping[str, Report]) -> str:
    """Write the checklist of reports by name, as Markdown; gaps are marked as not recorded."""
    answers: list[Row] = []
    tables: list[Part] = []
    for section in _SECTIONS:
        rows = {name: section.rows(report) for name, report in reports.items()}
        answer = _answer(section, rows)
        answers.append([section.title, answer])
        tables.append(f"## {section.title}")
        tables.append(_section_part(section, rows))
    answers += [[item, NOT_RECORDED] for item in _UNRECORDED_ITEMS]

    count = len(reports)
    plural = "s" if count > 1 else ""
    names = ", ".join(reports)
    origin = f"All answers come from {count} report{plural}: {names}."
    summary = TextTable(["what", "answer"], answers)
    parts: list[Part] = [TITLE, origin, summary, *tables]
    notes = set()
    for report in reports.values():
        for note in report.notes:
            notes.add(f"- {markdown_text(note)}")
    if notes:
        parts += ["## Notes", *sorted(notes)]
    return f"{render(parts, 'markup')}\n"


def _section_part(section: _Section, rows: Mapping[str, Sequence[Row]]) -> Part:
    """Tabulate a section's rows, with the names of several reports; a sentence without rows."""
    columns = section.columns.split("|")
    has_several = len(rows) > 1
    if has_several:
        columns = ["report", *columns]
    cells: list[Row] = []
    for name, own in rows.items():
        for row in own:
            named: Row = [name, *row] if has_several else row
            cells.append([_written(cell) for cell in named])
    if cells:
        return TextTable(columns, cells)
    return section.none


def _written(cell: Cell) -> Cell:
    """Return a cell for a Markdown page, with names escaped."""
    recorded = _recorded(cell)
    if isinstance(recorded, str):
        return markdown_text(recorded)
    return recorded


def _recorded(cell: Cell) -> Cell:
    if cell is None or cell == "":
        return NOT_RECORDED
    return cell


def _answer(section: _Section, rows: Mapping[str, Sequence[Row]]) -> str:
    """Answer a question: recorded in all reports, in some, in part, or not at all."""
    values: dict[str, list[Cell]] = {}
    for name, own in rows.items():
        if own:
            values[name] = _answers(own, section.labels)
    if not values:
        return "does not apply"
    silent = [name for name, cells in values.items() if set(cells) == {NOT_RECORDED}]
    if len(silent) == len(values):
        return NOT_RECORDED
    if silent:
        return f"recorded, but not in {', '.join(silent)}"
    has_gaps = any(NOT_RECORDED in cells for cells in values.values())
    if has_gaps:
        return "recorded in part"
    return "recorded"


def _answers(rows: Sequence[Row], labels: int) -> list[Cell]:
    """List the cells of rows after their labels."""
    cells = []
    for row in rows:
        cells += [_recorded(cell) for cell in row[labels:]]
    return cells


def _data(report: Report) -> list[Row]:
    queries = {}
    if report.scored:
        queries = report.scored[0].queries
    claims = [f"{language} {count}" for language, count in queries.items()]
    digests = report.provenance.data
    hashes = [f"{split} {digest}" for split, digest in digests.items() if digest]
    return [
        [
            report.dataset,
            report.split,
            ", ".join(claims),
            ", ".join(hashes),
        ]
    ]


def _systems(report: Report) -> list[Row]:
    rows: list[Row] = []
    for system in report.systems.values():
        rows.append(
            [
                _name(system),
                system.model,
                system.claims,
                system.sources,
                system.style,
                ", ".join(system.parts) or "none",
                _text(system.settings),
            ]
        )
    return rows


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
                rows.append(
                    [
                        name,
                        f"{stage.name}: {key}",
                        prompt.get("name"),
                        prompt.get("version"),
                        prompt.get("sha256"),
                    ]
                )
    return rows + _unrecorded(report, 3)


def _unrecorded(report: Report, columns: int) -> list[Row]:
    """List stages and texts that may come from a language model with unrecorded settings."""
    gaps = [None] * columns
    return [[*entry, *gaps] for entry in _unrecorded_names(report)]


def _unrecorded_names(report: Report) -> Iterator[tuple[str, str]]:
    for name, stage in _stages(report):
        if not stage.settings:
            yield name, stage.name
    yield from _generated_texts(report)


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
        if not isinstance(llm, Mapping):
            continue
        row: Row = [name, stage.name]
        for key in _DECODING:
            row.append(_setting_text(llm[key]) if key in llm else None)
        rows.append(row)
    return rows + _unrecorded(report, len(_DECODING))


def _setting_text(value: Any) -> Cell:
    return "not set" if value is None else str(value)


def _seeds(report: Report) -> list[Row]:
    seeds: dict[str, Any] = {}
    bootstrap = set()
    for system in report.scored:
        if system.intervals is not None:
            bootstrap.add(system.intervals.seed)
    if bootstrap:
        in_order = map(str, sorted(bootstrap))
        seeds["bootstrap of intervals"] = ", ".join(in_order)
    for test in report.tests:
        seeds["permutations and bootstrap of tests"] = test.seed
    if report.training is not None:
        seeds |= _training_seeds(report.training)
    for name, stage in _stages(report):
        if "seed" in stage.settings:
            seeds[f"{name}, {stage.name}"] = stage.settings["seed"]
    for name, unrecorded in _unrecorded_names(report):
        seeds[f"{name}, {unrecorded}"] = None
    rows: list[Row] = []
    for label, seed in seeds.items():
        seed_text = None if seed is None else str(seed)
        rows.append([label, seed_text])
    return rows


def _training_seeds(training: TrainingReport) -> dict[str, Any]:
    """List a training run's seeds by setting; `training` is None without any."""
    seeds: dict[str, Any] = {}
    for key, value in _flat(training.settings).items():
        if key.endswith("seed"):
            seeds[f"training: {key}"] = value
    return seeds or {"training": None}


def _training(report: Report) -> list[Row]:
    if report.training is None:
        return []
    rows: list[Row] = [["chosen", f"epoch {report.training.chosen_epoch}"]]
    settings = _flat(report.training.settings)
    if not settings:
        rows.append(["settings", None])
    for key, value in settings.items():
        rows.append([key, _setting_text(value)])
    return rows


def _choices(report: Report) -> list[Row]:
    rows: list[Row] = []
    for system in report.systems.values():
        for choice in system.choices:
            rows.append(
                [
                    _name(system),
                    choice.what,
                    settings_text(choice.settings),
                    RULES.get(choice.rule, "the best"),
                    choice.compared or len(choice.tried) or None,
                    f"{choice.claims} claims of {choice.split}",
                ]
            )
    return rows


def _statistics(report: Report) -> list[Row]:
    rows: list[Row] = []
    bounded = [system.intervals for system in report.scored if system.intervals is not None]
    if bounded:
        first = bounded[0]
        rows.append(
            [
                "percentile bootstrap, 95 %",
                "macro, languages",
                f"{first.papers} papers",
                "none",
                first.repeats,
            ]
        )
    for test in report.tests:
        rows.append(
            [
                f"paired randomisation: {test.family}",
                test.average,
                f"{test.groups} papers of {test.claims} claims",
                f"Holm over {len(test.comparisons)} at {test.alpha:g}",
                test.repeats,
            ]
        )
    return rows or [["intervals and tests", None, None, None, None]]


def _costs(report: Report) -> list[Row]:
    rows: list[Row] = []
    for system in report.systems.values():
        rows.append([_name(system), "all", *cost_cells(system.cost)])
        for stage in system.stages:
            rows.append([_name(system), stage.name, *cost_cells(stage.cost)])
    return rows


def _energy(report: Report) -> list[Row]:
    """List the energy of systems and stages; a single row without it if no cost has it."""
    rows: list[Row] = []
    for system in report.systems.values():
        costs = [("all", system.cost)]
        for stage in system.stages:
            costs.append((stage.name, stage.cost))
        for part, cost in costs:
            if cost is None or cost.joules is None:
                continue
            kilojoules = cost.joules / 1000
            rows.append([_name(system), part, f"{kilojoules:.2f}"])
    return rows or [["all", "all", None]]


def _hardware(report: Report) -> list[Row]:
    machine = report.provenance.hardware
    if machine is None:
        return [[None] * 4]
    counts = Counter(machine.gpus)
    gpus = ", ".join(f"{count} x {gpu}" for gpu, count in counts.items())
    memory = f"{machine.memory / 2**30:.0f} GiB"
    return [[machine.cpu, machine.cores, memory, gpus or "none used"]]


def _software(report: Report) -> list[Row]:
    origin = report.provenance
    versions = [f"{name} {version}" for name, version in origin.versions.items()]
    return [[origin.program, origin.git, ", ".join(versions)]]


def _flat(settings: Mapping[str, Any], front: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{front}{key}.")
        elif value not in ("", [], ()):
            flat[f"{front}{key}"] = value
    return flat


def _text(settings: Mapping[str, Any]) -> str:
    flat = _flat(settings)
    return "; ".join(f"{key} {_setting_text(value)}" for key, value in flat.items())


_NO_LLM = "No stage calls a language model, and none made a text."
_COST = "|".join(COST_COLUMNS)
_OF_LLM = "|".join(("system", "stage", *_DECODING))
_SECTIONS = (
    _Section(
        "Data",
        labels=2,
        columns="data set|split|scored claims|SHA-256",
        rows=_data,
    ),
    _Section(
        "Systems",
        labels=1,
        columns="system|model|claims|sources|style|parts|settings",
        rows=_systems,
        none="None.",
    ),
    _Section(
        "Prompts",
        labels=2,
        columns="system|of|prompt|version|SHA-256",
        rows=_prompts,
        none=_NO_LLM,
    ),
    _Section(
        "Decoding of language models",
        labels=2,
        columns=_OF_LLM,
        rows=_decoding,
        none=_NO_LLM,
    ),
    _Section(
        "Seeds",
        labels=1,
        columns="of|seed",
        rows=_seeds,
        none="Nothing was drawn at random.",
    ),
    _Section(
        "Training",
        labels=1,
        columns="setting|value",
        rows=_training,
        none="Nothing was trained here.",
    ),
    _Section(
        "Settings that were chosen",
        labels=2,
        columns="system|what|chosen|rule|compared|on",
        rows=_choices,
        none="Nothing was chosen.",
    ),
    _Section(
        "Statistics",
        labels=1,
        columns="what|average|by|correction|draws",
        rows=_statistics,
    ),
    _Section(
        "Cost",
        labels=2,
        columns=f"system|stage|{_COST}",
        rows=_costs,
        none="No system.",
    ),
    _Section("Energy", 2, "system|stage|kJ", _energy),
    _Section("Hardware", 0, "processor|cores|memory|GPUs", _hardware),
    _Section("Software", 0, "program|commit|versions", _software),
)


if __name__ == "__main__":
    run_program(main)
