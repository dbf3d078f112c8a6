"""Token batches: positives, masks, each source once, tokens as in evaluation."""

from __future__ import annotations

from dataclasses import replace
from string import ascii_letters, ascii_lowercase

import pytest
import torch

from claim2source.core.records import Claim, Dataset, Source
from claim2source.mining import MinedRow, Negative
from claim2source.models import Encoder, Template
from claim2source.text import Rendering
from claim2source.training.batches import BatchPlan, BatchSampler
from claim2source.training.data import TrainingPairs
from tests.training.small import dataset_of, mined_row, recipe_of


def dataset() -> Dataset:
    sources = []
    for name in "abcdef":
        source = Source(name, f"title {name}", f"abstract {name}")
        sources.append(source)
    claims = (
        Claim("1", "first", golds=("a", "b")),
        Claim("2", "second", golds=("c",)),
        Claim("3", " FIRST", golds=("d",)),  # the same text as claim 1
    )
    return dataset_of(claims, tuple(sources))


ROWS = [
    mined_row("1", "a", "e", "f"),
    mined_row("2", "c", "a", "e"),
    mined_row("3", "d", "c"),
]
PLAN = BatchPlan((0, 1, 2), 0, 0, 1)


def test_positives_masks_and_each_source_once(encoder: Encoder) -> None:
    pairs = TrainingPairs(dataset(), ROWS, encoder, recipe_of())
    batch = pairs.batch(PLAN)
    # Columns in order of appearance: positives a, c, d, then the first negatives e, (a), (c).
    assert len(batch.sources) == 4
    assert batch.positives.tolist() == [0, 1, 2]
    a, c, d, e = range(4)
    expected = torch.zeros(3, 4, dtype=torch.bool)
    expected[0, d] = True  # gold of the same text
    expected[2, a] = True
    masked = batch.masked
    assert torch.equal(masked, expected)
    assert not masked[1, a]
    assert not masked[0, c]
    assert not masked[0, e]
    assert pairs.short_rows == 0
    two_negatives = recipe_of(2)
    longer = TrainingPairs(dataset(), ROWS, encoder, two_negatives)
    assert longer.short_rows == 1


def test_groups_join_claims_that_share_a_gold_or_a_text(encoder: Encoder) -> None:
    rows = [*ROWS, mined_row("1", "b")]
    pairs = TrainingPairs(dataset(), rows, encoder, recipe_of())
    groups = pairs.groups()
    assert groups[0] == groups[2] == groups[3]
    assert groups[1] != groups[0]


def test_token_ids_are_those_of_evaluation(encoder: Encoder) -> None:
    """On either side, because a model may have separate prefixes."""
    template = Template(claim="query: ", source="passage: ")
    settings = replace(encoder.settings, template=template)
    prefixed = Encoder(
        encoder.model,
        encoder.tokenizer,
        settings,
        None,
    )
    rendering = Rendering("bilingual", "title")
    data = dataset()
    claims = []
    for claim in data.claims:
        translated = replace(claim, lang="de", translation="x")
        claims.append(translated)
    data = replace(data, claims=tuple(claims))
    recipe = recipe_of(rendering=rendering)
    pairs = TrainingPairs(data, ROWS, prefixed, recipe)

    claim_texts = rendering.claim_texts(data.claims)
    for claim, text in zip(data.claims, claim_texts, strict=True):
        expected = prefixed.tokenize([text], "claim")
        assert pairs.claim_tokens[claim.id] == expected[0]

    source_texts = rendering.source_texts(data.sources)
    for source, text in zip(data.sources, source_texts, strict=True):
        if source.id in pairs.source_tokens:
            expected = prefixed.tokenize([text], "source")
            assert pairs.source_tokens[source.id] == expected[0]


def test_texts_are_cut_to_a_length_of_their_own(encoder: Encoder) -> None:
    sources = []
    for source in dataset().sources:
        longer = source.abstract * 4
        sources.append(replace(source, abstract=longer))
    data = replace(dataset(), sources=tuple(sources))
    whole_recipe = recipe_of()
    training_pairs = TrainingPairs(data, ROWS, encoder, whole_recipe)
    short_recipe = recipe_of(max_length=8)
    short_pairs = TrainingPairs(data, ROWS, encoder, short_recipe)
    for name, text in training_pairs.source_tokens.items():
        ids = text.ids
        assert len(ids) > 8
        short_text = short_pairs.source_tokens[name]
        expected = (*ids[:7], ids[-1])
        assert short_text.ids == expected


def sources_of(pairs: TrainingPairs, row: MinedRow, epochs: int) -> list[str]:
    chosen = []
    for epoch in range(epochs):
        negatives = pairs.choose_negatives(row, epoch)
        names = "".join(negative.source for negative in negatives)
        chosen.append(names)
    return chosen


