"""Have a language model choose among the first sources of every claim: what all verifiers share."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Literal, NamedTuple

import numpy as np

from claim2source.core.config import Between, Seed
from claim2source.core.files import content_hash
from claim2source.core.memory import peak_memory
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Result, Run
from claim2source.core.terminal import printable_line, shortened
from claim2source.llm import LLM, Answer, Request
from claim2source.llm.stage import LLMStage
from claim2source.llm.work import is_unanswered
from claim2source.stages.prompt_budget import fitted, papers_text
from claim2source.stages.voting import Poll, shown_order
from claim2source.text.prompts import Message, Prompt, read_prompt
from claim2source.text.views import SourceForm, missing_translations

Shown = Literal["original", "translated", "bilingual"]
DEEPEST = 100
MOST_VOTES = 100
OVER_BUDGET = "the prompt has more tokens than max_prompt_tokens"
_LONGEST_REASON = 400


class Vote(NamedTuple):
    """Hold weights [n + 1] by shown place, the last one for none, and the reason given."""

    weights: np.ndarray
    reason: str = ""


@dataclass(frozen=True)
class Ask:
    """Hold a request about a poll, and the ranks in the order in which it shows them."""

    poll: Poll
    order: list[int]
    request: Request


@dataclass(frozen=True, kw_only=True)
class Verifier(LLMStage):
    """Have a language model choose among the first sources of every claim.

    A verifier is a dataclass of this type with `request` and `vote`.

    Args:
        depth: how many of the first sources are shown.
        claims: bilingual shows the post and its translation, the post first; original or
            translated one of them.
        sources: how papers are written: `metadata` with authors and venue, `title_abstract`
            without, or another of `rendering.sources`.
        prompt: name of a prompt that ships with the package, or a YAML file.
        max_prompt_tokens: of a prompt, estimated at four bytes each. Where it has more, authors
            are dropped first, then every abstract loses the same share.
        votes: how often a claim is asked about at most, each time with the papers in another
            order; no more than settle the vote. A tie leaves the ranking as it is.
        shuffle: show the papers in another order than the ranking's, also for one vote.
        seed: of the orders, with the claim's id.
    """

    depth: Annotated[int, Between(1, DEEPEST)] = 10
    claims: Shown = "bilingual"
    sources: SourceForm = "metadata"
    prompt: str = "verify_structured"
    max_prompt_tokens: Annotated[int, Between(1, 10_000_000)] = 32_000
    votes: Annotated[int, Between(1, MOST_VOTES)] = 1
    shuffle: bool = False
    seed: Seed = 0

    def check(self) -> None:
        super().check()
        self._prompt.check_variables(self.names(2))

    @cached_property
    def identity(self) -> Mapping[str, object]:
        """Describe the prompt, which is no setting but a file."""
        prompt = self._prompt
        parts = [prompt.role, prompt.context, prompt.task, [*prompt.instructions], prompt.output]
        examples = [[dict(one.values), one.output] for one in prompt.examples]
        return {"prompt": content_hash([*parts, dict(prompt.variables), examples])}

    @cached_property
    def _prompt(self) -> Prompt:
        return read_prompt(self.prompt)

    @property
    def is_shuffled(self) -> bool:
        """Tell whether papers are shown in other orders than the ranking's."""
        return self.shuffle or self.votes > 1

    @property
    def ranks_all(self) -> bool:
        """Tell whether all sources that were shown are ordered by their votes."""
        return False

    def labels(self, count: int) -> list[str]:
        """Name the papers in the order in which they are shown."""
        return [str(place + 1) for place in range(count)]

    def names(self, count: int) -> dict[str, str]:
        """Give the values of the prompt's variables, those of others left empty."""
        return {"count": str(count), "post": "", "translation": "", "papers": ""}

    @abstractmethod
    def request(self, id: str, messages: tuple[Message, ...], count: int) -> Request:
        """Ask about `count` papers."""

    @abstractmethod
    def vote(self, answer: Answer, count: int) -> Vote | str:
        """Read an answer about `count` papers; a text says why it is no good."""

    def apply(self, claims: Sequence[Claim], sources: Sequence[Source], run: Run) -> Result:
        """Ask about the first `depth` sources of every claim; the rest keep their places.

        A claim without a good answer keeps its ranking.
        """
        started = time.perf_counter()
        polls = [Poll(claim, run.sources(claim.id, self.depth)) for claim in claims]
        wanted = {source for poll in polls for source in poll.ids}
        known = {source.id: source for source in sources if source.id in wanted}
        if any(not poll.closed for poll in polls):
            with self.asking() as llm:
                self._take(llm, polls, known)
        untranslated = set(missing_translations(claims, self.claims))
        ranked, notes = {}, {}
        for poll in polls:
            claim = poll.claim.id
            ranked[claim], notes[claim] = self._ranked(poll, run.scored(claim))
            if claim in untranslated:
                notes[claim] += "; no translation: read as posted"
        tokens = sum(poll.tokens for poll in polls)
        return Result(
            Run.from_lists(ranked, pool=run.pool),
            notes,
            tuple(failure for poll in polls for failure in poll.failures),
            Cost(time.perf_counter() - started, len(claims), peak_memory(), tokens),
            details={poll.claim.id: poll.details() for poll in polls},
        )

    def _take(self, llm: LLM, polls: Sequence[Poll], sources: Mapping[str, Source]) -> None:
        """Ask in rounds, each of as many votes as can settle nothing earlier."""
        while True:
            asks: dict[str, Ask] = {}
            for poll in polls:
                left = self.votes - poll.asks
                count = left if self.ranks_all else poll.needed(self.votes)
                for _ in range(0 if poll.closed else count):
                    ask = self._ask(poll, sources)
                    if ask is None:
                        poll.fail(OVER_BUDGET, close=True)
                        break
                    poll.asks += 1
                    asks[ask.request.id] = ask
            if not asks:
                return

            counts = {id: len(ask.order) for id, ask in asks.items()}
            requests = [ask.request for ask in asks.values()]
            check = partial(self._why_bad, counts)
            answers = llm.answer(requests, check, f"claims by {self.llm.model}")
            for ask, answer in zip(asks.values(), answers, strict=True):
                ask.poll.tokens += answer.usage.total
                if answer.failure is not None:
                    ask.poll.fail(answer.failure, close=is_unanswered(answer.failure))
                    continue
                vote = self.vote(answer, len(ask.order))
                assert isinstance(vote, Vote)
                ask.poll.count(vote.weights, ask.order, vote.reason)

    def _why_bad(self, counts: Mapping[str, int], request: Request, answer: Answer) -> str | None:
        found = self.vote(answer, counts[request.id])
        return found if isinstance(found, str) else None

    def _ask(self, poll: Poll, sources: Mapping[str, Source]) -> Ask | None:
        """Show a poll's papers in the order of its next vote; None where they are too long."""
        count, claim = len(poll.ids), poll.claim
        orders = [
            shown_order(claim.id, self.seed, draw, count) if self.is_shuffled else [*range(count)]
            for draw in range(poll.asks + 1)
        ]
        order = orders[-1]
        foreign = claim.lang != "en" and bool(claim.translation)
        english = str(claim.translation) if foreign else claim.text
        values = self.names(count) | {
            "post": english if self.claims == "translated" else claim.text,
            "translation": english if foreign and self.claims == "bilingual" else "",
        }

        def write(shown: Sequence[Source]) -> tuple[Message, ...]:
            papers = papers_text(shown, self.labels(count), self.sources)
            return self._prompt.messages(values | {"papers": papers})

        shown = [sources[poll.ids[rank]] for rank in order]
        messages = fitted(write, shown, self.max_prompt_tokens)
        if messages is None:
            return None
        id = claim.id if self.votes == 1 else f"{claim.id}, vote {len(orders)}"
        request = self.request(id, messages, count)
        # The same order again is another sample.
        return Ask(poll, order, replace(request, sample=orders.count(order) - 1))

    def _ranked(
        self, poll: Poll, before: Mapping[str, float]
    ) -> tuple[list[tuple[str, float]], str]:
        """Order a claim's sources by a poll, and say what it was."""
        kept = list(before.items())
        if len(poll.ids) < 2:
            return kept, "nothing to choose"
        if not poll.good:
            return kept, "no good answer: ranking left as it is"
        leader, _ = poll.lead()
        if leader == poll.none:
            return kept, f"none of the first {len(poll.ids)} fits: ranking left as it is"
        if self.ranks_all:
            rows = sorted(range(len(poll.ids)), key=lambda row: -round(float(poll.votes[row]), 9))
            moved = sum(row != place for place, row in enumerate(rows))
            return _reordered(kept, rows), f"{moved} of the first {len(rows)} have another rank"
        if leader is None:
            return kept, "the vote is a tie: ranking left as it is"
        votes = f" by {poll.votes[leader]:.3g} of {poll.good}" if self.votes > 1 else ""
        reason = shortened(printable_line(poll.reasons.get(leader, "")), _LONGEST_REASON)
        why = f": {reason}" if reason else ""
        how = f"rank {leader + 1} chosen{votes}" if leader else f"first rank confirmed{votes}"
        return _to_first(kept, leader), how + why


def _to_first(ranked: Sequence[tuple[str, float]], row: int) -> list[tuple[str, float]]:
    """Move a source to the front: by the range of the list above the others, as 1 of 0 to 1."""
    first, last = np.float32(ranked[0][1]), np.float32(ranked[-1][1])
    raised = first + (first - last if first > last else np.float32(1))
    score = max(raised, np.nextafter(first, np.float32(np.inf)))
    rest = [pair for place, pair in enumerate(ranked) if place != row]
    return [(ranked[row][0], float(score)), *rest]


def _reordered(ranked: Sequence[tuple[str, float]], rows: Sequence[int]) -> list[tuple[str, float]]:
    """Give the first scores to the same sources in another order; those beyond keep theirs."""
    beyond = list(ranked[len(rows) :])
    below = np.float32(beyond[0][1]) if beyond else np.float32(-np.inf)
    scores = []
    for _, score in reversed(ranked[: len(rows)]):
        # Equal scores would be ordered by the sources' ids.
        below = max(np.float32(score), np.nextafter(below, np.float32(np.inf)))
        scores.append(float(below))
    return [*((ranked[row][0], scores.pop()) for row in rows), *beyond]
