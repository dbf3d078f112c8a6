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
    sources = tuple(Source(s, f"title {s}", f"abstract {s}") for s in "abcdef")
    claims = (
        Claim("1", "first", golds=("a", "b")),
        Claim("2", "second", golds=("c",)),
        Claim("3", " FIRST", golds=("d",)),  # the same text as claim 1
    )
    return dataset_of(claims, sources)


ROWS = [mined_row("1", "a", "e", "f"), mined_row("2", "c", "a", "e"), mined_row("3", "d", "c")]
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
    assert torch.equal(batch.masked, expected)
    assert not batch.masked[1, a] and not batch.masked[0, c] and not batch.masked[0, e]
    assert pairs.short_rows == 0
    assert TrainingPairs(dataset(), ROWS, encoder, recipe_of(2)).short_rows == 1


def test_groups_join_claims_that_share_a_gold_or_a_text(encoder: Encoder) -> None:
    rows = [*ROWS, mined_row("1", "b")]
    groups = TrainingPairs(dataset(), rows, encoder, recipe_of()).groups()
    assert groups[0] == groups[2] == groups[3]
    assert groups[1] != groups[0]


def test_token_ids_are_those_of_evaluation(encoder: Encoder) -> None:
    """On either side, because a model may have separate prefixes."""
    template = Template(claim="query: ", source="passage: ")
    settings = replace(encoder.settings, template=template)
    prefixed = Encoder(encoder.model, encoder.tokenizer, settings, None)
    rendering = Rendering("bilingual", "title")
    data = dataset()
    data = replace(data, claims=tuple(replace(c, lang="de", translation="x") for c in data.claims))
    pairs = TrainingPairs(data, ROWS, prefixed, recipe_of(rendering=rendering))
    for claim, text in zip(data.claims, rendering.claim_texts(data.claims), strict=True):
        assert pairs.claim_tokens[claim.id] == prefixed.tokenize([text], "claim")[0]
    for source, text in zip(data.sources, rendering.source_texts(data.sources), strict=True):
        if source.id in pairs.source_tokens:
            assert pairs.source_tokens[source.id] == prefixed.tokenize([text], "source")[0]


def test_texts_are_cut_to_a_length_of_their_own(encoder: Encoder) -> None:
    sources = [replace(source, abstract=source.abstract * 4) for source in dataset().sources]
    data = replace(dataset(), sources=tuple(sources))
    training_pairs = TrainingPairs(data, ROWS, encoder, recipe_of())
    short_pairs = TrainingPairs(data, ROWS, encoder, recipe_of(max_length=8))
    for name, text in training_pairs.source_tokens.items():
        ids, short = text.ids, short_pairs.source_tokens[name].ids
        assert len(ids) > 8 and short == (*ids[:7], ids[-1])


def sources_of(pairs: TrainingPairs, row: MinedRow, epochs: int) -> list[str]:
    return [
        "".join(n.source for n in pairs.choose_negatives(row, epoch)) for epoch in range(epochs)
    ]


def used_in(pairs: TrainingPairs, plan: BatchPlan) -> str:
    """The negatives of a batch of one pair."""
    names = {tokens: source for source, tokens in pairs.source_tokens.items()}
    return "".join(names[tokens] for tokens in pairs.batch(plan).sources[1:])


def test_a_list_that_is_mined_anew_begins_at_its_hardest(encoder: Encoder) -> None:
    """Later uses continue in it: in the next epoch, in the same one, and after a resume."""
    before, after = mined_row("2", "c", *"abdef"), mined_row("2", "c", *"fedba")
    plans = list(BatchSampler([0], 1, epochs=4, remine_every=2, repeat=2))
    pairs = TrainingPairs(dataset(), [before], encoder, recipe_of(2, rotate=True))
    assert [used_in(pairs, plan) for plan in plans[:4]] == ["ab", "de", "fa", "bd"]
    pairs.use([after])
    assert [used_in(pairs, plan) for plan in plans[4:]] == ["fe", "db", "af", "ed"]
    resumed = TrainingPairs(dataset(), [after], encoder, recipe_of(2, rotate=True))
    sampler = BatchSampler([0], 1, epochs=4, remine_every=2, repeat=2)
    rest = [*sampler.plans(2, first=1), *sampler.plans(3)]
    assert [used_in(resumed, plan) for plan in rest] == ["db", "af", "ed"]


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
    hard: int, random: int, count: int, expected: list[str], encoder: Encoder
) -> None:
    listed = mixed_row(hard, random)
    pairs = TrainingPairs(wide_dataset(), [listed], encoder, recipe_of(count, rotate=True))
    assert sources_of(pairs, listed, 3) == expected
    still = TrainingPairs(wide_dataset(), [listed], encoder, recipe_of(count))
    first = "".join(n.source for n in listed.negatives[:count])
    assert sources_of(still, listed, 3) == [first] * 3


def mixed_row(hard: int, random: int) -> MinedRow:
    """Hard ones in small letters, then random ones in capitals, as the miner lists them."""
    names = ascii_lowercase[: hard + random]
    names = names[:hard] + names[hard:].upper()
    negatives = (Negative(n, 0.5, "random" if n.isupper() else "dense") for n in names)
    return MinedRow("1", "1", tuple(negatives))


def wide_dataset() -> Dataset:
    sources = tuple(Source(name, f"title {name}", "") for name in "1" + ascii_letters)
    claim = Claim("1", "first", golds=("1",))
    return dataset_of([claim], sources)


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
    rotate: bool, scored: str, expected: list[str], encoder: Encoder
) -> None:
    teacher = {"2": {source: float(i) for i, source in enumerate(scored)}}
    pairs = TrainingPairs(
        dataset(),
        [mined_row("2", "c", *"abdef")],
        encoder,
        recipe_of(2, rotate=rotate),
        teacher=teacher,
    )
    assert sources_of(pairs, pairs.rows[0], 3) == expected
    for epoch, names in enumerate(expected):
        batch = pairs.batch(BatchPlan((0,), epoch, 0, 1))
        assert batch.teacher is not None
        columns = ["c", *names]
        assert [not nan for nan in batch.teacher[0].isnan()] == [s in scored for s in columns]