def used_in(pairs: TrainingPairs, plan: BatchPlan) -> str:
    """The negatives of a batch of one pair."""
    names = {tokens: source for source, tokens in pairs.source_tokens.items()}
    batch = pairs.batch(plan)
    negatives = batch.sources[1:]
    return "".join(names[tokens] for tokens in negatives)


def remining_sampler() -> BatchSampler:
    """Four epochs of one pair that is used twice in each, mined anew after two."""
    return BatchSampler(
        [0],
        1,
        epochs=4,
        remine_every=2,
        repeat=2,
    )


def test_a_list_that_is_mined_anew_begins_at_its_hardest(encoder: Encoder) -> None:
    """Later uses continue in it: in the next epoch, in the same one, and after a resume."""
    before = mined_row("2", "c", *"abdef")
    after = mined_row("2", "c", *"fedba")
    plans = list(remining_sampler())
    recipe = recipe_of(2, rotate=True)
    pairs = TrainingPairs(dataset(), [before], encoder, recipe)
    early_plans = plans[:4]
    used = [used_in(pairs, plan) for plan in early_plans]
    assert used == ["ab", "de", "fa", "bd"]
    pairs.use([after])
    late_plans = plans[4:]
    used = [used_in(pairs, plan) for plan in late_plans]
    assert used == ["fe", "db", "af", "ed"]

    same_recipe = recipe_of(2, rotate=True)
    resumed = TrainingPairs(dataset(), [after], encoder, same_recipe)
    sampler = remining_sampler()
    rest = [
        *sampler.plans(2, first=1),
        *sampler.plans(3),
    ]
    used = [used_in(resumed, plan) for plan in rest]
    assert used == ["db", "af", "ed"]


@pytest.mark.parametrize(
    ("hard", "random", "count", "expected"),
    [
        (4, 2, 3, ["abE", "cdF", "abE"]),
        (4, 2, 2, ["ab", "Ec", "dF"]),
        (5, 1, 2, ["ab", "cd", "eF"]),
        (0, 6, 2, ["AB", "CD", "EF"]),
        (6, 0, 4, ["abcd", "efab", "cdef"]),
        (2, 1, 3, ["abC", "abC", "abC"]),
    ],
)
def test_hard_and_random_ones_rotate_in_the_proportion_of_the_list(
    hard: int,
    random: int,
    count: int,
    expected: list[str],
    encoder: Encoder,
) -> None:
    listed = mixed_row(hard, random)
    rotating = recipe_of(count, rotate=True)
    pairs = TrainingPairs(wide_dataset(), [listed], encoder, rotating)
    assert sources_of(pairs, listed, 3) == expected

    fixed = recipe_of(count)
    still = TrainingPairs(wide_dataset(), [listed], encoder, fixed)
    negatives = listed.negatives[:count]
    first = "".join(negative.source for negative in negatives)
    assert sources_of(still, listed, 3) == [first] * 3


def mixed_row(hard: int, random: int) -> MinedRow:
    """Hard ones in small letters, then random ones in capitals, as the miner lists them."""
    names = ascii_lowercase[: hard + random]
    names = names[:hard] + names[hard:].upper()
    negatives = []
    for name in names:
        origin = "random" if name.isupper() else "dense"
        negatives.append(Negative(name, 0.5, origin))
    return MinedRow("1", "1", tuple(negatives))


def wide_dataset() -> Dataset:
    sources = []
    for name in "1" + ascii_letters:
        source = Source(name, f"title {name}", "")
        sources.append(source)
    claim = Claim("1", "first", golds=("1",))
    return dataset_of([claim], tuple(sources))


@pytest.mark.parametrize(
    ("rotate", "scored", "expected"),
    [
        (False, "", ["ab", "ab", "ab"]),
        (False, "cef", ["ef", "ef", "ef"]),
        (False, "f", ["fa", "fa", "fa"]),
        (True, "cdef", ["de", "fd", "ef"]),  # in turns, among those alone
        (True, "f", ["fa", "fb", "fd"]),  # and always there where they are too few
    ],
)
def test_what_the_teacher_scores_is_trained_on_first(
    rotate: bool,
    scored: str,
    expected: list[str],
    encoder: Encoder,
) -> None:
    scores = {}
    for number, source in enumerate(scored):
        scores[source] = float(number)
    row = mined_row("2", "c", *"abdef")
    pairs = TrainingPairs(
        dataset(),
        [row],
        encoder,
        recipe_of(2, rotate=rotate),
        teacher={"2": scores},
    )
    first_row = pairs.rows[0]
    assert sources_of(pairs, first_row, 3) == expected

    for epoch, names in enumerate(expected):
        plan = BatchPlan((0,), epoch, 0, 1)
        batch = pairs.batch(plan)
        assert batch.teacher is not None
        is_missing = batch.teacher[0].isnan()
        has_score = [not missing for missing in is_missing]
        columns = ["c", *names]
        expected_scores = [source in scored for source in columns]
        assert has_score == expected_scores
