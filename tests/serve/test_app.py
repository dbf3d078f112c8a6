"""The API, the page without script, and the tool for agents, by a server in a thread."""

from __future__ import annotations

import asyncio
import html
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from claim2source.core.records import Source
from claim2source.data.papers import Paper
from claim2source.data.posts import Post
from claim2source.find.answers import as_bibtex, json_rows, next_step
from claim2source.find.finder import Finder, Verdict
from claim2source.models import ModelConfig
from claim2source.search.dense import Dense
from claim2source.search.engine import open_index
from claim2source.search.growing import grow, re_encode
from claim2source.search.rows import Where
from claim2source.serve.access import CSP, AccessSettings
from claim2source.serve.page import Page as FindPage
from claim2source.serve.schemas import CHARACTERS, POSTS, Question
from claim2source.serve.words import words_in
from tests.eval import conftest
from tests.eval.papers import NASTY, POST
from tests.serve.servers import SlowFinder, serving

TOKEN = "a-token-of-twenty-signs"
index = conftest.index


@pytest.fixture(scope="module")
def finder(index: str) -> SlowFinder:
    return SlowFinder(open_index(index))


@pytest.fixture(scope="module")
def local(index: str) -> Finder:
    """Finds in this thread, as the program `find` does."""
    return Finder(open_index(index))


@pytest.fixture(scope="module")
def client(finder: SlowFinder) -> Iterator[httpx.Client]:
    with serving(finder, capacity=POSTS) as address:
        with httpx.Client(base_url=address, timeout=60) as client:
            yield client


def find(client: httpx.Client, **question: Any) -> httpx.Response:
    """Send one question to the API."""
    return client.post("/api/v1/find", json=question)


def opened(client: httpx.Client, **fields: str | int) -> httpx.Response:
    """Open the page with the fields of a question."""
    return client.get("/", params=fields)


def close(actual: Any, expected: Any) -> Any:
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine["parts"] == pytest.approx(theirs["parts"], abs=1e-5)
        assert mine["score"] is theirs["score"] is None
        assert mine["verdict"] == "not judged"
        assert mine["index"]["version"] == theirs["index"]["version"]
        rest = {"parts": 0, "score": 0, "index": 0}  # a day may be written in several ways
        assert {**mine, **rest} == {**theirs, **rest}
    return True


def test_an_answer_is_that_of_find(client: httpx.Client, local: Finder) -> None:
    where = Where("2020", "de", "science")
    (expected,) = local.find([Post("0", POST, "de")], 4, where)
    extra = {
        "lang": "de",
        "date": "2020",
        "k": 4,
        "venue": "science",
        "paper_lang": "de",
    }
    record = find(client, post=POST, **extra).json()
    assert record["papers"]
    assert close(record["papers"], json_rows(expected))
    assert record["lang"] == "de"
    assert record["abstained"] is None
    assert record["present"] is None

    (expected,) = local.find([Post("0", NASTY)], 13)
    record = find(client, post=NASTY, k=13).json()
    assert close(record["papers"], json_rows(expected))
    assert len(record["papers"]) == 13
    for post in ("\x00", "NOT", "\u202e", "a" * CHARACTERS):
        answer = find(client, post=post)
        assert answer.status_code == 200
        assert len(answer.json()["papers"]) == 10
        assert opened(client, post=post).status_code == 200


def test_a_retraction_is_shown_and_no_script_is_a_link(client: httpx.Client) -> None:
    page = opened(client, post=NASTY, k=13).text
    assert page.count('<p class="problem">RETRACTED, 2021-03-04, &lt;b&gt;</p>') == 1
    assert "javascript:alert" not in page
    post = find(client, post=NASTY, k=13)
    # JSON Schema's integers may be written with a point.
    with_point = find(client, post=NASTY, k=13.0).json()
    papers = post.json()["papers"]
    assert len(with_point["papers"]) == len(papers)
    assert "javascript" not in post.text
    assert "retracted, 2021-03-04" in post.text


def test_a_batch_keeps_order_ids_and_dates(client: httpx.Client, local: Finder) -> None:
    posts: list[dict[str, str]] = [
        {"text": "claim a", "id": "x"},
        {"text": "claim b", "id": "x", "date": "2019-05-01"},
        {"text": "claim c"},
    ]
    reply = client.post("/api/v1/batch", json={"posts": posts, "k": 12})
    answers = reply.json()["answers"]
    assert [answer["post"] for answer in answers] == ["x", "x", ""]
    for post, record in zip(posts, answers, strict=True):
        asked = Post("0", post["text"], "", post.get("date", ""))
        (expected,) = local.find([asked], 12)
        assert close(record["papers"], json_rows(expected))
    dates = {answer["date"] for answer in answers[1]["papers"]}
    assert dates == {"2019-04-01", ""}


