"""Accept people's marks of posts: which paper a post means, or that it is not in the index."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

from claim2source.core.errors import UserError
from claim2source.core.terminal import printable_line
from claim2source.data.posts import Post
from claim2source.find.finder import post_language
from claim2source.find.marks import Mark, MarksFile, UnknownPaper, add_mark, add_marks
from claim2source.search.engine import Engine
from claim2source.search.shards import Shards
from claim2source.serve.batcher import NoAnswer
from claim2source.serve.schemas import AUTO, Date, Lang, Optional, Strict, Text

ABOUT_TOOL = (
    "Store a person's judgement of a post in a file on the server: `paper` is the id of the paper "
    "that it means, null if the paper is not in the index. Only for a person's statement, never "
    "for a guess. A later mark of the same post replaces the earlier one."
)
MarkedText = Annotated[Text, Field(description="the post's text")]
PaperId = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=1_000,
        description="id of the paper that the post means; null: not in the index",
    ),
]


IndexName = Annotated[
    str,
    Field(
        max_length=1_000,
        description="name of the paper's index, if several have this id",
    ),
    Optional(""),
]


class MarkIn(Strict):
    """Request that stores a mark."""

    post: MarkedText
    paper: PaperId
    lang: Lang = AUTO
    date: Date = None
    index: IndexName = ""


class MarkOut(BaseModel):
    """Stored mark."""

    post: str
    paper: str | None
    lang: str
    date: str
    version: Annotated[int, Field(description="of the index")]
    time: str
    index: Annotated[str, Field(description="the paper's, if several are searched")]


@dataclass(frozen=True)
class Marking:
    """Store marks of posts in one file, or in the file of each of several indexes."""

    engine: Engine
    file: MarksFile | None
    store: Path | None = None

    async def mark(self, mark: MarkIn) -> MarkOut:
        """Store a mark. Raises `NoAnswer` for an unknown paper, or if the file is full."""
        return await asyncio.to_thread(self._mark, mark)

    def _mark(self, mark: MarkIn) -> MarkOut:
        post = Post("0", mark.post, "" if mark.lang == AUTO else mark.lang)
        lang = post_language(post, self.engine)
        try:
            kept = self._add(mark, lang)
        except UnknownPaper as error:
            raise NoAnswer(404, printable_line(str(error)), field="paper") from None
        except UserError as error:
            raise NoAnswer(507, printable_line(str(error))) from None
        return MarkOut(
            post=kept.post,
            paper=kept.paper,
            lang=kept.lang,
            date=kept.date,
            version=kept.version,
            time=kept.time,
            index=kept.index,
        )

    def _add(self, mark: MarkIn, lang: str) -> Mark:
        date = mark.date or ""
        if isinstance(self.engine, Shards):
            new = Mark(mark.post, mark.paper, lang, date)
            return add_marks(self.engine, self.file, new, self.store, mark.index)
        file = self.file or MarksFile.beside(self.engine.location, self.store)
        return add_mark(self.engine, file, mark.post, lang, date, mark.paper)

    def add_to(self, app: FastAPI, refusals: dict[int | str, dict[str, Any]]) -> None:
        """Add the path that accepts marks."""
        unknown = {**refusals[500], "description": "no paper of the index has this id"}
        full = {**refusals[500], "description": "the mark cannot be written"}
        responses = {**refusals, 404: unknown, 507: full}

        @app.post("/api/v1/marks", responses=responses, tags=["marks"])
        async def mark(mark: MarkIn) -> MarkOut:
            """Store which paper a post means, or that it is not in the index."""
            return await self.mark(mark)

    def add_tool_to(self, tools: MCPServer) -> None:
        """Add the tool that accepts marks."""

        async def mark_post(
            post: MarkedText,
            paper: PaperId,
            lang: Lang = AUTO,
            date: Date = None,
            index: IndexName = "",
        ) -> MarkOut:
            mark = MarkIn(post=post, paper=paper, lang=lang, date=date, index=index)
            try:
                return await self.mark(mark)
            except NoAnswer as error:
                raise ToolError(error.line) from None

        tools.add_tool(
            mark_post,
            description=ABOUT_TOOL,
            annotations=ToolAnnotations(
                read_only_hint=False, destructive_hint=False, idempotent_hint=True
            ),
        )
