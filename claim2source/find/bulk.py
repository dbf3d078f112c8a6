"""Answer the posts of a file; every record has an outcome, even one without an answer."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from claim2source.core.errors import InputError, UserError
from claim2source.core.progress import Progress
from claim2source.core.terminal import printable_line
from claim2source.data.fetch import Fetcher, resolved
from claim2source.data.posts import Post, PostFile, PostRecord
from claim2source.find.answers import json_rows
from claim2source.find.finder import MAX_BATCH, Answer, Finder
from claim2source.search.growing import batches
from claim2source.search.rows import Where

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """Papers for a record of a file as JSON values, or the reason why it has no answer.

    `verdict` is "" without an answer.
    """

    post: str
    text: str
    left_out: str = ""
    verdict: str = ""
    papers: Sequence[Mapping[str, object]] = ()

    @classmethod
    def from_answer(cls, answer: Answer) -> Outcome:
        return cls(answer.post.id, answer.post.text, "", answer.verdict, json_rows(answer))


@dataclass
class PostsToAnswer:
    """Records of a file, which can be iterated repeatedly; a pipe's are kept in memory.

    A first pass checks the file and sets `posts`, `left_out` and `columns`. `hash` identifies the
    content.
    """

    path: Path
    names: Mapping[str, str] = field(default_factory=dict)
    posts: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    columns: dict[str, None] = field(default_factory=dict)
    hash: str = ""
    _kept: list[PostRecord] | None = None

    def __post_init__(self) -> None:
        if not self.path.is_file():
            self._kept = list(PostFile(self.path, self.names).records())
        digest = hashlib.sha256()
        for record in self.records():
            self.columns |= dict.fromkeys(record.columns)
            if record.post is None:
                self.left_out[record.left_out] += 1
            else:
                self.posts += 1
            digest.update(json.dumps(asdict(record)).encode())
        self.hash = digest.hexdigest()

    def records(self) -> Iterator[PostRecord]:
        """Yield all records from the beginning."""
        if self._kept is not None:
            return iter(self._kept)
        return PostFile(self.path, self.names).records()

    def to_answer(self) -> Iterator[Post]:
        """Yield the posts, without the omitted records."""
        for record in self.records():
            if record.post is not None:
                yield record.post

    def with_outcomes(self, outcomes: Iterator[Outcome]) -> Iterator[tuple[PostRecord, Outcome]]:
        """Yield each record with its outcome; `outcomes` are those of the posts, in order."""
        for record in self.records():
            if record.post is None:
                yield record, Outcome(record.id, record.text, record.left_out)
                continue
            outcome = next(outcomes, None)
            if outcome is None or outcome.post != record.id:
                raise InputError(self.path, reason="was changed while its posts were answered")
            yield record, outcome


@dataclass(frozen=True)
class Asking:
    """Settings of the search: papers per post, their filter, the posts' language."""

    k: int
    where: Where
    lang: str = ""
    fetcher: Fetcher | None = None

    def require_post(self, posts: PostsToAnswer) -> None:
        """Raise `UserError` if every post is an address, and fetching is off."""
        if self.fetcher is not None:
            return
        first: UserError | None = None
        for post in posts.to_answer():
            try:
                resolved(post, None)
            except UserError as error:
                first = first or error
            else:
                return
        if first is not None:
            raise first

    def answers(self, finder: Finder, posts: Iterator[Post]) -> Iterator[list[Outcome]]:
        """Answer a few posts at a time, in order; a failed post has the reason.

        Raises the first error if all of several posts fail.
        """
        has_answer = False
        for part in batches(posts, MAX_BATCH):
            outcomes: dict[str, Outcome] = {}
            texts: list[Post] = []
            for post in part:
                try:
                    texts.append(self._read(post))
                except UserError as error:
                    outcomes[post.id] = Outcome(post.id, post.text, str(error))
            for outcome in self._search(finder, texts, has_answer):
                outcomes[outcome.post] = outcome
                has_answer = has_answer or not outcome.left_out
            yield [outcomes[post.id] for post in part]

    def _read(self, post: Post) -> Post:
        """Return a post with its language, fetched if it is an address. Raises `UserError`."""
        read = resolved(post, self.fetcher)
        return replace(read, lang=self.lang) if self.lang else read

    def _search(self, finder: Finder, posts: Sequence[Post], has_answer: bool) -> list[Outcome]:
        """Search posts together, or one by one if that fails; `has_answer`: others succeeded."""
        try:
            return self._find(finder, posts)
        except Exception as error:
            first = error
        if len(posts) == 1:
            if not has_answer:
                raise first
            return [_failed(posts[0], first)]
        outcomes: list[Outcome] = []
        failed: list[Outcome] = []
        for post in posts:
            try:
                outcomes += self._find(finder, [post])
            except Exception as error:
                failed.append(_failed(post, error))
        if not outcomes:
            raise first
        for outcome in failed:
            log.warning("post %s: %s", printable_line(outcome.post), outcome.left_out)
        return outcomes + failed

    def _find(self, finder: Finder, posts: Sequence[Post]) -> list[Outcome]:
        answers = finder.find(posts, self.k, self.where)
        return [Outcome.from_answer(answer) for answer in answers]


def _failed(post: Post, error: Exception) -> Outcome:
    reason = str(error) if isinstance(error, UserError) else f"internal error: {error!r}"
    return Outcome(post.id, post.text, printable_line(reason))


def answer_all(
    finder: Finder, posts: PostsToAnswer, asking: Asking, progress: Progress
) -> Iterator[Outcome]:
    """Answer every post of a file in order."""
    for outcomes in asking.answers(finder, posts.to_answer()):
        yield from outcomes
        progress.update(len(outcomes))
