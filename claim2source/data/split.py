"""Carve `val`, the part of train on which choices are made, from unseen and seen papers."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

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
        room = _room(groups.values(), totals, share if mix is None else share + seen_share)
        val_ids = _draw_groups(groups, _shuffled(groups, f"{seed}:"), room, most_claims)
    else:
        val_ids = _draw_mix(train.claims, share + seen_share, mix, seed, most_claims)
    if not 0 < len(val_ids) < len(train.claims):
        side = "train" if val_ids else VAL
        size = f"{len(train.claims)} claims of {len(groups)} separate papers"
        reason = f"{share:g} leaves no {side} claims: the training split has {size}"
        raise ConfigError("share", share, "", reason)
    if seen_share and mix is None:
        staying = [claim for claim in train.claims if claim.id not in val_ids]
        quotas = Counter({lang: round(seen_share * total) for lang, total in totals.items()})
        val_ids |= _draw_seen_claims(staying, quotas, seed)
    rest: list[Claim] = []
    val: list[Claim] = []
    for claim in train.claims:
        if claim.id in val_ids:
            val.append(claim)
        else:
            rest.append(claim)
    return train.with_claims(rest), train.with_claims(val, split=VAL)


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
        if len(group) <= most_claims and counts <= room:
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
    sizes = _room(groups.values(), Counter(claim.lang for claim in judged), share)
    wanted = Counter({lang: round(mix * size) for lang, size in sizes.items()})
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
    order = sorted(_shuffled(free, f"{seed}:"), key=lambda key: len(free[key]))
    return seen | _draw_groups(free, order, sizes - wanted, most_claims)


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
            possible[lang] = math.floor(100 * drawn / sizes[lang]) / 100
    least = min(possible, key=lambda lang: (possible[lang], lang))
    return ConfigError(
        MIX,
        mix,
        f"at most {possible[least]:.2f}, or a smaller val: {sum(wanted.values())} claims are "
        f"needed whose papers keep another one, and in {least} {missing[least]} are missing",
    )


def _room(groups: Iterable[Sequence[Claim]], totals: Counter[str], share: float) -> Counter[str]:
    """Return the number of claims that val may get of each language, 0 if it has one group."""
    spread: Counter[str] = Counter()
    for group in groups:
        spread.update({claim.lang for claim in group})
    room: Counter[str] = Counter()
    for lang, total in totals.items():
        room[lang] = 0
        if spread[lang] > 1:
            room[lang] = max(round(share * total), 1)
    return room


def seen_claims(train: Dataset, held_out: Dataset) -> frozenset[str]:
    """Return the ids of held-out claims that have a gold of `train`."""
    golds = train.golds
    return frozenset(c.id for c in held_out.claims if not golds.isdisjoint(c.golds))


def expected_seen_share(train: Dataset) -> float:
    """Return the share of claims with a gold that another claim has too.

    It estimates the probability that a further claim of the same collection has a seen paper.
    """
    judged = sum(bool(claim.golds) for claim in train.claims)
    return len(claims_of_shared_papers(train)) / judged if judged else 0.0


def claims_of_shared_papers(data: Dataset) -> frozenset[str]:
    """Return the ids of claims with a gold that another claim has too."""
    times = _gold_counts(data.claims)
    shared = (c.id for c in data.claims if any(times[gold] > 1 for gold in c.golds))
    return frozenset(shared)


def _gold_counts(claims: Iterable[Claim]) -> Counter[str]:
    """Count the claims of each gold."""
    counts: Counter[str] = Counter()
    for claim in claims:
        counts.update(claim.golds)
    return counts


def _shuffled(keys: Iterable[str], salt: str) -> list[str]:
    digests = {key: hashlib.sha256(f"{salt}{key}".encode()).digest() for key in keys}
    return sorted(digests, key=lambda key: (digests[key], key))


def _draw_seen_claims(claims: Sequence[Claim], room: Counter[str], seed: int) -> set[str]:
    """Draw claims whose golds all keep another claim, at most `room` per language."""
    same_text: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        same_text[plain_text(claim.text)].append(claim)
    units = {min(claim.id for claim in unit): unit for unit in same_text.values()}
    remaining = _gold_counts(claims)
    claim_ids: set[str] = set()
    for key in _shuffled(units, f"{seed}:seen "):
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
    groups: dict[int, list[Claim]] = defaultdict(list)
    for number, claim in zip(connected_groups(c.golds for c in claims), claims, strict=True):
        groups[number].append(claim)
    group_of = {}
    for group in groups.values():
        # The prefix distinguishes a claim's id from an equal id of a gold.
        golds = [f"gold {gold}" for claim in group for gold in claim.golds]
        group_of[min(golds, default=f"claim {group[0].id}")] = group
    return group_of
