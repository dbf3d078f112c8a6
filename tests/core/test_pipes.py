"""Local programs: pipes without a shell, failures, garbage, and hanging programs."""

import time

import pytest

from claim2source.core.pipes import ProgramError, TimedOut, read_pipe, run_pipe


def test_programs_are_words_and_no_shell_reads_them(tmp_path) -> None:
    marker = tmp_path / "made"
    assert read_pipe("a -u 'b|c d'|e") == (("a", "-u", "b|c d"), ("e",))
    assert run_pipe(read_pipe(f"printf %s '$(touch {marker})' | cat"), "", 10)[:2] == "$("
    assert not marker.exists()
    text = "ä" * 300_000
    assert run_pipe(read_pipe("cat | cat"), text, 10) == text


@pytest.mark.parametrize("text", ["", "|", "a |", "a || b", "'a"])
def test_what_names_no_program_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_pipe(text)


@pytest.mark.parametrize(
    "command", ["no-such-program", "sh -c 'exit 3'", "cat /dev/zero", "printf '\\377'"]
)
def test_failures_and_garbage_are_reported(command: str) -> None:
    with pytest.raises(ProgramError):
        run_pipe(read_pipe(command), "text", 10)


@pytest.mark.parametrize("command", ["sleep 60", "sh -c 'sleep 60 & sleep 60'", "sleep 60 | cat"])
def test_what_hangs_is_ended(command: str) -> None:
    started = time.monotonic()
    with pytest.raises(TimedOut):
        run_pipe(read_pipe(command), "text" * 50_000, 0.3)
    assert time.monotonic() - started < 5
