"""Points of the chart of quality against cost."""

from __future__ import annotations

from claim2source.core.report import Report, Speed, SystemReport
from claim2source.evaluation.cost_chart import cost_points


def report(student: str, milliseconds: float) -> Report:
    """A teacher beside a student; a third system was not timed."""

    def system(name: str, model: str, speed: Speed | None) -> SystemReport:
        return SystemReport(name, model, name, macro={"mrr@5": 0.5}, speed=speed)

    systems = (
        system("teacher", "runs/large", Speed(30.0, 20.0, 4, 1)),
        system("student", student, Speed(milliseconds, 1.0, 4, 1)),
        system("untimed", "x", None),
    )
    return Report("d", "dev", {one.name: one for one in systems})


def test_students_of_several_reports_are_points_of_their_own() -> None:
    found = cost_points([report("runs/a", 3.0), report("runs/b", 1.0)])
    cost = {name: point.milliseconds for name, point in found.items()}
    assert cost == {"teacher": 30.0, "student a": 3.0, "student b": 1.0}
    assert list(cost_points([report("runs/a", 3.0)])) == ["teacher", "student"]
