"""What a user did wrong: one line each, exit code 2, no traceback."""

import pytest

from claim2source.core.config import require, require_one_of
from claim2source.core.errors import (
    MOST_SHOWN,
    ConfigError,
    InputError,
    Problem,
    Problems,
    UserError,
    run_program,
)


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (Problem("f.jsonl", 3, "lang", "not a code"), "f.jsonl:3: lang: not a code"),
        (Problem("f.jsonl", 3, None, "not JSON"), "f.jsonl:3: not JSON"),
        (Problem("f.jsonl", None, "lang", "absent"), "f.jsonl: lang: absent"),
        (Problem("f.jsonl", None, None, "no such file"), "f.jsonl: no such file"),
        (Problem("a\nb", 1, "c", "two\nlines"), "a b:1: c: two lines"),
    ],
)
def test_a_problem_is_one_line_with_file_line_and_field(problem, line):
    assert str(problem) == line
    assert str(InputError([problem])) == line


def test_at_makes_the_same_line(tmp_path):
    assert str(InputError.at(tmp_path / "f", 1, "x", "why")) == f"{tmp_path / 'f'}:1: x: why"


def test_all_problems_of_a_file_are_told_up_to_a_bound():
    problems = Problems()
    problems.raise_if_any()
    for line in range(1, MOST_SHOWN + 1):
        problems.add("f", line, None, "bad")
    with pytest.raises(InputError) as caught:
        problems.raise_if_any()
    assert str(caught.value).splitlines() == [f"f:{n}: bad" for n in range(1, MOST_SHOWN + 1)]
    for line in range(3):
        problems.add("g", line, None, "bad")
    assert len(problems) == MOST_SHOWN + 3
    with pytest.raises(InputError) as caught:
        problems.raise_if_any()
    lines = str(caught.value).splitlines()
    assert len(lines) == MOST_SHOWN + 1
    assert lines[-1] == "... and 3 more problems"
    assert caught.value.total == MOST_SHOWN + 3


def test_a_config_error_names_key_value_and_what_is_allowed():
    error = ConfigError("lora.r", 0, "1 or more")
    assert isinstance(error, UserError)
    assert str(error) == "config: lora.r: 0 is not allowed; allowed: 1 or more"
    require(True, "k", 1, "x")
    with pytest.raises(ConfigError, match="config: k: 'v' is not allowed; allowed: x"):
        require(False, "k", "v", "x")
    require_one_of("k", "a", ("a", "b"))
    with pytest.raises(ConfigError, match="config: k: 'c' is not allowed; allowed: a, b"):
        require_one_of("k", "c", ("a", "b"))


def ended(main, capsys, argv=None):
    with pytest.raises(SystemExit) as caught:
        run_program(main, argv)
    captured = capsys.readouterr()
    assert captured.out == ""
    return caught.value.code, captured.err


def raising(error):
    def main(argv):
        raise error

    return main


def test_a_program_ends_with_2_and_the_lines(capsys):
    error = InputError([Problem("f", 1, "x", "a"), Problem("f", 2, "x", "b")])
    assert ended(raising(error), capsys) == (2, "error: f:1: x: a\nerror: f:2: x: b\n")


def test_a_program_that_succeeds_ends_with_0(capsys):
    seen = []
    assert ended(seen.append, capsys, ["--x"]) == (0, "")
    assert seen == [["--x"]]


def test_a_file_that_cannot_be_written_is_one_line(capsys, tmp_path):
    def main(argv):
        (tmp_path / "absent" / "f").write_text("x")

    code, line = ended(main, capsys)
    assert (code, line) == (2, f"error: {tmp_path / 'absent' / 'f'}: no such file or directory\n")


@pytest.mark.parametrize("error", [ValueError("ours"), OSError("no file named"), KeyError("x")])
def test_a_mistake_of_ours_keeps_its_traceback(error):
    with pytest.raises(type(error)):
        run_program(raising(error))


def test_an_interrupt_is_said(capsys):
    assert ended(raising(KeyboardInterrupt()), capsys) == (130, "interrupted\n")