POST_UNTIL = Post("0", POST, "", "2019-12-31")
ABSENT = ("lang", "date", "translation", "k", "venue", "paper_lang")


@pytest.mark.parametrize("nothing", [None, "", "  "])
def test_null_and_empty_text_mean_absent(client: httpx.Client, nothing: str | None) -> None:
    reply = find(client, post=POST).json()
    for name in ABSENT:
        answer = find(client, post=POST, **{name: nothing})
        assert answer.status_code == 200
        record = answer.json()
        assert close(record["papers"], reply["papers"])
        assert record["lang"] == reply["lang"]
    post = {
        "text": POST,
        **dict.fromkeys(("id", "lang", "date", "translation"), nothing),
    }
    batch = {"posts": [post], "k": nothing, "venue": nothing}
    answer = client.post("/api/v1/batch", json=batch)
    (record,) = answer.json()["answers"]
    assert record["post"] == ""
    assert close(record["papers"], reply["papers"])
    wrong: tuple[dict[str, Any], ...] = (
        {"post": nothing},
        {"post": POST, "date": 5},
        {"post": POST, "k": False},
    )
    for body in wrong:
        assert find(client, **body).status_code == 422


LONG = "x" * (CHARACTERS + 1)
NO_POSTS = ("file:///x", "https://a.org/1", "at://a/b")
NO_NUMBERS = (True, False, 2.5, "٥", "５", "x", [])
WRONG: list[tuple[object, int, str | None]] = [
    (b"{", 400, None),
    (b"[" * 100_000, 400, None),
    (b'{"post": "\\ud800"}', 422, "post"),
    (b"[]", 422, "body"),
    ({"post": " \n\x1f"}, 422, "post"),
    ({"post": "a", "k": 0}, 422, "k"),
    *(({"post": address}, 422, "post") for address in NO_POSTS),
    *(({"post": "a", "k": k}, 422, "k") for k in NO_NUMBERS),
    ({"post": "a", "date": "٢٠٢١"}, 422, "date"),
    ({"post": "a", "date": "soon"}, 422, "date"),
    ({"post": "a", "lang": "xx"}, 422, "lang"),
    ({"post": "a", "date": "2021-05-04T99:00:00Z"}, 422, "date"),
    ({"post": "a", "paper_lang": "' OR 1=1"}, 422, "paper_lang"),
    ({"post": "a", "translation": LONG}, 422, "translation"),
    ({"post": "a", "posts": []}, 422, "posts"),
]


