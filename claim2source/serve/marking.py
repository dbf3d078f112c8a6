"""Take people's marks of posts: which paper one means, or that it is none of the index."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
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
from claim2source.find.marks import MarksFile, UnknownPaper, add_mark
from claim2source.search.engine import Engine
from claim2source.serve.batcher import NoAnswer
from claim2source.serve.schemas import AUTO, Date, Lang, Strict, Text

ABOUT_TOOL = (
    "Keep a person's judgement of a post, in a file on this machine: `paper` is the id of the "
    "paper that it means, null if it is none of the index. Only for what the person said, never "
    "for a guess. A later mark of the same post replaces the earlier one."
)
MarkedText = Annotated[Text, Field(description="the post's text")]
PaperId = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=1_000,
        description="id of the paper that the post means; null: none of the index",
    ),
]


class MarkIn(Strict):
    """Define the request that keeps a mark."""

    post: MarkedText
    paper: PaperId
    lang: Lang = AUTO
    date: Date = None


class MarkOut(BaseModel):
    """Mark that was kept."""

    post: str
    paper: str | None
    lang: str
    date: str
    version: Annotated[int, Field(description="of the index")]
    time: str


@dataclass(frozen=True)
class Marking:
    """Keep marks of an index's posts in a file."""

    engine: Engine
    file: MarksFile

    async def mark(self, mark: MarkIn) -> MarkOut:
        """Keep a mark. Raises `NoAnswer` for a paper that is not there, or a file that is full."""
        return await asyncio.to_thread(self._mark, mark)

    def _mark(self, mark: MarkIn) -> MarkOut:
        post = Post("0", mark.post, "" if mark.lang == AUTO else mark.lang)
        lang = post_language(post, self.engine)
        try:
            kept = add_mark(self.engine, self.file, mark.post, lang, mark.date or "", mark.paper)
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
        )

    def add_to(self, app: FastAPI, refusals: dict[int | str, dict[str, Any]]) -> None:
        """Add the path that takes marks."""
        unknown = {**refusals[500], "description": "no paper of the index has this id"}
        full = {**refusals[500], "description": "the mark cannot be written"}
        responses = {**refusals, 404: unknown, 507: full}

        @app.post("/api/v1/marks", responses=responses, tags=["marks"])
        async def mark(mark: MarkIn) -> MarkOut:
            """Keep which paper a post means, or that it is none of the index."""
            return await self.mark(mark)

    def add_tool_to(self, tools: MCPServer) -> None:
        """Add the tool that takes marks."""

        async def mark_post(
            post: MarkedText, paper: PaperId, lang: Lang = AUTO, date: Date = None
        ) -> MarkOut:
            try:
                return await self.mark(MarkIn(post=post, paper=paper, lang=lang, date=date))
            except NoAnswer as error:
                raise ToolError(error.line) from None

        tools.add_tool(
            mark_post,
            description=ABOUT_TOOL,
            annotations=ToolAnnotations(
                read_only_hint=False, destructive_hint=False, idempotent_hint=True
            ),
        )
