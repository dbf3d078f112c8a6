"""Tabulate the choices made on val: scores on its parts, alternatives, rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from claim2source.core.report import MAIN_METRIC, Choice, Settings, SystemReport
from claim2source.core.tables import Cell, TextTable

MOST_SHOWN = 10
TO_CHOOSE_BY = "to choose by"
RULES = {"one_se": "within one standard error of the best, the nearest to the default"}


def choice_text(choice: Choice) -> str:
    settings = settings_text(choice.settings)
    return settings if choice.what in choice.settings else f"{choice.what}: {settings}"


def settings_text(settings: Settings) -> str:
    """Write settings in one line: `epoch 2, scale 0.5`."""
    return ", ".join(f"{key} {_value_text(value)}" for key, value in settings.items())


def choice_notes(choice: Choice) -> list[str]:
    """Explain a choice: its mix, the reason not to take the best, and its note."""
    mix = choice.seen_share
    chosen_for = [] if mix is None else [f"claims of seen papers count for {100 * mix:.0f} %"]
    return [*chosen_for, *filter(None, (choice.why, choice.note))]


def choices_table(choices: Iterable[tuple[str, Choice]]) -> TextTable | None:
    """Tabulate choices under the names of their systems; None without any."""
    rows: list[list[Cell]] = [
        [
            *(name, choice_text(choice), choice.score, choice.best_score, choice.error),
            *(choice.compared or None, RULES.get(choice.rule, "the best")),
            *(f"{choice.claims} claims of {choice.split}", "; ".join(choice_notes(choice))),
        ]
        for name, choice in choices
    ]
    columns = ["for", "chosen", MAIN_METRIC, "best", "standard error", "compared", "rule"]
    return TextTable([*columns, "on", "notes"], rows) if rows else None


def tried_table(choice: Choice) -> TextTable | None:
    """Tabulate a choice's alternatives with their scores; None if they were not recorded.

    Of many settings the best ones and the chosen one are shown, best first. Scores by language
    stand before the one to choose by.
    """
    languages = list(dict.fromkeys(lang for trial in choice.tried for lang in trial.scores))
    marks = {"best": choice.best, "chosen": choice.settings}
    rows: list[list[Cell]] = []
    for trial in choice.tried:
        names = (name for name, mark in marks.items() if trial.settings.items() <= mark.items())
        label = ", ".join([*names, *filter(None, [trial.verdict])])
        scores = [trial.scores.get(lang, {}).get(choice.metric) for lang in languages]
        rows.append([settings_text(trial.settings), *scores, trial.score, label or None])
    if len(rows) > MOST_SHOWN:
        rows.sort(key=lambda row: -float(str(row[-2])))
        rows = [row for number, row in enumerate(rows) if number < MOST_SHOWN or row[-1]]
    columns = [choice.what, *languages, f"{choice.metric} to choose by", ""]
    return TextTable(columns, rows) if rows else None


def val_table(systems: Mapping[str, SystemReport]) -> TextTable | None:
    """Tabulate MRR@5 on val and its parts, by system and language; None without any."""
    tables_of = {name: system.val for name, system in systems.items() if system.val}
    splits = list(dict.fromkeys(split for tables in tables_of.values() for split in tables))
    rows: list[list[Cell]] = [
        [name, language, *(tables.get(s, {}).get(language, {}).get(MAIN_METRIC) for s in splits)]
        for name, tables in tables_of.items()
        for language in dict.fromkeys(lang for table in tables.values() for lang in table)
    ]
    return TextTable(["system", f"{MAIN_METRIC} of", *splits], rows) if rows else None


def _value_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
