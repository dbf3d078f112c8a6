"""A real HTTP server that speaks chat completions, replies by rules and makes faults on purpose.

    with LLMServer(reply=my_rule) as server:
        LLM(LLMConfig(model=server.model, url=server.url))

A rule is a function `Chat -> str | Reply`: what the model says to a chat, or a reply with more to
it. `rewrite` is the rule used if none is given. `faults` is a share of the requests; which ones
is drawn from the text and from how often it was asked, so that a run can be repeated. Requests are
counted, by text as well.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

from tests.llm_server import llama

# A fault of the wire gives no reply at all; one of content is a reply that is no good (after
# `think` and `fenced` it still is).
WIRE = ("429", "500", "hang", "trickle", "cut", "not json")
CONTENT = ("whitespace", "empty", "think", "fenced", "preamble")
FAULTS = (*WIRE, *CONTENT)


@dataclass(frozen=True)
class Chat:
    """What was asked: the request's JSON, and how often the same was asked before."""

    body: Mapping[str, Any]
    before: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def messages(self) -> list[tuple[str, str]]:
        return [(message["role"], message["content"]) for message in self.body["messages"]]

    @property
    def system(self) -> str:
        return "\n".join(text for role, text in self.messages if role == "system")

    @property
    def user(self) -> str:
        return self.messages[-1][1]

    @property
    def data(self) -> dict[str, str]:
        """The fenced texts of the last message, by tag."""
        matches = re.findall(r"^<([a-z0-9-]+)>\n(.*?)\n</\1>$", self.user, re.DOTALL | re.MULTILINE)
        return dict(matches)

    @property
    def schema(self) -> dict[str, Any] | None:
        form = self.body.get("response_format")
        return None if form is None else form["json_schema"]["schema"]

    @property
    def choices(self) -> list[str]:
        if "grammar" in self.body:
            return llama.grammar_choices(self.body["grammar"])
        return list(self.body.get("structured_outputs", {}).get("choice", []))

    @property
    def key(self) -> str:
        """A hash of the request without its sampling, and without what a retry moves."""
        messages = [dict(message) for message in self.body["messages"]]
        if messages and messages[0]["role"] == "system":
            parts = messages[0]["content"].split("\n\n")
            messages[0]["content"] = [part for part in parts if not part.startswith("Output: ")]
        data, tag, _ = messages[-1]["content"].rpartition("\n</")
        if tag:
            messages[-1]["content"] = data
        return hashlib.sha256(json.dumps(messages).encode()).hexdigest()


@dataclass(frozen=True)
class Reply:
    """What the model says; with a status other than 200 `text` is the error's message."""

    text: str = ""
    finish: str = "stop"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    logprobs: Sequence[tuple[str, float, Mapping[str, float]]] = ()
    # The provider's own reason, behind a router; the model's words of refusal; the server's
    # count of the prompt's tokens; its fingerprint.
    native: str | None = None
    refusal: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    fingerprint: str | None = None
    # The whole body instead of all that.
    body: bytes | None = None


Rule = Callable[[Chat], "str | Reply"]


def rewrite(chat: Chat) -> str | Reply:
    """The rule without a rule: a choice, an object of the schema, or the first text rewritten.

    Hashtags and emojis go, and the end says which prompt it was: `Masks work. [1a2b3c]`.
    """
    if chat.choices:
        return chat.choices[0]
    if chat.schema is not None:
        return json.dumps(smallest(chat.schema))
    return rewritten(next(iter(chat.data.values()), chat.user), chat.system)


def rewritten(text: str, system: str) -> str:
    clean = " ".join(re.sub(r"[#\U0001f300-\U0001faff]", "", text).split())
    return f"{clean} [{hashlib.sha256(system.encode()).hexdigest()[:6]}]"


