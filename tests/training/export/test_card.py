"""The model card of an export, and its upload to a hub on the loopback."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from huggingface_hub import ModelCard

from tests.processes import program
from tests.shared_data import REPOSITORY
from tests.training.points import config, write_point
from tests.training.small import small_setup
from train.merge import MergeConfig, merge


class Hub:
    """What a hub was sent: requests by path, and the files that it has."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.files: dict[str, bytes] = {}
        self.tokens: set[str] = set()
        self.blobs: dict[str, bytes] = {}
        self.refuses = False
        self.visibility = ""
        self.address = ""


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub that speaks the parts of the API that an upload takes."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def reply(self, value: Any, status: int = 200) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def do_GET(self) -> None:
            self.reply({"error": "no"}, 403 if hub.refuses else 404)

        def do_PUT(self) -> None:
            hub.blobs[self.path.rsplit("/", 1)[1]] = self.body()
            self.reply({})

        def do_POST(self) -> None:
            body = self.body()
            hub.requests.append((self.command, self.path))
            hub.tokens.add(self.headers.get("Authorization", ""))
            host = f"http://{self.headers['Host']}"
            if hub.refuses:
                self.reply({"error": "You don't have the rights"}, 403)
            elif self.path == "/api/repos/create":
                hub.visibility = json.loads(body).get("visibility")
                self.reply({"url": f"{host}/me/model", "id": "me/model"})
            elif "/preupload/" in self.path:
                files = [file["path"] for file in json.loads(body)["files"]]
                kinds = {True: "lfs", False: "regular"}
                sent = [
                    {
                        "path": f,
                        "uploadMode": kinds[f.endswith("safetensors")],
                        "shouldIgnore": False,
                    }
                    for f in files
                ]
                self.reply({"files": sent})
            elif self.path.endswith("/objects/batch"):
                objects = [
                    {
                        **entry,
                        "actions": {"upload": {"href": f"{host}/lfs/{entry['oid']}", "header": {}}},
                    }
                    for entry in json.loads(body)["objects"]
                ]
                self.reply({"transfer": "basic", "objects": objects})
            elif "/commit/" in self.path:
                for line in map(json.loads, body.splitlines()):
                    value = line["value"]
                    if line["key"] == "file":
                        hub.files[value["path"]] = base64.b64decode(value["content"])
                    elif line["key"] == "lfsFile":
                        hub.files[value["path"]] = hub.blobs[value["oid"]]
                self.reply({"success": True, "commitOid": "1" * 40, "commitUrl": f"{host}/c/1"})
            else:
                self.reply({})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        hub.address = f"http://127.0.0.1:{server.server_address[1]}"
        yield hub
    finally:
        server.shutdown()


def merged(hub: Hub, point: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a process that knows this hub, and no transfers by another protocol."""
    own = {"HF_ENDPOINT": hub.address, "HF_TOKEN": "hf_secret", "HF_HUB_DISABLE_XET": "1"}
    own |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_ETAG_TIMEOUT": "1"}
    words = ("--checkpoints", str(point), "--out", str(out), *words)
    return program("train/merge.py", *words, cwd=REPOSITORY, **own)


@pytest.fixture
def point(tmp_path: Path) -> Path:
    """A checkpoint of random weights, whose data are the small ones."""
    model, data = small_setup(tmp_path / "small")
    write_point(config(model, max_length=40), tmp_path / "point", "lora")
    file = tmp_path / "point" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["data"] |= {"dataset": str(data), "languages": ["de", "en"]}
    manifest["base"]["name"] = str(model)  # as a run's config finds it
    file.write_text(json.dumps(manifest))
    return tmp_path / "point"


def test_the_card_says_what_the_model_is_and_how_to_use_it(point: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    out = tmp_path / "my_model"
    merge(MergeConfig([str(point)], out, scales=[0.0, 1.0]))
    text = (out / "README.md").read_text(encoding="utf-8")
    card = ModelCard.load(str(out / "README.md"))
    data = card.data.to_dict()
    assert data["library_name"] == "sentence-transformers" and data["language"] == ["de", "en"]
    assert "license" not in data
    assert str(tmp_path) not in text.replace("\\", "")  # Markdown escapes its underscores
    assert "no verdict" in text and "not evaluated" not in text
    results = card.data.eval_results
    assert {result.dataset_config for result in results} == {"en", "de", "macro"}
    assert all(result.metric_type == "mrr@5" for result in results)
    report = json.loads((out / "report.json").read_text())
    picked = report["systems"]["picked"]
    english = next(result for result in results if result.dataset_config == "en")
    assert english.metric_value == pytest.approx(picked["languages"]["en"]["mrr@5"], abs=1e-4)
    # The lines of its use are run as they stand.
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert code.count("\n") == 3
    names: dict[str, Any] = {"posts": ["masks work"], "papers": ["a study of masks", "sleep"]}
    exec(code.replace('"my_model"', repr(str(out))), names)
    own = SentenceTransformer(str(out), device="cpu")
    expected = own.encode_query(names["posts"]) @ own.encode_document(names["papers"]).T
    assert names["scores"].numpy() == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_an_export_is_uploaded_where_that_is_wanted(hub: Hub, point: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert merged(hub, point, out).returncode == 0
    assert hub.requests == []
    proc = merged(hub, point, out, "--push_to_hub", "me/model", "--overwrite")
    assert proc.returncode == 0, proc.stderr
    files = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert hub.files == files and "model.safetensors" in files
    assert hub.tokens == {"Bearer hf_secret"} and hub.visibility == "private"
    assert 'SentenceTransformer("me/model")' in files["README.md"].decode()
    assert "me/model" in proc.stdout and "hf_secret" not in proc.stdout + proc.stderr


@pytest.mark.slow
def test_what_the_hub_refuses_leaves_the_folder(hub: Hub, point: Path, tmp_path: Path) -> None:
    hub.refuses = True
    proc = merged(hub, point, tmp_path / "out", "--push_to_hub", "me/model")
    assert proc.returncode == 2 and "not uploaded to me/model" in proc.stderr
    assert "hf_secret" not in proc.stdout + proc.stderr and "Traceback" not in proc.stderr
    assert (tmp_path / "out" / "model.safetensors").is_file()
