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


def set_counter(folder: Path, name: str, micro: int, highest: int = 10**9) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "energy_uj").write_text(f"{micro}\n")
    (folder / name / "max_energy_range_uj").write_text(f"{highest}\n")


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
    assert EnergyMeter().joules() is None
    set_counter(counters, "intel-rapl:0", 1)
    set_counter(counters, "intel-rapl:1", 1)
    meter = EnergyMeter()
    (counters / "intel-rapl:1" / "energy_uj").write_text("no number")
    assert meter.joules() is None


def test_a_search_is_measured_and_its_sum_needs_all_parts(counters: Path) -> None:
    def search() -> Result:
        set_counter(counters, "intel-rapl:0", 4_000_000)
        return Result(Run.from_lists({}), cost=Cost(seconds=2.0, items=3))

    set_counter(counters, "intel-rapl:0", 1_000_000)
    cost = read_or_search(None, None, search).cost
    assert cost == Cost(seconds=2.0, items=3, joules=pytest.approx(3.0))
    assert (cost + cost).joules == pytest.approx(6.0)
    assert (cost + Cost()).joules == (Cost() + cost).joules == pytest.approx(3.0)
    assert (cost + Cost(seconds=1.0)).joules is None
    assert (Cost() + Cost()).joules is None


def test_the_column_is_there_only_where_energy_is_known() -> None:
    known = SystemCost.of(Cost(seconds=2.0, items=4, joules=2_500.0))
    unknown = SystemCost.of(Cost(seconds=2.0, items=4))
    assert cost_columns([unknown, None]) == COST_COLUMNS
    columns = cost_columns([unknown, known, None])
    assert len(columns) == len(COST_COLUMNS) + 1
    assert cost_cells(known, columns)[-1] == "2.50" and cost_cells(unknown, columns)[-1] is None
    assert cost_cells(None, columns) == [None] * len(columns)
    assert cost_cells(known) == cost_cells(known, columns)[:-1]
