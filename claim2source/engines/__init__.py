"""Indexes that grow: engines that store papers with their terms and vectors, and search them."""

from claim2source.engines.copy import migrate, restore
from claim2source.engines.engine import Engine, Found, Stats
from claim2source.engines.growing import Grown, grow, grow_engine
from claim2source.engines.open import create_engine, is_engine, open_engine
from claim2source.engines.rows import Rows, Where

__all__ = [
    "Engine",
    "Found",
    "Grown",
    "Rows",
    "Stats",
    "Where",
    "create_engine",
    "grow",
    "grow_engine",
    "is_engine",
    "migrate",
    "open_engine",
    "restore",
]
