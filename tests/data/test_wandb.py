"""Tables for W&B: accepted ones, refusals before the work, and a real offline run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from claim2source.core.errors import UserError
from claim2source.core.tables import TextTable
from claim2source.data import wandb as library
from claim2source.data.wandb import log_tables, require_tracking, wandb_mode
from tests.refusals import refused
from tests.shared_data import REPOSITORY

TABLES = {"a": TextTable(["x"], [[1]])}


def test_tracking_needs_wandb_and_online_a_key_and_off_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    require_tracking("offline")
    with refused(UserError, "wandb login", "--wandb offline"):
        require_tracking("online")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    require_tracking("online")
    assert wandb_mode("auto") == "online"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(UserError, "pip install wandb"):
        require_tracking("offline")
    monkeypatch.setitem(sys.modules, "wandb", None)
    require_tracking("off")
    log_tables("off", TABLES, folder=tmp_path, program="p", config={})
    assert not list(tmp_path.iterdir())


class Server:
    """A W&B server on this machine that fails at once, or accepts a run and then fails."""

    def __init__(self, kind: str) -> None:
        self.kind, self.heads, self.taken = kind, "", False
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.heads += f"{self.path} {self.headers}"
                self.answer(server.reply(body.decode("utf-8", "replace")))

            def answer(self, reply: tuple[int, object]) -> None:
                text = json.dumps(reply[1]).encode()
                self.send_response(reply[0])
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(text)

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        if kind == "refuses":
            self.http.server_close()
        else:
            threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def reply(self, body: str) -> tuple[int, object]:
        if self.kind in ("500", "401"):
            return int(self.kind), {}
        if self.kind == "hangs":
            threading.Event().wait(60)
        if self.kind == "dies" and self.taken:
            return 500, {}
        if "upsertBucket" in body:
            self.taken = True
            project = {"id": "p", "name": "p", "entity": {"id": "e", "name": "e"}}
            bucket = {"id": "b", "name": "r", "displayName": "r", "config": "{}"}
            bucket |= {"project": project, "historyLineCount": 0}
            return 200, {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        user = {"id": "v", "entity": "e", "username": "u", "flags": "{}", "teams": {"edges": []}}
        info = {"cliVersionInfo": {"max_cli_version": "9.9"}, "features": []}
        return 200, {"data": {"viewer": user, "serverInfo": info}}

    def close(self) -> None:
        if self.kind != "refuses":
            self.http.shutdown()
            self.http.server_close()


KEY = "secret" + "k" * 34


def test_a_server_is_asked_before_wandb_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "ANSWER_SECONDS", 0.2)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    for kind, message in {
        "500": "500",
        "hangs": "0.2 seconds",
        "works": "",
    }.items():
        server = Server(kind)
        started = time.monotonic()
        reason = library.connection_error(server.url)
        assert time.monotonic() - started < 3
        server.close()
        assert message in reason and bool(reason) == bool(message)
        # Only wandb itself sends the key.
        assert "/graphql" in server.heads
        assert "secret" not in server.heads and "uthorization" not in server.heads


LOGS = """
import sys
from pathlib import Path
from claim2source.core.errors import run_program
from claim2source.core.tables import TextTable
from claim2source.data.wandb import log_tables, require_tracking, wandb_mode
def main(argv):
    for folder in sys.argv[1:]:
        mode = wandb_mode("auto")
        require_tracking(mode)
        tables = {"Not run": TextTable(["system", "cost"], %s)}
        log_tables(mode, tables, folder=Path(folder), program="p", config={"x": 1})
    print("done")
run_program(main)
"""
MIXED = [["a", 1.5], ["b", "text"], ["c", None]]


def start(words: list[str], folder: Path, url: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    own = {"PYTHONPATH": str(REPOSITORY), "HOME": str(folder), "WANDB_API_KEY": KEY}
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, **own, "WANDB_BASE_URL": url, "OMP_NUM_THREADS": "1"}
        # Instead of 10 and 15 seconds.
        | {"WANDB_HTTP_TIMEOUT": "1", "WANDB_FINISH_TIMEOUT": "2"},
    )


@pytest.mark.slow
def test_a_server_that_fails_costs_seconds_and_one_line(tmp_path: Path) -> None:
    """`auto` with a key: two logs of one process, offline when the server cannot be used."""
    pytest.importorskip("wandb")
    kinds = {
        "refuses": "Connection refused",
        "500": "500",
        "hangs": "4 seconds",
        "401": "",
    }
    servers = {kind: Server(kind) for kind in kinds}
    running = {}
    for kind, server in servers.items():
        folders = [tmp_path / kind / name for name in ("a", "b")]
        for folder in folders:
            folder.mkdir(parents=True)
        words = ["-c", LOGS % MIXED, *map(str, folders)]
        running[kind] = start(words, tmp_path / kind, server.url)
    for kind, process in running.items():
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, "done\n"), (kind, err)
        lines = [line for line in err.splitlines() if line.startswith("WARNING: wandb: ")]
        assert len(lines) == 1 and kinds[kind] in lines[0], (kind, err)
        assert "offline-run-*` uploads it" in lines[0] and "`wandb sync /" in lines[0]
        assert "Traceback" not in err and "\x1b" not in err
        everything = out + err + "".join(
            path.read_text("utf-8", "replace")
            for path in (tmp_path / kind).rglob("*") if path.is_file()
        )  # fmt: skip
        assert KEY not in everything
        for name in ("a", "b"):
            tables = (tmp_path / kind / name).glob(
                "wandb/offline-run-*/files/media/table/not_run*.json"
            )
            assert [json.loads(table.read_text())["data"] for table in tables] == [MIXED], kind
    for server in servers.values():
        server.close()


@pytest.mark.slow
def test_a_server_that_dies_does_not_stop_a_training(tmp_path: Path) -> None:
    from tests.training.small import arguments, small_setup

    server, out = Server("dies"), tmp_path / "run"
    words = arguments(*small_setup(tmp_path / "small"), out, optimisation__epochs=1)
    words = [word.replace("--wandb.mode=off", "--wandb.mode=online") for word in words]
    started = time.monotonic()
    process = start([str(REPOSITORY / "train" / "finetune.py"), *words], tmp_path, server.url)
    text, err = process.communicate(timeout=240)
    assert process.returncode == 0, err[-3000:]
    assert server.taken and time.monotonic() - started < 150
    assert "MRR@5 on dev" in text and "wandb" not in text
    assert err.count("WARNING: wandb: ") == 1 and "offline-run-*` uploads it" in err
    assert (out / "report.json").is_file()
    names = {
        path.name.rsplit("_", 2)[0]
        for path in out.glob("wandb/offline-run-*/files/media/table/*.table.json")
    }
    assert {"mined negatives", "history", "scores"} <= names
    server.close()
