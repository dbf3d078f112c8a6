"""`eval/serve.py` as a process: what it refuses to start with, malformed requests, how it stops."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from claim2source.eval.serve import main

from claim2source.core.errors import UserError
from claim2source.data.posts import Post
from claim2source.find.finder import Finder
from claim2source.search.engine import open_index
from claim2source.serve.server import TOKEN, listen
from tests.eval import test_find
from tests.llm_server import LLMServer
from tests.llm_server import verifiers as play
from tests.refusals import refused
from tests.shared_data import REPOSITORY

GOOD = "a-token-of-twenty-signs"


@pytest.mark.parametrize(
    ("words", "token", "facts"),
    [
        (["--host", "0.0.0.0"], None, ("host: '0.0.0.0' ", "token")),
        (["--host", "example.org"], None, ("host: ", "--token_file", "CLAIM2SOURCE_TOKEN")),
        ([], "too short", ("CLAIM2SOURCE_TOKEN: ", " 16 ")),
        ([], "a token with several words", ("CLAIM2SOURCE_TOKEN: ", "spaces")),
        (["--token_file", "none.txt"], None, ("none.txt",)),
        (["--token_file", "two.txt"], None, ("two.txt: ", "one line")),
        (["--port", "TAKEN"], None, ("127.0.0.1:", "in use")),
        (["--host", "192.0.2.1"], GOOD, ("192.0.2.1:8000: ",)),
        (["--system", "s"], None, ("system: 's' ",)),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(
    words: list[str],
    token: str | None,
    facts: tuple[str, ...],
    index: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.txt").write_text(f"{GOOD}\n{GOOD}\n")
    monkeypatch.delenv(TOKEN, raising=False)
    if token is not None:
        monkeypatch.setenv(TOKEN, token)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        words = [port if word == "TAKEN" else word for word in words]
        with refused(UserError, *facts) as error:
            main(["--index", index, *words])
    assert len(error.value.lines) == 1


def test_answers_are_sent_at_once() -> None:
    """asyncio sets TCP_NODELAY only if the socket names its protocol."""
    with listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP and listening.getsockname()[0] == "127.0.0.1"


@contextmanager
def started(index: str, folder: Path, *words: str, **environment: str) -> Iterator[Any]:
    """Start the program; yields the process, with its address as `url` and its stderr's file."""
    with open(folder / "stderr", "w") as errors:
        process: Any = subprocess.Popen(
            [sys.executable, "eval/serve.py", "--index", index, "--port", "0", *words],
            cwd=REPOSITORY,
            env={**os.environ, **environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        line = process.stdout.readline()
        assert " papers at http://" in line, (folder / "stderr").read_text()
        process.url = line.split()[3].rstrip("/")
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


BAD: list[bytes | None] = [
    b"\x00",
    b'{"post": ',
    b'{"post": ""}',
    b'{"post": "a", "k": -1}',
    b"\xff" * 1000,
    b"[" * 50_000,
    b'{"post": "' + b"x" * 1_000_000 + b'"}',
    b"x" * 3_000_000,
    None,  # no HTTP at all
]


@pytest.mark.slow
def test_malformed_requests_harm_nobody(index: str, tmp_path: Path) -> None:
    """1,000 requests, 5 % of them malformed, 8 at a time: each good one gets its own answer."""
    texts = [f'claim {"abc"[i % 3]} number {i} "quoted" \x07' for i in range(25)]
    finder = Finder(open_index(index))
    expected = {
        answer.post.text: [m.paper.source.id for m in answer.matches]
        for answer in finder.find([Post(str(i), text) for i, text in enumerate(texts)], 3)
    }
    draw = random.Random(0)
    jobs: list[str | bytes | None] = [draw.choice(texts) for _ in range(950)]
    jobs += [BAD[i % len(BAD)] for i in range(50)]
    draw.shuffle(jobs)
    with started(index, tmp_path, "--rate", "0") as process, httpx.Client(timeout=60) as client:

        def ask(job: str | bytes | None) -> int:
            if job is None:
                host, _, port = process.url.removeprefix("http://").partition(":")
                with socket.create_connection((host, int(port)), timeout=30) as raw:
                    raw.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
                    return int(raw.recv(1000).split()[1])
            body = json.dumps({"post": job, "k": 3}) if isinstance(job, str) else job
            headers = {"content-type": "application/json"}
            answer = client.post(f"{process.url}/api/v1/find", content=body, headers=headers)
            if isinstance(job, str):
                assert [paper["id"] for paper in answer.json()["papers"]] == expected[job]
            return answer.status_code

        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(ask, jobs))
        for job, status in zip(jobs, statuses, strict=True):
            assert status == 200 if isinstance(job, str) else status in (400, 413, 422), job
        assert client.get(f"{process.url}/health").json()["waiting"] == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0 and process.stdout.read() == "stopped\n"
    errors = (tmp_path / "stderr").read_text()
    assert "number" not in errors and "Traceback" not in errors


def call(arguments: object, name: object = "find_papers") -> dict[str, object]:
    """A call of a tool, as an agent sends it."""
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


KS = ["true", '"3"', "0", "-1", "1.5", "1e300", "1" + "0" * 30, "1" * 5000, "[1]", "{}", "NaN"]
DEEP = "[" * 100_000
BAD_ARGUMENTS = [
    *(f'{{"post": "a", "k": {k}}}' for k in KS),
    '{"post": "a", "nonsense\\nline": 1}',
    '{"post": "a", "__class__": {}}',
    '{"post": "\\ud800"}',
    '{"post": " "}',
    '{"post": 7}',
    "{}",
    "[]",
    "null",
    '"post"',
    '{"post": ' + DEEP,
    '{"post": "a", "date": "soon"}',
]
BAD_MESSAGES: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b"{",
    b"\xff\xfe",
    DEEP.encode(),
    b'{"jsonrpc": "2.0"}',
    b'{"jsonrpc": "2.0", "id": {}, "method": "tools/list"}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/nothing"}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": []}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 5}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "file:///x"}}',
    json.dumps(call({}, "no\nsuch tool")).encode(),
    json.dumps(call({"post": "a", "paper": 5}, "mark_post")).encode(),
    json.dumps([call({"post": "a"})] * 2).encode(),
]


