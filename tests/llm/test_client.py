"""Every request gets an answer or a reason, from a real server that makes faults."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from claim2source.core.errors import Stopped, UserError
from claim2source.llm import LLM, Answer, AnswerStore, LLMConfig, Request, require_answers
from claim2source.llm.client import TRIES
from claim2source.text.prompts import Message
from tests.llm_server import CONTENT, WIRE, Chat, LLMServer, Reply, rewritten
from tests.refusals import refused

SYSTEM = "Task: Rewrite the post."
SCHEMA = {
    "type": "object",
    "properties": {"facts": {"type": "array", "items": {"type": "string"}}},
    "required": ["facts"],
    "additionalProperties": False,
}
Start = Callable[..., LLMServer]


def requests_for(*texts: str, **options: object) -> list[Request]:
    def messages(text: str) -> tuple[Message, ...]:
        system = Message("system", SYSTEM)
        user = Message("user", f"<post>\n{text}\n</post>")
        return (system, user)

    return [Request(f"r{i}", messages(text), "1", **options) for i, text in enumerate(texts)]


def config_of(server: LLMServer, **options: object) -> LLMConfig:
    usual = {
        "model": "m",
        "url": server.url,
        "concurrency": 4,
        "timeout": 5.0,
    }
    return LLMConfig(**{**usual, **options})


@pytest.mark.slow
def test_faults_lose_nothing_and_a_second_run_asks_for_nothing(
    llm_server: Start, tmp_path: Path
) -> None:
    server = llm_server(faults=0.3, hangs=5)
    texts = [f"Masks work, says study {i} #covid" for i in range(20)]
    config = config_of(server, timeout=0.5, concurrency=8, retries=20)
    with AnswerStore(tmp_path / "a.sqlite") as store:
        answers = LLM(config, store).answer(requests_for(*texts))
    assert [answer.text for answer in answers] == [rewritten(text, SYSTEM) for text in texts]
    assert len(server.faulty) >= 4
    before = server.requests
    with AnswerStore(tmp_path / "a.sqlite") as store:
        plan = LLM(config, store).plan(requests_for(*texts, "one more", "one more"))
        assert plan.requests == 1
        assert plan.stored == 20
        assert plan.repeated == 1
        assert 5 < plan.prompt_tokens < 100
        assert plan.most_completion_tokens == 1024
        rerun = LLM(config, store).answer(requests_for(*texts))
    assert server.requests == before
    assert [a.text for a in rerun] == [a.text for a in answers]
    assert all(a.stored for a in rerun)
    assert not any(a.stored for a in answers)


@pytest.mark.parametrize("kind", [*WIRE, *CONTENT])
def test_each_fault_costs_one_more_request_and_no_more(kind: str, llm_server: Start) -> None:
    """The SDK's own retries would add to ours; a trickling reply would restart its time-out."""
    server = llm_server(faults=1.0, kinds=(kind,), in_a_row=1, hangs=60)
    slow = kind in ("hang", "trickle")
    config = config_of(server, timeout=0.4 if slow else 5.0)
    began = time.monotonic()
    (answer,) = LLM(config).answer(requests_for("Masks work"))
    assert answer.failure is None
    assert answer.text == rewritten("Masks work", SYSTEM)
    is_cleaned = kind in ("think", "fenced", "preamble")
    assert server.requests == (1 if is_cleaned else 2)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("after", "minimum", "maximum"),
    [
        ("0.5", 0.5, 3),
        ("-5", 0, 3),
        ("soon", 0, 3),
    ],
)
def test_retry_after_is_waited_for(
    after: str, minimum: float, maximum: float, llm_server: Start
) -> None:
    seen: list[float] = []

    def reply(chat: Chat) -> Reply:
        seen.append(time.monotonic())
        if len(seen) == 1:
            return Reply("busy", status=429, headers={"Retry-After": after})
        return Reply("Masks work")

    server = llm_server(reply)
    answers = LLM(config_of(server)).answer(requests_for("a"))
    assert [answer.failure for answer in answers] == [None]
    assert minimum <= seen[1] - seen[0] <= maximum


def test_a_server_that_wants_a_day_of_peace_is_left_alone(llm_server: Start) -> None:
    words = "Daily limit reached, see the console"
    headers = {"Retry-After": "86000"}
    server = llm_server(lambda chat: Reply(words, status=429, headers=headers))
    texts = map(str, range(50))
    answers = LLM(config_of(server, concurrency=1)).answer(requests_for(*texts))
    assert server.requests == 8
    first = answers[0].failure or ""
    last = answers[-1].failure or ""
    assert not answers[0].is_asked
    assert not answers[-1].is_asked
    assert first.startswith("no reply")
    assert last.startswith("not asked")
    for part in ("429", words, "86000"):
        assert part in first
        assert part in last


