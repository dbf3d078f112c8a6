"""Energy by the machine's counters: readable, wrapping and missing ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.core import energy
from claim2source.core.costs import COST_COLUMNS, SystemCost, cost_cells, cost_columns
from claim2source.core.energy import EnergyMeter
from claim2source.core.run import Cost, Result, Run
from claim2source.search.cache import read_or_search


@pytest.fixture
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    monkeypatch.setattr(energy, "_gpu_counters", dict)
    return tmp_path


def set_counter(
    folder: Path,
    name: str,
    micro: int,
    highest: int = 10**9,
) -> None:
    package = folder / name
    package.mkdir(exist_ok=True)
    energy_file = package / "energy_uj"
    energy_file.write_text(f"{micro}\n")
    range_file = package / "max_energy_range_uj"
    range_file.write_text(f"{highest}\n")


def test_packages_add_up_and_a_counter_may_begin_anew(counters: Path) -> None:
    set_counter(counters, "intel-rapl:0", 999_000_000)
    set_counter(counters, "intel-rapl:1", 5_000_000)
    set_counter(counters, "intel-rapl:0:0", 0)  # a part of the first
    meter = EnergyMeter()
    set_counter(counters, "intel-rapl:0", 2_000_000)
    set_counter(counters, "intel-rapl:1", 7_500_000)
    set_counter(counters, "intel-rapl:0:0", 900_000_000)
    assert meter.joules() == pytest.approx(3.0 + 2.5)


def test_a_machine_that_tells_nothing_or_stops_telling_has_no_energy(counters: Path) -> None:
    without_counters = EnergyMeter()
    assert without_counters.joules() is None
    set_counter(counters, "intel-rapl:0", 1)
    set_counter(counters, "intel-rapl:1", 1)
    meter = EnergyMeter()
    second = counters / "intel-rapl:1" / "energy_uj"
    second.write_text("no number")
    assert meter.joules() is None


def test_a_search_is_measured_and_its_sum_needs_all_parts(counters: Path) -> None:
    def search() -> Result:
        set_counter(counters, "intel-rapl:0", 4_000_000)
        empty = Run.from_lists({})
        own = Cost(seconds=2.0, items=3)
        return Result(empty, cost=own)

    set_counter(counters, "intel-rapl:0", 1_000_000)
    result = read_or_search(None, None, search)
    cost = result.cost
    measured = pytest.approx(3.0)
    assert cost == Cost(seconds=2.0, items=3, joules=measured)

    twice = cost + cost
    assert twice.joules == pytest.approx(6.0)
    nothing = Cost()
    before_nothing = cost + nothing
    after_nothing = nothing + cost
    assert before_nothing.joules == after_nothing.joules
    assert after_nothing.joules == measured
    unmeasured = Cost(seconds=1.0)
    partly = cost + unmeasured
    assert partly.joules is None
    still_nothing = nothing + nothing
    assert still_nothing.joules is None


def test_the_column_is_there_only_where_energy_is_known() -> None:
    without_energy = Cost(seconds=2.0, items=4)
    with_energy = Cost(seconds=2.0, items=4, joules=2_500.0)
    unknown = SystemCost.of(without_energy)
    known = SystemCost.of(with_energy)
    assert cost_columns([unknown, None]) == COST_COLUMNS

    columns = cost_columns([unknown, known, None])
    assert len(columns) == len(COST_COLUMNS) + 1
    known_cells = cost_cells(known, columns)
    unknown_cells = cost_cells(unknown, columns)
    absent_cells = cost_cells(None, columns)
    assert known_cells[-1] == "2.50"
    assert unknown_cells[-1] is None
    assert absent_cells == [None] * len(columns)
    assert cost_cells(known) == known_cells[:-1]
