"""Config files of hostile YAML: a value that cannot be read is one line."""

from dataclasses import dataclass

import pytest

from claim2source.core.config import read_config, require_between
from claim2source.core.errors import UserError


@dataclass(frozen=True)
class Settings:
    """Settings.

    Args:
        seed: a whole number.
        share: a number.
        name: a text.
    """

    seed: int = 0
    share: float = 0.5
    name: str = ""

    def __post_init__(self) -> None:
        require_between("seed", self.seed, 0, 9)


def said(*argv):
    with pytest.raises(UserError) as caught:
        read_config(Settings, list(argv), program="p", description="d")
    (line,) = caught.value.lines
    assert len(line) < 600
    return line


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"seed: {'1' * 5000}", f":1: '{'1' * 40}' cannot be read as a value"),
        ("name: a\nseed: !!int x", ":2: 'x' cannot be read as a value"),
        ("share: !!float x", ":1: 'x' cannot be read as a value"),
        ("seed: !!timestamp x", ":1: 'x' cannot be read as a value"),
        ("name: !!bool x", ":1: 'x' cannot be read as a value"),
        ('name: "a\\0b"', ":1: 'a\\x00b' holds a NUL character"),
        ("name: " + "[" * 3000, ": nested too deeply"),
        ("name: " + "{a: " * 3000, ": nested too deeply"),
    ],
)
def test_a_value_that_cannot_be_read_is_named_with_its_line(tmp_path, text, why):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert said("--config", str(path)) == f"{path}{why}"


BOMB = "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(9))


@pytest.mark.parametrize("text", ["name: &a [*a]", f"a0: &a0 [x]\n{BOMB}name: *a9"])
def test_aliases_that_go_round_or_stand_for_billions_are_refused(text, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert said("--config", str(path)) == f"{path}: holds more than 100000 values"


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("--seed", "1" * 5000, "config: seed: "),
        ("--seed", "0x" + "f" * 5000, "config: seed: a number of thousands of digits is not"),
        ("--share", "1" * 400, "config: share: 1"),
        ("--seed", "[" * 5000, "config: seed: '[["),
    ],
)
def test_a_value_on_the_command_line_that_cannot_be_read_is_one_line(flag, value, why):
    assert said(flag, value).startswith(why)