def test_what_got_no_reply_is_asked_next_time(llm_server: Start, tmp_path: Path) -> None:
    server = llm_server(lambda chat: Reply("broken", status=500))
    with AnswerStore(tmp_path / "a.sqlite") as store:
        llm = LLM(config_of(server, retries=4, concurrency=1), store)
        answers = llm.answer(requests_for("a", "b"))
        assert [answer.failure for answer in answers] == ["no reply: status 500: broken"] * 2
        with refused(UserError, "2 of 2 texts", "(2 no reply: status 500"):
            require_answers(answers, "texts")
        assert server.requests == 10
        assert len(store) == 0
        server.reply = lambda chat: "Masks work"
        answers = llm.answer(requests_for("a", "b"))
        assert [answer.text for answer in answers] == ["Masks work"] * 2


def test_a_server_that_dies_is_not_asked_for_every_request(llm_server: Start) -> None:
    def reply(chat: Chat) -> Reply:
        return Reply("Masks work", status=200 if server.requests <= 3 else 502)

    server = llm_server(reply)
    config = config_of(server, retries=1)
    texts = map(str, range(100))
    answers = LLM(config).answer(requests_for(*texts))
    assert server.requests <= 3 + 2 * (8 + 4)
    failures = [answer.failure for answer in answers]
    assert failures.count(None) == 3
    left = [failure for failure in failures if failure and failure.startswith("not asked")]
    assert len(left) >= 80
    assert all("502" in failure for failure in left)


