"""Small files of rumours in the organisers' form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

AUTHORITY = "https://twitter.com/authority"


def rumor(
    name: str,
    text: str,
    timeline: Mapping[str, str],
    label: str | None = None,
    evidence: Sequence[str] = (),
) -> dict[str, Any]:
    """A rumour in the organisers' format; without a label, as in a blind test set."""
    tweets = {key: [AUTHORITY, key, tweet] for key, tweet in timeline.items()}
    record = {"id": name, "rumor": text, "timeline": list(tweets.values())}
    if label is not None:
        record |= {"label": label, "evidence": [tweets[key] for key in evidence]}
    return record


DENIED = rumor(
    "r1",
    "The dam near Basra has burst! https://t.co/x #Basra",
    {
        "11": "There is no truth to the news that the dam near Basra has burst #Basra",
        "12": "The minister opened a school in Mosul",
        "13": "The dam was inspected last week, near the city",
        "14": "Schools open again on Sunday #Mosul",
    },
    "REFUTES",
    ["11"],
)
CONFIRMED = rumor(
    "r2",
    "Fuel prices rise on Monday",
    {
        "21": "The ministry announces: fuel prices rise on Monday",
        "22": "Fuel stations are open on Monday",
        "23": "A new bridge was opened",
    },
    "SUPPORTS",
    ["21", "22"],
)
OPEN = rumor("r3", "A star was seen over the port", {"31": "The port is open"}, "NOT ENOUGH INFO")
RUMORS = [DENIED, CONFIRMED, OPEN]


def with_tags(evidence_by_tag: Sequence[bool]) -> list[dict[str, Any]]:
    """Rumours whose evidence a high boost ranks first, or hides."""
    tweets = {"1": "other things #Basra", "2": "dam news of today", "3": "no word"}
    return [
        rumor(f"r{i}", "dam news #Basra", tweets, "REFUTES", ["1" if by_tag else "2"])
        for i, by_tag in enumerate(evidence_by_tag)
    ]


def write_rumors(path: Path, rumors: Sequence[Mapping[str, Any]] = RUMORS) -> Path:
    path.write_text(json.dumps(rumors, ensure_ascii=False), encoding="utf-8")
    return path
