"""An index in a bucket, by moto's S3 server on the loopback: as in a folder, and for many readers."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from claim2source.core.errors import InputError, UserError
from claim2source.core.lock import LOCK_FILE
from claim2source.data.posts import Post
from claim2source.find.answers import json_rows
from claim2source.find.finder import Finder
from claim2source.search import files
from claim2source.search.engine import Engine, open_index
from claim2source.search.files import Bucket, BucketLock
from claim2source.search.manifest import is_engine
from tests.refusals import refused
from tests.search.engines import WIDTH, Corpus, read_any_manifest
from tests.shared_data import REPOSITORY

pytestmark = pytest.mark.slow
KILLS, PAPERS = 5, 240
# Seconds within which a writer must have begun, on a busy machine too.
BEGIN = 600.0


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as patched:
        moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        moto.start()
        host, port = moto.get_host_and_port()
        patched.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patched.setenv(name, "testing")
        patched.setenv("AWS_REGION", "us-east-1")
        httpx.put(f"http://{host}:{port}/papers").raise_for_status()
        yield "s3://papers"
        moto.stop()


def test_an_index_in_a_bucket_is_that_of_a_folder(server: str, tmp_path: Path) -> None:
    corpus, url = Corpus.drawn(60), f"{server}/contract/index"
    assert not is_engine(url)
    with refused(InputError, "manifest.json"):
        open_index(url)
    with refused(UserError, "s3://none/index: "):
        Engine.create("s3://none/index", read_any_manifest())
    engines = []
    for location in (url, tmp_path / "index"):
        engine = Engine.create(location, read_any_manifest())
        engine.upsert(corpus.rows(range(30)))
        engine.build()
        engine.upsert(corpus.rows(range(20, 60)))
        assert engine.delete(["p3", "none"]) == 1
        engine.build()
        engines.append(engine)
    bucket, folder = engines
    vector = np.ones(WIDTH)
    for engine in engines:
        engine.close()
    for one, reference in ((bucket, folder), (open_index(url), folder)):
        assert one.dense(vector, 99) == reference.dense(vector, 99)
        assert one.lexical(["mask", "w1"], 99) == reference.lexical(["mask", "w1"], 99)
        assert one.fetch(["p1", "p3"]) == reference.fetch(["p1", "p3"])
        assert one.stats().papers == 59 and one.version == reference.version
    assert open_index(url, 2).stats().papers == 30
    with refused(InputError, url, "--out"):
        Bucket(url).remove("manifest.json")
        Engine.create(url, read_any_manifest())
    bucket.manifest.write(bucket.files)
    # A missing file is reported, and nothing replaces it.
    name = next(name for name in bucket.files.listed("papers.lance/data") if name.endswith("lance"))
    bucket.files.remove(name)
    with refused(InputError, "59 papers", name):
        open_index(url)


def test_one_writer_has_the_bucket_and_a_dead_ones_lock_is_taken(
    server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = Bucket(f"{server}/locked")
    monkeypatch.setattr(files, "TOUCH", 0.1)
    monkeypatch.setattr(files, "STALE", 0.6)
    lock = BucketLock(bucket)
    with refused(UserError, "process"):
        BucketLock(bucket)  # it is written all the time
    lock.release()
    lock.release()
    assert bucket.read(LOCK_FILE) is None
    # Of another machine, silent; and of this one, gone.
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for holder in (
        {"host": "elsewhere", "pid": 1},
        {"host": files._this_machine(), "pid": dead.pid},
    ):
        bucket.write(LOCK_FILE, json.dumps(holder).encode())
        start = time.monotonic()
        lock = BucketLock(bucket)
        assert (time.monotonic() - start > 0.5) == (holder["host"] == "elsewhere")
        assert f"process {holder['pid']} on " in caplog.text
        lock.check()
        # Another process took it over: this one stops writing, and keeps the other's lock.
        bucket.write(LOCK_FILE, b'{"host": "other", "pid": 5}')
        time.sleep(0.5)
        with refused(UserError, "lock"):
            lock.check()
        lock.release()
        assert bucket.read(LOCK_FILE) == b'{"host": "other", "pid": 5}'
        bucket.remove(LOCK_FILE)


def test_addresses_of_no_bucket_are_refused_without_their_password() -> None:
    for url in ("s3://", "ftp://me:secret@host/x", "s3://me:secret@bucket/x", "https://host/x"):
        with refused(UserError, "s3://") as error:
            open_index(url)
        assert "secret" not in str(error.value)


def test_it_grows_under_two_servers_while_its_writer_is_killed(
    server: str, tmp_path: Path, tiny_folder: Path
) -> None:
    url, model = f"{server}/grown/index", ["--model", str(tiny_folder), "--model.pooling", "mean"]
    model += ["--model.max_length", "32"]
    words = "masks cut outbreaks vaccine works claim study sleep dementia heart".split()
    draw = random.Random(0)
    rows = [
        {
            "_id": f"p{i}",
            "title": f"{draw.choice(words)} {i}",
            "text": " ".join(draw.sample(words, 6)),
        }
        for i in range(PAPERS)
    ]

    def write(name: str, count: int) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[:count]))
        return path

    def index(out: str, papers: Path) -> list[str]:
        program = [sys.executable, str(REPOSITORY / "eval/index.py"), str(papers), "--out", out]
        return [*program, "--batch", "8", "--store", str(tmp_path / "store"), *model]

    def run(program: list[str]) -> None:
        process = subprocess.run(program, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr[-2000:]

    run(index(url, write("first.jsonl", 20)))
    serve = [sys.executable, str(REPOSITORY / "eval/serve.py"), "--index", url, "--port", "0"]
    servers = [
        subprocess.Popen([*serve, "--rate", "0"], stdout=subprocess.PIPE, text=True) for _ in "12"
    ]
    posts = [" ".join(draw.sample(words, 4)) for _ in range(5)]
    wrong, finished, question_count = list[str](), threading.Event(), [0]

    def poll(address: str) -> None:
        while not finished.is_set():
            body = {"post": draw.choice(posts), "k": 5}
            answer = httpx.post(f"{address}/api/v1/find", json=body, timeout=60)
            question_count[0] += 1
            if answer.status_code != 200 or len(answer.json()["papers"]) != 5:
                wrong.append(answer.text)
            time.sleep(0.2)

    try:
        addresses = [
            (one.stdout.readline() if one.stdout else "").split(" at ")[1].split("/ (")[0]
            for one in servers
        ]
        threads = [threading.Thread(target=poll, args=(address,)) for address in addresses]
        for thread in threads:
            thread.start()
        all_papers = write("every.jsonl", PAPERS)
        for kill in range(KILLS):
            writer = subprocess.Popen(index(url, all_papers), stdout=-3, stderr=-3)
            before = open_index(url).stats().papers
            end = time.monotonic() + BEGIN
            # After it has begun to write; of the later ones some are killed while they build.
            while open_index(url).stats().papers == before < PAPERS:
                assert writer.poll() is None and time.monotonic() < end
                time.sleep(0.05)
            time.sleep(draw.random() * 0.3 * (kill + 1))
            writer.kill()
            writer.wait()
            assert open_index(url).stats().papers >= before
        run(index(url, all_papers))
        run(index(str(tmp_path / "idx"), all_papers))
        expected = Finder(open_index(tmp_path / "idx")).find(
            [Post(str(i), post) for i, post in enumerate(posts)], 10
        )
        for address in addresses:
            for answer in expected:
                body = {"post": answer.post.text, "k": 10}
                found = httpx.post(f"{address}/api/v1/find", json=body, timeout=60).json()["papers"]
                listed = json_rows(answer)
                assert [paper["score"] for paper in found] == pytest.approx(
                    [paper["score"] for paper in listed], abs=1e-4
                )
                assert {paper["id"] for paper in found} == {paper["id"] for paper in listed}
        assert wrong == [] and question_count[0] > 10
    finally:
        finished.set()
        for one in servers:
            one.terminate()
        for one in servers:
            one.wait(120)
