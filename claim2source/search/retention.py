"""Choose how long old versions of an index are kept, and when it is compacted."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

# Old versions are kept this long: another process may read one, or search an older state.
RETENTION = timedelta(days=7)
# In a small index they are kept for less if together they are so many times as large as the newest.
# Then most searches on an old version can still finish; others start again on the newest.
CROWDED = ((3, timedelta(seconds=5)), (2, timedelta(minutes=1)))
# Bytes that old versions may always use, and most parts of a table.
SPARE, _MOST_PARTS = 2**18, 16
# Retention in an index that was never built: it is incomplete, and readers start again.
# LanceDB makes two versions within a millisecond, so no positive time is short enough.
UNBUILT = timedelta(0)


def choose_retention(
    table: Any, size: int, exact_below: int, is_built: bool = True
) -> timedelta | None:
    """Choose how long a compaction keeps old versions; None if none is needed.

    `size` is that of all files in bytes. A compaction writes everything again. So an index of fewer
    than `exact_below` papers that grows by single papers, whose search indexes are rebuilt anyway,
    is compacted only if it has many parts.
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
