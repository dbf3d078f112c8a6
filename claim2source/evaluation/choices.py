"""Tabulate the choices made on val: scores on its parts, alternatives, rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from claim2source.core.report import MAIN_METRIC, Choice, Settings, SystemReport, Trial
from claim2source.core.tables import Cell, TextTable

MOST_SHOWN = 10
TO_CHOOSE_BY = "to choose by"
RULES = {"one_se": "nearest to the default within one standard error of the best"}


def choice_text(choice: Choice) -> str:
    settings = settings_text(choice.settings)
    if choice.what in choice.settings:
        return settings
    return f"{choice.what}: {settings}"


def settings_text(settings: Settings) -> str:
    """Write settings in one line: `epoch 2, scale 0.5`."""
    settings_texts = [f"{key} {_value_text(value)}" for key, value in settings.items()]
    return ", ".join(settings_texts)


def choice_notes(choice: Choice) -> list[str]:
    """List notes on a choice: the weight of seen papers, its reason and its own note."""
    notes = []
    if choice.seen_share is not None:
        notes.append(f"claims of seen papers count for {100 * choice.seen_share:.0f} %")
    if choice.reason:
        notes.append(choice.reason)
    if choice.note:
        notes.append(choice.note)
    return notes


def choices_table(choices: Iterable[tuple[str, Choice]]) -> TextTable | None:
    """Tabulate choices by the names of their systems; None if there are none."""
    rows: list[list[Cell]] = []
    for name, choice in choices:
        rows.append(
            [
                name,
                choice_text(choice),
                choice.score,
                choice.best_score,
                choice.error,
                choice.compared or None,
                RULES.get(choice.rule, "the best"),
                f"{choice.claims} claims of {choice.split}",
                "; ".join(choice_notes(choice)),
            ]
        )
    if not rows:
        return None
    columns = ["for", "chosen", MAIN_METRIC, "best", "standard error", "compared", "rule"]
    return TextTable([*columns, "on", "notes"], rows)


def tried_table(choice: Choice) -> TextTable | None:
    """Tabulate a choice's alternatives with their scores; None if they were not recorded.

    Only the best settings and the chosen one are shown, best first. The scores by language
    precede the score that the choice is made by.
    """
    if not choice.tried:
        return None
    languages: dict[str, None] = {}
    for trial in choice.tried:
        languages |= dict.fromkeys(trial.scores)

    rows: list[list[Cell]] = []
    for trial in choice.tried:
        row: list[Cell] = [settings_text(trial.settings)]
        for language in languages:
            scores = trial.scores.get(language, {})
            row.append(scores.get(choice.metric))
        row.append(trial.score)
        row.append(_trial_label(choice, trial))
        rows.append(row)

    if len(rows) > MOST_SHOWN:
        rows.sort(key=lambda row: -float(str(row[-2])))
        others = rows[MOST_SHOWN:]
        labelled = [row for row in others if row[-1]]
        rows = rows[:MOST_SHOWN] + labelled
    columns = [choice.what, *languages, f"{choice.metric} to choose by", ""]
    return TextTable(columns, rows)


def _trial_label(choice: Choice, trial: Trial) -> str | None:
    """Mark the best and the chosen settings, and add the trial's verdict."""
    labels = []
    tried = trial.settings.items()
    if tried <= choice.best.items():
        labels.append("best")
    if tried <= choice.settings.items():
        labels.append("chosen")
    if trial.verdict:
        labels.append(trial.verdict)
    return ", ".join(labels) or None


def val_table(systems: Mapping[str, SystemReport]) -> TextTable | None:
    """Tabulate MRR@5 on val and its parts, by system and language; None if there are none."""
    splits: dict[str, None] = {}
    for system in systems.values():
        splits |= dict.fromkeys(system.val)

    rows: list[list[Cell]] = []
    for name, system in systems.items():
        languages: dict[str, None] = {}
        for table in system.val.values():
            languages |= dict.fromkeys(table)
        for language in languages:
            row: list[Cell] = [name, language]
            for split in splits:
                by_language = system.val.get(split, {})
                scores = by_language.get(language, {})
                row.append(scores.get(MAIN_METRIC))
            rows.append(row)
    if not rows:
        return None
    columns = ["system", f"{MAIN_METRIC} of", *splits]
    return TextTable(columns, rows)


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
