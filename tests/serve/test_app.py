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


def close(actual: Any, expected: Any) -> Any:
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine["parts"] == pytest.approx(theirs["parts"], abs=1e-5)
        assert mine["score"] is theirs["score"] is None and mine["verdict"] == "not judged"
        assert mine["index"]["version"] == theirs["index"]["version"]
        rest = {"parts": 0, "score": 0, "index": 0}  # a day may be written in several ways
        assert {**mine, **rest} == {**theirs, **rest}
    return True


def test_an_answer_is_that_of_find(client: httpx.Client, local: Finder) -> None:
    where = Where("2020", "de", "science")
    (expected,) = local.find([Post("0", POST, "de")], 4, where)
    extra = {"lang": "de", "date": "2020", "k": 4, "venue": "science", "paper_lang": "de"}
    record = client.post("/api/v1/find", json={"post": POST, **extra}).json()
    assert record["papers"] and close(record["papers"], json_rows(expected))
    assert (record["lang"], record["abstained"], record["present"]) == ("de", None, None)
    (expected,) = local.find([Post("0", NASTY)], 13)
    record = client.post("/api/v1/find", json={"post": NASTY, "k": 13}).json()
    assert close(record["papers"], json_rows(expected)) and len(record["papers"]) == 13
    for post in ("\x00", "NOT", "\u202e", "a" * CHARACTERS):
        answer = client.post("/api/v1/find", json={"post": post})
        assert answer.status_code == 200 and len(answer.json()["papers"]) == 10
        assert client.get("/", params={"post": post}).status_code == 200


def test_a_retraction_is_shown_and_no_script_is_a_link(client: httpx.Client) -> None:
    page = client.get("/", params={"post": NASTY, "k": 13}).text
    assert page.count('<p class="problem">RETRACTED, 2021-03-04, &lt;b&gt;</p>') == 1
    assert "javascript:alert" not in page
    post = client.post("/api/v1/find", json={"post": NASTY, "k": 13})
    # JSON Schema's integers may be written with a point.
    with_point = client.post("/api/v1/find", json={"post": NASTY, "k": 13.0}).json()
    assert len(with_point["papers"]) == len(post.json()["papers"])
    assert "javascript" not in post.text and "retracted, 2021-03-04" in post.text


def test_a_batch_keeps_order_ids_and_dates(client: httpx.Client, local: Finder) -> None:
    posts: list[dict[str, str]] = [
        {"text": "claim a", "id": "x"},
        {"text": "claim b", "id": "x", "date": "2019-05-01"},
        {"text": "claim c"},
    ]
    answers = client.post("/api/v1/batch", json={"posts": posts, "k": 12}).json()["answers"]
    assert [answer["post"] for answer in answers] == ["x", "x", ""]
    for post, record in zip(posts, answers, strict=True):
        (expected,) = local.find([Post("0", post["text"], "", post.get("date", ""))], 12)
        assert close(record["papers"], json_rows(expected))
    assert {answer["date"] for answer in answers[1]["papers"]} == {"2019-04-01", ""}


POST_UNTIL = Post("0", POST, "", "2019-12-31")
ABSENT = ("lang", "date", "translation", "k", "venue", "paper_lang")


@pytest.mark.parametrize("nothing", [None, "", "  "])
def test_null_and_empty_text_mean_absent(client: httpx.Client, nothing: str | None) -> None:
    reply = client.post("/api/v1/find", json={"post": POST}).json()
    for name in ABSENT:
        answer = client.post("/api/v1/find", json={"post": POST, name: nothing})
        assert answer.status_code == 200 and close(answer.json()["papers"], reply["papers"])
        assert answer.json()["lang"] == reply["lang"]
    post = {"text": POST, **dict.fromkeys(("id", "lang", "date", "translation"), nothing)}
    answer = client.post("/api/v1/batch", json={"posts": [post], "k": nothing, "venue": nothing})
    (record,) = answer.json()["answers"]
    assert record["post"] == "" and close(record["papers"], reply["papers"])
    for body in ({"post": nothing}, {"post": POST, "date": 5}, {"post": POST, "k": False}):
        assert client.post("/api/v1/find", json=body).status_code == 422


