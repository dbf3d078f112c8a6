"""Read what a benchmark prints."""

from __future__ import annotations

import json
from typing import Any


def read_result(output: str) -> tuple[list[str], dict[str, Any]]:
    """Split a benchmark's output into its table's lines and its result; check the result's head."""
    *table, last = output.strip().splitlines()
    result = json.loads(last)
    assert next(iter(result)) == "ratio"
    if result["ratio"] is not None:
        low, high = result["spread"]
        assert low <= result["ratio"] <= high
        assert "python" in result["versions"] and len(result["load_average"]) == 3
    return table, result
