"""Choose settings on claims that are not reported: BM25's k1 and b, a fusion, a scale, an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Literal

import numpy as np

from claim2source.core.config import require
from claim2source.core.errors import InputError, UserError
from claim2source.core.records import Dataset
from claim2source.core.report import MACRO, MAIN_METRIC, Choice, Rule, Table
from claim2source.core.run import Run
from claim2source.datasets import carve_val, expected_seen_share, load, seen_claims
from claim2source.models import DataRecord
from claim2source.models.manifest import Manifest
from claim2source.models.reranker_manifest import RerankerManifest, manifest_of_base
from claim2source.pipeline.choosing import Weighing, choose, weigh
from claim2source.pipeline.options import StoreOptions
from claim2source.retrieve import BM25Config, BM25Index, FusionConfig
from claim2source.retrieve.fuse import Fusion

_CUT = 5
TRAIN_SPLIT, VAL_SHARE, VAL_SEED = "train", 0.1, 13

_KNOWS_TRAIN = "val: the model was trained on train; only `carved` is unseen"

# The usual settings first: of equal ones the first is taken.
BM25_K1 = (1.2, 0.9, 1.5, 2.0, 0.6)
BM25_B = (0.75, 0.5, 0.9, 0.3)
BM25_TITLE_WEIGHT = (1, 2, 3)
BM25_GRID = tuple((k1, b, weight) for weight, k1, b in product(BM25_TITLE_WEIGHT, BM25_K1, BM25_B))
FUSION_GRID = tuple(
    replace(fusion, depth=depth)
    for depth in (100, 1000)
    for fusion in (
        FusionConfig("linear"),
        FusionConfig("linear", scale="z-score"),
        FusionConfig("linear", scale="none"),
        FusionConfig("rrf", rrf_k=60),
        FusionConfig("rrf", rrf_k=10),
    )
)
# The same with the other system's own score for what a list lacks.
FUSION_GRID += tuple(
    replace(fusion, missing="scored") for fusion in FUSION_GRID if fusion.method == "linear"
)
ALPHAS = tuple(round(step / 20, 2) for step in range(1, 20))
# Unscaled, a BM25 score is some twenty times a cosine: the useful weights are small.
UNSCALED_ALPHAS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3)


@dataclass(frozen=True)
class ChoosingOn:
    """Name the claims that settings are chosen on.

    BM25's are chosen on all of `split` (none: as the checkpoint's manifest says, else train): it
    has no weights that could know those claims. A fusion's are chosen on the part that training
    carves out (`carved`: as the manifest says, else by the training defaults), on all of it
    (`train`), or as its dense part allows (`auto`). `rule` is how is chosen. `lenient`: how the
    data set is loaded.
    """

    split: str | None = None
    val: Literal["auto", "carved", "train"] = "auto"
    lenient: bool = False
    rule: Rule = "one_se"


@dataclass(frozen=True, kw_only=True)
class ChoosingOptions(StoreOptions):
    """Say how is chosen; on which claims, a checkpoint's manifest says, else the split is train.

    Args:
        rule: `one_se`: of the settings within one standard error of the best, by paper, the one
            nearest to the default; or the `best`.
    """

    rule: Rule = "one_se"

    def choosing(self, val: Literal["auto", "carved", "train"]) -> ChoosingOn:
        """Name the claims that these options choose on."""
        return ChoosingOn(val=val, lenient=self.lenient, rule=self.rule)


class NothingToChooseOn(UserError):
    """Report that there are no claims to choose settings on besides those reported."""


@dataclass(frozen=True)
class SelectionData:
    """Hold the claims that settings are chosen on; `note` says where training held out others.

    `seen` are the claims of val whose papers stay in train, `seen_share` the mix of both parts to
    choose for.
    """

    train: Dataset
    val: Dataset
    note: str = ""
    seen: frozenset[str] = frozenset()
    seen_share: float | None = None

    def weighing(self, data: Dataset | None = None, language: str = MACRO) -> Weighing:
        """Weigh val's claims; `data` are the same claims in another form."""
        return weigh(self.val if data is None else data, self.seen, self.seen_share, language)


def selection_data(
    dataset: str,
    reported: str,
    choosing: ChoosingOn,
    manifest: Manifest | RerankerManifest | None,
) -> SelectionData:
    """Load train, and the claims on which a fusion with this model's scores may be chosen.

    A checkpoint's manifest says how its val was carved. One that was trained from another
    checkpoint knows the claims of both, where both trainings were on these data. Raises
    `UserError` for settings that contradict a trained one's, `NothingToChooseOn` where no claim
    with a gold is left.
    """
    found = _held_out(dataset, reported, choosing, manifest)
    base = None if manifest is None else manifest_of_base(manifest)
    known = None if base is None else _held_out_of_base(dataset, reported, choosing.lenient, base)
    if known is None or known.val is known.train:
        return found
    if choosing.val == "train":
        raise UserError(_KNOWS_TRAIN)
    return known_to_none([found, known])