@pytest.mark.slow
def test_bad_requests_are_refused_in_one_line_and_leave_no_trace(
    index: str, tmp_path: Path
) -> None:
    kinds = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    words = ["--rate", "0", "--marks", str(tmp_path / "marks.jsonl")]
    with started(index, tmp_path, *words) as process:
        client = httpx.Client(timeout=60, headers=kinds, base_url=process.url)
        for message in BAD_MESSAGES:
            assert client.post("/mcp", content=message).status_code < 500, message[:200]
        for arguments in BAD_ARGUMENTS:
            message = json.dumps(call("X")).replace('"X"', arguments).encode()
            answer = client.post("/mcp", content=message)
            reply = answer.json()
            if "result" in reply:
                assert reply["result"]["isError"]
                (part,) = reply["result"]["content"]
                assert part["text"] and "\n" not in part["text"] and len(part["text"]) <= 300
            else:
                assert "\n" not in reply["error"]["message"] and answer.status_code < 500
            batch = f'{{"posts": [{{"text": "a"}}], {arguments.removeprefix("{")}'
            for path, content in (("find", arguments), ("batch", batch), ("marks", arguments)):
                answer = client.post(f"/api/v1/{path}", content=content)
                assert answer.status_code in (400, 422), (content[:200], answer.text)
                assert answer.json()["error"] and "\n" not in answer.json()["error"]
        for method in ("GET", "DELETE", "PUT", "PATCH", "POST"):
            headers = {"mcp-protocol-version": "x", "mcp-session-id": "x" * 5_000}
            assert client.request(method, "/mcp", headers=headers).status_code < 500
        # Clients that go away before they have sent all, or before the answer.
        host, _, port = process.url.removeprefix("http://").partition(":")
        head = f"HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        head += "Accept: application/json, text/event-stream\r\nContent-Length: "
        for path in ("/mcp", "/api/v1/find", "/table?name=a.csv", "/answer"):
            body = json.dumps(call({"post": "a"}) if path == "/mcp" else {"post": "a"})
            for length in (len(body), 1_000):
                with socket.create_connection((host, int(port)), timeout=30) as raw:
                    raw.sendall(f"POST {path} {head}{length}\r\n\r\n{body}".encode())
        good = client.post("/mcp", json=call({"post": "claim a", "k": 1})).json()
        assert len(good["result"]["structuredContent"]["papers"]) == 1
        assert not (tmp_path / "marks.jsonl").exists()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    errors = (tmp_path / "stderr").read_text()
    assert "Traceback" not in errors and 'File "' not in errors, errors


