"""What German loses: numbers by value, names, rare terms first, and which claims count."""

import numpy as np
import pytest

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Run
from claim2source.evaluation.analysis.language_errors import (
    lost_claims,
    names_of,
    numbers_in,
    overlap_of,
)

GOLD = Source(
    "gold",
    "Vaccination of Nurses With BNT162b2",
    "We studied 1,000 nurses in Germany. Infection risk fell by 62.5%. Masks Were not needed; "
    "the were is lower elsewhere.",
    ("Anna Drosten, Berlin", "& Charité Hospital", "Bo Li"),
    "Nature",
)


def test_numbers_are_equal_by_value_and_names_are_words_written_as_names():
    for text, language, expected in [
        ("1.000 und 62,5%", "de", {"1000", "62.5"}),
        ("1,000 and 62.5%", "en", {"1000", "62.5"}),
        ("Preis 3.5", "de", {"3.5"}),  # a point before one digit is no separator of thousands
        ("1.000", "en", {"1"}),
        ("am 1.2.2020, v1.5, covid19, 7.", "de", {"7"}),
        ("٣ Studien", "de", set()),
        ("0,50", "fr", {"0.5"}),
    ]:
        assert numbers_in(text, language) == expected
    assert names_of(GOLD) == {"drosten", "li", "bnt162b2", "germany"}


def test_what_only_the_other_text_has():
    frequency = {"nurs": 1, "vaccin": 9, "infect": 3, "risk": 3}
    german = "Drosten: Impfung von 1.000 Pflegern senkt Infection, BNT162b2 und Berlin"
    english = "Vaccinated 1,000 nurses in Germany: risk down 62.5%, by Drosten, infection"
    found = overlap_of(german, "de", english, GOLD, frequency)
    assert found.numbers == ("62.5",)
    assert found.names == ("germany",)
    assert found.terms == ("nurses", "risk", "Vaccinated".lower())
    assert found.only_here == ("bnt162b2",)
    assert found.kept == 3  # Drosten, 1,000 and infection


TRANSLATED = Claim("g1", "verloren", "de", "translated nurses", golds=("gold",))
CLAIMS = (
    TRANSLATED,
    Claim("g2", "auch verloren", "de", golds=("gold",)),
    Claim("g3", "nurses gewonnen", "de", "nurses 62.5", golds=("gold",)),
    Claim("g4", "beides verloren", "de", "lost", golds=("other",)),
    Claim("e1", "english nurses at 5", "en", golds=("gold",)),
    Claim("e2", "english Drosten first", "en", golds=("gold",)),
    Claim("e3", "english lost", "en", golds=("other",)),
    Claim("f1", "perdu", "fr", "nurses", golds=("gold",)),
    Claim("g5", "ohne", "de"),
)


def ranked(gold: str, rank: int) -> list[tuple[str, float]]:
    return [(gold if r == rank else f"s{r}", -float(r)) for r in range(1, 8)]


RANKS = {"g1": 6, "g2": 9, "g3": 5, "g4": 7, "e1": 5, "e2": 1, "e3": 6, "f1": 7}
BY_TRANSLATION = {"g1": 5, "g2": 1, "g3": 2, "g4": 6}


def data() -> tuple[Dataset, Run, Run]:
    golds = {c.id: c.golds[0] for c in CLAIMS if c.golds}
    run, translated = (
        Run.from_lists({claim: ranked(golds[claim], rank) for claim, rank in ranks.items()})
        for ranks in (RANKS, BY_TRANSLATION)
    )
    qrels = Qrels({claim: {gold: 1} for claim, gold in golds.items()})
    return Dataset(CLAIMS, (GOLD, Source("other", "t", "a")), qrels, "dev"), run, translated


def test_which_claims_are_lost_and_how_they_win():
    dataset, run, translated = data()
    report = lost_claims(dataset, run, translated)
    assert (report.claims, report.missed) == (4, 3)
    one, two = report.lost
    assert (one.claim_id, one.how, one.rank, one.other_rank) == ("g1", "translation", 6, 5)
    assert one.other_text == "translated nurses" and one.lost.terms == ("nurses",)
    # g2 has no translation: the best English claim about its gold wins for it.
    assert (two.claim_id, two.how, two.rank, two.other_rank) == ("g2", "english", np.inf, 1)
    assert two.lost.names == ("drosten",)
    assert [o.numbers for o in report.won_by_both] == [("62.5",)]
    assert report.won_by_both[0].kept == 1
    ways = [(c.claim_id, c.how) for c in lost_claims(dataset, run, translated, k=2).lost]
    assert ways == [("g1", "english"), ("g2", "english"), ("g3", "translation")]
    # Without a run of translations the English claims alone count.
    found = lost_claims(dataset, run)
    assert [(c.claim_id, c.how) for c in found.lost] == [("g1", "english"), ("g2", "english")]
    assert not lost_claims(dataset.in_languages(["de"]), run).lost
    assert [c.claim_id for c in lost_claims(dataset, run, language="fr").lost] == ["f1"]
    with pytest.raises(UserError, match="no claim has a gold"):
        lost_claims(dataset, run, language="it")
