"""Let a language model choose among the first sources of every claim, as the 2026 paper's stage 3.

`select` asks for one paper, with the published structured prompt or the short one (`reply:
number`). `letters` uses the probabilities of one token.
"""

from __future__ import annotations

import math
import random
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from string import ascii_uppercase
from typing import Annotated, Literal, NamedTuple

import numpy as np

from claim2source.core.config import Between, Seed
from claim2source.core.reasons import Reason
from claim2source.core.records import Claim, Source
from claim2source.core.run import Failure, Result, Run
from claim2source.core.terminal import printable_line, shortened
from claim2source.llm import LLM, Answer, Request
from claim2source.llm.work import count_thinking, is_unanswered, object_schema, prompt_tokens
from claim2source.stages.llm_stage import LLMStage, answers_cost
from claim2source.stages.pairs import Ranking
from claim2source.text.prompts import Message, Prompt, read_prompt
from claim2source.text.views import SourceForm, missing_translations, render_source

PostForm = Literal["original", "translated", "bilingual"]
DEEPEST = 100
MOST_VOTES = 100
OVER_BUDGET = "the prompt has more tokens than max_prompt_tokens"
NO_NUMBER = Reason("begins with no number of a paper, nor with None", "schema")
NO_LOGPROBS = Reason("no log-probabilities of the letters", "schema")
# A server gives the log-probabilities of this many tokens at most: the papers' and that of none.
MOST_TOKENS = 20
_LONGEST_REASON = 400
# Shares of abstracts that are tried if a prompt is too long.
_STEPS = 1000
_NUMBER = re.compile(
    r"(?P<before>[\W_]*)(?:paper\W*)?(?:(?P<number>[0-9]{1,4})(?![\d.,]*\d)|none\b)", re.IGNORECASE
)
_QUOTES = frozenset("\"'`“”„«»‘’")
_CLOSED = re.compile(r"[*_.]*[\"'`“”»’]+[*_]*(?:[.,;:\n]|\s*$)")


class Vote(NamedTuple):
    """Weights [n + 1] by shown position, the last one for none, and the model's reason."""

    weights: np.ndarray
    reason: str = ""