def test_what_is_wrong_is_named_and_not_repeated(client: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    for body, status, field in WRONG:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = client.post("/api/v1/find", content=content, headers=headers)
        assert answer.status_code == status, body
        record = answer.json()
        assert record["field"] == field, body
        assert record["error"]
        assert len(answer.text) < 400
        assert "Input" not in answer.text
    batches: list[tuple[list[dict[str, str]], str]] = [
        ([], "posts"),
        ([{"text": "a"}] * (POSTS + 1), "posts"),
        ([{"text": "a"}, {"text": ""}], "posts.1.text"),
    ]
    for posts, field in batches:
        answer = client.post("/api/v1/batch", json={"posts": posts})
        assert answer.status_code == 422
        assert answer.json()["field"] == field
    nowhere = client.get("/nowhere").json()
    assert nowhere == {"error": "Not Found", "field": None}
    assert client.get("/api/v1/find").status_code == 405


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.marked: list[str] = []
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within = tag

    def handle_data(self, data: str) -> None:
        if self._within == "mark":
            self.marked.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._within = ""


def test_the_page_works_without_script(client: httpx.Client, local: Finder) -> None:
    empty = client.get("/")
    assert empty.status_code == 200
    assert "<ol class" not in empty.text
    assert empty.headers["content-security-policy"] == CSP
    assert "unsafe" not in CSP
    answer = opened(client, post="Masks work?", k="3", lang="", date="")
    page = Page(answer.text)
    (expected,) = local.find([Post("0", "Masks work?")], 3)
    links = [own.get("href") for tag, own in page.tags if tag == "a"]
    for match in expected.matches:
        assert match.paper.link in links
    assert answer.text.count("<pre") == 3
    assert "Not judged" in answer.text
    # The stemmed words of the post, as they occur in the paper.
    assert set(page.marked) == {"Masks", "work", "works"}
    inputs = [own for tag, own in page.tags if tag == "input"]
    fields = {own.get("name"): own.get("value") for own in inputs}
    assert fields == {"date": "", "venue": "", "k": "3", None: None}
    assert ">Masks work?</textarea>" in answer.text
    bibtex = as_bibtex([expected]).splitlines()
    assert bibtex[0] in answer.text
    wrong = opened(client, post="a", k="many")
    assert wrong.status_code == 422
    assert "Papers to list: must be a whole number" in wrong.text
    # The page contains nothing that its policy for scripts and styles would block.
    for tag, own in page.tags:
        assert tag != "style"
        for name in own:
            assert not name.startswith("on")
            assert name != "style"
        assert tag != "script" or own["src"] == "/static/find.js"


def test_hostile_text_is_shown_as_text(client: httpx.Client) -> None:
    post = '</textarea><script>owned = 1</script>" onfocus="owned = 1'
    text = opened(client, post=post, date='"><img src=x>', k="1").text
    page = Page(text)
    tags = [tag for tag, _ in page.tags]
    assert "img" not in tags
    assert tags.count("script") == 1
    assert tags.count("textarea") == 1
    text = opened(client, post=NASTY, k="13").text
    assert "=HYPERLINK(&#34;http://x&#34;)" in text


@pytest.mark.slow
def test_a_running_server_sees_an_index_that_grew_and_was_encoded_anew(
    index: str, tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    copy = shutil.copytree(index, tmp_path / "copy")
    old = open_index(index).manifest.model
    assert old is not None
    weights = save_tiny(tmp_path / "new", seed=1)
    new = ModelConfig(name=str(weights), pooling="mean", max_length=32)

    def ask(client: httpx.Client) -> list[dict[str, Any]]:
        answer = find(client, post="zebras").json()
        return list(answer["papers"])

    with (
        serving(Finder(open_index(copy))) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        before = ask(client)
        writer = open_index(copy)
        rendering = writer.manifest.rendering
        source = Source("z", "zebras sleep", "Zebras sleep at noon.")
        added = [Paper(source)]
        dense = Dense(old, rendering=rendering, device="cpu")
        grow(writer, added, dense)
        grown = ask(client)
        assert grown[0]["id"] == "z"
        assert "z" not in {paper["id"] for paper in before}
        assert grown[0]["index"]["version"] > before[0]["index"]["version"]
        assert "compared with 14 papers" in client.get("/").text
        rendering = writer.manifest.rendering
        dense = Dense(new, rendering=rendering, device="cpu")
        re_encode(writer, dense)
        writer.close()
        papers = ask(client)
    model = papers[0]["index"]["model"]
    grown_model = grown[0]["index"]["model"]
    assert model != grown_model
    assert grown_model == before[0]["index"]["model"]
    anew = Finder(open_index(copy))
    (expected,) = anew.find([Post("0", "zebras")])
    assert close(papers, json_rows(expected))


def test_the_script_s_answer_tells_the_parts_of_the_work(client: httpx.Client) -> None:
    answer = client.post("/answer", json={"post": "Masks work?", "k": 2})
    *parts, last = map(json.loads, answer.text.splitlines())
    names = ("a slow stage", "search", "sentences")
    assert parts == [{"part": name} for name in names]
    page = opened(client, post="Masks work?", k="2").text
    assert last["html"].strip() in page
    assert last["html"].count('class="paper') == 3
    refusal = client.post("/answer", json={"post": ""})
    assert refusal.json()["field"] == "post"


def test_a_busy_server_says_when_to_try_again_a_late_answer_is_504(finder: SlowFinder) -> None:
    with (
        serving(finder, capacity=1) as address,
        httpx.Client(base_url=address) as client,
    ):
        finder.go.clear()
        finder.begun.clear()
        responses: list[httpx.Response] = []

        def first() -> None:
            with httpx.Client(base_url=address, timeout=60) as own:
                responses.append(find(own, post="first"))

        thread = threading.Thread(target=first)
        thread.start()
        try:
            assert finder.begun.wait(30)
            health = client.get("/health").json()
            assert health["waiting"] == 1
            assert health["places"] == 1
            second = {"post": "second"}
            batch = {"posts": [{"text": "second"}]}
            for busy in (
                find(client, **second),
                client.post("/api/v1/batch", json=batch),
                opened(client, **second),
            ):
                assert busy.status_code == 503
                assert int(busy.headers["retry-after"]) >= 1
                assert "too many posts are waiting" in busy.text
            lines = client.post("/answer", json=second).text.splitlines()
            last = json.loads(lines[-1])
            assert "too many posts" in last["error"]
        finally:
            finder.go.set()
            thread.join()
        assert responses[0].status_code == 200
        assert find(client, post="second").status_code == 200
        failed = find(client, post="poison apple")
        assert failed.status_code == 500
        assert "apple" not in failed.text
    with (
        serving(finder, seconds=0.3) as address,
        httpx.Client(base_url=address) as client,
    ):
        finder.go.clear()
        late = find(client, post="a")
        finder.go.set()
        assert late.status_code == 504
        assert late.json()["error"] == "no answer within 0.3 s"


def test_a_token_opens_the_page_by_a_cookie(finder: SlowFinder) -> None:
    access = AccessSettings(TOKEN, None, None)
    with (
        serving(finder, access=access) as address,
        httpx.Client(base_url=address) as client,
    ):
        assert find(client, post="masks").json()["error"] == "a token is needed"
        for path in ("/docs", "/openapi.json", "/mcp", "/answer"):
            assert client.get(path).status_code == 401
        refused = opened(client, post='a "post"')
        assert refused.status_code == 401
        assert 'value="a &#34;post&#34;"' in refused.text
        guess = {"token": "guessed", "post": "p"}
        wrong = client.post("/enter", data=guess)
        assert wrong.status_code == 403
        assert "set-cookie" not in wrong.headers
        right = {"token": f" {TOKEN} ", "post": "a b&c"}
        entered = client.post("/enter", data=right)
        assert entered.status_code == 303
        assert entered.headers["location"] == "/?post=a+b%26c"
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert TOKEN not in cookie
        assert find(client, post="masks").status_code == 200  # by the cookie
        paths = client.get("/openapi.json").json()["paths"]
        assert paths["/api/v1/find"]["post"]["security"] == [{"token": []}]
        assert "security" not in paths["/health"]["get"]
        assert "Bearer TOKEN" in client.get("/docs").text


def test_the_api_is_described_without_another_server(client: httpx.Client) -> None:
    api = client.get("/openapi.json").json()
    schemas = api["components"]["schemas"]
    assert set(api["paths"]) == {
        "/api/v1/find",
        "/api/v1/batch",
        "/health",
    }
    text = client.get("/docs").text
    for name in [*api["paths"], *schemas]:
        assert name in text
    for tag, own in Page(text).tags:
        for key in ("src", "href"):
            address = own.get(key) or "/"
            assert not address.startswith(("http", "//")), (tag, own)
    # The example is accepted.
    for name, path in (("Question", "/api/v1/find"), ("Batch", "/api/v1/batch")):
        example = schemas[name]["examples"][0]
        assert client.post(path, json=example).status_code == 200
        assert not re.search("cdn|unpkg", text)
    # Null and "" are alternatives to the languages: in a list of all they would forbid both.
    language = schemas["Question"]["properties"]["lang"]
    assert "enum" not in language
    assert {"type": "null"} in language["anyOf"]
    tags = language["anyOf"][0]["enum"]
    assert {"auto", "de"} < set(tags)
    for tag in ("de-AT", "DE", "ger"):
        answer = find(client, post=POST, lang=tag, paper_lang=tag)
        assert answer.status_code == 200
        assert answer.json()["lang"] == "de"


NO_WHOLE_NUMBERS = (True, "3", 0, -1, 1.5, 10**30, 1e300, [1])
WRONG_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"post": " "}, "post"),
    ({}, "post"),
    ({"post": 5}, "post"),
    ({"post": "file:///etc/passwd"}, "post"),
    *(({"post": "a", "k": k}, "k") for k in NO_WHOLE_NUMBERS),
    ({"post": "a", "k": "٥", "lang": "xx", "date": "soon"}, "lang"),
    ({"post": "a", "nonsense": 1}, "nonsense"),
    ({"post": LONG}, "post"),
]


