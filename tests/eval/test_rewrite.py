"""Styles come from rules or a server; what fails is in the file, and nothing is asked twice."""

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
from tests.shared_data import REPOSITORY

Start = Callable[..., LLMServer]
GERMAN = "Die Masken senken das Risiko bei 40 Kindern, sagt eine Studie aus Graz"
POSTS = [
    {"_id": "a", "text": "masks cut the risk by 25%!! 😷 #masks", "metadata": {"lang": "en"}},
    {
        "_id": "b",
        "text": GERMAN,
        "metadata": {"lang": "de", "translation": "Masks lower the risk in 40 children"},
    },
]


def words(folder: Path, server: LLMServer, out: Path, *options: str) -> list[str]:
    extra = ["--llm.model", "m", "--llm.url", server.url, "--answers", f"{out}.sqlite"]
    return ["--dataset", str(folder), "--out", str(out), *extra, *options]


TASKS = {name: read_prompt(str(STYLES[name].prompt)).task for name in REWRITTEN}


def by_rule(chat: Chat) -> str:
    """A model that knows the rules; the style is known by the prompt's task."""
    (text,) = chat.data.values()
    (name,) = [name for name, task in TASKS.items() if f"Task: {task}" in chat.system]
    (origin,) = rewrite_by_rules(STYLES[name], [Original("", text)])
    return origin.text


def _untitled(texts: Iterable[Original]) -> Iterator[Original]:
    return (replace(text, title=None) for text in texts)


