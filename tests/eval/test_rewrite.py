"""Styles are made by rules or a server; failures are in the file, and requests are not repeated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from claim2source.eval.rewrite import RewriteConfig, main

from claim2source.core.config import read_config
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.data.loading import load
from claim2source.text.prompts import PROMPTS, read_prompt
from claim2source.text.styles import (
    REWRITTEN,
    STYLES,
    Original,
    originals,
    read_origin,
    read_style,
    rewrite_by_rules,
)
from tests.eval.test_translate import data_set, llm
from tests.llm_server import Chat, LLMServer, Reply
from tests.refusals import refused
from tests.shared_data import REPOSITORY

Start = Callable[..., LLMServer]
GERMAN = "Die Masken senken das Risiko bei 40 Kindern, sagt eine Studie aus Graz"
POSTS = [
    {
        "_id": "a",
        "text": "masks cut the risk by 25%!! 😷 #masks",
        "metadata": {"lang": "en"},
    },
    {
        "_id": "b",
        "text": GERMAN,
        "metadata": {
            "lang": "de",
            "translation": "Masks lower the risk in 40 children",
        },
    },
]


def words(folder: Path, server: LLMServer, out: Path, *options: str) -> list[str]:
    return [
        "--dataset",
        str(folder),
        "--out",
        str(out),
        "--llm.model",
        "m",
        "--llm.url",
        server.url,
        "--answers",
        f"{out}.sqlite",
        *options,
    ]


TASKS = {name: read_prompt(str(STYLES[name].prompt)).task for name in REWRITTEN}


def by_rule(chat: Chat) -> str:
    """A model that knows the rules; the style is known by the prompt's task."""
    (text,) = chat.data.values()
    names = [name for name, task in TASKS.items() if f"Task: {task}" in chat.system]
    (name,) = names
    original = Original("", text)
    (origin,) = rewrite_by_rules(STYLES[name], [original])
    return origin.text


def _untitled(texts: Iterable[Original]) -> Iterator[Original]:
    return (replace(text, title=None) for text in texts)


