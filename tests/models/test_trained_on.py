"""trained_on.json: claims are recognised in every form, and a damaged file is refused."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import InputError
from claim2source.core.records import Claim
from claim2source.models.manifest import Manifest, read_any_manifest
from claim2source.models.trained_on import TRAINED_ON, TrainedOn
from tests.models.test_manifest import WHOLE
from tests.refusals import refused

CLAIMS = [Claim("1", "Krass, Studie zu Kaffee", "de", "wow, a study on coffee"), Claim("2", "B")]


def test_a_claim_is_known_by_any_of_its_texts_whatever_its_id() -> None:
    trained_on = TrainedOn.on(CLAIMS)
    known = [
        CLAIMS[0],
        Claim("other/1", "krass,  studie zu\nKAFFEE ", "de"),
        Claim("9", "wow, a study on coffee"),
        Claim("9", "Autre texte", "fr", "Wow, a study on coffee"),
        Claim("9", "\uff22"),  # a full-width B
    ]
    assert all(map(trained_on.knows, known))
    # An empty translation is not a text that all claims share.
    strange = [Claim("1", "Krass"), Claim("2", "C", "de", ""), Claim("3", "D", "de", " ")]
    assert not any(map(trained_on.knows, strange))
    assert not any(map(TrainedOn.on(strange).knows, CLAIMS))


def test_a_union_knows_what_any_part_knows() -> None:
    parts = TrainedOn.on(CLAIMS[:1]), TrainedOn.on(CLAIMS[1:]), TrainedOn(unrecorded=("b", "a"))
    union = parts[0] | parts[1] | parts[2]
    assert all(map(union.knows, CLAIMS)) and union.unrecorded == ("a", "b")
    assert union.packed == TrainedOn.on(reversed(CLAIMS)).packed
    assert union | union is union and TrainedOn() | TrainedOn() == TrainedOn()


def test_manifests_and_exports_carry_the_claims(tmp_path: Path) -> None:
    manifest = replace(WHOLE, trained_on=TrainedOn.on(CLAIMS))
    (tmp_path / "export").mkdir()
    manifest.write(tmp_path)
    manifest.write_export(tmp_path / "export")
    assert Manifest.read(tmp_path) == manifest
    export = Manifest.read_export(tmp_path / "export")
    assert export is not None and export.trained_on == manifest.trained_on
    # The manifest itself contains no text and no hash of one.
    assert len(json.loads((tmp_path / "manifest.json").read_text())["trained_on"]) == 64
    assert "trained_on" not in repr(manifest)
    # A manifest of an earlier version has no such claims.
    (tmp_path / "old").mkdir()
    WHOLE.write(tmp_path / "old")
    assert Manifest.read(tmp_path / "old").trained_on is None


def altered(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("harm", "field"),
    [
        (lambda path: path.unlink(), None),
        (lambda path: path.write_text("{"), None),
        (lambda path: path.write_text("[]"), None),
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), None),
        (lambda path: altered(path, lambda v: v.pop("hashes")), "hashes"),
        (lambda path: altered(path, lambda v: v.update(format=2)), "format"),
        (lambda path: altered(path, lambda v: v.update(texts="as they are")), "texts"),
        (lambda path: altered(path, lambda v: v.update(hashes=v["hashes"][:12])), "hashes"),
        (lambda path: altered(path, lambda v: v.update(hashes="?" * 32)), "hashes"),
        (lambda path: altered(path, lambda v: v.update(hashes="QUFB" * 16)), "hashes"),
        (lambda path: altered(path, lambda v: v.update(hashes="")), "sha256"),
        (lambda path: altered(path, lambda v: v.update(count=7)), "sha256"),
        (lambda path: altered(path, lambda v: v.update(unrecorded=["x"])), "sha256"),
        (lambda path: TrainedOn.on(CLAIMS[:1]).write(path.parent), None),
    ],
)
def test_a_damaged_or_exchanged_file_is_refused_in_one_line(
    tmp_path: Path, harm: Callable[[Path], object], field: str | None
) -> None:
    replace(WHOLE, trained_on=TrainedOn.on(CLAIMS)).write(tmp_path)
    path = tmp_path / TRAINED_ON
    harm(path)
    with pytest.raises(InputError) as error:
        read_any_manifest(str(tmp_path))
    (line,) = str(error.value).splitlines()
    assert line.startswith(str(path)) and (field is None or f": {field}: " in line)


def test_the_manifest_names_a_hash(tmp_path: Path) -> None:
    replace(WHOLE, trained_on=TrainedOn.on(CLAIMS)).write(tmp_path)
    altered(tmp_path / "manifest.json", lambda values: values.update(trained_on=["x"]))
    with refused(InputError, f"{tmp_path / 'manifest.json'}: trained_on: "):
        Manifest.read(tmp_path)


def test_100_000_claims_are_a_small_file_that_is_soon_read(tmp_path: Path) -> None:
    draw = random.Random(0)
    hashes = [draw.randbytes(8) for _ in range(100_000)]
    TrainedOn.of_hashes(hashes).write(tmp_path)
    assert (tmp_path / TRAINED_ON).stat().st_size < 1.2e6
    started = time.process_time()
    assert len(TrainedOn.read(tmp_path).packed) == 800_000
    assert time.process_time() - started < 2
