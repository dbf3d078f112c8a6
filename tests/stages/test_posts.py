"""Known posts: papers whose posts are near the claim rise, by how unusual their nearness is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    return ranked_together(stage, [claim], claim.id)


def ranked_together(stage: Posts, claims: list[Claim], claim_id: str) -> list[str]:
    """Rank the papers again for several claims, and list those of one."""
    ranking = [(paper, -i / 2) for i, paper in enumerate(PAPERS)]
    run = Run.from_lists({claim.id: ranking for claim in claims})
    result = stage.apply(claims, [], run)
    return result.run.sources(claim_id)


def test_papers_of_near_posts_rise(train: tuple[str, c2s.Dataset]) -> None:
    folder, _ = train
    stage = Posts(dataset=folder, weight=2)
    claim = Claim("new", "pupils wore masks: no outbreak")
    assert ranked(stage, claim) == ["masks", "none", "coffee", "sleep"]

    # A post that is near to none leaves the order as it is, and so does a weight of 0.
    far = Claim("new", "the stock market fell on Monday")
    unweighted = Posts(dataset=folder, weight=0)
    shallow = Posts(dataset=folder, weight=2, depth=2)
    assert ranked(stage, far) == list(PAPERS)
    assert ranked(unweighted, claim) == list(PAPERS)
    assert ranked(shallow, claim) == list(PAPERS)


def test_a_claim_is_no_known_post_itself(train: tuple[str, c2s.Dataset]) -> None:
    folder, _ = train
    stage = Posts(dataset=folder, weight=2)
    own = Claim("masks-1", POSTS["masks-1"])
    other = Claim("masks-2", POSTS["masks-2"])
    claims = [own, other]
    # Alone it is near the other post of its paper; together neither is a known post.
    alone = ranked(stage, own)
    together = ranked_together(stage, claims, "masks-1")
    assert alone[0] == "masks"
    assert together == list(PAPERS)

    # Nor is it with the name that a mixed data set puts before its id.
    mixed = [replace(claim, id=f"data/{claim.id}") for claim in claims]
    together = ranked_together(stage, mixed, "data/masks-1")
    assert together == list(PAPERS)


@pytest.mark.parametrize(("share", "weight"), [(1.0, 4.0), (0.0, 0.0)])
def test_the_weight_is_chosen_for_the_share_of_seen_papers(
    train: tuple[str, c2s.Dataset], share: float, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[int] = []

    def counted(*args: Any) -> Any:
        loaded.append(1)
        return resolve(*args)

    monkeypatch.setattr(posts, "resolve", counted)
    folder, data = train
    # `masks-1` has another known post; the other claim's paper has none, and coffee's are near it.
    papers = {
        "masks-3": "masks",
        "brew": "none",
    }
    texts = {
        "masks-3": "pupils in masks, fewer outbreaks",
        "brew": "drink coffee, die later?",
    }
    claims = tuple(Claim(c, texts[c], golds=(gold,)) for c, gold in papers.items())
    qrels = c2s.Qrels({c: {g: 1} for c, g in papers.items()})
    val = c2s.Dataset(claims, data.sources, qrels, "v")
    runs = {
        "masks-3": [("none", 1.0), ("masks", 0.0)],
        "brew": [("none", 1.0), ("coffee", 0.0)],
    }
    first = c2s.Result(Run.from_lists(runs))
    before = [("retrieve", first)]
    selection = SelectionData(
        val,
        val,
        "",
        frozenset({"masks-3"}),
        share,
    )
    entry = {
        "rerank": "posts",
        "dataset": folder,
        "weight": "fit",
    }
    stages, (choice,) = fit_stages(
        [read_stage(entry)],
        before,
        val,
        selection,
        SystemRuntime(),
        "best",
    )
    chosen_weight = choice.settings["weight"]
    assert (chosen_weight > 0) == (weight > 0)
    assert choice.compared == 6
    assert len(loaded) == 1  # for all weights
    assert stages[0].stage.weight == chosen_weight  # type: ignore[attr-defined]


def test_without_known_posts_it_says_so(train: tuple[str, c2s.Dataset], tmp_path: Path) -> None:
    _, data = train
    claims = tuple(replace(claim, golds=()) for claim in data.claims)
    blind = replace(data, claims=claims, qrels=c2s.Qrels({}))
    folder = tmp_path / "none"
    write_beir(blind, folder)
    stage = Posts(dataset=str(folder))
    claim = Claim("new", "coffee")
    with refused(UserError, folder, "train"):
        ranked(stage, claim)