def test_a_budget_of_tokens_is_never_exceeded_and_stops_cleanly(
    llm_server: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = llm_server()
    requests = requests_for(*(f"Masks work, says study {i}" for i in range(40)))
    with AnswerStore(tmp_path / "a.sqlite") as store:
        llm = LLM(config_of(server, max_tokens=40, max_tokens_total=600), store)
        answers = llm.answer(requests, subject="posts")
        good = [answer for answer in answers if answer.failure is None]
        assert llm.usage.total == sum(answer.usage.total for answer in good)
        assert llm.usage.total <= 600
        # Almost all of it is used: tokens that a reply did not need are available to the next.
        assert 400 < llm.usage.total
        assert 0 < len(good) < 40
        assert len(good) == len(store)
        assert len(store) == server.requests
        reason = "not asked: the budget of 600 tokens (llm.max_tokens_total) is spent"
        assert {a.failure for a in answers} == {None, reason}
        left = 40 - len(good)
        assert f"posts: {left} of 40 failed: {left} {reason}" in caplog.text
        with refused(UserError, f"{left} of 40 ", "max_tokens_total"):
            require_answers(answers)
        rest = LLM(config_of(server, max_tokens=40), store).answer(requests)
        require_answers(rest)
        assert sum(answer.stored for answer in rest) == len(good)
        assert server.requests == 40


@pytest.mark.parametrize("how", ["401", "400", "reply", "object"])
def test_the_key_reaches_no_log_store_or_error(
    how: str,
    llm_server: Start,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = "sk-very-secret-1234567890"
    monkeypatch.setenv("MY_CREDENTIAL", key)
    monkeypatch.setenv("OPENAI_LOG", "debug")
    caplog.set_level(logging.DEBUG)

    def careless(chat: Chat) -> Reply:
        header = chat.headers["authorization"]
        text = f'{{"facts": ["{header}"]}}' if how == "object" else f"You sent {header}"
        status = 400 if how == "400" else 200
        return Reply(text, status=status, headers={"X-Sent": header})

    server = llm_server(careless, key="another" if how == "401" else key)
    texts = ""
    schema = SCHEMA if how == "object" else None
    with AnswerStore(tmp_path / "a.sqlite") as store:
        llm = LLM(config_of(server, key_env="MY_CREDENTIAL"), store)
        if how == "401":
            with refused(UserError, "MY_CREDENTIAL") as error:
                llm.answer(requests_for("a"))
            texts = "".join([str(error.value), repr(error.value.__cause__)])
        else:
            texts = repr(llm.answer(requests_for("a", schema=schema)))
            assert server.headers[0]["authorization"] == f"Bearer {key}"
        content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert "<MY_CREDENTIAL>" in texts
    out, err = capfd.readouterr()
    for text in (texts, caplog.text, out, err, content.decode("latin-1")):
        assert "very-secret" not in text


def test_objects_are_asked_for_by_schema_and_checked(llm_server: Start) -> None:
    server = llm_server()
    (answer,) = LLM(config_of(server)).answer(requests_for("a", schema=SCHEMA))
    assert answer.data == {"facts": []}
    assert answer.failure is None
    form = {"name": "reply", "schema": SCHEMA, "strict": True}
    assert server.bodies[0]["response_format"] == {"type": "json_schema", "json_schema": form}
    assert "guided_json" not in server.bodies[0]
    # A server that ignores the schema, as vLLM does guided_json.
    server.reply = lambda chat: '{"facts": "none"}'
    (answer,) = LLM(config_of(server)).answer(requests_for("b", schema=SCHEMA))
    assert answer.failure == "does not fit the schema"
    assert answer.data is None


@pytest.mark.parametrize("name", ["response_format", "structured_outputs"])
def test_where_a_server_refuses_the_form_replies_are_parsed(name: str, llm_server: Start) -> None:
    is_choice = name == "structured_outputs"
    reply = " **b**" if is_choice else 'Here:\n```json\n{"facts": ["x"]}\n```'
    server = llm_server(lambda chat: reply, refuses=(name,))
    extra = {"choices": ("A", "B")} if is_choice else {"schema": SCHEMA}
    llm = LLM(config_of(server, concurrency=1))
    answers = llm.answer(requests_for(*"abcd", **extra))
    answers += llm.answer(requests_for("e", **extra))
    assert all(a.text == "B" if is_choice else a.data == {"facts": ["x"]} for a in answers)
    # It is remembered: one request had it.
    assert [name in body for body in server.bodies] == [True] + [False] * 5


def test_a_refused_request_is_its_own_fault_and_the_next_is_strict_again(llm_server: Start) -> None:
    full = "This model's maximum context length is 9 tokens."
    # An exceeded limit is not a request for another form.
    large = "'max_tokens' or 'max_completion_tokens' is too large: 1024. The context is 512 tokens."

    def reply(chat: Chat) -> Reply:
        for word, reason in (("long", full), ("much", large)):
            if word in chat.user:
                return Reply(reason, status=400)
        return Reply('{"facts": []}')

    server = llm_server(reply)
    llm = LLM(config_of(server, concurrency=1))
    answers = llm.answer(requests_for("long", "short", schema=SCHEMA))
    answers += llm.answer(requests_for("much"))
    reason = "refused by the server (400): "
    assert [answer.failure for answer in answers] == [reason + full, None, reason + large]
    has_form = [b.get("response_format") is not None for b in server.bodies]
    assert has_form == [True, True, False]


@pytest.mark.parametrize("finish", ["length", "content_filter", "tool_calls", "error", None])
def test_a_reply_that_did_not_end_by_itself_is_not_stored_and_asked_for_again(
    finish: str | None, llm_server: Start, tmp_path: Path
) -> None:
    server = llm_server(lambda chat: Reply("Masks", finish=finish))  # type: ignore[arg-type]
    config = config_of(server)
    (request,) = requests_for("a")
    with AnswerStore(tmp_path / "a.sqlite") as store:
        (answer,) = LLM(config, store).answer([request])
        assert answer.failure is not None
        assert answer.text == ""
        assert answer.raw == "Masks"
        assert server.requests == TRIES
        assert len(store) == 0
        assert LLM(config, store).plan([request]).requests == 1
        server.reply = lambda chat: Reply(
            "Masks", finish=finish if chat.before == TRIES else "stop"
        )
        (answer,) = LLM(config, store).answer([request])
        assert answer.failure is None
        assert answer.text == "Masks"
        assert server.requests == TRIES + 2
        assert len(store) == 1


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("Unsupported parameter: 'max_tokens' is not supported with this model.", "max_tokens"),
        ("Unsupported value: 'temperature' does not support 0 with this model. Only the default"
         " (1) value is supported.", "temperature"),
        ("invalid temperature: only 1 is allowed for this model", "temperature"),
        ("Unrecognized request argument supplied: chat_template_kwargs", "chat_template_kwargs"),
    ],
)  # fmt: skip
def test_a_model_is_asked_as_it_wants_after_the_first_refusal(
    error: str, name: str, llm_server: Start, caplog: pytest.LogCaptureFixture
) -> None:
    def reply(chat: Chat) -> Reply:
        return Reply(error, status=400) if name in chat.body else Reply("Masks work")

    server = llm_server(reply)
    llm = LLM(config_of(server, concurrency=1))
    answers = llm.answer(requests_for(*"abc"))
    answers += llm.answer(requests_for("d"))
    assert [answer.text for answer in answers] == ["Masks work"] * 4
    assert [name in body for body in server.bodies] == [True] + [False] * 4
    later = server.bodies[-1]
    assert later.get("max_completion_tokens") == (1024 if name == "max_tokens" else None)
    assert caplog.text.count(f"refuses {name}") == 1
    # A server that does not support it is still asked for JSON.
    names = (
        "temperature",
        "max_tokens",
        "chat_template_kwargs",
        "seed",
        "response_format",
    )
    server = llm_server(lambda chat: '{"facts": []}', refuses=names)
    llm = LLM(config_of(server, concurrency=1, seed=1))
    answers = llm.answer(requests_for("a", schema=SCHEMA))
    assert answers[0].data == {"facts": []}
    assert server.requests == len(names) + 1


