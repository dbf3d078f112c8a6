"""Say how long to wait before a server is asked again."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from email.utils import formatdate, parsedate_to_datetime

# Seconds: waits after errors double from the first to the longest.
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
# Busy servers say these; 408 is a proxy's time-out, 409 a lock's.
PASSING = (408, 409, 425, 429)


def wait_before(attempt: int, after: float | None) -> float:
    """Draw how long to wait before asking again: what the server said, or longer each time."""
    if after is not None:
        return after + random.uniform(0, min(1.0, after / 10))
    return min(FIRST_WAIT * 2**attempt, LONGEST_WAIT) * random.uniform(0.5, 1.0)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read `Retry-After`: seconds, or a date by the server's clock; None where there is none."""
    text = headers.get("retry-after", "").strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            now = parsedate_to_datetime(headers.get("date") or formatdate(usegmt=True))
            seconds = (parsedate_to_datetime(text) - now).total_seconds()
        except (ValueError, TypeError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None