def test_an_agent_finds_papers_by_the_tool(client: httpx.Client, local: Finder) -> None:
    from mcp.client import Client

    question = {"post": POST, "k": 3, "date": "2019-12"}
    nothing = {
        "post": POST,
        **dict.fromkeys(ABSENT),
        "venue": "",
        "date": "2019-12-31T10Z",
    }

    async def run() -> tuple[Any, ...]:
        async with Client(str(client.base_url.join("/mcp"))) as agent:
            tools = await agent.list_tools()
            good = await agent.call_tool("find_papers", question)
            absent = await agent.call_tool("find_papers", nothing)
            bad = []
            for arguments, _ in WRONG_CALLS:
                answer = await agent.call_tool("find_papers", arguments)
                bad.append(answer)
            return tools, good, absent, bad

    tools, good, absent, bad = asyncio.run(run())
    papers = good.structured_content["papers"]
    all_papers = absent.structured_content["papers"]
    assert close(all_papers[:3], papers)
    (until,) = local.find([POST_UNTIL], 10)
    assert len(all_papers) == len(until.matches)
    (tool,) = tools.tools
    assert tool.name == "find_papers"
    assert tool.annotations.read_only_hint
    # An agent reads it before every question: what the tool can and cannot do.
    assert len(tool.description.split()) <= 100
    for value in (*get_args(Verdict), "can ", "cannot "):
        assert value in tool.description
    assert len(json.dumps(tool.input_schema)) < 1_200
    assert len(tool.model_dump_json()) < 5_500
    properties = tool.input_schema["properties"]
    assert properties.keys() == Question.model_fields.keys()
    assert tool.input_schema["additionalProperties"] is False
    assert properties["post"]["maxLength"] == CHARACTERS
    (expected,) = local.find([Post("0", POST)], 3, Where("2019-12"))
    assert not good.is_error
    assert close(papers, json_rows(expected))
    for answer, (arguments, field) in zip(bad, WRONG_CALLS, strict=True):
        (content,) = answer.content
        assert answer.is_error, arguments
        assert content.text.startswith(f"{field}: "), arguments
        assert "\n" not in content.text
        assert len(content.text) < 200
        assert "pydantic" not in content.text