def test_what_cannot_be_parsed_is_asked_three_times_kept_and_reported(
    llm_server: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = llm_server(lambda chat: f"I cannot say {server.requests}")
    requests = requests_for("a", schema=SCHEMA)
    with AnswerStore(tmp_path / "a.sqlite") as store:
        (answer,) = LLM(config_of(server), store).answer(requests, subject="posts")
        assert answer.failure == "not JSON"
        assert answer.raw == "I cannot say 3"
        assert answer.data is None
        assert "posts: 1 of 1 failed: 1 not JSON (r0)" in caplog.text
        require_answers([answer])  # the server has answered: a next run would not help
        # Greedy, the same would come again: further tries are sampled.
        assert [body["temperature"] for body in server.bodies] == [0, 0.3, 0.3]
    with AnswerStore(tmp_path / "a.sqlite") as store:
        (answer,) = LLM(config_of(server), store).answer(requests)
        assert server.requests == 3
        assert answer.failure == "not JSON"
        assert answer.stored is True
        assert answer.raw == "I cannot say 3"
        server.reply = lambda chat: '{"facts": []}'
        (answer,) = LLM(config_of(server, retry_failed=True), store).answer(requests)
        assert server.requests == 4
        assert answer.failure is None
        assert answer.data == {"facts": []}


def test_a_kill_between_two_tries_costs_none_more(llm_server: Start, tmp_path: Path) -> None:
    """The first failed reply is stored at once; here the budget ends the run instead."""
    server = llm_server(lambda chat: "I cannot")
    requests = requests_for("a", schema=SCHEMA)
    with AnswerStore(tmp_path / "a.sqlite") as store:
        plan = LLM(config_of(server)).plan(requests)
        most = (
            2 * plan.prompt_tokens + plan.most_completion_tokens
        )  # what the first request may use
        (answer,) = LLM(config_of(server, max_tokens_total=most), store).answer(requests)
        assert answer.failure is not None
        assert answer.failure.startswith("not asked: the budget")
        assert answer.raw == "I cannot"
        assert not answer.is_asked
        (answer,) = LLM(config_of(server), store).answer(requests)
        assert server.requests == TRIES
        assert answer.failure == "not JSON"


def test_a_check_of_the_callers_refuses_and_is_asked_of_stored_answers_too(
    llm_server: Start, tmp_path: Path
) -> None:
    server = llm_server(lambda chat: f"reply number {server.requests}")

    def no_one(request: Request, answer: Answer) -> str | None:
        return "says one" if answer.text.endswith("1") else None

    def none(request: Request, answer: Answer) -> str | None:
        return "never good"

    with AnswerStore(tmp_path / "a.sqlite") as store:
        llm = LLM(config_of(server, seed=7), store)
        (answer,) = llm.answer(requests_for("a"), no_one)
        assert answer.text == "reply number 2"
        (answer,) = llm.answer(requests_for("b"))
        assert answer.text == "reply number 3"
        (answer,) = llm.answer(requests_for("b"), none)
        assert answer.failure == "never good"
        assert answer.text == "reply number 5"
        assert server.requests == 5
        # Every try of a request has a seed of its own.
        assert len({body["seed"] for body in server.bodies[:2]}) == 2
        assert len({body["seed"] for body in server.bodies[2:]}) == 3
        # The check's opinion is not stored with the answer.
        (answer,) = llm.answer(requests_for("b"))
        assert answer.failure is None
        assert server.requests == 5


def test_the_same_request_is_asked_once_and_another_version_or_sampling_again(
    llm_server: Start,
) -> None:
    server = llm_server()
    twins = [
        *requests_for("a"),
        *requests_for("a", sample=1),
        *requests_for("a", sample=0),
        *requests_for("a"),
    ]
    twins = [Request(f"id{i}", r.messages, r.version, sample=r.sample) for i, r in enumerate(twins)]
    store = AnswerStore()
    answers = LLM(config_of(server), store).answer(twins)
    assert [answer.id for answer in answers] == ["id0", "id1", "id2", "id3"]
    assert server.requests == 2
    changes = [
        {"temperature": 0.5},
        {"top_p": 0.5},
        {"max_tokens": 9},
        {"thinking": True},
    ]
    for change in changes:
        LLM(config_of(server, **change), store).answer(twins[:1])
    requests = [Request("x", twins[0].messages, "2"), *requests_for("a", schema=SCHEMA)]
    LLM(config_of(server), store).answer(requests)
    assert server.requests == 2 + len(changes) + 2
    # Another server with this model has the same answers.
    another = llm_server()
    answers = LLM(config_of(another), store).answer(twins)
    assert answers[0].stored


def test_a_wrong_model_or_no_server_is_one_clear_line(llm_server: Start) -> None:
    server = llm_server(models=["qwen", "llama"])
    with refused(UserError, "llm.model: ", server.url, "'m'", "qwen, llama"):
        LLM(config_of(server)).answer(requests_for("a"))
    assert server.requests == 0
    with refused(UserError, "llm.model: ''"):
        LLM(LLMConfig())
    gone = llm_server()
    url = gone.url
    gone.stop()
    with refused(UserError, "llm.url: ", f"{url}: broken connection"):
        config = LLMConfig(model="m", url=url, retries=1)
        LLM(config).answer(requests_for("a"))
    gone.start()
    # A server without a list of models refuses the first request.
    empty_server = llm_server(models=[])
    with refused(UserError, "llm.model: ", "'m' ", ": The model `m` does not exist"):
        LLM(config_of(empty_server)).answer(requests_for("a"))


def test_sigterm_ends_the_work_at_once(llm_server: Start, tmp_path: Path) -> None:
    """Within the loop's own callbacks an exception of the handler would be lost."""

    def stop(number: int, frame: object) -> None:
        raise Stopped("terminated", number)

    server = llm_server(delay=0.01, hangs=30, faults=0.3, kinds=("hang",))
    texts = map(str, range(300))
    requests = requests_for(*texts)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with AnswerStore(tmp_path / "a.sqlite") as store:
            timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
            timer.start()
            with pytest.raises(Stopped):
                LLM(config_of(server, timeout=30.0), store).answer(requests)
            timer.join()
            assert signal.getsignal(signal.SIGTERM) is stop
            with AnswerStore(tmp_path / "a.sqlite") as other:
                assert len(other) <= len(server.good)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_is_sent_is_what_vllm_takes_also_within_a_running_loop(llm_server: Start) -> None:
    server = llm_server()

    async def notebook() -> list[Answer]:
        return LLM(config_of(server, top_p=0.8)).answer(requests_for("a"))

    answers = asyncio.run(notebook())
    assert answers[0].failure is None
    requests = requests_for("b", choices=("x", "y"), logprobs=2)
    LLM(config_of(server, thinking=None)).answer(requests)
    first, second = server.bodies
    assert first["chat_template_kwargs"] == {"enable_thinking": False}
    assert first["top_p"] == 0.8
    assert {*second} == {
        *("model", "messages", "temperature", "max_tokens"),
        *("structured_outputs", "logprobs", "top_logprobs"),
    }
    assert json.dumps(second["structured_outputs"]) == '{"choice": ["x", "y"]}'


def test_the_example_of_the_documentation_runs(
    llm_server: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = Path(__file__).parents[2] / "docs" / "llm.md"
    text = page.read_text("utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    server = llm_server(lambda chat: Reply('{"facts": ["masks work"]}'))
    monkeypatch.setenv("CLAIM2SOURCE_STORE", str(tmp_path))
    monkeypatch.setattr(LLMConfig, "base_url", property(lambda config: server.url))
    example = example.replace("Qwen/Qwen3-8B", "m")  # what the server has
    exec(compile(example, str(page), "exec"), {})
    assert "masks work" in capsys.readouterr().out
