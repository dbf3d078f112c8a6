"""Stages: what a plain string becomes, and that any class with the methods fits."""

from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.core.stage import Index, Retriever, Stage, as_claims


def test_plain_strings_are_claims_with_numbers_for_ids():
    assert as_claims("masks work") == [Claim("0", "masks work")]
    assert as_claims(["a", "b"]) == [Claim("0", "a"), Claim("1", "b")]
    claims = (Claim("x", "a", candidates=("s",)), Claim("y", "b"))
    assert tuple(as_claims(claims)) == claims
    assert as_claims([]) == [] and as_claims("") == [Claim("0", "")]


class Backwards:
    """A retriever, its index and a stage in one: ranks sources in the reverse of their order."""

    def index(self, sources):
        self.sources = sources
        return self

    def search(self, claims, k=100):
        ranked = [(s.id, float(i)) for i, s in enumerate(self.sources)]
        return Result(Run.from_lists({c.id: ranked for c in as_claims(claims)}).top(k))

    def save(self, folder):
        raise NotImplementedError

    def apply(self, claims, sources, run):
        return Result(run.restricted(c.id for c in claims).rescored())


def test_any_class_with_the_methods_is_a_part_of_a_pipeline():
    part = Backwards()
    retriever: Retriever = part
    index: Index = retriever.index([Source("a"), Source("b"), Source("c")])
    stage: Stage = part
    found = index.search("masks", 2)
    assert found.sources("0") == ["c", "b"]
    assert stage.apply([Claim("0", "masks")], part.sources, found.run).scored("0") == {
        "c": 2.0,
        "b": 1.0,
    }