def test_every_style_is_rewritten_and_a_second_run_asks_for_nothing(
    llm_server: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = data_set(tmp_path / "data", POSTS)
    out = tmp_path / "styles"
    server = llm_server(by_rule)
    main(words(folder, server, out, "--dry_run"))
    output = capsys.readouterr().out
    counts = [output.count(f"{name}: 2 requests ") for name in REWRITTEN]
    assert counts == [1] * 7
    assert server.requests == 0
    assert not out.exists()

    main(words(folder, server, out, "--styles", "C4", "C1"))
    assert server.requests == 4
    assert sorted(read_origin(out)) == ["C1", "C4"]
    main(words(folder, server, out))
    assert server.requests == 14
    assert list(read_origin(out)) == list(REWRITTEN)

    data = load(folder, "dev")
    for name in REWRITTEN:
        style = STYLES[name]
        texts = originals(data, style.side, "translation")
        parts = [r.text for r in read_style(out, style, texts)]
        untitled = [*_untitled(texts)]
        assert parts == [r.text for r in rewrite_by_rules(style, untitled)]
    origin = read_origin(out)
    c2 = origin["C2"]
    assert c2.by == "m"
    assert c2.prompt == "c2 1"
    assert c2.claims == "translation"
    assert c2.split == "dev"
    assert origin["S1"].split is None
    # What was sent to the server about thinking, and how many replies reasoned.
    (thinking,) = c2.thinking
    assert (thinking.wanted, thinking.sent) == (False, "enable_thinking=false")
    assert thinking.replies == 2
    assert thinking.reasoned == 0

    before = {path.name: path.read_bytes() for path in out.iterdir()}
    main(words(folder, server, out))
    assert server.requests == 14
    after = {path.name: path.read_bytes() for path in out.iterdir()}
    assert after == before
    assert "C3 (abstract): 2 of 2 texts; 1" in capsys.readouterr().out


def test_the_original_is_rewritten_in_its_own_language_where_that_is_asked_for(
    llm_server: Start, tmp_path: Path
) -> None:
    folder = data_set(tmp_path / "data", POSTS)
    out = tmp_path / "styles"
    server = llm_server(lambda chat: next(iter(chat.data.values())))
    by_original = ("--claims", "original")
    main(words(folder, server, out, "--styles", "C1", *by_original))
    texts = [r.text for r in read_style(out, STYLES["C1"])]
    assert texts == [POSTS[0]["text"], GERMAN]
    systems = [Chat(body).system for body in server.bodies]
    languages = re.findall(r"text in (\w+),", "".join(systems))
    assert sorted(languages) == ["English", "German"]
    # English for a German post is not a rewriting.
    server.reply = lambda chat: "Masks lower the risk of an infection in 40 children, says a study"
    main(words(folder, server, out, "--styles", "C2", *by_original))
    rewrites = read_style(out, STYLES["C2"])
    assert rewrites[1].failure == "in English, not German"

    again = words(folder, server, out, "--styles", "C1")
    with pytest.raises(UserError, match=": C1 .*claims original, not translation.*--overwrite"):
        main(again)
    main([*again, "--overwrite"])
    assert read_origin(out)["C1"].claims == "translation"


def test_a_text_that_misses_the_form_is_kept_and_one_that_is_none_is_not(
    llm_server: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = data_set(tmp_path / "data", POSTS)
    out = tmp_path / "styles"
    long = "Masks " + "really " * 40 + "help #masks"
    server = llm_server(lambda chat: long if "<abstract>\nMasks" in chat.user else "")
    asking = words(folder, server, out, "--styles", "S3")
    main(asking)
    first, second = read_style(out, STYLES["S3"])
    assert first.text == long
    assert first.failure == f"{len(long)} characters, more than 280"
    assert second.text == ""
    assert second.failure == "empty"
    assert first.title == "Masks"
    assert second.title == "Virus respiratorios en los niños"
    output = capsys.readouterr().out
    assert "S3 (tweet): 1 of 2 texts" in output
    assert "2 failed, of which 1 have no text" in output
    assert "p1 version 1: 297 characters, more than 280" in output
    # Each was requested twice more, and a later reply may be better.
    assert server.requests == 6
    server.reply = lambda chat: "Masks help #masks"
    main(asking)
    assert server.requests == 6
    assert read_origin(out)["S3"].failures == 2
    retrying = llm(tmp_path, retry_failed=True)
    main([*asking, *retrying])
    assert server.requests == 8
    failures = [r.failure for r in read_style(out, STYLES["S3"])]
    assert failures == [None] * 2


def test_versions_are_asked_for_one_by_one(llm_server: Start, tmp_path: Path) -> None:
    folder = data_set(tmp_path / "data", POSTS)
    out = tmp_path / "styles"
    server = llm_server(lambda chat: f"Masks lower the risk, says reading {chat.before} of it.")
    extra = ["--styles", "C2", "--versions", "3"]
    sampled = llm(tmp_path, temperature=0.1, concurrency=1)
    main(words(folder, server, out, *extra, *sampled))
    assert server.requests == 6
    assert read_origin(out)["C2"].versions == 3

    data = load(folder, "dev")
    texts = originals(data, "claims", "translation")
    rewrites = read_style(out, STYLES["C2"], texts)
    versions = [(r.id, r.version) for r in rewrites]
    assert versions == [
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("b", 1),
        ("b", 2),
        ("b", 3),
    ]
    different = {r.text for r in rewrites}
    assert len(different) == 3
    main(words(folder, server, out, *extra, *sampled))
    assert server.requests == 6
    new = tmp_path / "new"
    for wrong in (
        ["--versions", "3"],
        ["--versions", "3", "--rules", *sampled],
    ):
        with refused(ConfigError, "versions: 3 "):
            main(words(folder, server, new, *wrong))


def test_prompt_of_the_users_own_replaces_one_style(llm_server: Start, tmp_path: Path) -> None:
    folder = data_set(tmp_path / "data", POSTS)
    out = tmp_path / "styles"
    server = llm_server(lambda chat: Reply("Masks lower the risk."))
    shipped = (PROMPTS / "c2.yaml").read_text()
    text = shipped.replace('version: "1"', 'version: "mine"')
    own = tmp_path / "own.yaml"
    own.write_text(text)
    prompt = ("--prompt", str(own))
    one_style = words(folder, server, out, "--styles", "C2", *prompt)
    main(one_style)
    assert read_origin(out)["C2"].prompt == "own mine"

    own.write_text(text.replace("post:", "tweet:"))
    with pytest.raises(InputError, match=r"own.yaml: variables\.tweet: "):
        main(one_style)
    with refused(ConfigError, "prompt: ", "own.yaml"):
        main(words(folder, server, out, *prompt))


def test_rules_need_no_server_and_name_themselves(tmp_path: Path) -> None:
    out = tmp_path / "styles"
    to_out = ["--out", str(out)]
    argv = [
        *to_out,
        "--rules",
        "--dataset",
        "demo",
        "--styles",
        "C4",
        "S3",
    ]
    main([*argv, "--dry_run"])
    assert not out.exists()
    main(argv)
    info = json.loads((out / "styles.json").read_text())
    styles = info["styles"]
    assert styles["C4"]["by"] == styles["S3"]["by"]
    assert styles["S3"]["by"] == "rules"

    by_model = ["--dataset", "demo", "--styles", "C4", "--llm.model", "m"]
    with pytest.raises(UserError, match=": C4 .*by rules, not m"):
        main([*to_out, *by_model])
    (out / "notes.txt").touch()
    with refused(UserError, out, "'notes.txt'"):
        main(argv)
    with refused(ConfigError, "C1, C2, C3, C4, S1, S2, S3"):
        main([*to_out, "--styles", "C0"])


def test_the_papers_settings_are_configs(tmp_path: Path) -> None:
    def read(name: str) -> RewriteConfig:
        path = REPOSITORY / "configs" / "rewrite" / name
        argv = ["--config", str(path), "--out", str(tmp_path)]
        return read_config(RewriteConfig, argv, program="t", description="t")

    new = read("paper_2026.yaml")
    old = read("paper_2025.yaml")
    assert new.versions == 3
    assert new.styles == ["C1", "C2", "C3", "C4"]
    assert new.claims == "translation"
    assert new.llm.temperature == 0.1
    assert new.llm.max_tokens == 512
    assert old.styles == list(REWRITTEN)
    assert "Llama-3.3-70B" in old.llm.model