LONG = "x" * (CHARACTERS + 1)
WRONG: list[tuple[object, int, str | None]] = [
    (b"{", 400, None),
    (b"[" * 100_000, 400, None),
    (b'{"post": "\\ud800"}', 422, "post"),
    (b"[]", 422, "body"),
    ({"post": " \n\x1f"}, 422, "post"),
    ({"post": "a", "k": 0}, 422, "k"),
    *(({"post": address}, 422, "post") for address in ("file:///x", "https://a.org/1", "at://a/b")),
    *(({"post": "a", "k": k}, 422, "k") for k in (True, False, 2.5, "٥", "５", "x", [])),
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
        assert (answer.status_code, answer.json()["field"]) == (status, field), body
        assert answer.json()["error"] and len(answer.text) < 400 and "Input" not in answer.text
    for posts, field in (
        ([], "posts"),
        ([{"text": "a"}] * (POSTS + 1), "posts"),
        ([{"text": "a"}, {"text": ""}], "posts.1.text"),
    ):
        answer = client.post("/api/v1/batch", json={"posts": posts})
        assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert client.get("/nowhere").json() == {"error": "Not Found", "field": None}
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
    assert empty.status_code == 200 and "<ol class" not in empty.text
    assert empty.headers["content-security-policy"] == CSP and "unsafe" not in CSP
    answer = client.get("/", params={"post": "Masks work?", "k": "3", "lang": "", "date": ""})
    page = Page(answer.text)
    (expected,) = local.find([Post("0", "Masks work?")], 3)
    for match in expected.matches:
        assert match.paper.link in [own.get("href") for tag, own in page.tags if tag == "a"]
    assert answer.text.count("<pre") == 3 and "Not judged" in answer.text
    # The stemmed words of the post, as they occur in the paper.
    assert set(page.marked) == {"Masks", "work", "works"}
    fields = {own.get("name"): own.get("value") for tag, own in page.tags if tag == "input"}
    assert (
        fields == {"date": "", "venue": "", "k": "3", None: None}
        and ">Masks work?</textarea>" in answer.text
    )
    assert as_bibtex([expected]).splitlines()[0] in answer.text
    wrong = client.get("/", params={"post": "a", "k": "many"})
    assert wrong.status_code == 422 and "Papers to list: must be a whole number" in wrong.text
    # The page contains nothing that its policy for scripts and styles would block.
    for tag, own in page.tags:
        assert tag != "style" and not any(name.startswith("on") or name == "style" for name in own)
        assert tag != "script" or own["src"] == "/static/find.js"


def test_hostile_text_is_shown_as_text(client: httpx.Client) -> None:
    post = '</textarea><script>owned = 1</script>" onfocus="owned = 1'
    text = client.get("/", params={"post": post, "date": '"><img src=x>', "k": "1"}).text
    tags = [tag for tag, _ in Page(text).tags]
    assert "img" not in tags and tags.count("script") == 1 and tags.count("textarea") == 1
    text = client.get("/", params={"post": NASTY, "k": "13"}).text
    assert "=HYPERLINK(&#34;http://x&#34;)" in text


@pytest.mark.slow
def test_a_running_server_sees_an_index_that_grew_and_was_encoded_anew(
    index: str, tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    copy = shutil.copytree(index, tmp_path / "copy")
    old = open_index(index).manifest.model
    assert old is not None
    new = ModelConfig(name=str(save_tiny(tmp_path / "new", seed=1)), pooling="mean", max_length=32)

    def ask(client: httpx.Client) -> list[dict[str, Any]]:
        answer = client.post("/api/v1/find", json={"post": "zebras"}).json()
        return list(answer["papers"])

    with (
        serving(Finder(open_index(copy))) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        before = ask(client)
        writer = open_index(copy)
        added = [Paper(Source("z", "zebras sleep", "Zebras sleep at noon."))]
        grow(writer, added, Dense(old, rendering=writer.manifest.rendering, device="cpu"))
        grown = ask(client)
        assert grown[0]["id"] == "z" and "z" not in {paper["id"] for paper in before}
        assert grown[0]["index"]["version"] > before[0]["index"]["version"]
        assert "compared with 14 papers" in client.get("/").text
        re_encode(writer, Dense(new, rendering=writer.manifest.rendering, device="cpu"))
        writer.close()
        papers = ask(client)
    assert papers[0]["index"]["model"] != grown[0]["index"]["model"] == before[0]["index"]["model"]
    expected = json_rows(Finder(open_index(copy)).find([Post("0", "zebras")])[0])
    assert close(papers, expected)


def test_the_script_s_answer_tells_the_parts_of_the_work(client: httpx.Client) -> None:
    answer = client.post("/answer", json={"post": "Masks work?", "k": 2})
    *parts, last = map(json.loads, answer.text.splitlines())
    assert parts == [{"part": part} for part in ("a slow stage", "search", "sentences")]
    page = client.get("/", params={"post": "Masks work?", "k": "2"}).text
    assert last["html"].strip() in page and last["html"].count('class="paper') == 3
    assert client.post("/answer", json={"post": ""}).json()["field"] == "post"


def test_a_busy_server_says_when_to_try_again_a_late_answer_is_504(finder: SlowFinder) -> None:
    with serving(finder, capacity=1) as address, httpx.Client(base_url=address) as client:
        finder.go.clear()
        finder.begun.clear()
        responses: list[httpx.Response] = []

        def first() -> None:
            with httpx.Client(base_url=address, timeout=60) as own:
                responses.append(own.post("/api/v1/find", json={"post": "first"}))

        thread = threading.Thread(target=first)
        thread.start()
        try:
            assert finder.begun.wait(30)
            health = client.get("/health").json()
            assert (health["waiting"], health["places"]) == (1, 1)
            for busy in (
                client.post("/api/v1/find", json={"post": "second"}),
                client.post("/api/v1/batch", json={"posts": [{"text": "second"}]}),
                client.get("/", params={"post": "second"}),
            ):
                assert busy.status_code == 503 and int(busy.headers["retry-after"]) >= 1
                assert "too many posts are waiting" in busy.text
            last = client.post("/answer", json={"post": "second"}).text.splitlines()[-1]
            assert "too many posts" in json.loads(last)["error"]
        finally:
            finder.go.set()
            thread.join()
        assert responses[0].status_code == 200
        assert client.post("/api/v1/find", json={"post": "second"}).status_code == 200
        failed = client.post("/api/v1/find", json={"post": "poison apple"})
        assert failed.status_code == 500 and "apple" not in failed.text
    with serving(finder, seconds=0.3) as address, httpx.Client(base_url=address) as client:
        finder.go.clear()
        late = client.post("/api/v1/find", json={"post": "a"})
        finder.go.set()
        assert (late.status_code, late.json()["error"]) == (504, "no answer within 0.3 s")


def test_a_token_opens_the_page_by_a_cookie(finder: SlowFinder) -> None:
    access = AccessSettings(TOKEN, None, None)
    with serving(finder, access=access) as address, httpx.Client(base_url=address) as client:
        question = {"post": "masks"}
        assert client.post("/api/v1/find", json=question).json()["error"] == "a token is needed"
        for path in ("/docs", "/openapi.json", "/mcp", "/answer"):
            assert client.get(path).status_code == 401
        refused = client.get("/", params={"post": 'a "post"'})
        assert refused.status_code == 401 and 'value="a &#34;post&#34;"' in refused.text
        wrong = client.post("/enter", data={"token": "guessed", "post": "p"})
        assert wrong.status_code == 403 and "set-cookie" not in wrong.headers
        entered = client.post("/enter", data={"token": f" {TOKEN} ", "post": "a b&c"})
        assert (entered.status_code, entered.headers["location"]) == (303, "/?post=a+b%26c")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=lax" in cookie and TOKEN not in cookie
        assert client.post("/api/v1/find", json=question).status_code == 200  # by the cookie
        api = client.get("/openapi.json").json()
        assert api["paths"]["/api/v1/find"]["post"]["security"] == [{"token": []}]
        assert "security" not in api["paths"]["/health"]["get"]
        assert "Bearer TOKEN" in client.get("/docs").text


def test_the_api_is_described_without_another_server(client: httpx.Client) -> None:
    api = client.get("/openapi.json").json()
    assert set(api["paths"]) == {"/api/v1/find", "/api/v1/batch", "/health"}
    text = client.get("/docs").text
    for name in [*api["paths"], *api["components"]["schemas"]]:
        assert name in text
    for tag, own in Page(text).tags:
        for key in ("src", "href"):
            assert not (own.get(key) or "/").startswith(("http", "//")), (tag, own)
    # The example is accepted.
    for name, path in (("Question", "/api/v1/find"), ("Batch", "/api/v1/batch")):
        example = api["components"]["schemas"][name]["examples"][0]
        assert client.post(path, json=example).status_code == 200
        assert not re.search("cdn|unpkg", text)
    # Null and "" are alternatives to the languages: in a list of all they would forbid both.
    language = api["components"]["schemas"]["Question"]["properties"]["lang"]
    assert "enum" not in language and {"type": "null"} in language["anyOf"]
    assert {"auto", "de"} < set(language["anyOf"][0]["enum"])
    for tag in ("de-AT", "DE", "ger"):
        question = {"post": POST, "lang": tag, "paper_lang": tag}
        answer = client.post("/api/v1/find", json=question)
        assert (answer.status_code, answer.json()["lang"]) == (200, "de")


WRONG_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"post": " "}, "post"),
    ({}, "post"),
    ({"post": 5}, "post"),
    ({"post": "file:///etc/passwd"}, "post"),
    *(({"post": "a", "k": k}, "k") for k in (True, "3", 0, -1, 1.5, 10**30, 1e300, [1])),
    ({"post": "a", "k": "٥", "lang": "xx", "date": "soon"}, "lang"),
    ({"post": "a", "nonsense": 1}, "nonsense"),
    ({"post": LONG}, "post"),
]


