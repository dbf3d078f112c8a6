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

CLAIMS = [
    Claim("1", "Krass, Studie zu Kaffee", "de", "wow, a study on coffee"),
    Claim("2", "B"),
]


def test_a_claim_is_known_by_any_of_its_texts_whatever_its_id() -> None:
    trained_on = TrainedOn.on(CLAIMS)
    known = [
        CLAIMS[0],
        Claim("other/1", "krass,  studie zu\nKAFFEE ", "de"),
        Claim("9", "wow, a study on coffee"),
        Claim("9", "Autre texte", "fr", "Wow, a study on coffee"),
        Claim("9", "\uff22"),  # a full-width B
    ]
    for claim in known:
        assert trained_on.knows(claim)

    # An empty translation is not a text that all claims share.
    strange = [
        Claim("1", "Krass"),
        Claim("2", "C", "de", ""),
        Claim("3", "D", "de", " "),
    ]
    for claim in strange:
        assert not trained_on.knows(claim)
    on_strange = TrainedOn.on(strange)
    for claim in CLAIMS:
        assert not on_strange.knows(claim)


def test_a_union_knows_what_any_part_knows() -> None:
    first = TrainedOn.on(CLAIMS[:1])
    second = TrainedOn.on(CLAIMS[1:])
    unknown = TrainedOn(unrecorded=("b", "a"))
    union = first | second | unknown
    for claim in CLAIMS:
        assert union.knows(claim)
    assert union.unrecorded == ("a", "b")
    backwards = TrainedOn.on(reversed(CLAIMS))
    assert union.packed == backwards.packed
    assert union | union is union
    nothing = TrainedOn()
    assert nothing | TrainedOn() == nothing


def test_manifests_and_exports_carry_the_claims(tmp_path: Path) -> None:
    trained_on = TrainedOn.on(CLAIMS)
    manifest = replace(WHOLE, trained_on=trained_on)
    export_folder = tmp_path / "export"
    export_folder.mkdir()
    manifest.write(tmp_path)
    manifest.write_export(export_folder)
    assert Manifest.read(tmp_path) == manifest
    export = Manifest.read_export(export_folder)
    assert export is not None
    assert export.trained_on == manifest.trained_on

    # The manifest itself contains no text and no hash of one.
    written = (tmp_path / "manifest.json").read_text()
    values = json.loads(written)
    assert len(values["trained_on"]) == 64
    assert "trained_on" not in repr(manifest)

    # A manifest of an earlier version has no such claims.
    old = tmp_path / "old"
    old.mkdir()
    WHOLE.write(old)
    assert Manifest.read(old).trained_on is None


def altered(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def with_values(**changes: Any) -> Callable[[Path], None]:
    """A harm that sets values of the file."""
    return lambda path: altered(path, lambda values: values.update(changes))


@pytest.mark.parametrize(
    ("harm", "field"),
    [
        (lambda path: path.unlink(), None),
        (lambda path: path.write_text("{"), None),
        (lambda path: path.write_text("[]"), None),
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), None),
        (lambda path: altered(path, lambda v: v.pop("hashes")), "hashes"),
        (with_values(format=2), "format"),
        (with_values(texts="as they are"), "texts"),
        (lambda path: altered(path, lambda v: v.update(hashes=v["hashes"][:12])), "hashes"),
        (with_values(hashes="?" * 32), "hashes"),
        (with_values(hashes="QUFB" * 16), "hashes"),
        (with_values(hashes=""), "sha256"),
        (with_values(count=7), "sha256"),
        (with_values(unrecorded=["x"]), "sha256"),
        (lambda path: TrainedOn.on(CLAIMS[:1]).write(path.parent), None),
    ],
)
def test_a_damaged_or_exchanged_file_is_refused_in_one_line(
    tmp_path: Path, harm: Callable[[Path], object], field: str | None
) -> None:
    trained_on = TrainedOn.on(CLAIMS)
    manifest = replace(WHOLE, trained_on=trained_on)
    manifest.write(tmp_path)
    path = tmp_path / TRAINED_ON
    harm(path)
    with pytest.raises(InputError) as error:
        read_any_manifest(str(tmp_path))
    (line,) = str(error.value).splitlines()
    assert line.startswith(str(path))
    assert field is None or f": {field}: " in line


def test_the_manifest_names_a_hash(tmp_path: Path) -> None:
    trained_on = TrainedOn.on(CLAIMS)
    manifest = replace(WHOLE, trained_on=trained_on)
    manifest.write(tmp_path)
    path = tmp_path / "manifest.json"
    altered(path, lambda values: values.update(trained_on=["x"]))
    with refused(InputError, f"{path}: trained_on: "):
        Manifest.read(tmp_path)


def test_100_000_claims_are_a_small_file_that_is_soon_read(tmp_path: Path) -> None:
    draw = random.Random(0)
    hashes = [draw.randbytes(8) for _ in range(100_000)]
    TrainedOn.of_hashes(hashes).write(tmp_path)
    path = tmp_path / TRAINED_ON
    assert path.stat().st_size < 1.2e6
    started = time.process_time()
    found = TrainedOn.read(tmp_path)
    assert len(found.packed) == 800_000
    seconds = time.process_time() - started
    assert seconds < 2
