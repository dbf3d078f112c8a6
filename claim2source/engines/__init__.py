"""An index that grows: a folder that stores papers with their terms and vectors."""

from claim2source.engines.engine import Engine, is_engine, open_index
from claim2source.engines.growing import Growth, grow, grow_engine
from claim2source.engines.results import SearchResults
from claim2source.engines.rows import Rows, Where
from claim2source.engines.table import Stats

__all__ = [
    "Engine",
    "Growth",
    "Rows",
    "SearchResults",
    "Stats",
    "Where",
    "grow",
    "grow_engine",
    "is_engine",
    "open_index",
]
