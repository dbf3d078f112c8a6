"""Write reports for tests that read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from claim2source.core.costs import SystemCost
from claim2source.core.report import (
    Intervals,
    Report,
    SystemReport,
)


def without_costs(report: Report) -> Report:
    systems = {
        name: replace(system, cost=None, stages=()) for name, system in report.systems.items()
    }
    return replace(report, systems=systems)


def write_report(
    folder: Path,
    systems: Mapping[str, Mapping[str, Any]],
    dataset: str = "data",
    split: str = "dev",
    **options: Any,
) -> Report:
    """Write `report.json` of systems by name.

    Each system is given by fields of `SystemReport`; its model and system are its name unless
    given, `cost` is given by fields of `SystemCost`, `intervals` by their values.
    """
    systems_of = {}
    for name, values in systems.items():
        fields = {"model": name, "system": name, **values}
        if "cost" in fields:
            fields["cost"] = SystemCost(**fields["cost"])
        if "intervals" in fields:
            fields["intervals"] = Intervals(fields["intervals"], 10, 0, 2)
        systems_of[name] = SystemReport(name=name, **fields)
    report = Report(dataset, split, systems_of, **options)
    report.write(folder)
    return report
