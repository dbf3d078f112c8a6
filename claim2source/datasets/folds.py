"""Deal training claims to folds, so that a model can rank claims that it was not trained on."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence

from claim2source.core.config import require, require_between
from claim2source.core.records import Claim
from claim2source.datasets.grouping import connected_groups, plain_text

_Unit = list[Claim]


def assign_folds(
    claims: Sequence[Claim], folds: int, seen_share: float, seed: int
) -> dict[str, int]:
    """Number the fold of every claim, from 0; all of them are of about the same size.

    Claims of the same text stay together. Claims of connected golds (`connected_groups`) stay
    together too, so that a model that is not trained on their fold has not seen their papers;
    or they are spread over the folds, so that it has. Which papers are spread is drawn until
    they hold `seen_share` of all claims. The result depends on ids and `seed`, not on the order
    of claims.

    Raises `ConfigError` where a fold would be empty.
    """
    require_between("folds", folds, 2, 100)
    require(0.0 <= seen_share <= 1.0, "seen_share", seen_share, "0 to 1")

    def by_chance(unit: _Unit) -> tuple[bytes, str]:
        name = min(claim.id for claim in unit)
        return hashlib.sha256(f"{seed}:{name}".encode()).digest(), name

    whole: list[_Unit] = []
    spread: list[list[_Unit]] = []
    wanted = seen_share * len(claims)
    for group in sorted(_connected(claims), key=by_chance):
        units = sorted(_of_one_text(group), key=by_chance)
        # The larger half of a paper decides whether it still belongs to that share.
        if len(units) > 1 and wanted >= len(group) / 2:
            spread.append(units)
            wanted -= len(group)
        else:
            whole.append(group)
    number: dict[str, int] = {}
    loads = [Counter[str]() for _ in range(folds)]

    def put(unit: _Unit, used: Counter[int]) -> None:
        languages = {claim.lang for claim in unit}

        def load(fold: int) -> tuple[int, int, int, int]:
            same = sum(loads[fold][lang] for lang in languages)
            return used[fold], same, loads[fold].total(), fold

        fold = min(range(folds), key=load)
        used[fold] += 1
        loads[fold].update(claim.lang for claim in unit)
        number.update({claim.id: fold for claim in unit})

    for unit in sorted(whole, key=lambda unit: -len(unit)):
        put(unit, Counter())
    for units in spread:
        used: Counter[int] = Counter()
        for unit in units:
            put(unit, used)
    filled = len(set(number.values()))
    require(filled == folds, "folds", folds, f"at most {filled}: these claims fill no more")
    return number


def _connected(claims: Sequence[Claim]) -> list[_Unit]:
    """Group claims that share a gold or a text, directly or through others."""
    groups: dict[int, _Unit] = defaultdict(list)
    keys = [
        [*(f"gold {gold}" for gold in claim.golds), f"text {plain_text(claim.text)}"]
        for claim in claims
    ]
    for group, claim in zip(connected_groups(keys), claims, strict=True):
        groups[group].append(claim)
    return list(groups.values())


def _of_one_text(claims: Sequence[Claim]) -> list[_Unit]:
    units: dict[str, _Unit] = defaultdict(list)
    for claim in claims:
        units[plain_text(claim.text)].append(claim)
    return list(units.values())