def held_pipeline(
    folder: Path, llm_server: Callable[..., LLMServer]
) -> tuple[threading.Event, threading.Event]:
    """Write own.yaml, whose verifier sets the second event and waits for the first."""
    go, started_event = threading.Event(), threading.Event()

    def choose(question: play.Question) -> int:
        started_event.set()
        assert go.wait(60)
        return 0

    url = llm_server(play.Verifier(choose)).url
    (folder / "own.yaml").write_text(test_find.PIPELINE.format(url=url))
    return go, started_event


@pytest.mark.slow
def test_it_stops_when_what_it_is_answering_is_finished(
    index: str, tmp_path: Path, llm_server: Callable[..., LLMServer]
) -> None:
    go, started_event = held_pipeline(tmp_path, llm_server)
    (tmp_path / "token").write_text(f"{GOOD}\n")
    words = ["--pipeline", str(tmp_path / "own.yaml"), "--token_file", str(tmp_path / "token")]
    words += ["--places", "2", "--rate", "12", "--log_posts"]
    head = {"authorization": f"Bearer {GOOD}"}
    store = tmp_path / "store"
    with started(index, tmp_path, *words, CLAIM2SOURCE_STORE=str(store)) as process:
        url, responses = f"{process.url}/api/v1/find", list[httpx.Response]()

        def ask(post: str) -> None:
            responses.append(httpx.post(url, json={"post": post}, headers=head, timeout=60))

        assert httpx.post(url, json={"post": "a"}).status_code == 401
        threads = [threading.Thread(target=ask, args=(f"post \x1b[31m {i}",)) for i in range(2)]
        threads[0].start()
        assert started_event.wait(60)
        threads[1].start()
        while httpx.get(f"{process.url}/health").json()["waiting"] < 2:
            time.sleep(0.05)
        begin = time.monotonic()
        busy = httpx.post(url, json={"post": "third"}, headers=head)
        assert busy.status_code == 503 and int(busy.headers["retry-after"]) >= 1
        assert time.monotonic() - begin < 5
        for _ in range(12):
            last = httpx.post(url, json={"post": "third"}, headers=head)
        assert last.status_code == 429 and int(last.headers["retry-after"]) >= 1
        process.send_signal(signal.SIGTERM)
        time.sleep(1)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{process.url}/health")
        assert process.poll() is None
        go.set()
        for thread in threads:
            thread.join()
        assert process.wait(60) == 0 and process.stdout.read() == "stopped\n"
    assert [response.status_code for response in responses] == [200, 200]
    assert all("first rank confirmed" in response.json()["reasoning"] for response in responses)
    # Posts are logged only if configured, with control characters escaped; nothing else is stored.
    errors = (tmp_path / "stderr").read_text()
    assert r"post: post \x1b[31m 0" in errors and "\x1b" not in errors and GOOD not in errors
    assert not store.exists()


@pytest.mark.slow
def test_it_stops_although_an_answer_never_comes(
    index: str, tmp_path: Path, llm_server: Callable[..., LLMServer]
) -> None:
    go, started_event = held_pipeline(tmp_path, llm_server)
    words = ["--pipeline", str(tmp_path / "own.yaml"), "--grace", "1"]
    with started(index, tmp_path, *words) as process, ThreadPoolExecutor(1) as pool:
        future = pool.submit(
            httpx.post, f"{process.url}/api/v1/find", json={"post": "a"}, timeout=60
        )
        assert started_event.wait(60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        go.set()
        with pytest.raises(httpx.HTTPError):
            future.result().raise_for_status()


@pytest.mark.slow
def test_schemathesis_finds_no_fault_in_what_the_api_says_of_itself(
    index: str, tmp_path: Path
) -> None:
    pytest.importorskip("schemathesis")
    with started(index, tmp_path, "--rate", "0") as process:
        proc = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{process.url}/openapi.json"),
                *("--max-examples", "25", "--seed", "1", "--phases", "examples,coverage,fuzzing"),
                *("--workers", "2", "--no-color", "--generation-database", "none"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert proc.returncode == 0, proc.stdout + proc.stderr
        assert httpx.get(f"{process.url}/health").json()["waiting"] == 0
    assert "Traceback" not in (tmp_path / "stderr").read_text()
