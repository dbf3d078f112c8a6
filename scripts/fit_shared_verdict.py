"""Fit the verdict for indexes without claims on posts of five collections, and measure it.

python scripts/fit_shared_verdict.py --work DIR [--out FILE]

The collections are the demo and four folders of CLAIM2SOURCE_DATA. A part of each is indexed
below --work, and a later call reuses these indexes. For every collection a model is fitted on the
others and measured on it; the shipped model is fitted on all. --out writes only encoders whose
verdict is good on every collection.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import Settings, read_config
from claim2source.core.errors import run_program
from claim2source.core.files import write_text
from claim2source.core.records import Claim, Dataset, Source
from claim2source.core.tables import Cell, TextTable, render
from claim2source.core.terminal import say
from claim2source.data.loading import load
from claim2source.data.papers import Paper
from claim2source.data.store import Store
from claim2source.find.abstention import (
    DENSE,
    LEXICAL,
    AbstainModel,
    Design,
    Tenth,
    fit,
    reliability_tenths,
)
from claim2source.find.calibrate import NOT_HERE, Questions, as_asked, ask_index
from claim2source.find.shared import LeftOut, SharedModel, SharedModels
from claim2source.models import ENGLISH, ModelConfig, resolve
from claim2source.models.me5 import NAME as MULTILINGUAL
from claim2source.search.dense import Dense
from claim2source.search.engine import Engine, open_index
from claim2source.search.growing import grow, open_for_writing
from claim2source.search.manifest import is_engine
from claim2source.text import Rendering

Drawn = TypeVar("Drawn")
PROGRAM = "scripts/fit_shared_verdict.py"
# Posts of a collection, and posts of other ones.
POSTS = 300
OTHERS = 120
DESIGN = Design((LEXICAL, DENSE), shape=True)
PENALTY = 3.0
# Probability from which a paper counts as found, and the largest share of posts about other things
# or without their papers that may reach it.
SURE = 0.9
MOST_WRONG = 0.01
# Largest difference of a tenth, and how many tenths must be good for an encoder to ship.
GAP = 0.1
GOOD = 8
SEED = 13


@dataclass(frozen=True)
class Collection:
    """Data set whose papers, and gold papers of train and dev, are indexed.

    `others` name the collections whose posts are about other things.
    """

    name: str
    papers: int
    train: int
    dev: int
    others: tuple[str, ...]


COLLECTIONS = (
    Collection(
        "demo",
        papers=418,
        train=418,
        dev=418,
        others=("ct25", "preprints", "papertweets", "tweets-factchecks"),
    ),
    Collection(
        "ct25",
        papers=600,
        train=170,
        dev=100,
        others=("demo", "papertweets", "tweets-factchecks"),
    ),
    Collection(
        "preprints",
        papers=600,
        train=100,
        dev=60,
        others=("demo", "papertweets", "tweets-factchecks"),
    ),
    Collection(
        "papertweets",
        papers=600,
        train=220,
        dev=100,
        others=("demo", "ct25", "preprints", "tweets-factchecks"),
    ),
    Collection(
        "tweets-factchecks",
        papers=1500,
        train=350,
        dev=100,
        others=("demo", "preprints", "papertweets"),
    ),
)
# Encoders that may ship, and the languages of posts: an English one gets translations.
ENCODERS = {
    MULTILINGUAL: ("en", "de", "fr"),
    ModelConfig().name: ("en",),
}


@dataclass(frozen=True)
class FitConfig(Settings):
    """Settings of `scripts/fit_shared_verdict.py`.

    Args:
        work: folder of the indexes and of the store of vectors.
        out: JSON file to write.
        encoders: encoders to measure; none: all.
        split: split of the posts to measure left-out collections on; models are fitted on train.
    """

    work: Path
    out: Path | None = None
    encoders: tuple[str, ...] = ()
    split: str = "train"


@dataclass(frozen=True, eq=False)
class Asked:
    """Answers of an index to the posts of one collection, half of them without their papers."""

    collection: Collection
    questions: Questions
    papers: int

    @property
    def posts(self) -> int:
        return len(self.questions.parts[0][0])

    @cached_property
    def features(self) -> np.ndarray:
        """Describe all answers, [answers, features]."""
        return self.questions.features(DESIGN)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every encoder, and write those that are good enough."""
    config = read_config(
        FitConfig,
        argv,
        program=PROGRAM,
        description=__doc__ or "",
    )
    train = load_collections("train")
    tested = train
    if config.split != "train":
        tested = load_collections(config.split)

    models = []
    for encoder in config.encoders or ENCODERS:
        asked = ask_all(config, encoder, train)
        measured_on = asked if tested is train else ask_all(config, encoder, tested)
        left_out = [measure(name, asked, measured_on) for name in asked]
        title = f"{encoder}, posts of {config.split}:"
        say(render([title, collection_table(left_out)]))
        for collection in left_out:
            table = tenth_table(collection.tenths)
            say(render([f"{collection.name}:", table]))
        if all(is_good(collection) for collection in left_out):
            models.append(to_ship(config, encoder, asked, left_out))
        else:
            say(f"{encoder}: does not ship")

    if config.out is not None:
        fitted = asdict(SharedModels(tuple(models)))
        text = json.dumps(fitted, indent=1)
        write_text(config.out, text + "\n")