def test_an_agent_finds_papers_by_the_tool(client: httpx.Client, local: Finder) -> None:
    from mcp.client import Client

    async def run() -> tuple[Any, ...]:
        async with Client(str(client.base_url.join("/mcp"))) as agent:
            tools = await agent.list_tools()
            good = await agent.call_tool("find_papers", {"post": POST, "k": 3, "date": "2019-12"})
            nothing = {"post": POST, **dict.fromkeys(ABSENT), "venue": "", "date": "2019-12-31T10Z"}
            absent = await agent.call_tool("find_papers", nothing)
            bad = [await agent.call_tool("find_papers", arguments) for arguments, _ in WRONG_CALLS]
            return tools, good, absent, bad

    tools, good, absent, bad = asyncio.run(run())
    assert close(absent.structured_content["papers"][:3], good.structured_content["papers"])
    assert len(absent.structured_content["papers"]) == len(local.find([POST_UNTIL], 10)[0].matches)
    (tool,) = tools.tools
    assert tool.name == "find_papers" and tool.annotations.read_only_hint
    # An agent reads it before every question: what the tool can and cannot do.
    assert len(tool.description.split()) <= 100
    for value in (*get_args(Verdict), "can ", "cannot "):
        assert value in tool.description
    assert len(json.dumps(tool.input_schema)) < 1_200 and len(tool.model_dump_json()) < 5_500
    assert tool.input_schema["properties"].keys() == Question.model_fields.keys()
    assert tool.input_schema["additionalProperties"] is False
    assert tool.input_schema["properties"]["post"]["maxLength"] == CHARACTERS
    (expected,) = local.find([Post("0", POST)], 3, Where("2019-12"))
    assert not good.is_error and close(good.structured_content["papers"], json_rows(expected))
    for answer, (arguments, field) in zip(bad, WRONG_CALLS, strict=True):
        (content,) = answer.content
        assert answer.is_error and content.text.startswith(f"{field}: "), arguments
        assert (
            "\n" not in content.text and len(content.text) < 200 and "pydantic" not in content.text
        )


