"""Carve `val`, the part of train on which choices are made, from unseen and seen papers."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from claim2source.core.config import require
from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim, Dataset
from claim2source.data.grouping import connected_groups, plain_text

VAL = "val"
# Usual share of claims in each part of val.
SHARE = 0.1
# Setting that `mix` comes from.
MIX = "seen_share_expected"


def carve_val(
    train: Dataset,
    share: float = SHARE,
    seed: int = 13,
    most_claims: int = 10,
    seen_share: float = 0.0,
    mix: float | None = None,
) -> tuple[Dataset, Dataset]:
    """Split `train` into the rest and `val`, both with the entire pool of sources.

    The first part of `val` has unseen papers: claims with connected golds (`connected_groups`)
    stay together, so its golds are not golds of the rest. It gets about `share` of the claims of
    each language, at least one if the language has two or more groups. A paper with more than
    `most_claims` claims stays in train, because it would dominate the mean over `val`.

    The second part of `val` has seen papers: at most `seen_share` of the claims of each language,
    drawn from the rest such that every gold of a drawn claim keeps a training claim. Claims with
    the same text are drawn together. `seen_claims` separates the two parts. The result depends on
    ids and `seed`, not on the order of claims.

    With `mix`, `val` gets `share` + `seen_share` of the claims, and `mix` of these are of seen
    papers. It resembles a split that was drawn by claim, so the claims of unseen papers are those
    of the papers with the fewest claims. Claims without a gold stay in train.

    Raises `ConfigError` if a share is not between 0 and 1 or leaves a part empty, or if too few
    papers have several claims for `mix`.
    """
    require(0.0 < share < 1.0, "share", share, "above 0 and below 1")
    require(0.0 <= seen_share < 1.0, "seen_share", seen_share, "0 or more and below 1")
    require(mix is None or 0.0 <= mix <= 1.0, MIX, mix, "0 to 1")
    groups = _by_group(train.claims)
    totals = Counter(claim.lang for claim in train.claims)
    if mix is None or mix == 0:
        size = share if mix is None else share + seen_share
        room = _room(groups.values(), totals, size)
        order = _shuffled(groups, f"{seed}:")
        val_ids = _draw_groups(groups, order, room, most_claims)
    else:
        size = share + seen_share
        val_ids = _draw_mix(train.claims, size, mix, seed, most_claims)

    count = len(train.claims)
    if not 0 < len(val_ids) < count:
        side = "train" if val_ids else VAL
        extent = f"{count} claims of {len(groups)} separate papers"
        reason = f"{share:g} leaves no {side} claims: the training split has {extent}"
        raise ConfigError("share", share, "", reason)

    if seen_share and mix is None:
        staying = [claim for claim in train.claims if claim.id not in val_ids]
        most_seen = {lang: round(seen_share * total) for lang, total in totals.items()}
        quotas = Counter(most_seen)
        seen_ids = _draw_seen_claims(staying, quotas, seed)
        val_ids |= seen_ids
    return _divided(train, val_ids)


def _divided(train: Dataset, val_ids: Collection[str]) -> tuple[Dataset, Dataset]:
    """Divide `train` into the rest and `val`, in the order of its claims."""
    rest: list[Claim] = []
    val: list[Claim] = []
    for claim in train.claims:
        if claim.id in val_ids:
            val.append(claim)
        else:
            rest.append(claim)
    rest_data = train.with_claims(rest)
    val_data = train.with_claims(val, split=VAL)
    return rest_data, val_data


def _draw_groups(
    groups: Mapping[str, Sequence[Claim]],
    order: Iterable[str],
    room: Counter[str],
    most_claims: int,
) -> set[str]:
    """Draw whole groups in this order, as far as each language has `room`, which is reduced."""
    claim_ids: set[str] = set()
    for key in order:
        group = groups[key]
        counts = Counter(claim.lang for claim in group)
        has_few_claims = len(group) <= most_claims
        if has_few_claims and counts <= room:
            claim_ids.update(claim.id for claim in group)
            room.subtract(counts)
    return claim_ids


def _draw_mix(
    claims: Sequence[Claim],
    share: float,
    mix: float,
    seed: int,
    most_claims: int,
) -> set[str]:
    """Draw `share` of each language's claims, `mix` of them of papers that keep a claim.

    The others are of papers that keep none, those with the fewest claims first, if no other claim
    has their text.
    """
    judged = [claim for claim in claims if claim.golds]
    groups = _by_group(judged)
    totals = Counter(claim.lang for claim in judged)
    sizes = _room(groups.values(), totals, share)
    parts = {lang: round(mix * size) for lang, size in sizes.items()}
    wanted = Counter(parts)
    missing = wanted.copy()
    seen = _draw_seen_claims(judged, missing, seed)
    if missing.total():
        raise _mix_error(mix, sizes, wanted, missing)

    texts = Counter(plain_text(claim.text) for claim in claims)
    free: dict[str, list[Claim]] = {}
    for key, group in groups.items():
        own = Counter(plain_text(claim.text) for claim in group)
        is_whole = seen.isdisjoint(claim.id for claim in group)
        if is_whole and all(count == texts[text] for text, count in own.items()):
            free[key] = group
    shuffled = _shuffled(free, f"{seed}:")
    order = sorted(shuffled, key=lambda key: len(free[key]))
    room = sizes - wanted
    unseen = _draw_groups(free, order, room, most_claims)
    return seen | unseen


def _mix_error(
    mix: float,
    sizes: Counter[str],
    wanted: Counter[str],
    missing: Counter[str],
) -> ConfigError:
    """Name the highest share of claims of seen papers that every language's val can have."""
    possible: dict[str, float] = {}
    for lang, count in missing.items():
        if count:
            drawn = wanted[lang] - count
            percent = math.floor(100 * drawn / sizes[lang])
            possible[lang] = percent / 100
    least = min(possible, key=lambda lang: (possible[lang], lang))
    needed = sum(wanted.values())
    return ConfigError(
        MIX,
        mix,
        f"at most {possible[least]:.2f}, or a smaller val: {needed} claims are "
        f"needed whose papers keep another one, and in {least} {missing[least]} are missing",
    )


