"""A user's mistakes: one line each, exit code 2, no traceback."""

import errno
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from claim2source.core.errors import (
    MOST_SHOWN,
    InputError,
    Problem,
    Problems,
    Stopped,
    UserError,
    run_program,
)


def test_all_problems_of_a_file_are_told_one_a_line_up_to_a_bound():
    problems = Problems()
    problems.raise_if_any()
    for line in range(1, MOST_SHOWN + 4):
        problems.add("f\ng", line, "lang", "two\nlines")
    with pytest.raises(InputError) as error:
        problems.raise_if_any()
    *lines, last = str(error.value).splitlines()
    assert lines == [f"f g:{n}: lang: two lines" for n in range(1, MOST_SHOWN + 1)]
    assert last == "... and 3 more problems"
    assert error.value.total == MOST_SHOWN + 3
    assert str(Problem("f", None, None, "no such file")) == "f: no such file"


def ended(main, capsys, argv=None):
    with pytest.raises(SystemExit) as error:
        run_program(main, argv)
    captured = capsys.readouterr()
    assert captured.out == ""
    return error.value.code, captured.err


def raising(error):
    def main(argv):
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "output"),
    [
        (
            InputError.of([Problem("f", 1, "x", "a"), Problem("f", 2, "x", "b")], 2),
            2,
            "error: f:1: x: a\nerror: f:2: x: b\n",
        ),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (Stopped("stopped at step 5", signal.SIGINT), 130, "stopped at step 5\n"),
        # Of several processes only the first one prints it.
        (Stopped("", signal.SIGTERM), 143, ""),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: no space left on device\n"),
        # Names cannot control the terminal.
        (UserError("f\x1b]0;owned\x07: why\nmore"), 2, "error: f\\x1b]0;owned\\x07: why more\n"),
        (OSError(errno.ENOENT, "why more", "f\x1b"), 2, "error: f\\x1b: why more\n"),
    ],
)
def test_a_program_ends_with_its_code_and_lines(error, code, output, capsys):
    assert ended(raising(error), capsys) == (code, output)


def test_a_program_is_given_its_words_and_names_files_as_the_user_did(capsys, tmp_path):
    seen = []
    assert ended(seen.append, capsys, ["--x"]) == (0, "")
    assert seen == [["--x"]]
    absent = tmp_path / "absent" / "f"
    code, line = ended(lambda argv: absent.write_text("x"), capsys)
    assert (code, line) == (2, f"error: {absent}: no such file or directory\n")
    (tmp_path / "temporary").touch()
    folder = tmp_path / "folder"
    (folder / "inside").mkdir(parents=True)
    result = ended(lambda argv: os.replace(tmp_path / "temporary", folder), capsys)
    assert result == (2, f"error: {folder}: is a directory\n")


@pytest.fixture
def traces(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def deep(argv):
    deep(argv)


@pytest.mark.parametrize(
    ("main", "name"),
    [
        (raising(ValueError("ours\nand more")), "ValueError: ours"),
        (raising(OSError("no file named")), "OSError: no file named"),
        (deep, "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_a_mistake_of_ours_is_one_line_and_a_private_file_with_the_trace(
    main, name, capsys, traces
):
    code, text = ended(main, capsys)
    assert code == 1
    match = re.fullmatch(r"error: .*?: (.*); .* in (.+)\n", text)
    assert match[1].startswith(name)
    path = Path(match[2])
    assert path.parent == traces
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    trace = path.read_text(encoding="utf-8")
    assert trace.startswith("Traceback")
    assert "in main" in trace or "in deep" in trace


def test_a_trace_holds_no_secret_and_is_missed_where_it_cannot_be_written(
    capsys, traces, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    main = raising(ValueError("asked with hf_abcdefgh"))
    code, text = ended(main, capsys)
    (path,) = traces.iterdir()
    for shown in (text, path.read_text(encoding="utf-8")):
        assert "hf_abcdefgh" not in shown
        assert "asked with <HF_TOKEN>" in shown
    path.unlink()
    traces.rmdir()
    code, text = ended(main, capsys)
    assert code == 1
    assert text.splitlines()[0].endswith(
        "its trace could not be written: No such file or directory"
    )


# The interpreter's own work on its streams at exit needs separate processes.
BEGIN = "import logging, os, signal, sys\nfrom claim2source.core.errors import *\n"


def process(body, *, stdout=subprocess.PIPE, stderr=subprocess.PIPE, closed="", env=None):
    """Run a program whose `main` has this body; returns exit code, stdout and stderr."""
    script = f"{BEGIN}def main(argv):\n    {body}\nrun_program(main)"
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", script]
    proc = subprocess.run(
        command,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, "PYTHONUNBUFFERED": "", **(env or {})},
        timeout=60,
    )
    return proc.returncode, (proc.stdout or b"").decode(), (proc.stderr or b"").decode()


def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["at the end", "at once"])
@pytest.mark.parametrize("target", ["pipe", "full"])
def test_output_to_a_full_disk_is_one_line_and_to_a_closed_pipe_none(target, unbuffered):
    stream = closed_pipe() if target == "pipe" else os.open("/dev/full", os.O_WRONLY)
    env = {"PYTHONUNBUFFERED": unbuffered}
    try:
        code, _, text = process("print('x')", stdout=stream, env=env)
        failed = process("print('x'); raise UserError('why')", stdout=stream)
    finally:
        os.close(stream)
    if target == "pipe":
        assert (code, text) == (128 + signal.SIGPIPE, "")
    else:
        assert (code, text) == (2, "error: standard output: no space left on device\n")
    assert failed == (2, "", "error: why\n")


@pytest.mark.parametrize(("end", "code"), [("raise UserError('why')", 2), ("1 / 0", 1), ("0", 0)])
def test_closed_streams_change_no_code(end, code, tmp_path):
    body = f"sys.stderr.write('x'); logging.warning('x'); print('x'); {end}"
    env = {"TMPDIR": str(tmp_path)}
    assert process(body, closed="2>&- >&-", env=env)[0] == code
    assert process(body, closed="2>/dev/full", env=env)[::2] == (code, "")


def test_sigterm_cleans_up_and_exits_with_143(tmp_path):
    body = (
        "from claim2source.core.files import atomic_path\n"
        f"    with atomic_path({str(tmp_path / 'f')!r}):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        signal.pause()"
    )
    assert process(body) == (143, "", "terminated\n")
    assert list(tmp_path.iterdir()) == []
    launched = {"TORCHELASTIC_RUN_ID": "1"}
    assert process(body, env={**launched, "LOCAL_RANK": "0"}) == (143, "", "terminated\n")
    assert process(body, env={**launched, "LOCAL_RANK": "1"}) == (143, "", "")


def test_characters_that_a_terminal_lacks_or_obeys_are_escaped():
    env = {"PYTHONIOENCODING": "ascii"}
    assert process("print('\\u00e9')", env=env) == (0, "\\xe9\n", "")
    assert process("logging.warning('%s', chr(27))") == (0, "", "WARNING: \\x1b\n")
