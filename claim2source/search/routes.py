"""Rank the claims of each language by its own retriever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from claim2source.core.arguments import whole_number
from claim2source.core.errors import ConfigError
from claim2source.core.languages import primary_language
from claim2source.core.records import Claim, Dataset, Source
from claim2source.core.report import Choice, Rule
from claim2source.core.run import Result, join_results
from claim2source.core.stage import Claims, Retriever, as_claims, as_sources
from claim2source.search.choose import DEPTH, Preference, Weighing, choose, weigh
from claim2source.search.fuse import part_name

DEFAULT = "default"


@dataclass(frozen=True)
class Routes:
    """Rank the claims of each language by its own retriever.

    `routes` maps languages to candidates. `fit` chooses one of them; until then the first is used.
    `default` is for all other languages.

    Example:
        >>> import claim2source as c2s
        >>> papers = [c2s.Source("a", "Masks work", ""), c2s.Source("b", "Rats dig", "")]
        >>> german = c2s.BM25(claims="translated")
        >>> index = c2s.Routes({"de": (german,), "default": (c2s.BM25(),)}).index(papers)
        >>> index.search("do masks work?", k=1).sources("0")
        ['a']
    """

    routes: Mapping[str, tuple[Retriever, ...]]

    def candidates(self, language: str) -> tuple[Any, ...]:
        """List a language's candidates. Raises `ConfigError` if it has none."""
        own = self.routes.get(primary_language(language)) or self.routes.get(DEFAULT)
        if own is None:
            allowed = f"a system for {language!r} claims, or for {DEFAULT!r}"
            raise ConfigError("routes", ", ".join(self.routes), allowed)
        return own

    @property
    def parts(self) -> tuple[Any, ...]:
        """List the distinct candidates of all languages."""
        parts: list[Retriever] = []
        for candidates in self.routes.values():
            for part in candidates:
                if part not in parts:
                    parts.append(part)
        return tuple(parts)

    @property
    def is_open(self) -> bool:
        """Whether a language has several candidates to choose from."""
        return any(len(candidates) > 1 for candidates in self.routes.values())

    def fit(self, val: Dataset, rule: Rule = "one_se") -> tuple[Routes, list[Choice]]:
        """Choose the candidate of each language of val on its claims."""
        routes, choices = dict(self.routes), []
        for language in val.languages:
            candidates = self.candidates(language)
            if len(candidates) > 1:
                weighing = weigh(val.in_languages([language]), language=language)
                number, choice = choose_route(language, candidates, weighing, rule)
                candidates = (candidates[number],)
                choices.append(choice)
            routes[language] = candidates
        return Routes(routes), choices

    def index(self, sources: Sequence[Source]) -> RoutesIndex:
        """Return the index of these sources; a search indexes them with the parts that it needs."""
        return RoutesIndex(self, as_sources(sources))


@dataclass(frozen=True)
class RoutesIndex:
    """Search sources by the retriever of each claim's language."""

    retriever: Routes
    sources: Sequence[Source] = field(repr=False)

    def search(self, claims: Claims, k: int = 100) -> Result:
        """Rank the best `k` sources of every claim, best first."""
        claims, k = as_claims(claims), whole_number(k, "k")
        groups: list[tuple[Retriever, list[Claim]]] = []
        for language in dict.fromkeys(claim.lang for claim in claims):
            part = self.retriever.candidates(language)[0]
            routed = [claim for claim in claims if claim.lang == language]
            for other, listed in groups:
                if other == part:
                    listed += routed
                    break
            else:
                groups.append((part, routed))
        places = {claim.id: place for place, claim in enumerate(claims)}
        parts = []
        for part, routed in groups:
            routed.sort(key=lambda claim: places[claim.id])
            result = part.index(self.sources).search(routed, k)
            parts.append((part_name(part, type(part).__name__), result))
        joined = join_results([result for _, result in parts], claims)
        return replace(joined, parts=tuple(parts))


def choose_route(
    language: str,
    candidates: Sequence[Retriever],
    weighing: Weighing,
    rule: Rule = "one_se",
    note: str = "",
    settings: Sequence[Mapping[str, Any]] = (),
) -> tuple[int, Choice]:
    """Choose one of a language's candidates; `settings` describe each one in the record."""
    data = weighing.data
    tried = {}
    for number, part in enumerate(candidates):
        result = part.index(data.sources).search(data.claims, DEPTH)
        tried[number] = weighing.of(result.run)
    described = settings or [{"system": part_name(part, repr(part))} for part in candidates]
    return choose(
        f"route {language}",
        tried,
        weighing,
        settings=lambda number: described[number],
        by=Preference(rule),
        trials=True,
        note=note,
    )
