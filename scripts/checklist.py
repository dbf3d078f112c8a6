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
    *("licence of the data and how to get them", "the evaluation's command and settings"),
    *("hashes of pretrained weights", "price in money"),
)
# Names of re-ranking stages; first stages do not call a language model.
_LATER = ("rerank ", "verify ")
# Claim forms with a translation.
_TRANSLATED = ("translated", "bilingual", "paired")
# `thinking` is the setting in requests; `replies` and `reasoned` count replies (with reasoning).
_DECODING = (
    *("model", "temperature", "top_p", "max_tokens", "seed", "thinking", "replies", "reasoned"),
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
    config = read_config(ChecklistConfig, argv, program=PROGRAM, description=__doc__ or "")
    require_output_file(config.out, TITLE)
    write_text(config.out, checklist(named_reports(config.reports)))
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
        answers.append([section.title, _answer(section, rows)])
        tables += [f"## {section.title}", _section_part(section, rows)]
    answers += [[item, NOT_RECORDED] for item in _UNRECORDED_ITEMS]
    plural = "s" if len(reports) > 1 else ""
    origin = f"All answers come from {len(reports)} report{plural}: {', '.join(reports)}."
    parts: list[Part] = [TITLE, origin, TextTable(["what", "answer"], answers), *tables]
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
    if any(NOT_RECORDED in cells for cells in values.values()):
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
    claims = ", ".join(f"{language} {count}" for language, count in queries.items())
    hashes = [f"{split} {digest}" for split, digest in report.provenance.data.items() if digest]
    return [[report.dataset, report.split, claims, ", ".join(hashes)]]


def _systems(report: Report) -> list[Row]:
    rows: list[Row] = []
    for system in report.systems.values():
        parts = ", ".join(system.parts) or "none"
        texts = [system.claims, system.sources, system.style]
        rows.append([_name(system), system.model, *texts, parts, _text(system.settings)])
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
                origin = map(prompt.get, ("name", "version", "sha256"))
                rows.append([name, f"{stage.name}: {key}", *origin])
    return rows + _unrecorded(report, 3)


def _unrecorded(report: Report, columns: int) -> list[Row]:
    """List stages and texts that may come from a language model with unrecorded settings."""
    return [[*entry, *[None] * columns] for entry in _unrecorded_names(report)]


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
        if isinstance(llm, Mapping):
            cells = [_setting_text(llm[key]) if key in llm else None for key in _DECODING]
            rows.append([name, stage.name, *cells])
    return rows + _unrecorded(report, len(_DECODING))


def _setting_text(value: Any) -> Cell:
    return "not set" if value is None else str(value)


def _seeds(report: Report) -> list[Row]:
    seeds: dict[str, Any] = {}
    bootstrap = set()
    for s in report.scored:
        if s.intervals is not None:
            bootstrap.add(s.intervals.seed)
    if bootstrap:
        seeds["bootstrap of intervals"] = ", ".join(map(str, sorted(bootstrap)))
    for test in report.tests:
        seeds["permutations and bootstrap of tests"] = test.seed
    if report.training is not None:
        seeds |= _training_seeds(report.training)
    for name, stage in _stages(report):
        if "seed" in stage.settings:
            seeds[f"{name}, {stage.name}"] = stage.settings["seed"]
    for name, unrecorded in _unrecorded_names(report):
        seeds[f"{name}, {unrecorded}"] = None
    found: list[Row] = []
    for label, seed in seeds.items():
        found.append([label, None if seed is None else str(seed)])
    return found


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
        return [*rows, ["settings", None]]
    return rows + [[key, _setting_text(value)] for key, value in settings.items()]


def _choices(report: Report) -> list[Row]:
    rows: list[Row] = []
    for system in report.systems.values():
        for choice in system.choices:
            settings = settings_text(choice.settings)
            rule = RULES.get(choice.rule, "the best")
            compared = choice.compared or len(choice.tried) or None
            on = f"{choice.claims} claims of {choice.split}"
            rows.append([_name(system), choice.what, settings, rule, compared, on])
    return rows


def _statistics(report: Report) -> list[Row]:
    rows: list[Row] = []
    bounded = [system.intervals for system in report.scored if system.intervals is not None]
    if bounded:
        by = f"{bounded[0].papers} papers"
        draws = bounded[0].repeats
        rows.append(["percentile bootstrap, 95 %", "macro, languages", by, "none", draws])
    for test in report.tests:
        by = f"{test.groups} papers of {test.claims} claims"
        holm = f"Holm over {len(test.comparisons)} at {test.alpha:g}"
        rows.append([f"paired randomisation: {test.family}", test.average, by, holm, test.repeats])
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
        costs = [("all", system.cost), *((stage.name, stage.cost) for stage in system.stages)]
        for stage, cost in costs:
            if cost is not None and cost.joules is not None:
                rows.append([_name(system), stage, f"{cost.joules / 1000:.2f}"])
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


_NO_LLM = "No stage calls a language model, and none made a text."
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
        "Nothing was chosen.",
    ),
    _Section("Statistics", 1, "what|average|by|correction|draws", _statistics),
    _Section("Cost", 2, f"system|stage|{_COST}", _costs, "No system."),
    _Section("Energy", 2, "system|stage|kJ", _energy),
    _Section("Hardware", 0, "processor|cores|memory|GPUs", _hardware),
    _Section("Software", 0, "program|commit|versions", _software),
)


if __name__ == "__main__":
    run_program(main)