def _held_out_of_base(
    dataset: str, reported: str, lenient: bool, base: Manifest | RerankerManifest
) -> SelectionData | None:
    """Find the claims that a model's base held out; None where it was trained on other data."""
    try:
        known = selection_data(dataset, reported, ChoosingOn(lenient=lenient), base)
    except NothingToChooseOn:
        return None
    return None if known.note else known


def _held_out(
    dataset: str,
    reported: str,
    choosing: ChoosingOn,
    manifest: Manifest | RerankerManifest | None,
) -> SelectionData:
    """Find the claims that the last training of a model held out; all of train without one."""
    data = DataRecord() if manifest is None else manifest.data
    trained = manifest is not None and manifest.weights.kind != "base"

    if trained and None not in (choosing.split, data.train_split):
        allowed = f"{data.train_split}, as the checkpoint's manifest says"
        require(choosing.split == data.train_split, "train_split", choosing.split, allowed)
    split = choosing.split or data.train_split or TRAIN_SPLIT
    share = VAL_SHARE if data.val_share is None else data.val_share
    seed = VAL_SEED if data.val_seed is None else data.val_seed
    # A manifest of version 0.1.0 does not say it: its val has unseen papers only.
    unsaid = VAL_SHARE if data.val_share is None else 0.0
    seen_share = unsaid if data.val_seen_share is None else data.val_seen_share
    if choosing.val == "train" and trained:
        raise UserError(_KNOWS_TRAIN)
    train = load_train(dataset, reported, split, choosing.lenient)
    if choosing.val == "train" or (choosing.val == "auto" and not trained):
        return SelectionData(train, train)
    # A run on some languages carved its val out of those alone.
    carved_from = train
    if data.languages:
        carved_from = load(dataset, split, data.languages, lenient=choosing.lenient)
    rest, val = carve_val(carved_from, share, seed, seen_share=seen_share)
    note = ""
    if trained and data.val_sha256 != val.fingerprint:
        note = "the val carved here is not the one training held out: the data differ"
    if not val.golds:
        raise NothingToChooseOn(f"{dataset}: no claim of val has a gold to choose by")
    mix = data.seen_share_expected
    mix = expected_seen_share(carved_from) if mix is None else mix
    return SelectionData(train, val, note, seen_claims(rest, val), mix)


def unknown_claims(
    dataset: str,
    reported: str,
    choosing: ChoosingOn,
    manifests: Iterable[Manifest | RerankerManifest | None],
) -> SelectionData:
    """Load the claims that none of several models was trained on: all of train where none was.

    Raises as `selection_data` does.
    """
    found = [selection_data(dataset, reported, choosing, one) for one in manifests]
    return known_to_none(found or [selection_data(dataset, reported, choosing, None)])


def known_to_none(found: Sequence[SelectionData]) -> SelectionData:
    """Leave the claims that none of several models was trained on.

    They are weighed as those of the first that held some out. Raises `NothingToChooseOn` where no
    claim with a gold is left.
    """
    first = next((one for one in found if one.val is not one.train), found[0])
    shared = set.intersection(*({claim.id for claim in one.val.claims} for one in found))
    kept = [claim for claim in first.val.claims if claim.id in shared]
    if not any(claim.golds for claim in kept):
        raise NothingToChooseOn("no claim of train is unknown to all of the models")
    val = first.val if len(kept) == len(first.val.claims) else first.val.with_claims(kept)
    notes = dict.fromkeys(one.note for one in found if one.note)
    return replace(first, val=val, note="; ".join(notes))


def one_val(language: str, found: Mapping[str, SelectionData]) -> SelectionData:
    """Return the claims that none of several systems was trained on, to choose among them.

    Systems without trained weights have all of train; of trained ones, each must have held out the
    same val. Raises `UserError` where they have not, `NothingToChooseOn` where no claim of the
    language with a gold is left.
    """
    held_out = {name: one for name, one in found.items() if one.val is not one.train}
    selection = next(iter((held_out or found).values()))
    for name, one in held_out.items():
        if one.val.fingerprint != selection.val.fingerprint:
            raise UserError(
                f"routes.{language}: {next(iter(held_out))} and {name} held out other claims of "
                "train: train them with the same data.val_share, val_seed and val_seen_share"
            )
    mine = selection.val.in_languages([language])
    if not mine.golds:
        raise NothingToChooseOn(f"routes.{language}: no {language} claim of val has a gold")
    return selection


def load_train(dataset: str, reported: str, split: str | None, lenient: bool = False) -> Dataset:
    """Load the split that settings are chosen on. Raises `NothingToChooseOn`."""
    split = split or TRAIN_SPLIT
    if split == reported:
        raise NothingToChooseOn(
            f"split: {reported!r} is what settings are chosen on, not reported on"
        )
    try:
        train = load(dataset, split, lenient=lenient)
    except InputError as error:
        raise NothingToChooseOn(str(error)) from None
    if not train.golds:
        raise NothingToChooseOn(f"{dataset}: no claim of {split!r} has a gold to choose by")
    return train