def load_collections(split: str) -> dict[str, Dataset]:
    """Load a split of every collection."""
    return {collection.name: load(collection.name, split) for collection in COLLECTIONS}


def ask_all(
    config: FitConfig,
    encoder: str,
    datasets: Mapping[str, Dataset],
) -> dict[str, Asked]:
    """Search the indexes of all collections; make missing ones first."""
    asked = {}
    for collection in COLLECTIONS:
        engine = open_collection(config.work, encoder, collection)
        answers = ask(engine, collection, datasets)
        asked[collection.name] = answers
        say(f"{encoder}: {collection.name}: {answers.posts} posts")
    return asked


def open_collection(work: Path, encoder: str, collection: Collection) -> Engine:
    """Open the index of a collection's part; make it if it is missing."""
    location = work / f"{encoder.replace('/', '-')}-{collection.name}"
    if is_engine(location):
        return open_index(location)
    config = ModelConfig(name=encoder)
    resolved = resolve(config, None)
    store = Store(work / "store", keeps_open=True)
    rendering = None
    if resolved.rendering is None:
        rendering = Rendering("original", "title_abstract")
    dense = Dense(resolved, rendering=rendering, store=store, recorded=config)
    engine = open_for_writing(str(location), dense, None, False)
    grow(engine, map(Paper, part_of(collection)), dense)
    engine.close()
    return open_index(location)


def part_of(collection: Collection) -> list[Source]:
    """Draw gold papers of train and of dev, and papers that are not a gold of any post."""
    rng = np.random.default_rng(SEED)
    train = load(collection.name, "train")
    dev = load(collection.name, "dev")
    train_golds = drawn(sorted(train.golds), collection.train, rng)
    kept = set(train_golds)
    golds = train.golds | dev.golds
    rest = [source.id for source in train.sources if source.id not in golds]
    dev_golds = drawn(sorted(dev.golds), collection.dev, rng)
    kept.update(dev_golds)
    missing = collection.papers - len(kept)
    kept.update(drawn(rest, missing, rng))
    return [source for source in train.sources if source.id in kept]


def drawn(values: Sequence[Drawn], count: int, rng: np.random.Generator) -> list[Drawn]:
    """Draw some of the values and keep their order."""
    if len(values) <= count:
        return list(values)
    size = max(0, count)
    rows = rng.choice(len(values), size, replace=False)
    return [values[row] for row in sorted(rows)]


def ask(
    engine: Engine,
    collection: Collection,
    datasets: Mapping[str, Dataset],
) -> Asked:
    """Search an index for its own posts, with and without their papers, and for other posts."""
    rng = np.random.default_rng(SEED)
    dataset = datasets[collection.name]
    indexed = engine.stamps(sorted(dataset.golds)).keys()
    known: list[Claim] = []
    for claim in dataset.claims:
        if claim.golds and indexed >= set(claim.golds):
            known.append(claim)
    claims = drawn(readable(engine, known), POSTS, rng)

    others: list[Claim] = []
    for name in collection.others:
        count = OTHERS // len(collection.others)
        readable_posts = readable(engine, datasets[name].claims)
        for claim in drawn(readable_posts, count, rng):
            new_id = f"{name} {claim.id}"
            others.append(replace(claim, id=new_id, golds=()))

    own = dataset.with_claims(claims)
    questions = ask_index(engine, own, SEED, others)
    papers = engine.stats().papers
    return Asked(collection, questions, papers)


def readable(engine: Engine, claims: Sequence[Claim]) -> list[Claim]:
    """Return the posts in languages that the encoder supports.

    An English encoder gets the data set's translations, which replace a translator's.
    """
    model = engine.manifest.model
    if model is not None and model.name in ENGLISH:
        return [claim for claim in claims if claim.lang == "en" or claim.translation]
    return as_asked(engine, claims)


