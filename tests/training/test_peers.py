"""Signs of life between machines, through a real store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from claim2source.training import peers
from claim2source.training.peers import Watch, watched_peers


class Gone(Exception):
    """In place of the process's end."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Codes that the process would have ended with; rank 0 of a world has this store."""
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise Gone

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setattr(peers, "BEAT", 0.05)
    monkeypatch.setattr(peers, "SILENT", 0.6)
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    yield codes


def test_processes_that_give_signs_go_on_and_one_that_stops_is_named(
    ends: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    silent = Watch(1, 3)
    silent.start()
    with watched_peers(2, 3):
        with watched_peers(0, 3):
            time.sleep(1.2)
            assert ends == []
            silent.stop()
            deadline = time.monotonic() + 10
            while len(ends) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
    assert ends == [2, 2]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all("nothing was heard from process 1 for" in line for line in said)
    assert all("--resume" in line for line in said)


def test_who_is_done_is_not_missed_and_who_failed_is(ends: list[int]) -> None:
    with watched_peers(0, 2):
        with watched_peers(1, 2):
            time.sleep(0.3)
        time.sleep(1.2)
        assert ends == []
    with pytest.raises(KeyError), watched_peers(1, 2):
        raise KeyError
    with watched_peers(0, 2):
        # Its sign of being done stands in the store from before: another attempt has its own.
        time.sleep(0.2)
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
    try:
        with pytest.raises(KeyError), watched_peers(1, 2):
            time.sleep(0.2)
            raise KeyError
        with watched_peers(0, 2):
            time.sleep(1.5)
        assert ends == [2]
    finally:
        del os.environ["TORCHELASTIC_RESTART_COUNT"]
