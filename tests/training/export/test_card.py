"""The model card of an export, and its upload to a hub on the loopback."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from claim2source.train.merge import MergeConfig, merge
from huggingface_hub import ModelCard

from claim2source.core.errors import ConfigError
from claim2source.core.report import Report
from claim2source.data.loading import load
from claim2source.evaluation.evaluate import evaluate
from claim2source.models import Manifest
from claim2source.models.config import Template
from claim2source.models.manifest import RerankerManifest, RerankerSettings
from claim2source.search.bm25 import BM25
from claim2source.text import Rendering
from claim2source.training.export.card import write_card
from tests.processes import program
from tests.shared_data import REPOSITORY
from tests.training.points import config, write_point
from tests.training.small import small_setup


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
        self.role = "write"
        self.asked = 0


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
            if self.path.startswith("/api/whoami"):
                hub.asked += 1
                token = {"displayName": "t", "role": hub.role}
                self.reply({"name": "me", "type": "user", "auth": {"accessToken": token}})
                return
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
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
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
    assert "post is true" in text and "not evaluated" not in text
    results = card.data.eval_results
    assert {result.dataset_config for result in results} == {"en", "de", "macro"}
    assert all(result.metric_type == "mrr@5" for result in results)
    report = json.loads((out / "report.json").read_text())
    picked = report["systems"]["picked"]
    english = next(result for result in results if result.dataset_config == "en")
    assert english.metric_value == pytest.approx(picked["languages"]["en"]["mrr@5"], abs=1e-4)
    assert english.metric_args is not None
    low, high = english.metric_args["interval_95"]
    assert low <= english.metric_value <= high
    bounds = Report.read(out).systems["picked"].intervals
    assert bounds is not None
    assert [low, high] == pytest.approx(list(bounds.of("mrr@5", "en") or ()), abs=1e-4)
    assert "| en | 6 |" in text and "95 % interval" in text
    # The lines of its usage are run unchanged.
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert code.count("\n") == 3
    names: dict[str, Any] = {"posts": ["masks work"], "papers": ["a study of masks", "sleep"]}
    exec(code.replace('"my_model"', repr(str(out))), names)
    own = SentenceTransformer(str(out), device="cpu")
    expected = own.encode_query(names["posts"]) @ own.encode_document(names["papers"]).T
    assert names["scores"].numpy() == pytest.approx(expected, abs=1e-5)


def card_of(
    manifest: Manifest | RerankerManifest, report: Report | None, folder: Path
) -> tuple[str, dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    write_card(folder, manifest, ["checked"], "title", report)
    card = ModelCard.load(str(folder / "README.md"))
    return card.text, card.data.to_dict()


def test_the_card_says_for_which_share_of_known_papers_it_was_chosen(
    point: Path, tmp_path: Path
) -> None:
    manifest = Manifest.read(point)
    plain, _ = card_of(manifest, None, tmp_path / "plain")
    assert "% of val" not in plain  # as in manifests of earlier versions
    for measured, expected in ((0.25, "weigh them by 89%"), (0.0, "0% of val")):
        data = replace(manifest.data, val_seen_measured=measured, seen_share_expected=0.89)
        text, _ = card_of(replace(manifest, data=data), None, tmp_path / "card")
        assert f"{measured:.0%} of val" in text and expected in text
    assert "weigh" not in text  # with one part there is nothing to weigh


def test_the_column_of_intervals_goes_where_there_are_none(point: Path, tmp_path: Path) -> None:
    """As in reports from before intervals existed."""
    manifest, data = Manifest.read(point), load("demo", "dev")
    ranking = BM25().index(data.sources).search(data.claims)
    for repeats, is_there in ((0, False), (100, True)):
        report = evaluate(ranking, data, repeats=repeats)
        report = replace(report, chosen=next(iter(report.systems)))
        text, _ = card_of(manifest, report, tmp_path / str(repeats))
        table = [line for line in text.splitlines() if line.startswith("|")]
        assert {line.count("|") for line in table} == {5 if is_there else 4}


def test_its_languages_are_those_of_the_claims_that_were_trained_on(
    point: Path, tmp_path: Path
) -> None:
    """Those of the reported split say nothing about training."""
    manifest, data = Manifest.read(point), load("demo", "dev")
    report = evaluate(BM25().index(data.sources).search(data.claims), data, repeats=0)
    report = replace(report, chosen=next(iter(report.systems)))
    for trained, limited, expected in (
        (("de", "uk"), None, ["de", "uk"]),
        (("de",), ("de", "en"), ["de"]),
        (None, ("de", "en"), ["de", "en"]),
        (None, None, None),
    ):
        record = replace(manifest.data, languages=limited, train_languages=trained)
        _, metadata = card_of(replace(manifest, data=record), report, tmp_path / "card")
        assert metadata.get("language") == expected


def test_an_example_is_shown_as_the_model_reads_it(point: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(point)
    template = Template(claim="query:\n", source="passage: ", append_token="</s>")
    for claims, sources in (("bilingual", "title_abstract"), ("translated", "metadata")):
        rendering = Rendering(claims=claims, sources=sources)  # type: ignore[arg-type]
        encoder = replace(manifest.encoder, template=template)
        shown = replace(manifest, encoder=encoder, rendering=rendering)
        text, _ = card_of(shown, None, tmp_path / claims)
        post, paper = re.findall(r"```text\n(.*?)\n```", text, re.DOTALL)
        assert post.startswith("query:\n") and paper.startswith("passage: ")
        assert post.endswith("</s>") and paper.endswith("</s>")
        assert ("Neue Studie" in post) is (claims == "bilingual") and "New study" in post
        assert ("Journal of Examples" in paper) is (sources == "metadata")


def test_a_rerankers_example_is_its_pair_or_its_prompt(point: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(point)
    parts = {"base": manifest.base, "weights": manifest.weights, "rendering": Rendering()}
    for settings, expected in (
        (RerankerSettings("cross_encoder"), 2),
        (RerankerSettings("yes_no", instruction="Does it fit?", template="qwen3"), 1),
    ):
        own = RerankerManifest(reranker=settings, depth=10, **parts)  # type: ignore[arg-type]
        text, _ = card_of(own, None, tmp_path / settings.kind)
        shown = re.findall(r"```text\n(.*?)\n```", text, re.DOTALL)
        assert len(shown) == expected and "Masks in schools" in shown[-1]
        assert ("<Instruct>: Does it fit?" in shown[0]) is (settings.kind == "yes_no")


@pytest.fixture
def near_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub, and a token for it, as this process knows them."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return hub


def refused(point: Path, out: Path, name: str = "me/model") -> str:
    """Merge with an upload that is refused before anything is read or written."""
    with pytest.raises(ConfigError) as error:
        merge(MergeConfig([str(point)], out, push_to_hub=name))
    assert error.value.key == "push_to_hub" and len(error.value.lines) == 1
    assert not out.exists()
    return str(error.value)


def test_an_upload_that_cannot_be_is_refused_before_the_export(
    near_hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is not even looked at."""
    none, out = tmp_path / "none", tmp_path / "out"
    refused(none, out, "no/such/name")
    assert near_hub.asked == 0
    near_hub.role = "read"
    refused(none, out)
    assert near_hub.asked == 1
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no_token"))
    refused(none, out)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    # No server listens there.
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "hf_secret" not in refused(none, out)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(none, out)
    assert near_hub.requests == []


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