def test_texts_for_people_are_in_their_language(client: httpx.Client) -> None:
    seen: dict[str, list[str]] = {}
    for lang in ("en", "de", "fr"):
        headers = {"accept-language": f"{lang}-CH, en;q=0.5"}
        found = client.post("/api/v1/find", json={"post": "Masks work?", "k": 2}, headers=headers)
        answer = found.json()
        assert found.headers["content-language"] == lang and len(answer["papers"]) == 2
        wrong = client.post("/api/v1/find", json={"post": "a", "k": 0}, headers=headers)
        assert (wrong.status_code, wrong.json()["field"]) == (422, "k")
        page = client.get("/", params={"post": "Masks work?"}, headers=headers)
        docs = client.get("/docs", headers=headers)
        refused = client.get("/", headers={**headers, "origin": "https://elsewhere.org"})
        assert refused.status_code == 403 and f'<html lang="{lang}">' in refused.text
        assert f'<html lang="{lang}">' in page.text and f'<html lang="{lang}">' in docs.text
        shown = [answer["headline"], answer["next"], *answer["notes"], wrong.json()["error"]]
        for text in shown[:2]:
            assert html.escape(text, quote=True).replace("&#x27;", "&#39;") in page.text
        seen[lang] = shown
    for texts in zip(*seen.values(), strict=True):
        assert len(set(texts)) == 3
    switched = client.get(
        "/", params={"ui": "fr", "post": "Masks"}, headers={"accept-language": "de"}
    )
    assert "claim2source_ui=fr" in switched.headers["set-cookie"]
    assert '<html lang="fr">' in switched.text and 'href="/?post=Masks&amp;ui=de"' in switched.text