def score_of(table: Table, metric: str = MAIN_METRIC, name: str = MACRO) -> float:
    """Return the score to choose by: a metric of the macro average, or of one language.

    To 12 digits: averages of the same reciprocal ranks in another order are equal.
    """
    return round(float(table[name][metric]), 12)


def choose_bm25(
    data: Dataset,
    base: BM25Config,
    grid: Iterable[tuple[float, float, int]] = BM25_GRID,
    rule: Rule = "one_se",
) -> tuple[BM25Config, Choice]:
    """Choose k1, b and title weight of BM25 from a grid, whose first entry is the default.

    Distance from it is in steps of the grid. The texts are analysed once for each title weight.
    """
    tried = try_bm25(data, base, grid)
    return choose("bm25", tried, weigh(data), distance=bm25_distance(list(tried)), rule=rule)


def try_bm25(
    data: Dataset, base: BM25Config, grid: Iterable[tuple[float, float, int]] = BM25_GRID
) -> dict[BM25Config, np.ndarray]:
    """Score every cell of a grid of k1, b and title weight: reciprocal ranks as of `weigh`."""
    cells = list(dict.fromkeys(grid))
    weighing = weigh(data)
    judged = data.with_claims(claim for claim in data.claims if claim.golds)
    values: dict[tuple[float, float, int], np.ndarray] = {}
    for weight in dict.fromkeys(cell[2] for cell in cells):
        index = BM25Index(data.sources, replace(base, title_weight=weight))
        terms = index.terms(judged.claims)
        for cell in (cell for cell in cells if cell[2] == weight):
            run = index.reweighted(*cell[:2]).rank(judged.claims, _CUT, terms)
            values[cell] = weighing.of(run)
    return {replace(base, k1=c[0], b=c[1], title_weight=c[2]): values[c] for c in cells}


def bm25_distance(tried: Sequence[BM25Config]) -> Callable[[BM25Config], float]:
    """Give the function that counts a setting's steps, within the grid, from its first cell."""
    cells = [(setting.k1, setting.b, setting.title_weight) for setting in tried]
    steps = [sorted(set(column)) for column in zip(*cells, strict=True)]

    def distance(setting: BM25Config) -> float:
        cell = setting.k1, setting.b, setting.title_weight
        pairs = zip(steps, cell, cells[0], strict=True)
        return sum(abs(step.index(mine) - step.index(first)) for step, mine, first in pairs)

    return distance


def choose_fusion(
    sparse: Run,
    dense: Run,
    data: Dataset,
    grid: Sequence[FusionConfig] = FUSION_GRID,
    note: str = "",
    scored: tuple[Run, Run] | None = None,
    weighing: Weighing | None = None,
    rule: Rule = "one_se",
) -> tuple[FusionConfig, Choice]:
    """Choose a fusion of two runs, and its alpha, from a grid.

    The default is `FusionConfig()`. Any other method, scale, constant or depth is further from
    it than any other alpha. `weighing` weighs the claims; none: the macro average. By the rule
    `best`, of equal settings the first of the grid is chosen, with the middle one of its best
    alphas. `scored` are both systems' scores of what they lack (`score_missing`); without them,
    fusions that need them are left out.
    """
    weighing = weigh(data) if weighing is None else weighing
    return choose(
        "fusion",
        try_fusion(sparse, dense, weighing, grid, scored),
        weighing,
        distance=fusion_distance,
        rule=rule,
        group=lambda config: replace(config, alpha=0.5),
        note=note,
    )


def try_fusion(
    sparse: Run,
    dense: Run,
    weighing: Weighing,
    grid: Sequence[FusionConfig] = FUSION_GRID,
    scored: tuple[Run, Run] | None = None,
) -> dict[FusionConfig, np.ndarray]:
    """Score every fusion of a grid at every alpha; `scored` as for `choose_fusion`."""
    if scored is None:
        grid = [config for config in grid if config.missing == "lowest"]
    sparse, dense = (run.restricted(weighing.claim_ids) for run in (sparse, dense))
    tried: dict[FusionConfig, np.ndarray] = {}
    for config in grid:
        fusion = Fusion(sparse, dense, config, scored)
        for alpha in _alphas(config):
            tried[replace(config, alpha=alpha)] = weighing.of(fusion.run(alpha, _CUT))
    return tried


def _alphas(config: FusionConfig) -> tuple[float, ...]:
    return UNSCALED_ALPHAS if (config.method, config.scale) == ("linear", "none") else ALPHAS


def fusion_distance(config: FusionConfig) -> float:
    """Measure how far a fusion is from the default: other settings first, then its alpha."""
    alphas, plain = _alphas(config), FusionConfig()
    middle = alphas.index(config.alpha) - len(alphas) // 2
    changed = sum(getattr(config, f.name) != getattr(plain, f.name) for f in fields(FusionConfig))
    changed -= config.alpha != plain.alpha
    return changed + abs(middle) / len(alphas)
