"""Show the page: type a post, read its papers. It also works without JavaScript."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import cache
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
from claim2source.core.arguments import is_digits
from claim2source.find.answers import ABOUT_SCORES, headline, next_step, notes
from claim2source.find.finder import SEARCH, SENTENCES, TRANSLATION, Answer, Finder
from claim2source.search.analyser import Analyser
from claim2source.serve.access import (
    COOKIE,
    MAX_BYTES,
    AccessSettings,
    is_followed,
    is_foreign,
    same_secret,
    token_cookie,
)
from claim2source.serve.batcher import NoAnswer, OnPart
from claim2source.serve.cards import Cards, PaperCard, verdict_name
from claim2source.serve.links import FIELDS, answer_link, language_link
from claim2source.serve.schemas import AUTO, CHARACTERS, PAPERS, Question, first_problem
from claim2source.serve.words import COOKIE as LANGUAGE_COOKIE
from claim2source.serve.words import LANGUAGES, Visit, Words, api_words

FOLDER = Path(__file__).parent / "page"
STATIC = FOLDER / "static"
# Paths whose refusals are shown as a page.
PATHS = ("/", "/docs", "/enter")
DAYS = 30
_HOST = re.compile(r"[A-Za-z0-9.:\[\]_-]+")
# The script's texts are the arguments of its calls t("..").
SCRIPTS = ("find.js", "marks.js")
SCRIPT_TEXT = re.compile(r'\bt\("([^"]+)"')
FETCH_LABEL = "Fetch the post from its address"
# Labels of the form's fields, for messages.
LABELS = {
    "post": "Post",
    "lang": "Language of the post",
    "date": "Posted on",
    "k": "Papers to list",
    "venue": "Only this journal",
    "paper_lang": "Language of the papers",
    "fetch": FETCH_LABEL,
}
# Languages of a post that the form offers.
POST_LANGUAGES = {AUTO: "detect", "en": "English", "de": "German", "fr": "French"}
Ask = Callable[[Question, OnPart], Awaitable[Answer]]


@cache
def _templates() -> jinja2.Environment:
    """Load the templates, each compiled once."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