@pytest.mark.parametrize("verdict", ["not judged", "", "something new"])
def test_a_verdict_without_a_probability_has_its_page(verdict: Any, local: Finder) -> None:
    (answer,) = local.find([Post("0", POST)], 2)
    page = FindPage(local, lambda question, on_part: None, AccessSettings())  # type: ignore[arg-type, return-value]
    found = replace(answer, verdict=verdict, present=None)
    for lang in ("en", "de", "fr"):
        words = words_in(lang)
        cards = page._cards.make(found, words)
        text = page._text("answer.html", words, found=found, cards=cards, link="")
        assert 'class="paper best unjudged"' in text and text.count('class="paper') == 3
        assert words.message(next_step(found)).replace("'", "&#39;") in text


def test_a_link_to_an_answer_opens_it(client: httpx.Client) -> None:
    filters = {"post": "claim b & c\n?", "lang": "de", "date": "2020", "k": "2", "venue": "science"}
    page = Page(client.get("/", params={**filters, "paper_lang": "de"}).text)
    (link,) = [own["href"] for tag, own in page.tags if own.get("class") == "permalink"]
    assert link and dict(httpx.URL(link).params) == {**filters, "paper_lang": "de"}
    again = client.get(link)
    assert again.status_code == 200 and ">claim b &amp; c\n?</textarea>" in again.text
    assert "permalink" not in client.get("/", params={"post": "x " * 9_000}).text