def _room(
    groups: Iterable[Sequence[Claim]],
    totals: Counter[str],
    share: float,
) -> Counter[str]:
    """Return the number of claims that val may get of each language, 0 if it has one group."""
    spread: Counter[str] = Counter()
    for group in groups:
        languages = {claim.lang for claim in group}
        spread.update(languages)
    room: Counter[str] = Counter()
    for lang, total in totals.items():
        room[lang] = 0
        if spread[lang] > 1:
            part = round(share * total)
            room[lang] = max(part, 1)
    return room


def seen_claims(train: Dataset, held_out: Dataset) -> frozenset[str]:
    """Return the ids of held-out claims that have a gold of `train`."""
    golds = train.golds
    claim_ids: list[str] = []
    for claim in held_out.claims:
        is_seen = not golds.isdisjoint(claim.golds)
        if is_seen:
            claim_ids.append(claim.id)
    return frozenset(claim_ids)


def expected_seen_share(train: Dataset) -> float:
    """Return the share of claims with a gold that another claim has too.

    It estimates the probability that a further claim of the same collection has a seen paper.
    """
    judged = sum(bool(claim.golds) for claim in train.claims)
    if not judged:
        return 0.0
    shared = claims_of_shared_papers(train)
    return len(shared) / judged


def claims_of_shared_papers(data: Dataset) -> frozenset[str]:
    """Return the ids of claims with a gold that another claim has too."""
    times = _gold_counts(data.claims)
    claim_ids: list[str] = []
    for claim in data.claims:
        is_shared = any(times[gold] > 1 for gold in claim.golds)
        if is_shared:
            claim_ids.append(claim.id)
    return frozenset(claim_ids)


def _gold_counts(claims: Iterable[Claim]) -> Counter[str]:
    """Count the claims of each gold."""
    counts: Counter[str] = Counter()
    for claim in claims:
        counts.update(claim.golds)
    return counts


def _shuffled(keys: Iterable[str], salt: str) -> list[str]:
    digests: dict[str, bytes] = {}
    for key in keys:
        salted = f"{salt}{key}"
        digests[key] = hashlib.sha256(salted.encode()).digest()
    return sorted(digests, key=lambda key: (digests[key], key))


def _draw_seen_claims(
    claims: Sequence[Claim],
    room: Counter[str],
    seed: int,
) -> set[str]:
    """Draw claims whose golds all keep another claim, at most `room` per language."""
    same_text: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        text = plain_text(claim.text)
        same_text[text].append(claim)
    units: dict[str, list[Claim]] = {}
    for unit in same_text.values():
        first_id = min(claim.id for claim in unit)
        units[first_id] = unit

    remaining = _gold_counts(claims)
    claim_ids: set[str] = set()
    order = _shuffled(units, f"{seed}:seen ")
    for key in order:
        unit = units[key]
        counts = Counter(claim.lang for claim in unit)
        removed = _gold_counts(unit)
        keeps_claims = all(count < remaining[gold] for gold, count in removed.items())
        if keeps_claims and counts <= room and all(claim.golds for claim in unit):
            claim_ids.update(claim.id for claim in unit)
            remaining -= removed
            room.subtract(counts)
    return claim_ids


def _by_group(claims: Sequence[Claim]) -> dict[str, list[Claim]]:
    golds = (claim.golds for claim in claims)
    numbers = connected_groups(golds)
    groups: dict[int, list[Claim]] = defaultdict(list)
    for number, claim in zip(numbers, claims, strict=True):
        groups[number].append(claim)

    groups_by_key: dict[str, list[Claim]] = {}
    for group in groups.values():
        # The prefix distinguishes a claim's id from an equal id of a gold.
        keys: list[str] = []
        for claim in group:
            keys.extend(f"gold {gold}" for gold in claim.golds)
        own_key = f"claim {group[0].id}"
        key = min(keys, default=own_key)
        groups_by_key[key] = group
    return groups_by_key
