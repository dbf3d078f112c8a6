"""Known posts: papers whose posts are near the claim rise, by how unusual their nearness is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import claim2source as c2s
from claim2source.core.errors import UserError
from claim2source.core.records import Claim
from claim2source.core.run import Run
from claim2source.data.beir import write_beir
from claim2source.models import resolve
from claim2source.stages import posts
from claim2source.stages.posts import Posts
from claim2source.systems.heldout import SelectionData
from claim2source.systems.read import read_stage
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import fit_stages
from tests.refusals import refused

# Two posts mean each paper; the paper `none` has no post.
POSTS = {
    "coffee-1": "coffee every day and you live longer",
    "coffee-2": "people who drink coffee die later",
    "masks-1": "masks in schools cut outbreaks",
    "masks-2": "far fewer outbreaks where pupils wore masks",
    "sleep-1": "five hours in bed and your memory goes",
    "sleep-2": "short nights make you forget things",
}
PAPERS = ("none", "coffee", "masks", "sleep")


def to_paper(post: str) -> str:
    return post.partition("-")[0]


def write_posts(folder: Path, posts: Mapping[str, str] = POSTS) -> c2s.Dataset:
    """Write posts as a data set; each means the paper that its id begins with."""
    papers = [{"id": paper, "title": paper, "abstract": "a study"} for paper in PAPERS]
    rows = [{"id": post, "text": text} for post, text in posts.items()]
    pairs = [{"claim": post, "source": to_paper(post)} for post in posts]
    data = c2s.Dataset.from_frames(papers, rows, pairs, split="train")
    write_beir(data, folder)
    return data


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, c2s.Dataset]:
    folder = tmp_path_factory.mktemp("known") / "data"
    return str(folder), write_posts(folder)


def ranked(stage: Posts, claim: Claim) -> list[str]:
    """Rank the papers again, from the order of PAPERS."""
    run = Run.from_lists({claim.id: [(paper, -i / 2) for i, paper in enumerate(PAPERS)]})
    return stage.apply([claim], [], run).run.sources(claim.id)


def test_papers_of_near_posts_rise(train: tuple[str, c2s.Dataset]) -> None:
    stage, claim = Posts(dataset=train[0], weight=2), Claim("new", "pupils wore masks: no outbreak")
    assert ranked(stage, claim) == ["masks", "none", "coffee", "sleep"]
    # A post that is near to none leaves the order as it is, and so does a weight of 0.
    assert ranked(stage, Claim("new", "the stock market fell on Monday")) == list(PAPERS)
    assert ranked(Posts(dataset=train[0], weight=0), claim) == list(PAPERS)
    assert ranked(Posts(dataset=train[0], weight=2, depth=2), claim) == list(PAPERS)


def test_a_claim_is_no_known_post_itself(train: tuple[str, c2s.Dataset]) -> None:
    stage = Posts(dataset=train[0], weight=2)
    own = Claim("masks-1", POSTS["masks-1"])
    claims = [own, Claim("masks-2", POSTS["masks-2"])]
    run = Run.from_lists({c.id: [(p, -i / 2) for i, p in enumerate(PAPERS)] for c in claims})
    # Alone it is near the other post of its paper; together neither is a known post.
    assert ranked(stage, own)[0] == "masks"
    assert stage.apply(claims, [], run).run.sources("masks-1") == list(PAPERS)
    # Nor is it with the name that a mixed data set puts before its id.
    mixed = [replace(claim, id=f"data/{claim.id}") for claim in claims]
    run = Run.from_lists({c.id: [(p, -i / 2) for i, p in enumerate(PAPERS)] for c in mixed})
    assert stage.apply(mixed, [], run).run.sources("data/masks-1") == list(PAPERS)


@pytest.mark.parametrize(("share", "weight"), [(1.0, 4.0), (0.0, 0.0)])
def test_the_weight_is_chosen_for_the_share_of_seen_papers(
    train: tuple[str, c2s.Dataset], share: float, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    monkeypatch.setattr(posts, "resolve", lambda *args: loaded.append(1) or resolve(*args))
    folder, data = train
    # `masks-1` has another known post; the other claim's paper has none, and coffee's are near it.
    papers = {"masks-3": "masks", "brew": "none"}
    texts = {"masks-3": "pupils in masks, fewer outbreaks", "brew": "drink coffee, die later?"}
    claims = tuple(Claim(c, texts[c], golds=(gold,)) for c, gold in papers.items())
    val = c2s.Dataset(claims, data.sources, c2s.Qrels({c: {g: 1} for c, g in papers.items()}), "v")
    first = {"masks-3": ("none", "masks"), "brew": ("none", "coffee")}
    runs = {c: [(p, 1.0 - i) for i, p in enumerate(order)] for c, order in first.items()}
    before = [("retrieve", c2s.Result(Run.from_lists(runs)))]
    selection = SelectionData(val, val, "", frozenset({"masks-3"}), share)
    entry = {"rerank": "posts", "dataset": folder, "weight": "fit"}
    stages, (choice,) = fit_stages(
        [read_stage(entry)], before, val, selection, SystemRuntime(), "best"
    )
    assert (choice.settings["weight"] > 0) == (weight > 0) and choice.compared == 6
    assert len(loaded) == 1  # for all weights
    assert stages[0].stage.weight == choice.settings["weight"]  # type: ignore[attr-defined]


def test_without_known_posts_it_says_so(train: tuple[str, c2s.Dataset], tmp_path: Path) -> None:
    claims = tuple(replace(claim, golds=()) for claim in train[1].claims)
    blind = replace(train[1], claims=claims, qrels=c2s.Qrels({}))
    write_beir(blind, tmp_path / "none")
    with refused(UserError, tmp_path / "none", "train"):
        ranked(Posts(dataset=str(tmp_path / "none")), Claim("new", "coffee"))