def fit_all(asked: Sequence[Asked]) -> AbstainModel:
    """Fit a model on the answers for collections; a post without its paper counts as absent."""
    features = []
    present = []
    for part in asked:
        judged = np.isfinite(part.features).all(axis=1)
        features.append(part.features[judged])
        present.append(part.questions.present[judged])
    all_features = np.concatenate(features)
    all_present = np.concatenate(present)
    model = fit(DESIGN, all_features, all_present, PENALTY)
    return replace(
        model,
        shared=True,
        threshold=NOT_HERE,
        sure=SURE,
    )


def measure(
    name: str,
    asked: Mapping[str, Asked],
    tested: Mapping[str, Asked],
) -> LeftOut:
    """Measure the model that was fitted on the other collections on this one."""
    others = [part for key, part in asked.items() if key != name]
    model = fit_all(others)
    part = tested[name]
    all_shares = model.probabilities(part.features)
    judged = np.isfinite(all_shares)
    shares = all_shares[judged]
    present = part.questions.present[judged]
    right = part.questions.right[judged]

    tenths = reliability_tenths(shares, present, right)
    found = shares >= model.sure
    wrong_share = found[~present].mean()
    found_share = found[present].mean()
    return LeftOut(
        name,
        part.posts,
        part.papers,
        tenths,
        good=sum(is_close(tenth) for tenth in tenths),
        wrong=round(float(wrong_share), 4),
        found=round(float(found_share), 4),
    )


def is_close(tenth: Tenth) -> bool:
    """Whether a tenth is within `GAP` of the share of posts with a paper, or in its interval."""
    if not tenth.answers:
        return True
    share_here = tenth.here / tenth.answers
    if abs(share_here - tenth.share) <= GAP:
        return True
    low, high = interval(tenth)
    return low <= tenth.share <= high


def interval(tenth: Tenth) -> tuple[float, float]:
    """Return the 95 % interval (Clopper and Pearson's) of the share of posts with a paper."""
    test = stats.binomtest(tenth.here, tenth.answers)
    bounds = test.proportion_ci()
    return float(bounds.low), float(bounds.high)


def is_good(collection: LeftOut) -> bool:
    """Whether the verdict on a collection is good enough."""
    return collection.good >= GOOD and collection.wrong <= MOST_WRONG


def to_ship(
    config: FitConfig,
    encoder: str,
    asked: Mapping[str, Asked],
    left_out: Sequence[LeftOut],
) -> SharedModel:
    """Fit the model on all collections; its tenths are those of the left-out collections."""
    parts = list(asked.values())
    posts = sum(part.posts for part in parts)
    names = ", ".join(asked)
    model = replace(
        fit_all(parts),
        languages=ENCODERS[encoder],
        fitted=f"{posts} posts of {names}; measured on each with a fit to the others",
        tenths=summed([collection.tenths for collection in left_out]),
    )
    engine = open_collection(config.work, encoder, COLLECTIONS[0])
    manifest = engine.manifest
    return SharedModel(
        encoder,
        manifest.model_hash,
        manifest.bm25.language,
        tuple(left_out),
        model,
    )


def summed(parts: Sequence[Sequence[Tenth]]) -> tuple[Tenth, ...]:
    """Sum the tenths of several collections."""
    tenths = []
    for same in zip(*parts, strict=True):
        answers = sum(tenth.answers for tenth in same)
        expected = sum(tenth.answers * tenth.share for tenth in same)
        share = expected / max(1, answers)
        here = sum(tenth.here for tenth in same)
        first = sum(tenth.first for tenth in same)
        tenths.append(Tenth(answers, share, here, first))
    return tuple(tenths)


def collection_table(collections: Sequence[LeftOut]) -> TextTable:
    """Tabulate collections, each measured with a fit on the others."""
    rows: list[list[Cell]] = []
    for one in collections:
        rows.append(
            [
                one.name,
                one.papers,
                one.posts,
                one.good,
                one.wrong,
                one.found,
            ]
        )
    columns = [
        "left out",
        "papers",
        "posts",
        "good tenths",
        "wrongly found",
        "found",
    ]
    numeric = [False, *[True] * 5]
    return TextTable(columns, rows, numeric=numeric)


def tenth_table(tenths: Sequence[Tenth]) -> TextTable:
    """Tabulate tenths with their intervals."""
    rows: list[list[Cell]] = []
    for number, tenth in enumerate(tenths):
        if not tenth.answers:
            continue
        low, high = interval(tenth)
        rows.append(
            [
                number / 10,
                tenth.answers,
                tenth.share,
                tenth.here / tenth.answers,
                f"{low:.2f} to {high:.2f}",
                "" if is_close(tenth) else "off",
            ]
        )
    columns = [
        "from",
        "answers",
        "mean",
        "paper there",
        "95 %",
        "",
    ]
    numeric = [True] * 4 + [False] * 2
    return TextTable(columns, rows, numeric=numeric)


if __name__ == "__main__":
    run_program(main)
