"""YAML is read alike with and without libyaml."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from claim2source.core import yaml_files
from claim2source.core.errors import InputError
from claim2source.core.yaml_files import YamlMapping, read_yaml
from tests.shared_data import REPOSITORY

PIECES = (
    *("a", "b: ", "c:", "- ", "  ", "\n", "\n  ", "[", "]", "{", "}", ", ", "'x'", '"y\\n"', "#c"),
    *("|\n", "> \n", "&a ", "*a", "!t ", "?", "1e-3", "~", "---\n", "\t", "é", "\u2028", "\ufeff"),
    *("%", "'", '"', "http://x:8", "\r\n", "\x85", "\ud800"),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def placed(value: Any) -> Any:
    """Values with their types, and the lines of keys."""
    if isinstance(value, YamlMapping):
        return {key: (placed(part), value.locations[key]) for key, part in value.items()}
    if isinstance(value, list):
        return [placed(part) for part in value]
    return type(value).__name__, value


def read_without(text: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_files, "_FAST", yaml.BaseLoader)
        return placed(read_yaml(text))


@settings(max_examples=60)
@given(TEXTS)
@example("a:\tb\nc: '1'\n")
@example("a: b\n\ufeff\n")
def test_a_text_is_the_same_with_and_without_libyaml(text: str) -> None:
    """libyaml reads a few texts more, but none as another value."""
    try:
        expected = read_without(text)
    except InputError as error:
        # Its message too, unless libyaml reads the text.
        try:
            read_yaml(text)
        except InputError as found:
            assert str(found) == str(error)
        return
    assert placed(read_yaml(text)) == expected


def test_libyaml_is_used_and_gives_the_shipped_files_the_same() -> None:
    assert yaml_files._FAST is yaml.CBaseLoader
    paths = sorted((REPOSITORY / "configs" / "systems").glob("*.yaml"))
    assert paths
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert placed(read_yaml(text)) == read_without(text)


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000, "{a: " * 100_000])
def test_what_is_nested_too_deeply_is_one_error(text: str) -> None:
    with pytest.raises(InputError) as error:
        read_yaml(text)
    assert len(error.value.lines) == 1