def smallest(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return smallest(schema["anyOf"][0])
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        names = schema.get("required", [])
        return {name: smallest(schema["properties"][name]) for name in names}
    if kind == "array":
        return [smallest(schema["items"])] * schema.get("minItems", 0)
    if kind == "string":
        return "x" * max(schema.get("minLength", 0), 1)
    return {"integer": schema.get("minimum", 0), "number": schema.get("minimum", 0.5)}.get(
        kind, {"boolean": True, "null": None}.get(kind)
    )


class LLMServer:
    """Serve until the `with` ends.

    `faults` is the share of requests that fail by `kinds`; at most `in_a_row` in a row for one
    text, and at most one of content. `dialect` is
    whose server it is; llama.cpp's has a context, and `slots` for requests at once. With
    `refuses` a request that has one of these keys gets a 400. `key` is the only one that is let in. `delay` is how
    long a good reply takes, `hangs` how long a hanging one.
    """

    def __init__(
        self,
        reply: Rule = rewrite,
        *,
        model: str = "m",
        models: Sequence[str] | None = None,
        faults: float = 0.0,
        kinds: Sequence[str] = FAULTS,
        in_a_row: int = 3,
        refuses: Sequence[str] = (),
        key: str | None = None,
        delay: float = 0.0,
        hangs: float = 60.0,
        dialect: Literal["vllm", "llama.cpp"] = "vllm",
        context: int = 8192,
        slots: int = 1,
    ) -> None:
        self.is_llama_cpp = dialect == "llama.cpp"
        self.context, self.slots = context, slots
        self.reply, self.model, self.faults, self.kinds = reply, model, faults, kinds
        self.models = [model] if models is None else list(models)
        self.in_a_row, self.refuses, self.key = in_a_row, refuses, key
        self.delay, self.hangs = delay, hangs
        self.lock = threading.Lock()
        # Of chat completions: all, by fault, those replied well by text, and how often asked.
        self.requests = 0
        self.faulty: Counter[str] = Counter()
        self.good: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        # (time, text) of every good reply, and how many requests were under way at most.
        self.log: list[tuple[float, str]] = []
        self.under_way = self.most_under_way = 0
        self.keep_bodies = True
        self._closing = threading.Event()
        self._row: Counter[str] = Counter()
        self._spoilt: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def start(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def chat(self, body: dict[str, Any], headers: Mapping[str, str]) -> tuple[Chat, str | None]:
        """Count a request, and draw its fault."""
        with self.lock:
            self.requests += 1
            chat = Chat(body, 0, headers)
            key = chat.key
            chat = Chat(body, self.asked[key], headers)
            self.asked[key] += 1
            if self.keep_bodies:
                self.bodies.append(body)
                self.headers.append(dict(headers))
            fault = self._fault(key)
            if fault:
                self.faulty[fault] += 1
            return chat, fault

    def _fault(self, key: str) -> str | None:
        draw = random.Random(f"0 {key} {self.asked[key]}")
        if draw.random() >= self.faults or self._row[key] >= self.in_a_row:
            self._row[key] = 0
            return None
        kinds = [kind for kind in self.kinds if kind not in CONTENT or key not in self._spoilt]
        if not kinds:
            return None
        fault = draw.choice(kinds)
        self._row[key] += 1
        if fault in CONTENT:
            self._spoilt.add(key)
        return fault


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed is no error of the server's."""


def _handler(server: LLMServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        is_under_way = False

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def is_let_in(self) -> bool:
            header = self.headers.get("Authorization", "")
            if server.key is None or header == f"Bearer {server.key}":
                return True
            # A careless server repeats what it was sent, everywhere it can.
            self.error(401, f"Incorrect key provided: {header}", {"X-Sent": header})
            return False

        def do_GET(self) -> None:
            if not self.is_let_in():
                return
            if self.path == "/props" and server.is_llama_cpp:
                self.send(200, json.dumps({"total_slots": server.slots}).encode())
                return
            if self.path != "/v1/models" or not server.models:
                self.error(404, "Not Found")
                return
            if server.is_llama_cpp:
                listed = llama.model_list(server.models, server.context)
                self.send(200, json.dumps(listed).encode())
                return
            data = [{"id": name, "object": "model"} for name in server.models]
            self.send(200, json.dumps({"object": "list", "data": data}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.is_let_in():
                return
            if self.path != "/v1/chat/completions":
                self.error(404, "Not Found")
                return
            with server.lock:
                server.under_way += 1
                server.most_under_way = max(server.most_under_way, server.under_way)
            self.is_under_way = True
            try:
                self.complete(body)
            finally:
                self.leave()

        def leave(self) -> None:
            """Count a request as over: before its reply, which lets the client send the next."""
            with server.lock:
                server.under_way -= self.is_under_way
            self.is_under_way = False

        def complete(self, body: dict[str, Any]) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            chat, fault = server.chat(body, headers)
            if server.is_llama_cpp:
                body.pop("structured_outputs", None)
            elif body["model"] not in server.models:
                self.error(404, f"The model `{body['model']}` does not exist.")
                return
            if unknown := [name for name in server.refuses if name in body]:
                self.error(400, f"Unknown parameter: {unknown[0]}")
                return
            if fault in WIRE:
                self.fail(fault)
                return
            if server.delay:
                time.sleep(server.delay)
            reply = server.reply(chat)
            reply = Reply(reply) if isinstance(reply, str) else reply
            if server.is_llama_cpp and self.is_refused(body, reply):
                return
            if fault is not None:
                reply = _spoilt(reply, fault)
            if reply.body is not None or reply.status != 200:
                if reply.body is not None:
                    self.send(reply.status, reply.body, reply.headers)
                else:
                    self.error(reply.status, reply.text, reply.headers)
                return
            if fault not in ("whitespace", "empty"):
                with server.lock:
                    server.good[chat.key] += 1
                    server.log.append((time.monotonic(), chat.key))
            completion = _completion(body, reply)
            if server.is_llama_cpp:
                completion = llama.with_timings(completion)
            self.send(200, json.dumps(completion).encode(), reply.headers)

        def is_refused(self, body: dict[str, Any], reply: Reply) -> bool:
            """Whether llama.cpp refused a request, or could not read its own model's reply."""
            error = llama.refusal(body, _prompt_size(body), server.context)
            error = error or llama.spoilt(body, reply.text)
            if error is not None:
                status = error["error"]["code"]
                self.send(status, json.dumps(error).encode(), {"Retry-After-Ms": "1"})
            return error is not None

        def fail(self, fault: str) -> None:
            self.leave()
            if fault == "429":
                self.error(429, "Too many requests")
            elif fault == "500":
                self.error(500, "Internal error")
            elif fault == "not json":
                self.send(200, b'{"choices": [{"mess')
            elif fault == "hang":
                # Until the client has had enough: then there is something to read, its end.
                end = time.monotonic() + server.hangs
                while time.monotonic() < end and not server._closing.is_set():
                    if select.select([self.connection], [], [], 0.1)[0]:
                        break
                self.close_connection = True
            elif fault == "trickle":
                # Each byte begins the SDK's time-out anew.
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                end = time.monotonic() + server.hangs
                while time.monotonic() < end and not server._closing.wait(0.05):
                    self.wfile.write(b" ")
                self.close_connection = True
            else:  # cut
                self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"choi')
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

        def error(
            self, status: int, message: str, headers: Mapping[str, str] | None = None
        ) -> None:
            body = {"error": {"message": message, "type": "Error", "param": None, "code": status}}
            # Nobody waits: the client's own waits begin with half a second.
            soon = {"Retry-After-Ms": "1"}
            self.send(status, json.dumps(body).encode(), headers or soon)

        def send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
            """Send all at once: in two pieces each reply would wait for an acknowledgement."""
            self.leave()
            lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json"]
            lines += [f"Content-Length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
            self.wfile.write("\r\n".join([*lines, "", ""]).encode() + body)

    return Handler


def _prompt_size(body: Mapping[str, Any]) -> int:
    return sum(len(message["content"]) for message in body["messages"]) // 4


def _completion(body: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    prompt = _prompt_size(body)
    completion = len(reply.text) // 4 + 1
    tokens = [
        {
            "token": token,
            "logprob": logprob,
            "top_logprobs": [{"token": t, "logprob": p} for t, p in top.items()],
        }
        for token, logprob, top in reply.logprobs
    ]
    prompt = prompt if reply.prompt_tokens is None else reply.prompt_tokens
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.refusal is not None:
        message |= {"content": reply.text or None, "refusal": reply.refusal}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": {"content": tokens} if tokens else None,
        "finish_reason": reply.finish,
    }
    if reply.native is not None:
        choice["native_finish_reason"] = reply.native
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if reply.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": reply.cached_tokens}
    completed: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": body["model"],
        "choices": [choice],
        "usage": usage,
    }
    if reply.fingerprint is not None:
        completed["system_fingerprint"] = reply.fingerprint
    return completed


def _spoilt(reply: Reply, fault: str) -> Reply:
    is_object = reply.text.startswith("{")
    return {
        "whitespace": Reply('{"a": ' + " \n\t" * 200 if is_object else " \n" * 200, "length"),
        "empty": Reply(""),
        "think": Reply(f"<think>\nLet me see: {{}}\n</think>\n\n{reply.text}"),
        "fenced": Reply(f"```{'json' if is_object else ''}\n{reply.text}\n```"),
        "preamble": Reply(f"Sure! Here is the rewritten text:\n\n{reply.text}"),
    }[fault]