def test_every_style_is_rewritten_and_a_second_run_asks_for_nothing(
    llm_server: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = data_set(tmp_path / "data", POSTS), tmp_path / "styles"
    server = llm_server(by_rule)
    main(words(folder, server, out, "--dry_run"))
    output = capsys.readouterr().out
    assert [output.count(f"{name}: 2 requests to make") for name in REWRITTEN] == [1] * 7
    assert server.requests == 0 and not out.exists()
    main(words(folder, server, out, "--styles", "C4", "C1"))
    assert server.requests == 4 and sorted(read_origin(out)) == ["C1", "C4"]
    main(words(folder, server, out))
    assert server.requests == 14 and list(read_origin(out)) == list(REWRITTEN)
    data = load(folder, "dev")
    for name in REWRITTEN:
        style = STYLES[name]
        texts = originals(data, style.side, "translation")
        parts = [r.text for r in read_style(out, style, texts)]
        assert parts == [r.text for r in rewrite_by_rules(style, [*_untitled(texts)])]
    c2 = read_origin(out)["C2"]
    assert (c2.by, c2.prompt, c2.claims, c2.split) == ("m", "c2 1", "translation", "dev")
    assert read_origin(out)["S1"].split is None
    # What was sent to the server about thinking, and how many replies reasoned.
    (thinking,) = c2.thinking
    assert (thinking.wanted, thinking.sent) == (False, "enable_thinking=false")
    assert (thinking.replies, thinking.reasoned) == (2, 0)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    main(words(folder, server, out))
    assert server.requests == 14
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert "C3 (abstract): 2 of 2 texts; 1" in capsys.readouterr().out


def test_the_original_is_rewritten_in_its_own_language_where_that_is_asked_for(
    llm_server: Start, tmp_path: Path
) -> None:
    folder, out = data_set(tmp_path / "data", POSTS), tmp_path / "styles"
    server = llm_server(lambda chat: next(iter(chat.data.values())))
    main(words(folder, server, out, "--styles", "C1", "--claims", "original"))
    assert [r.text for r in read_style(out, STYLES["C1"])] == [POSTS[0]["text"], GERMAN]
    systems = [Chat(body).system for body in server.bodies]
    assert sorted(re.findall(r"text in (\w+),", "".join(systems))) == ["English", "German"]
    # English for a German post is no rewriting of it.
    server.reply = lambda chat: "Masks lower the risk of an infection in 40 children, says a study"
    main(words(folder, server, out, "--styles", "C2", "--claims", "original"))
    assert read_style(out, STYLES["C2"])[1].failure == "in English, not German"
    with pytest.raises(UserError, match=": C1 .*claims original, not translation.*--overwrite"):
        main(words(folder, server, out, "--styles", "C1"))
    main(words(folder, server, out, "--styles", "C1", "--overwrite"))
    assert read_origin(out)["C1"].claims == "translation"


def test_a_text_that_misses_the_form_is_kept_and_one_that_is_none_is_not(
    llm_server: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = data_set(tmp_path / "data", POSTS), tmp_path / "styles"
    long = "Masks " + "really " * 40 + "help #masks"
    server = llm_server(lambda chat: long if "<abstract>\nMasks" in chat.user else "")
    main(words(folder, server, out, "--styles", "S3"))
    first, second = read_style(out, STYLES["S3"])
    assert (first.text, first.failure) == (long, f"{len(long)} characters, more than 280")
    assert (second.text, second.failure) == ("", "empty")
    assert (first.title, second.title) == ("Masks", "Virus respiratorios en los niños")
    output = capsys.readouterr().out
    assert "S3 (tweet): 1 of 2 texts" in output and "2 failed, of which 1 have no text" in output
    assert "p1 version 1: 297 characters, more than 280" in output
    # Each was asked for once more, and a later reply may be better.
    assert server.requests == 4
    server.reply = lambda chat: "Masks help #masks"
    main(words(folder, server, out, "--styles", "S3"))
    assert server.requests == 4 and read_origin(out)["S3"].failures == 2
    main(words(folder, server, out, "--styles", "S3", *llm(tmp_path, retry_failed=True)))
    assert server.requests == 6 and [r.failure for r in read_style(out, STYLES["S3"])] == [None] * 2


def test_versions_are_asked_for_one_by_one(llm_server: Start, tmp_path: Path) -> None:
    folder, out = data_set(tmp_path / "data", POSTS), tmp_path / "styles"
    server = llm_server(lambda chat: f"Masks lower the risk, says reading {chat.before} of it.")
    extra = ["--styles", "C2", "--versions", "3"]
    sampled = llm(tmp_path, temperature=0.1, concurrency=1)
    main(words(folder, server, out, *extra, *sampled))
    assert server.requests == 6 and read_origin(out)["C2"].versions == 3
    rewrites = read_style(
        out, STYLES["C2"], originals(load(folder, "dev"), "claims", "translation")
    )
    assert [(r.id, r.version) for r in rewrites] == [(i, v) for i in "ab" for v in (1, 2, 3)]
    assert len({r.text for r in rewrites}) == 3
    main(words(folder, server, out, *extra, *sampled))
    assert server.requests == 6
    for wrong in (["--versions", "3"], ["--versions", "3", "--rules", *sampled]):
        with pytest.raises(ConfigError, match="the same text every time"):
            main(words(folder, server, tmp_path / "new", *wrong))


def test_prompt_of_the_users_own_replaces_one_style(llm_server: Start, tmp_path: Path) -> None:
    folder, out = data_set(tmp_path / "data", POSTS), tmp_path / "styles"
    server = llm_server(lambda chat: Reply("Masks lower the risk."))
    text = (PROMPTS / "c2.yaml").read_text().replace('version: "1"', 'version: "mine"')
    (tmp_path / "own.yaml").write_text(text)
    main(words(folder, server, out, "--styles", "C2", "--prompt", str(tmp_path / "own.yaml")))
    assert read_origin(out)["C2"].prompt == "own mine"
    (tmp_path / "own.yaml").write_text(text.replace("post:", "tweet:"))
    with pytest.raises(InputError, match=r"own.yaml: variables\.tweet: "):
        main(words(folder, server, out, "--styles", "C2", "--prompt", str(tmp_path / "own.yaml")))
    with pytest.raises(ConfigError, match="one style"):
        main(words(folder, server, out, "--prompt", str(tmp_path / "own.yaml")))


def test_rules_need_no_server_and_name_themselves(tmp_path: Path) -> None:
    out = tmp_path / "styles"
    argv = ["--out", str(out), "--rules", "--dataset", "demo", "--styles", "C4", "S3"]
    main([*argv, "--dry_run"])
    assert not out.exists()
    main(argv)
    info = json.loads((out / "styles.json").read_text())
    assert info["styles"]["C4"]["by"] == info["styles"]["S3"]["by"] == "rules"
    with pytest.raises(UserError, match=": C4 .*by rules, not m"):
        main([*argv[:2], "--dataset", "demo", "--styles", "C4", "--llm.model", "m"])
    (out / "notes.txt").touch()
    with pytest.raises(UserError, match="'notes.txt'"):
        main(argv)
    with pytest.raises(ConfigError, match="C1, C2, C3, C4, S1, S2, S3"):
        main([*argv[:2], "--styles", "C0"])


def test_the_papers_settings_are_configs(tmp_path: Path) -> None:
    def read(name: str) -> RewriteConfig:
        path = REPOSITORY / "configs" / "rewrite" / name
        argv = ["--config", str(path), "--out", str(tmp_path)]
        return read_config(RewriteConfig, argv, program="t", description="t")

    new, old = read("paper_2026.yaml"), read("paper_2025.yaml")
    assert (new.versions, new.styles, new.claims) == (3, ["C1", "C2", "C3", "C4"], "translation")
    assert (new.llm.temperature, new.llm.max_tokens) == (0.1, 512)
    assert old.styles == list(REWRITTEN) and "Llama-3.3-70B" in old.llm.model
