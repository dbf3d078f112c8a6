"""`scripts/simulate_verifier.py`: it picks the gold wherever it is shown, with or without a title."""

from __future__ import annotations

from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.verify.shown import papers_text
from scripts.simulate_verifier import knowing
from tests.llm_server import Chat
from tests.llm_server.verifiers import Question


def test_a_gold_is_known_by_its_title_or_its_abstract() -> None:
    sources = [
        Source("a", "Masks stop flu", "Trials."),
        Source("b", "", "No title\nhere: 3.7 x."),
        Source("c", "Other", "Words."),
    ]
    claims = [Claim("1", "A post", golds=("b",)), Claim("2", "Mask\n<b>", golds=("a",))]
    claims.append(Claim("3", "Gone", golds=("d",)))
    qrels = Qrels({claim.id: dict.fromkeys(claim.golds, 1) for claim in claims})
    choose = knowing(Dataset(tuple(claims), tuple(sources), qrels, "dev"))

    def asked(post: str, *shown: int) -> int | None:
        text = papers_text([sources[i] for i in shown], ["1", "2"][: len(shown)], "metadata")
        question = Question(Chat({"messages": [{"role": "user", "content": ""}]}))
        question.post = post
        question.papers = [(str(i), part) for i, part in enumerate(text.split("\n\n"), 1)]
        return choose(question)

    assert asked("A post", 2, 1) == 1 and asked("A  post", 1, 0) == 0
    assert asked("Mask <b>", 2, 0) == 1 and asked("A post", 0, 2) is None
    assert asked("Gone", 0, 1) is None
