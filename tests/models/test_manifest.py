"""manifest.json: everything comes back, and what cannot be is refused in one line."""

import json
from dataclasses import asdict

import pytest

from claim2source.core.errors import InputError
from claim2source.models import Base, DataRecord, EncoderSettings, Manifest, Template, Weights
from claim2source.text import Rendering

# Nothing here is a default: a field that is dropped on the way shows.
WHOLE = Manifest(
    base=Base("org/model", "abc123", "f" * 64),
    weights=Weights("lora", "e" * 64, 0.5),
    encoder=EncoderSettings("last", False, 99, Template("q: ", "p: ", False), "bfloat16"),
    rendering=Rendering("bilingual", "metadata_paper_order"),
    epoch=2,
    data=DataRecord("ct25", "train", 0.1, 13, ("en", "de"), "d" * 64, "c" * 64, "b" * 64),
    scores={"val": {"macro": {"mrr@5": 0.5}}},
    config={"tuning": "lora", "out": "über/x"},
    git="0123+changes",
    versions={"torch": "2"},
)


def test_everything_comes_back(tmp_path):
    WHOLE.write(tmp_path)
    assert Manifest.read(tmp_path) == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def change(tmp_path, *keys, to):
    raw = json.loads(json.dumps(asdict(WHOLE)))
    node = raw
    for key in keys[:-1]:
        node = node[key]
    if to is KeyError:
        del node[keys[-1]]
    else:
        node[keys[-1]] = to
    (tmp_path / "manifest.json").write_text(json.dumps(raw), encoding="utf-8")


@pytest.mark.parametrize(
    ("keys", "to", "message"),
    [
        (["format"], 2, "format: this version reads format 1"),
        (["base"], KeyError, "base: is missing"),
        (
            ["weights", "kind"],
            "qlora",
            "weights.kind: 'qlora' is not allowed; did you mean lora? allowed: base, lora",
        ),
        (["encoder", "template", "instruction"], "x", "encoder.template.instruction: no such"),
        (["epoch"], "2", "epoch: '2' is not allowed; allowed: a valid integer"),
    ],
)
def test_what_cannot_be_is_one_line_with_the_file(tmp_path, keys, to, message):
    change(tmp_path, *keys, to=to)
    with pytest.raises(InputError) as error:
        Manifest.read(tmp_path)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"{tmp_path / 'manifest.json'}: ")
    assert message in line


def test_a_manifest_without_optional_fields_is_read_and_numbers_stay_as_written(tmp_path):
    WHOLE.write(tmp_path)
    assert Manifest.read(tmp_path) == WHOLE
    raw = json.loads(json.dumps(asdict(WHOLE)))
    for key in ("data", "config", "git", "versions"):
        del raw[key]
    raw["scores"] = {"val": {"macro": {"mrr@5": 0.5, "queries": 80}}}
    (tmp_path / "manifest.json").write_text(json.dumps(raw))
    manifest = Manifest.read(tmp_path)
    assert manifest.data == DataRecord() and manifest.versions == {}
    raw["data"] = {"train_sha256": "d" * 64, "languages": None}
    (tmp_path / "manifest.json").write_text(json.dumps(raw))
    manifest = Manifest.read(tmp_path)
    assert manifest.data == DataRecord(train_sha256="d" * 64)
    manifest.write(tmp_path)
    assert '"queries": 80\n' in (tmp_path / "manifest.json").read_text()


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"manifest\.json: no such file; a checkpoint has one"):
        Manifest.read(tmp_path)
    for content in (b"{", b"\xff\xfe", b"[1]"):
        (tmp_path / "manifest.json").write_bytes(content)
        with pytest.raises(InputError, match="not JSON|format"):
            Manifest.read(tmp_path)