def test_texts_for_people_are_in_their_language(client: httpx.Client) -> None:
    seen: dict[str, list[str]] = {}
    for lang in ("en", "de", "fr"):
        headers = {"accept-language": f"{lang}-CH, en;q=0.5"}
        question = {"post": "Masks work?", "k": 2}
        found = client.post("/api/v1/find", json=question, headers=headers)
        answer = found.json()
        assert found.headers["content-language"] == lang
        assert len(answer["papers"]) == 2
        none = {"post": "a", "k": 0}
        wrong = client.post("/api/v1/find", json=none, headers=headers)
        assert wrong.status_code == 422
        assert wrong.json()["field"] == "k"
        params = {"post": "Masks work?"}
        page = client.get("/", params=params, headers=headers)
        docs = client.get("/docs", headers=headers)
        foreign = {**headers, "origin": "https://elsewhere.org"}
        refused = client.get("/", headers=foreign)
        assert refused.status_code == 403
        for reply in (refused, page, docs):
            assert f'<html lang="{lang}">' in reply.text
        shown = [
            answer["headline"],
            answer["next"],
            *answer["notes"],
            wrong.json()["error"],
        ]
        for text in shown[:2]:
            escaped = html.escape(text, quote=True)
            assert escaped.replace("&#x27;", "&#39;") in page.text
        seen[lang] = shown
    for texts in zip(*seen.values(), strict=True):
        assert len(set(texts)) == 3
    choice = {"ui": "fr", "post": "Masks"}
    german = {"accept-language": "de"}
    switched = client.get("/", params=choice, headers=german)
    assert "claim2source_ui=fr" in switched.headers["set-cookie"]
    assert '<html lang="fr">' in switched.text
    assert 'href="/?post=Masks&amp;ui=de"' in switched.text


@pytest.mark.parametrize("verdict", ["not judged", "", "something new"])
def test_a_verdict_without_a_probability_has_its_page(verdict: Any, local: Finder) -> None:
    (answer,) = local.find([Post("0", POST)], 2)
    page = FindPage(local, lambda question, on_part: None, AccessSettings())  # type: ignore[arg-type, return-value]
    found = replace(answer, verdict=verdict, present=None)
    for lang in ("en", "de", "fr"):
        words = words_in(lang)
        cards = page._cards.make(found, words)
        text = page._text("answer.html", words, found=found, cards=cards, link="")
        assert 'class="paper best unjudged"' in text
        assert text.count('class="paper') == 3
        step = words.message(next_step(found))
        assert step.replace("'", "&#39;") in text


def test_a_link_to_an_answer_opens_it(client: httpx.Client) -> None:
    fields = {
        "post": "claim b & c\n?",
        "lang": "de",
        "date": "2020",
        "k": "2",
        "venue": "science",
        "paper_lang": "de",
    }
    page = Page(opened(client, **fields).text)
    links = [own for tag, own in page.tags if own.get("class") == "permalink"]
    (permalink,) = links
    link = permalink["href"]
    assert link
    assert dict(httpx.URL(link).params) == fields
    again = client.get(link)
    assert again.status_code == 200
    assert ">claim b &amp; c\n?</textarea>" in again.text
    too_long = opened(client, post="x " * 9_000)
    assert "permalink" not in too_long.text
