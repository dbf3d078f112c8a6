"""Answer the posts of a table that is dropped onto the page, a line of JSON for each."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import ValidationError

from claim2source.core.errors import InputError, Problem
from claim2source.core.terminal import printable_line
from claim2source.data.posts import Post, PostFile
from claim2source.find.answers import about, csv_row, heading, json_rows
from claim2source.find.finder import Answer
from claim2source.search.rows import Where
from claim2source.serve.batcher import NoAnswer
from claim2source.serve.cards import retraction_text, verdict_name
from claim2source.serve.links import answer_link
from claim2source.serve.schemas import CHARACTERS, Question, first_problem
from claim2source.serve.words import ENGLISH, Words, api_words

# An Excel workbook is not read: a small one can fill the server's memory.
KINDS = (".csv", ".tsv")
# Posts of a table; `find --input` takes any number.
MOST = 5_000
# How often a post is asked again while the server is busy.
TRIES = 20
COLUMNS = (
    "post text verdict present title authors venue date doi link sentence retracted error"
).split()
FILTERS = ("lang", "date", "venue", "paper_lang")
# (post, whether it may be fetched, filters) -> its answer
AskPost = Callable[[Post, bool, Where], Awaitable[Answer]]


class PostTable:
    """Answer tables of posts; `room` tells how many posts one table may have waiting."""

    def __init__(self, ask: AskPost, room: Callable[[], int]) -> None:
        self.ask, self.room = ask, room

    def add_to(self, app: FastAPI) -> None:
        app.add_api_route("/table", self.answer, methods=["POST"], include_in_schema=False)

    async def answer(self, request: Request) -> Response:
        """Answer the posts of a table, whose file is the body. Raises `NoAnswer` 422."""
        words = api_words(request.headers)
        given = {name: request.query_params.get(name, "") for name in FILTERS}
        try:
            question = Question.model_validate({"post": "of a table", **given})
        except ValidationError as error:
            field, reason = first_problem(error.errors(include_url=False))
            raise NoAnswer(422, reason, field=field) from None
        name = request.query_params.get("name", "")
        body = await request.body()
        posts, note = await asyncio.to_thread(read_table, name, body, words)
        lang = question.as_post().lang
        posts = [post if post.lang else replace(post, lang=lang) for post in posts]
        fetch = request.query_params.get("fetch") == "true"
        lines = self._lines(posts, note, fetch, question, words)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def _lines(
        self, posts: Sequence[Post], note: str, fetch: bool, question: Question, words: Words
    ) -> AsyncIterator[str]:
        header = csv_row(COLUMNS, _separator(words))
        yield json.dumps({"posts": len(posts), "note": note, "csv": header}) + "\n"
        waiting: deque[asyncio.Task[Answer | NoAnswer]] = deque()
        rest = deque(posts)
        asked: deque[Post] = deque()
        try:
            while rest or waiting:
                while rest and len(waiting) < self.room():
                    post = rest.popleft()
                    asked.append(post)
                    waiting.append(asyncio.create_task(self._ask(post, fetch, question.where)))
                outcome = await waiting.popleft()
                row = row_values(asked.popleft(), outcome, question, words)
                yield json.dumps(row) + "\n"
        finally:
            for task in waiting:
                task.cancel()

    async def _ask(self, post: Post, fetch: bool, where: Where) -> Answer | NoAnswer:
        """Answer a post; return why it has none, at a busy server after some tries."""
        if len(post.text) > CHARACTERS:
            return NoAnswer(422, f"must have at most {CHARACTERS} characters")
        failed = NoAnswer(503, "too many posts are waiting")
        for number in range(TRIES):
            try:
                return await self.ask(post, fetch, where)
            except NoAnswer as error:
                failed = error
                if error.status != 503:
                    break
            await asyncio.sleep(min(2.0, 0.1 * 2**number))
        return failed


def read_table(name: str, content: bytes, words: Words) -> tuple[list[Post], str]:
    """Read a table's posts, and a note on rows that were left out. Raises `NoAnswer` 422."""
    shown = printable_line(name)[:100] or "table"
    kind = Path(name).suffix.lower()
    if kind not in KINDS:
        raise NoAnswer(422, "is not a .csv or .tsv file: save the table as CSV", field=shown)
    posts: list[Post] = []
    with tempfile.TemporaryDirectory(prefix="claim2source-") as folder:
        path = Path(folder) / f"table{kind}"
        path.write_bytes(content)
        file = PostFile(path)
        try:
            for post in file:
                posts.append(post)
                if len(posts) > MOST:
                    reason = f"has more than {MOST} posts: find --input takes any number"
                    raise NoAnswer(422, reason, field=shown)
        except InputError as error:
            first = error.problems[0]
            reason = words.message(first.reason.replace(str(path), shown))
            problem = Problem(shown, first.line, first.field, reason)
            raise NoAnswer(422, printable_line(str(problem))) from None
    omitted = ", ".join(f"{count} {words(reason)}" for reason, count in file.left_out.most_common())
    note = words("Left out: {omitted}", omitted=omitted) if omitted else ""
    return posts, note


def row_values(
    post: Post, outcome: Answer | NoAnswer, question: Question, words: Words
) -> dict[str, object]:
    """Write a row for the page, and the same row of the file to download."""
    cells: dict[str, object] = {"post": post.id, "text": post.text}
    row: dict[str, object] = {"id": post.id, "post": post.text[:CHARACTERS]}
    if isinstance(outcome, NoAnswer):
        cells["error"] = row["error"] = words.message(str(outcome))
    else:
        cells |= _best_paper(outcome)
        row |= _shown_paper(outcome, words)
        lang = post.lang or "auto"
        own = {"post": post.text, "lang": lang, "date": post.date or question.date}
        row["answer"] = answer_link(question.model_copy(update=own))
    present = cells.get("present")
    if isinstance(present, float):
        written = f"{present:.3f}"
        cells["present"] = written if words.lang == ENGLISH else written.replace(".", ",")
    row["csv"] = csv_row([cells.get(name, "") for name in COLUMNS], _separator(words))
    return row


def _best_paper(answer: Answer) -> dict[str, object]:
    cells: dict[str, object] = {"verdict": answer.verdict or "not judged"}
    if answer.matches:
        values = json_rows(answer)[0]
        names = ("present", "title", "venue", "date", "doi", "link", "sentence", "retracted")
        cells |= {name: values[name] for name in names}
        authors = values["authors"]
        if isinstance(authors, list):
            cells["authors"] = "; ".join(authors)
    return cells


def _shown_paper(answer: Answer, words: Words) -> dict[str, object]:
    row: dict[str, object] = {
        "verdict": answer.verdict or "not judged",
        "label": words(verdict_name(answer.verdict)),
    }
    if answer.present is not None:
        row["present"] = words.percent(answer.present)
    if answer.matches:
        match = answer.matches[0]
        row["title"] = heading(match.paper)
        row["link"] = match.paper.link
        index = [] if match.of is None else [words("Index: {name}", name=match.of.name)]
        row["about"] = " · ".join([*about(match.paper), *index])
        row["sentence"] = match.sentence
        row["retracted"] = retraction_text(match.paper, words)
    return row


def _separator(words: Words) -> str:
    """Return what separates columns where a spreadsheet is used in a language."""
    return "," if words.lang == ENGLISH else ";"
