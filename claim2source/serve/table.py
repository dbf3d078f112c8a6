"""Answer the posts of a table dropped onto the page, with a line of JSON for each."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import ValidationError

from claim2source.core.errors import InputError, Problem
from claim2source.core.terminal import printable_line
from claim2source.data.post_tables import KINDS, WORKBOOKS, unpacked_bytes
from claim2source.data.posts import Post, PostFile, PostRecord
from claim2source.find.answers import about, heading
from claim2source.find.bulk import Outcome
from claim2source.find.finder import Answer
from claim2source.find.result_tables import LINE_END, csv_lines, csv_rows, result_columns
from claim2source.search.rows import Where
from claim2source.serve.batcher import NoAnswer
from claim2source.serve.cards import retraction_text, verdict_name
from claim2source.serve.links import answer_link
from claim2source.serve.schemas import CHARACTERS, Question, first_problem
from claim2source.serve.words import ENGLISH, Words, api_words

# Most bytes of an unpacked workbook: a small file may unpack to more than the memory.
MOST_UNPACKED = 16 * 2**20
# Most posts of a table; `find --input` accepts any number.
MOST = 5_000
# Retries of a post while the server is busy.
TRIES = 20
LEFT_OUT = "Left out"
FILTERS = ("lang", "date", "venue", "paper_lang")
# (post, whether it may be fetched, filters) -> its answer
AskPost = Callable[[Post, bool, Where], Awaitable[Answer]]


class PostTable:
    """Answer tables of posts; `room` tells how many posts one table may have waiting.

    `indexes` are the names of the indexes if there are several.
    """

    def __init__(
        self,
        ask: AskPost,
        room: Callable[[], int],
        indexes: Sequence[str] = (),
    ) -> None:
        self.ask = ask
        self.room = room
        self.result = result_columns(indexes)

    def add_to(self, app: FastAPI) -> None:
        app.add_api_route("/table", self.answer, methods=["POST"], include_in_schema=False)

    async def answer(self, request: Request) -> Response:
        """Answer the posts of a table; the body is its file. Raises `NoAnswer` 422."""
        words = api_words(request.headers)
        given = {name: request.query_params.get(name, "") for name in FILTERS}
        try:
            question = Question.model_validate({"post": "of a table", **given})
        except ValidationError as error:
            problems = error.errors(include_url=False)
            field, reason = first_problem(problems)
            raise NoAnswer(422, reason, field=field) from None

        name = request.query_params.get("name", "")
        body = await request.body()
        records, note = await asyncio.to_thread(read_table, name, body, words)
        fetch = request.query_params.get("fetch") == "true"
        lines = self._lines(records, note, fetch, question, words)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def _lines(
        self,
        records: Sequence[PostRecord],
        note: str,
        fetch: bool,
        question: Question,
        words: Words,
    ) -> AsyncIterator[str]:
        columns: dict[str, None] = {}
        for record in records:
            columns |= dict.fromkeys(record.columns)
        writer = RowWriter(list(columns), self.result, question, words)
        summary = {
            "posts": len(records),
            "note": note,
            "csv": writer.header(),
        }
        yield json.dumps(summary) + "\n"

        lang = question.as_post().lang
        waiting: deque[tuple[PostRecord, asyncio.Task[Answer | NoAnswer]]] = deque()
        rest = deque(records)
        try:
            while rest or waiting:
                while rest and len(waiting) < self.room():
                    record = rest.popleft()
                    asked = self._ask(record, lang, fetch, question.where)
                    task = asyncio.create_task(asked)
                    waiting.append((record, task))

                _, task = waiting[0]
                outcome = await task
                record, _ = waiting.popleft()
                row = writer.row(record, outcome)
                yield json.dumps(row) + "\n"
        finally:
            for _, task in waiting:
                task.cancel()

    async def _ask(
        self,
        record: PostRecord,
        lang: str,
        fetch: bool,
        where: Where,
    ) -> Answer | NoAnswer:
        """Answer a post, with retries while the server is busy; return the reason if that fails."""
        post = record.post
        if post is None:
            return NoAnswer(422, record.left_out)
        if not post.lang:
            post = replace(post, lang=lang)
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
            pause = min(2.0, 0.1 * 2**number)
            await asyncio.sleep(pause)
        return failed


def read_table(
    name: str,
    content: bytes,
    words: Words,
) -> tuple[list[PostRecord], str]:
    """Read a table's rows, and a note on omitted ones. Raises `NoAnswer` 422."""
    shown = printable_line(name)[:100] or "table"
    kind = Path(name).suffix.lower()
    if kind not in KINDS:
        raise NoAnswer(422, "is not a table: save it as .csv, .tsv or .xlsx", field=shown)

    records: list[PostRecord] = []
    with tempfile.TemporaryDirectory(prefix="claim2source-") as folder:
        path = Path(folder) / f"table{kind}"
        path.write_bytes(content)
        if kind in WORKBOOKS and unpacked_bytes(path) > MOST_UNPACKED:
            reason = f"is larger than {MOST_UNPACKED >> 20} MiB unpacked: save it as .csv"
            raise NoAnswer(422, reason, field=shown)

        file = PostFile(path)
        try:
            for record in file.records():
                records.append(record)
                if len(records) > MOST:
                    reason = f"has more than {MOST} posts: find --input takes any number"
                    raise NoAnswer(422, reason, field=shown)
        except InputError as error:
            first = error.problems[0]
            own_reason = first.reason.replace(str(path), shown)
            reason = words.message(own_reason)
            problem = Problem(shown, first.line, first.field, reason)
            raise NoAnswer(422, printable_line(str(problem))) from None

    counts: list[str] = []
    for reason, count in file.left_out.most_common():
        counts.append(f"{count} {words(reason)}")
    note = ""
    if counts:
        note = words("Left out: {omitted}", omitted=", ".join(counts))
    return records, note


