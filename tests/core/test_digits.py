"""Digits of other scripts are not numbers, in settings and in files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

from claim2source.core.arguments import is_digits
from claim2source.core.config import Between, Settings, read_config, read_yaml
from claim2source.core.errors import ConfigError
from claim2source.data.markup import without_markup
from claim2source.data.papers import first_day, last_day, plain_doi
from claim2source.metrics.metrics import cutoff
from claim2source.search.lance import newest_version
from claim2source.search.rows import Where
from claim2source.serve.access import _without_port

FOREIGN = ["٥", "５", "²", "५", "1٥", "٥.٥", "١e٢"]


@dataclass(frozen=True)
class Counts(Settings):
    """Set counts.

    Args:
        k: sources.
        share: a share.
    """

    k: Annotated[int, Between(1, 100)] = 10
    share: float = 0.5


@pytest.mark.parametrize("text", FOREIGN)
def test_a_number_is_of_ascii_digits(text: str) -> None:
    assert not is_digits(text) and is_digits("5")
    assert read_yaml(f"a: {text}") == {"a": text}
    for key in ("k", "share"):
        with pytest.raises(ConfigError) as error:
            read_config(Counts, [f"--{key}", text], program="eval/p.py", description="P.")
        assert (error.value.key, error.value.value) == (key, text)


@pytest.mark.parametrize("text", ["٢٠٢١-٠٥-٠٤", "２０２１", "2021-0٥", "²⁰²¹", "٠٥/١٢/٢٠٢٠"])
def test_a_date_is_of_ascii_digits(text: str) -> None:
    if text[:4] == "2021":
        assert first_day(text) // 10_000 == 2021 and last_day(text) == 20211231
        return
    assert first_day(text) == last_day(text) == 0
    with pytest.raises(ConfigError):
        Where(until=text)


def test_ids_ports_and_names_are_of_ascii_digits() -> None:
    assert plain_doi("10.١٢٣٤/a") == "" and plain_doi("10.1234/a") == "10.1234/a"
    assert without_markup("&#٦٥;") == "&#٦٥;" and without_markup("&#65;") == "A"
    assert newest_version(["٥.manifest", "3.manifest", "².manifest"]) == 3
    assert _without_port("a:²") == "a:²" and _without_port("a:80") == "a"
    with pytest.raises(ConfigError):
        cutoff("mrr@٥")