class Page:
    """Render the page, and answer its forms."""

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
        self._cards = Cards(Analyser(finder.engine.manifest.post_terms))
        scripts = "".join((STATIC / name).read_text("utf-8") for name in SCRIPTS)
        self._script_texts = SCRIPT_TEXT.findall(scripts)
        translation = [] if finder.translators is None else [TRANSLATION]
        self._about: dict[str, Any] = {
            "version": __version__,
            "stages": ["waiting", *translation, SEARCH, *finder.stage_names, SENTENCES],
            "post_languages": POST_LANGUAGES,
            "characters": CHARACTERS,
            "most": PAPERS,
            "most_bytes": MAX_BYTES,
            "labels": LABELS,
            "fetches": fetches,
            "takes_marks": takes_marks,
            "headline": headline,
            "verdict_name": verdict_name,
            "next_step": next_step,
            "notes": notes,
            "about_scores": ABOUT_SCORES,
        }

    def add_to(self, app: FastAPI) -> None:
        app.add_api_route("/", self.show, include_in_schema=False)
        app.add_api_route("/answer", self.answer, methods=["POST"], include_in_schema=False)
        app.add_api_route("/enter", self.enter, methods=["POST"], include_in_schema=False)
        description = app.openapi

        def docs(request: Request) -> Response:
            visit = Visit.to(request.scope)
            return self._rendered("docs.html", visit, api=description(), example=example_post)

        app.add_api_route("/docs", docs, include_in_schema=False)
        app.mount("/static", StaticFiles(directory=STATIC))

    async def show(self, request: Request) -> Response:
        """Show the form, and the papers if it has a post."""
        visit = Visit.to(request.scope)
        t = visit.words
        fields = {name: request.query_params.get(name, "") for name in FIELDS}
        values: dict[str, Any] = {"given": fields, "found": None, "reason": None, "link": ""}
        status = 200
        headers: dict[str, str] = {}
        by_reader = not is_foreign(request.headers) or is_followed(request.headers)
        if fields["post"].strip() and by_reader:
            try:
                given: dict[str, object] = {}
                given |= {name: text for name, text in fields.items() if text.strip()}
                given["fetch"] = fields["fetch"].strip() == "true"
                # All values of a form are strings.
                if len(k := fields["k"].strip()) < 10 and is_digits(k):
                    given["k"] = int(k)
                question = Question.model_validate(given)
                values["found"] = await self.ask(question, lambda part: None)
                values["link"] = answer_link(question)
            except ValidationError as error:
                field, reason = first_problem(error.errors(include_url=False))
                status, values["reason"] = 422, labelled(field, reason, t)
            except NoAnswer as error:
                status, headers = error.status, error.headers
                values["reason"] = labelled(error.field, str(error), t)
        cards: list[PaperCard] = []
        if values["found"] is not None:
            cards = await asyncio.to_thread(self._cards.make, values["found"], t)
        values |= {"cards": cards, "origin": server_origin(request)}
        return self._rendered("page.html", visit, status, headers, **values)

    async def answer(self, question: Question, request: Request) -> Response:
        """Answer the page's script: a line of JSON for each part of the work, then the papers."""
        lines = self._lines(question, api_words(request.headers))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def _lines(self, question: Question, t: Words) -> AsyncIterator[str]:
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
            cards = await asyncio.to_thread(self._cards.make, answer, t)
            link = answer_link(question)
            text = self._text("answer.html", t, found=answer, cards=cards, link=link)
            yield json.dumps({"html": text}) + "\n"
        except NoAnswer as error:
            yield json.dumps({"error": labelled(error.field, str(error), t)}) + "\n"
        finally:
            task.cancel()

    async def enter(self, request: Request) -> Response:
        """Check a reader's token, and set a cookie that replaces it."""
        body = (await request.body()).decode("utf-8", "replace")
        try:
            form = parse_qs(body, max_num_fields=10)
        except ValueError:
            form = {}
        token = form.get("token", [""])[0]
        post = form.get("post", [""])[0]
        if self.access.token is None or not same_secret(token.strip(), self.access.token):
            visit = replace(Visit.to(request.scope), path="/")
            return self._enter(visit, 403, "This is not the token.", post)
        address = "/"
        if post:
            address += f"?{urlencode({'post': post})}"
        response = RedirectResponse(address, 303)
        response.set_cookie(
            COOKIE,
            token_cookie(self.access.token),
            max_age=DAYS * 24 * 3600,
            httponly=True,
            samesite="lax",  # a bookmarklet on another page links to this one
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
        """Show why a request was refused; if its token is missing, show the form for it."""
        visit = Visit.to(scope)
        if status == 401:
            response = self._enter(visit, 401, "", visit.query.get("post", [""])[0])
            response.headers.update(headers)
            return response
        reason = visit.words.message(reason)
        return self._rendered("refused.html", visit, status, headers, reason=reason)

    def _enter(self, visit: Visit, status: int, reason: str, post: str) -> Response:
        reason = visit.words.message(reason)
        return self._rendered("enter.html", visit, status, reason=reason, post=post)

    def _rendered(
        self,
        template: str,
        visit: Visit,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        **values: Any,
    ) -> Response:
        text = self._text(template, visit.words, visit=visit, **values)
        response = HTMLResponse(text, status, dict(headers or {}))
        response.headers["content-language"] = visit.words.lang
        if visit.is_chosen:
            response.set_cookie(
                LANGUAGE_COOKIE, visit.words.lang, max_age=DAYS * 24 * 3600, samesite="lax"
            )
        return response

    def _text(self, template: str, words: Words, **values: Any) -> str:
        papers = words.number(self.finder.papers)  # by the last search
        page = _templates().get_template(template)
        text = page.render(
            **self._about,
            t=words,
            languages=LANGUAGES,
            language_link=language_link,
            script_words={text: words(text) for text in self._script_texts},
            papers=papers,
            **values,
        )
        return text.encode("utf-8", "replace").decode("utf-8")


def labelled(field: str | None, reason: str, words: Words) -> str:
    """Return a reason, after the label of its field."""
    reason = words.message(reason)
    if not field:
        return reason
    label = words(LABELS.get(field, field))
    return f"{label}: {reason}"


def server_origin(request: Request) -> str:
    """Return this server's origin as a browser sends it; "" if its name is invalid."""
    host = request.headers.get("host", "")
    return f"{request.url.scheme}://{host}" if _HOST.fullmatch(host) else ""


def example_post(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema["examples"][0])