@dataclass(frozen=True)
class RowWriter:
    """Write the rows of a table for the page, each with its row in the file to download.

    The file has the columns of `find --input`, with the best paper of each post.
    """

    columns: Sequence[str]
    result: Sequence[str]
    question: Question
    words: Words

    @property
    def _separator(self) -> str:
        """Return the column separator of spreadsheets in the page's language."""
        return "," if self.words.lang == ENGLISH else ";"

    def header(self) -> str:
        """Write the header of the file."""
        (line,) = csv_lines(self.columns, [], self._separator, self.result)
        return line + LINE_END

    def row(
        self,
        record: PostRecord,
        outcome: Answer | NoAnswer,
    ) -> dict[str, object]:
        """Write the row of a post, or of a record without one."""
        shown: dict[str, object] = {
            "id": record.id,
            "post": record.text[:CHARACTERS],
        }
        if isinstance(outcome, NoAnswer):
            reason = self.words.message(str(outcome))
            shown["error"] = reason
            if record.post is None:
                shown["label"] = self.words(LEFT_OUT)
            result = Outcome(record.id, record.text, reason)
        else:
            shown |= _shown_paper(outcome, self.words)
            shown["answer"] = self._link(record)
            result = Outcome.from_answer(outcome)

        (line,) = csv_rows(self.columns, [(record, result)], self._separator, self.result)
        shown["csv"] = line + LINE_END
        return shown

    def _link(self, record: PostRecord) -> str:
        """Return the URL of the full answer to a post."""
        post = record.post
        assert post is not None
        own = {
            "post": post.text,
            "lang": post.lang or self.question.lang,
            "date": post.date or self.question.date,
        }
        question = self.question.model_copy(update=own)
        return answer_link(question)


def _shown_paper(answer: Answer, words: Words) -> dict[str, object]:
    row: dict[str, object] = {
        "verdict": answer.verdict or "not judged",
        "label": words(verdict_name(answer.verdict)),
    }
    if answer.present is not None:
        row["present"] = words.percent(answer.present)
    if not answer.matches:
        return row

    match = answer.matches[0]
    row["title"] = heading(match.paper)
    row["link"] = match.paper.link
    lines = [*about(match.paper)]
    if match.of is not None:
        lines.append(words("Index: {name}", name=match.of.name))
    row["about"] = " · ".join(lines)
    row["sentence"] = match.sentence
    row["retracted"] = retraction_text(match.paper, words)
    return row
