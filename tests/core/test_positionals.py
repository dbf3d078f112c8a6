"""Positional words: a post or a source may be anywhere among the options."""

from __future__ import annotations

from pathlib import Path

import pytest
from claim2source.eval.find import FindConfig

from claim2source.core.config import read_config
from claim2source.core.errors import UserError
from claim2source.core.positionals import with_positionals
from claim2source.data.prepare import read_options
from claim2source.find.index import IndexProgramConfig, index_words


def find(*words: str) -> FindConfig:
    named = with_positionals(FindConfig, words, ("post",))
    return read_config(FindConfig, named, program="eval/find.py", description=None)


@pytest.mark.parametrize(
    "words",
    [
        ["a post", "--index", "i", "--k", "3", "--json"],
        ["--index", "i", "a post", "--k=3", "--json"],
        ["--index", "i", "--json", "a post", "--k", "3"],
        ["--index", "i", "--json", "true", "--k", "3", "a post"],
        ["--index=i", "--k", "3", "--json", "--", "a post"],
        ["--no_fetch", "a post", "--index", "i", "--k", "3", "--json"],
    ],
)
def test_a_post_may_stand_before_between_and_after_options(words: list[str]) -> None:
    config = find(*words)
    assert (config.post, config.index, config.k, config.json) == ("a post", ["i"], 3, True)


def test_an_option_of_one_word_is_repeated_for_more() -> None:
    config = find("--index", "a", "--index=b", "a post", "--index", "c")
    assert (config.post, config.index) == ("a post", ["a", "b", "c"])


@pytest.mark.parametrize("written", ["idx", "[idx]"])
def test_a_config_may_name_one_index_without_a_list(tmp_path: Path, written: str) -> None:
    file = tmp_path / "find.yaml"
    file.write_text(f"index: {written}\n")
    assert find("a post", "--config", str(file)).index == ["idx"]


@pytest.mark.parametrize("switch", ["--json", "--fetch", "--bibtex", "--no_translate"])
def test_an_address_may_follow_a_switch(switch: str) -> None:
    address = "https://bsky.app/profile/a.example/post/3k"
    config = find(switch, address, "--index", "i")
    assert config.post == address and getattr(config, switch[2:].removeprefix("no_")) != (
        "no_" in switch
    )


def test_after_two_dashes_a_post_may_look_like_an_option() -> None:
    assert find("--index", "i", "--", "--k").post == "--k"
    assert find("--fetch", "--instances", "a.example", "--index", "i", "--", "b").instances == [
        "a.example"
    ]


def test_every_program_with_such_words_takes_them_anywhere() -> None:
    words = index_words(["--out", "i", "--model", "m", "demo"])
    index = read_config(IndexProgramConfig, words, program="eval/index.py", description=None)
    assert (index.source, index.out) == ("demo", "i")
    task = read_options(["--input", "a", "--output", "b", "checkthat2025"])
    assert (task.task, task.output) == ("checkthat2025", Path("b"))


@pytest.mark.parametrize("words", [["a", "b", "--index", "i"], ["a", "--index", "i", "j"]])
def test_a_word_too_many_is_refused_in_one_line(words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        find(*words)
    assert len(error.value.lines) == 1 and "post" in error.value.lines[0]