@dataclass
class Poll:
    """Collect the votes on a claim's first sources `ids`, by rank; the last vote is for none."""

    claim: Claim
    ids: list[str]
    votes: np.ndarray = field(init=False)
    asks: int = 0
    good: int = 0
    tokens: int = 0
    closed: bool = False
    # The last reasons for each rank.
    reasons: dict[int, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.votes = np.zeros(len(self.ids) + 1)
        self.closed = len(self.ids) < 2

    @property
    def none(self) -> int:
        """Return the position of the vote for none."""
        return len(self.ids)

    def count(self, weights: np.ndarray, order: list[int], reason: str) -> None:
        """Add a vote, whose weights [n + 1] are by shown position, the last one for none."""
        self.good += 1
        self.votes[order] += weights[:-1]
        self.votes[self.none] += weights[-1]
        option = int(np.argmax(weights))
        if option < self.none:
            self.reasons[order[option]] = reason

    def fail(self, reason: str, *, close: bool = False) -> None:
        """Add a failed vote; with `close` no more votes are requested."""
        self.failures.append(Failure(self.claim.id, reason))
        self.closed |= close

    def lead(self) -> tuple[int | None, float]:
        """Return the option with most votes and its lead over all others; None for a tie."""
        first, second = np.sort(self.votes)[::-1][:2]
        lead = float(first - second)
        # Sums of probabilities in different orders are not exact.
        if lead <= 1e-9:
            return None, lead
        return int(np.argmax(self.votes)), lead

    def votes_needed(self, limit: int) -> int:
        """Return how many more votes are needed at least, of `limit` in all; 0 if it is decided.

        It is decided if no option can overtake the leader. A tie does not change the ranking, so
        the first source and none need not be ahead of all.
        """
        remaining = limit - self.asks
        if self.closed or remaining <= 0:
            return 0
        leader, lead = self.lead()
        has_votes = bool(self.votes.any())
        stays = leader in (0, self.none) or not has_votes
        is_settled = lead > remaining
        if stays and has_votes:
            is_settled = lead >= remaining
        if is_settled:
            return 0
        half = (remaining - lead) / 2
        if stays:
            needed = math.ceil(half)
        else:
            needed = math.floor(half) + 1
        return min(remaining, max(1, needed))

    def details(self) -> dict[str, float]:
        """Return the poll's numbers for reports; `none` and `share` are shares of the votes."""
        total = float(self.votes.sum())
        values: dict[str, float] = {"asks": self.asks, "tokens": self.tokens}
        if total > 0:
            values["none"] = float(self.votes[self.none]) / total
            values["share"] = float(self.votes.max()) / total
        return values


# Request id -> its poll, and the ranks in the order in which they are shown.
Orders = dict[str, tuple[Poll, list[int]]]


@dataclass(frozen=True, kw_only=True)
class Verifier(LLMStage):
    """Let a language model choose among the first sources of every claim.

    A verifier is a dataclass of this type with `request` and `vote`.

    Args:
        depth: number of first sources to show.
        claims: bilingual shows the post, then its translation; original or translated shows one
            of them.
        sources: form of the papers: `metadata` with authors and venue, `title_abstract` without,
            or another of `rendering.sources`.
        prompt: name of a prompt that ships with the package, or a YAML file.
        max_prompt_tokens: maximal tokens of a prompt, estimated at four bytes each. If a prompt
            has more, authors are dropped first, then every abstract is cut by the same share.
        votes: maximal number of votes on a claim, each with the papers in another order. Voting
            stops when it is decided. A tie does not change the ranking.
        shuffle: show the papers in a random order, even for a single vote.
        seed: seed of the orders, together with the claim's id.
    """

    depth: Annotated[int, Between(1, DEEPEST)] = 10
    claims: PostForm = "bilingual"
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
    def _prompt(self) -> Prompt:
        return read_prompt(self.prompt)

    @property
    def version(self) -> str:
        return f"{self._prompt.name} {self._prompt.version}"

    def labels(self, count: int) -> list[str]:
        """Return the names of the papers in the order in which they are shown."""
        return [str(number + 1) for number in range(count)]

    def names(self, count: int) -> dict[str, str]:
        """Return the values of the prompt's variables; unused ones are empty."""
        return {"count": str(count), "post": "", "translation": "", "papers": ""}

    @abstractmethod
    def request(
        self,
        id: str,
        messages: tuple[Message, ...],
        count: int,
    ) -> Request:
        """Request a vote on `count` papers."""

    @abstractmethod
    def vote(self, answer: Answer, count: int) -> Vote | str:
        """Parse an answer about `count` papers; return the reason if it is invalid."""

    def apply(
        self,
        claims: Sequence[Claim],
        sources: Sequence[Source],
        run: Run,
    ) -> Result:
        """Verify the first `depth` sources of every claim; the others keep their order below.

        A claim without a valid answer keeps its ranking.
        """
        polls = [Poll(claim, run.sources(claim.id, self.depth)) for claim in claims]
        by_id = {source.id: source for source in sources}
        answered: list[Answer] = []
        if not all(poll.closed for poll in polls):
            with self.open_client() as llm:
                answered = self._collect_votes(llm, polls, by_id)

        untranslated = set(missing_translations(claims, self.claims))
        ranked: dict[str, Ranking] = {}
        notes: dict[str, str] = {}
        details: dict[str, dict[str, float]] = {}
        failures: list[Failure] = []
        for poll in polls:
            claim = poll.claim.id
            ranked[claim], notes[claim] = self._rank(poll, run.scored(claim))
            if claim in untranslated:
                notes[claim] += "; no translation: used the original"
            details[claim] = poll.details()
            failures += poll.failures
        return Result(
            Run.from_lists(ranked, pool=run.pool),
            notes,
            tuple(failures),
            answers_cost(answered),
            details=details,
            thinking=count_thinking(answered),
        )

    def _collect_votes(
        self,
        llm: LLM,
        polls: Sequence[Poll],
        sources: Mapping[str, Source],
    ) -> list[Answer]:
        """Request votes in rounds, each with the votes that a poll still needs.

        Returns all answers.
        """
        answered: list[Answer] = []
        while True:
            requests, orders = self._next_round(polls, sources)
            if not requests:
                return answered

            def reply_error(
                request: Request,
                answer: Answer,
                orders: Orders = orders,
            ) -> str | None:
                _, order = orders[request.id]
                vote = self.vote(answer, len(order))
                return vote if isinstance(vote, str) else None

            answers = llm.answer(requests, reply_error, f"claims by {self.llm.model}")
            answered += answers
            for answer in answers:
                poll, order = orders[answer.id]
                poll.tokens += answer.usage.total
                if answer.failure is not None:
                    poll.fail(answer.failure, close=is_unanswered(answer.failure))
                    continue
                vote = self.vote(answer, len(order))
                assert isinstance(vote, Vote)
                poll.count(vote.weights, order, vote.reason)

    def _next_round(
        self,
        polls: Sequence[Poll],
        sources: Mapping[str, Source],
    ) -> tuple[list[Request], Orders]:
        """Make the requests for the votes that each poll still needs."""
        requests: list[Request] = []
        orders: Orders = {}
        for poll in polls:
            for _ in range(poll.votes_needed(self.votes)):
                order, request = self._ask(poll, sources)
                if request is None:
                    poll.fail(OVER_BUDGET, close=True)
                    break
                poll.asks += 1
                requests.append(request)
                orders[request.id] = poll, order
        return requests, orders

    def _ask(self, poll: Poll, sources: Mapping[str, Source]) -> tuple[list[int], Request | None]:
        """Draw an order of the ranks and make a request; None if it is over the budget."""
        claim = poll.claim
        count = len(poll.ids)
        orders: list[list[int]] = []
        for draw in range(poll.asks + 1):
            if self.shuffle or self.votes > 1:
                orders.append(shown_order(claim.id, self.seed, draw, count))
            else:
                orders.append(list(range(count)))
        order = orders[-1]
        values = self.names(count) | self._post_values(claim)

        def write(sources: Sequence[Source]) -> tuple[Message, ...]:
            papers = papers_text(sources, self.labels(count), self.sources)
            return self._prompt.messages(values | {"papers": papers})

        in_order = [sources[poll.ids[rank]] for rank in order]
        messages = fitted(write, in_order, self.max_prompt_tokens)
        if messages is None:
            return order, None
        id = claim.id if self.votes == 1 else f"{claim.id}, vote {len(orders)}"
        request = self.request(id, messages, count)
        # Showing the same order again draws another sample.
        reminder = self._prompt.reminder(values | {"papers": ""})
        return order, replace(request, sample=orders.count(order) - 1, reminder=reminder)

    def _post_values(self, claim: Claim) -> dict[str, str]:
        """Return a claim's post and its translation in the form of `claims`."""
        values = {"post": claim.text, "translation": ""}
        if claim.lang != "en" and claim.translation:
            if self.claims == "translated":
                values["post"] = claim.translation
            elif self.claims == "bilingual":
                values["translation"] = claim.translation
        return values

    def _rank(self, poll: Poll, before: Mapping[str, float]) -> tuple[Ranking, str]:
        order = list(before.items())
        if len(poll.ids) < 2:
            return order, "nothing to choose"
        if not poll.good:
            return order, "no usable answer: ranking unchanged"
        leader, _ = poll.lead()
        if leader == poll.none:
            return order, f"none of the first {len(poll.ids)} fits: ranking unchanged"
        if leader is None:
            return order, "the vote is a tie: ranking unchanged"
        note = f"rank {leader + 1} chosen" if leader else "first rank confirmed"
        if self.votes > 1:
            note += f" by {poll.votes[leader]:.3g} of {poll.good}"
        reason = printable_line(poll.reasons.get(leader, ""))
        if reason:
            note += f": {shortened(reason, _LONGEST_REASON)}"
        return _move_to_front(order, leader), note


@dataclass(frozen=True, kw_only=True)
class Select(Verifier):
    """Move the paper that a language model chooses to the first rank; keep the others' order.

    Args:
        reply: json is {"reasoning", "selected_paper"}; number is a text that begins with the
            paper's number or with None, as in the released short prompt (`verify_short`).
    """

    reply: Literal["json", "number"] = "json"

    def request(
        self,
        id: str,
        messages: tuple[Message, ...],
        count: int,
    ) -> Request:
        request = Request(id, messages, self.version)
        if self.reply == "number":
            return request
        number = {"type": "integer", "minimum": 1, "maximum": count}
        schema = object_schema(reasoning={"type": "string"}, selected_paper=number)
        return replace(request, schema=schema)

    def vote(self, answer: Answer, count: int) -> Vote | str:
        weights = np.zeros(count + 1)
        if self.reply == "json":
            data = answer.data or {}
            # In JSON 3.0 is also an integer.
            number = int(float(str(data["selected_paper"])))
            weights[number - 1] = 1
            return Vote(weights, str(data["reasoning"]))

        match = _NUMBER.match(answer.text)
        if match is None or _is_quotation(match):
            return NO_NUMBER
        number = int(match["number"] or count + 1)
        if match["number"] and not 1 <= number <= count:
            return Reason(f"chooses a paper that is not among 1 to {count}", "schema")
        weights[number - 1] = 1
        return Vote(weights)


def _is_quotation(match: re.Match[str]) -> bool:
    """Whether a number begins a quotation: `"Paper 4 fits", says the post`."""
    if ">" in match["before"]:
        return True
    if _QUOTES.isdisjoint(match["before"]):
        return False
    # Quotes around only the number are the model's own.
    return _CLOSED.match(match.string, match.end()) is None


@dataclass(frozen=True, kw_only=True)
class Letters(Verifier):
    """Move the most probable paper to the first rank, if it beats the probability of none.

    The papers are named A, B, ..; the letter after the last one means none. The probabilities of
    several votes are summed.
    """

    depth: Annotated[int, Between(1, MOST_TOKENS - 1)] = 10
    prompt: str = "verify_letters"

    def labels(self, count: int) -> list[str]:
        return [*ascii_uppercase[:count]]

    def names(self, count: int) -> dict[str, str]:
        names = super().names(count)
        names["letters"] = ", ".join(self.labels(count))
        names["none"] = ascii_uppercase[count]
        return names

    def request(
        self,
        id: str,
        messages: tuple[Message, ...],
        count: int,
    ) -> Request:
        letters = tuple(self.labels(count + 1))
        return Request(
            id,
            messages,
            self.version,
            choices=letters,
            logprobs=MOST_TOKENS,
            max_tokens=1,
        )

    def vote(self, answer: Answer, count: int) -> Vote | str:
        """Return the probabilities of the last token that is a letter, after any thoughts."""
        letters = self.labels(count + 1)
        read = [token for token in answer.logprobs if token.text.strip() in letters]
        if not read:
            return NO_LOGPROBS
        token = read[-1]
        weights = np.zeros(count + 1)
        logprobs = {token.text: token.logprob, **token.top}
        for text, logprob in logprobs.items():
            letter = text.strip()
            if letter in letters:
                weights[letters.index(letter)] += math.exp(min(logprob, 0.0))
        total = weights.sum()
        if total > 0:
            return Vote(weights / total)
        return NO_LOGPROBS


def shown_order(claim: str, seed: int, draw: int, count: int) -> list[int]:
    """Return the ranks in the order of draw n, by seed and claim.

    The first `count` draws show every source at every position once.
    """
    order = list(range(count))
    random.Random(f"{seed} {claim} {draw // count}").shuffle(order)
    turn = draw % count
    return order[turn:] + order[:turn]


def papers_text(
    sources: Sequence[Source],
    names: Sequence[str],
    form: SourceForm,
) -> str:
    """Format papers under their names: `Paper 1`, and its text below, each line indented.

    A text cannot imitate another paper: its line breaks are removed, and its lines are indented.
    """
    blocks = []
    for name, source in zip(names, sources, strict=True):
        lines = [f"Paper {name}"]
        for line in render_source(flat(source), form).splitlines():
            lines.append(f"  {line}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def flat(source: Source) -> Source:
    """Join each field of a source to one line."""
    return replace(
        source,
        title=" ".join(source.title.split()),
        abstract=" ".join(source.abstract.split()),
        venue=" ".join(source.venue.split()),
        authors=tuple(" ".join(author.split()) for author in source.authors),
    )


def fitted(
    write: Callable[[Sequence[Source]], tuple[Message, ...]],
    sources: Sequence[Source],
    budget: int,
) -> tuple[Message, ...] | None:
    """Write a prompt of at most `budget` estimated tokens; None if even titles exceed it.

    Authors are dropped first, then every abstract is cut by the same share.
    """

    def fits(messages: tuple[Message, ...]) -> bool:
        return prompt_tokens(Request("", messages)) <= budget

    messages = write(sources)
    if fits(messages):
        return messages
    without_authors = [replace(flat(source), authors=()) for source in sources]
    messages = write(without_authors)
    if fits(messages):
        return messages
    best: tuple[Message, ...] | None = None
    low = 0
    high = _STEPS
    while low < high:
        middle = (low + high) // 2
        messages = write([_shorten(source, middle / _STEPS) for source in without_authors])
        if fits(messages):
            best = messages
            low = middle + 1
        else:
            high = middle
    return best


def _shorten(source: Source, share: float) -> Source:
    length = int(len(source.abstract) * share)
    text = source.abstract[:length]
    words = text.rpartition(" ")[0] or text
    return replace(source, abstract=f"{words} .." if words else "")


def _move_to_front(ranked: Sequence[tuple[str, float]], row: int) -> Ranking:
    """Move a source to the front, above the others by the score range of the list."""
    first = np.float32(ranked[0][1])
    last = np.float32(ranked[-1][1])
    if first > last:
        step = first - last
    else:
        step = np.float32(1)
    above = np.nextafter(first, np.float32(np.inf))
    score = max(first + step, above)
    source, _ = ranked[row]
    return [(source, float(score)), *ranked[:row], *ranked[row + 1 :]]
