"""Choose how long the old versions of an index stay, and when it is compacted."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

# Old versions stay this long: another process may be reading one, or ask an older state.
RETENTION = timedelta(days=7)
# Of a small index they stay for less if together they are so many times as large as the newest: so
# long that a search that began on one ends. One that does not begins again on the newest.
CROWDED = ((3, timedelta(seconds=5)), (2, timedelta(minutes=1)))
# Bytes that old versions may have in any case, and parts that a table is written in.
SPARE, _MOST_PARTS = 2**18, 16
# The parts of an index that was never built: it is not whole yet, and who reads one begins again.
# LanceDB makes two versions within a millisecond, so that no time at all is short enough.
UNBUILT = timedelta(0)


def choose_retention(
    table: Any, size: int, exact_below: int, is_built: bool = True
) -> timedelta | None:
    """Choose how long old versions stay when the table is compacted; None if it need not be.

    `size` is that of all its files in bytes. To compact is to write everything again: an index of
    fewer than `exact_below` papers that grows by single papers, whose search indexes are made again
    in any case, is left in parts until they are many.
    """
    stats = table.stats()
    papers = stats["num_rows"]
    if papers >= exact_below:
        return RETENTION if is_built else UNBUILT
    for times, retention in CROWDED:
        if size - SPARE > times * stats["total_bytes"] and _oldest_age(table) > retention:
            return retention
    parts = stats["fragment_stats"]
    written = papers - parts["lengths"]["max"]
    is_grown = 2 * written > papers and parts["num_fragments"] > 1
    if is_grown or parts["num_fragments"] > _MOST_PARTS:
        return RETENTION
    return None


def _oldest_age(table: Any) -> timedelta:
    oldest = min(version["timestamp"] for version in table.list_versions())
    return datetime.now(oldest.tzinfo) - oldest
