"""The nearness to known posts as a view of a learned fusion: a post never helps itself."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim
from claim2source.data.known_posts import KnownPosts
from claim2source.search.bm25 import BM25
from claim2source.stages.known_posts import NearPosts, other_papers_cosines
from claim2source.stages.learned import Learned, LearnedFusion, LearnedView
from claim2source.stages.similarities import Scorer, ViewConfig
from tests.refusals import refused
from tests.stages.test_learned import FITTED
from tests.stages.test_posts import PAPERS, POSTS, write_posts


def nearness(folder: Path, claim: Claim, *hidden: Claim) -> dict[str, float]:
    """Score all papers by the posts in a folder."""
    posts = KnownPosts(str(folder))
    view = ViewConfig(score="posts", posts=posts)
    scorer = Scorer(())
    (values,) = scorer.scores(
        view,
        [claim],
        [PAPERS],
        hidden=hidden,
    )
    (again,) = scorer.scores(
        view,
        [claim],
        [PAPERS],
        hidden=hidden,
        fresh=True,
    )
    assert values.tolist() == again.tolist()
    return dict(zip(PAPERS, values.tolist(), strict=True))


def test_a_post_does_not_know_itself_nor_the_hidden_ones(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    write_posts(folder)
    new_claim = Claim("new", "pupils wore masks: no outbreak")
    new = nearness(folder, new_claim)
    assert new["masks"] > 1
    assert new["none"] == 0
    assert max(new.values()) == new["masks"]

    # It has the nearness of the other post of its paper, whatever its own id is.
    first_text = POSTS["masks-1"]
    first = Claim("masks-1", first_text)
    second = Claim("masks-2", POSTS["masks-2"])
    copy = Claim("copy", first_text.upper() + " ")
    changed = Claim("new", first_text + "!")
    own_value = nearness(folder, first)["masks"]
    copy_value = nearness(folder, copy)["masks"]
    changed_value = nearness(folder, changed)["masks"]
    assert own_value > 0
    assert own_value == copy_value
    assert own_value < changed_value

    # Claims that were held out together do not know each other.
    together = nearness(folder, first, second)
    assert together["masks"] == 0
    alone = {post: text for post, text in POSTS.items() if post != "masks-2"}
    write_posts(tmp_path / "alone", alone)
    without_other = nearness(tmp_path / "alone", first)
    assert without_other["masks"] == 0


def test_nearness_counts_from_the_posts_of_other_papers() -> None:
    angles = np.deg2rad([0, 1, 30, 90])
    points = np.stack([np.cos(angles), np.sin(angles)], 1)
    vectors = points.astype(np.float32)
    # The first two mean one paper: 0 is nearest to 30 degrees, 1 to 30, 30 to 1, 90 to 30.
    nearest_angles = np.deg2rad([30, 29, 29, 60])
    nearest = np.cos(nearest_angles)
    measured = other_papers_cosines(vectors, [0, 0, 1, 2])
    mean_and_spread = (nearest.mean(), nearest.std())
    assert measured == pytest.approx(mean_and_spread, abs=1e-5)

    posts = [Claim(str(row), str(row), golds=(gold,)) for row, gold in enumerate("abcc")]
    near = NearPosts.measured(posts, vectors)
    values = near.nearness(vectors[3], ["a", "c", "none"])
    expected = (1 - near.mean) / near.spread
    assert values.tolist() == pytest.approx([0, expected, 0], abs=1e-4)
    without_itself = near.nearness(vectors[3], ["c"], {3})
    assert without_itself.tolist() == [0]


def test_a_fusion_with_other_known_posts_is_another(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    file = tmp_path / "fusion.json"

    def identity(view: ViewConfig) -> Mapping[str, object]:
        learned_view = LearnedView("near", view, "", 1.0, 1.0)
        fusion = LearnedFusion((learned_view,), FITTED)
        fusion.write(file)
        return Learned(file=str(file)).identity

    write_posts(folder)
    near = ViewConfig(score="posts", posts=KnownPosts(str(folder)))
    indexed = ViewConfig(bm25=BM25(posts=KnownPosts(str(folder))))
    before = [identity(near), identity(indexed)]
    assert [identity(near), identity(indexed)] == before
    shutil.rmtree(folder)
    more_posts = POSTS | {"coffee-3": "espresso for a long life"}
    write_posts(folder, more_posts)
    assert identity(near) != before[0]
    assert identity(indexed) != before[1]
    # The stored rankings of fusions without such a view stay valid.
    year_identity = identity(ViewConfig(score="year"))
    assert "posts" not in str(year_identity)
    words_identity = identity(ViewConfig())
    assert "posts" not in str(words_identity)
    with pytest.raises(ValueError):
        LearnedView(
            "near",
            ViewConfig(score="posts"),
            "",
            1.0,
            1.0,
        )


def test_settings_and_posts_that_cannot_be_used(tmp_path: Path) -> None:
    with refused(ConfigError) as error:
        ViewConfig(posts=KnownPosts("demo"))
    assert error.value.key == "posts"
    with refused(ConfigError) as error:
        KnownPosts("demo", " ")
    assert error.value.key == "split"
    with refused(UserError):
        nearness(tmp_path / "missing", Claim("new", "masks"))
