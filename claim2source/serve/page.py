"""Show the page: type a post, read its papers; it works without script too."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import jinja2
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from pydantic import ValidationError
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from claim2source import __version__
from claim2source.data.papers import without_emails
from claim2source.find.answers import (
    ABOUT_SCORES,
    about,
    as_bibtex,
    format_scores,
    heading,
    headline,
    matching_words,
    notes,
    retraction,
)
from claim2source.find.finder import SEARCH, SENTENCES, Answer, Finder, Match
from claim2source.find.matching import WORD
from claim2source.search.bm25 import Analyser
from claim2source.serve.access import COOKIE, AccessSettings, is_foreign, same_secret, token_cookie
from claim2source.serve.batcher import NoAnswer, OnPart
from claim2source.serve.schemas import AUTO, CHARACTERS, PAPERS, Question, first_problem

FOLDER = Path(__file__).parent / "page"
STATIC = FOLDER / "static"
# What is shown as a page where it is refused.
PATHS = ("/", "/docs", "/enter")
DAYS = 30
_HOST = re.compile(r"[A-Za-z0-9.:\[\]_-]+")
FETCH_LABEL = "Read the post at this address"
LABELS = {"post": "Post", "lang": "Language", "date": "Posted on", "k": "Papers"}
LABELS["fetch"] = FETCH_LABEL
LANGUAGES = {AUTO: "detect", "en": "English", "de": "German", "fr": "French"}
Ask = Callable[[Question, OnPart], Awaitable[Answer]]
# A text, and whether it is a word of the post.
Piece = tuple[str, bool]


@dataclass(frozen=True)
class PaperCard:
    """Paper as the page shows it."""

    match: Match
    heading: list[Piece]
    about: list[str]
    scores: str
    sentence: list[Piece]
    abstract: list[Piece]
    bibtex: str


class Page:
    """Render the page and answer its forms."""

    def __init__(
        self,
        finder: Finder,
        ask: Ask,
        access: AccessSettings,
        *,
        fetches: bool = False,
        takes_marks: bool = False,
    ) -> None:
        self.finder, self.ask, self.access = finder, ask, access
        self._analyser = Analyser(finder.engine.manifest.bm25)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(FOLDER),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._about: dict[str, Any] = {
            "version": __version__,
            "stages": [SEARCH, *finder.stage_names, SENTENCES],
            "languages": LANGUAGES,
            "characters": CHARACTERS,
            "most": PAPERS,
            "fetch_label": FETCH_LABEL if fetches else "",
            "takes_marks": takes_marks,
            "headline": headline,
            "matching_words": matching_words,
            "notes": notes,
            "retraction": retraction,
            "about_scores": ABOUT_SCORES,
        }

    def add_to(self, app: FastAPI) -> None:
        app.add_api_route("/", self.show, include_in_schema=False)
        app.add_api_route("/answer", self.answer, methods=["POST"], include_in_schema=False)
        app.add_api_route("/enter", self.enter, methods=["POST"], include_in_schema=False)
        description = app.openapi

        def docs() -> Response:
            return self._rendered("docs.html", api=description(), example=example_post)

        app.add_api_route("/docs", docs, include_in_schema=False)
        app.mount("/static", StaticFiles(directory=STATIC))

    async def show(self, request: Request) -> Response:
        """Show the form, and the papers of a post that is given with it."""
        fields = {name: request.query_params.get(name, "") for name in LABELS}
        values: dict[str, Any] = {"given": fields, "found": None, "reason": None}
        status = 200
        headers: dict[str, str] = {}
        if fields["post"].strip() and not is_foreign(request.headers):
            try:
                given: dict[str, object] = {}
                given |= {name: text for name, text in fields.items() if text.strip()}
                given["fetch"] = fields["fetch"].strip() == "true"
                question = Question.model_validate(given)
                values["found"] = await self.ask(question, lambda part: None)
            except ValidationError as error:
                field, reason = first_problem(error.errors(include_url=False))
                status, values["reason"] = 422, f"{LABELS.get(field, field)}: {reason}"
            except NoAnswer as error:
                status, headers, values["reason"] = error.status, error.headers, _reason(error)
        cards: list[PaperCard] = []
        if values["found"] is not None:
            cards = await asyncio.to_thread(self.cards, values["found"])
        values |= {"cards": cards, "origin": server_origin(request)}
        return self._rendered("page.html", status, headers, **values)

    async def answer(self, question: Question) -> Response:
        """Answer the page's script: a line of JSON for each part of the work, then the papers."""
        return StreamingResponse(self._lines(question), media_type="application/x-ndjson")

    async def _lines(self, question: Question) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        parts: asyncio.Queue[str | None] = asyncio.Queue()

        def on_part(part: str) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, part)

        task = asyncio.ensure_future(self.ask(question, on_part))
        task.add_done_callback(lambda future: parts.put_nowait(None))
        try:
            while (part := await parts.get()) is not None:
                yield json.dumps({"part": part}) + "\n"
            answer = await task
            cards = await asyncio.to_thread(self.cards, answer)
            text = self._text("answer.html", found=answer, cards=cards)
            yield json.dumps({"html": text}) + "\n"
        except NoAnswer as error:
            yield json.dumps({"error": _reason(error)}) + "\n"
        finally:
            task.cancel()

    async def enter(self, request: Request) -> Response:
        """Take the token of a reader, and set a cookie in its place."""
        body = (await request.body()).decode("utf-8", "replace")
        try:
            form = parse_qs(body, max_num_fields=10)
        except ValueError:
            form = {}
        token = form.get("token", [""])[0]
        post = form.get("post", [""])[0]
        if self.access.token is None or not same_secret(token.strip(), self.access.token):
            return self._enter(403, "This is not the token.", post)
        address = "/"
        if post:
            address += f"?{urlencode({'post': post})}"
        response = RedirectResponse(address, 303)
        response.set_cookie(
            COOKIE,
            token_cookie(self.access.token),
            max_age=DAYS * 24 * 3600,
            httponly=True,
            samesite="lax",  # a bookmarklet on another page leads here
            secure=request.url.scheme == "https",
        )
        return response

    def refusal(
        self,
        status: int,
        reason: str,
        scope: Scope,
        headers: Mapping[str, str],
    ) -> Response:
        """Show why a request was refused; ask for the token if it lacks one."""
        if status == 401:
            query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=None)
            response = self._enter(401, "", query.get("post", [""])[0])
            response.headers.update(headers)
            return response
        return self._rendered("refused.html", status, headers, reason=reason)

    def _enter(self, status: int, reason: str, post: str) -> Response:
        return self._rendered("enter.html", status, reason=reason, post=post)

    def cards(self, answer: Answer) -> list[PaperCard]:
        """Prepare an answer's papers: the post's words are marked."""
        claim = answer.post.claim(answer.lang)
        terms = set(self._analyser.claim(claim))
        cards = []
        for match in answer.matches:
            paper = match.paper
            card = PaperCard(
                match=match,
                heading=self._highlight(heading(paper), terms),
                about=about(paper),
                scores=format_scores(match),
                sentence=self._highlight(match.sentence, terms),
                abstract=self._highlight(without_emails(paper.source.abstract), terms),
                bibtex=as_bibtex([replace(answer, matches=(match,))]),
            )
            cards.append(card)
        return cards

    def _highlight(self, text: str, terms: set[str]) -> list[Piece]:
        """Divide a text into words that share a term with the post, and the text between them."""
        spans = [match.span() for match in WORD.finditer(text)]
        words = self._analyser.texts([text[start:end] for start, end in spans])
        pieces: list[Piece] = []
        last = 0
        for (start, end), own in zip(spans, words, strict=True):
            if not terms.isdisjoint(own):
                pieces.append((text[last:start], False))
                pieces.append((text[start:end], True))
                last = end
        pieces.append((text[last:], False))
        return [piece for piece in pieces if piece[0]]

    def _rendered(
        self,
        template: str,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        **values: Any,
    ) -> Response:
        return HTMLResponse(self._text(template, **values), status, dict(headers or {}))

    def _text(self, template: str, **values: Any) -> str:
        papers = self.finder.engine.manifest.papers  # as the last search saw it
        text = self._templates.get_template(template).render(**self._about, papers=papers, **values)
        return text.encode("utf-8", "replace").decode("utf-8")


def _reason(error: NoAnswer) -> str:
    label = LABELS.get(error.field or "", "")
    return f"{label}: {error}" if label else str(error)


def server_origin(request: Request) -> str:
    """Name this server as a browser does; nothing if its name is not valid."""
    host = request.headers.get("host", "")
    return f"{request.url.scheme}://{host}" if _HOST.fullmatch(host) else ""


def example_post(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema["examples"][0])
