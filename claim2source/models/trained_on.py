"""Read and write `trained_on.json`: hashes of the claims that a model was trained on."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

import numpy as np

from claim2source.core.errors import InputError
from claim2source.core.files import content_hash, file_error, write_json
from claim2source.core.records import Claim
from claim2source.core.validate import Strict, read_json, validated
from claim2source.data.grouping import plain_text

TRAINED_ON = "trained_on.json"
# Bytes of a hash: 8 keep 100,000 claims apart, and take 1.1 MB of a file with their translations.
WIDTH = 8


def text_hash(text: str) -> bytes:
    """Hash a text; texts that differ in case, spaces and Unicode form alone have one hash."""
    return hashlib.sha256(plain_text(text).encode("utf-8", "surrogatepass")).digest()[:WIDTH]


def claim_hashes(claim: Claim) -> set[bytes]:
    """Hash a claim's own text and its translation: every claim form uses one of them."""
    texts = (claim.text, claim.translation or "")
    return {text_hash(text) for text in texts if text.strip()}


@dataclass(frozen=True)
class TrainedOn:
    """Hashes of the texts of the claims that something was trained or fitted on.

    `packed` are the sorted hashes, one after the other. `unrecorded` names base models whose
    claims are not recorded.
    """

    packed: bytes = b""
    unrecorded: tuple[str, ...] = ()

    @classmethod
    def on(cls, claims: Iterable[Claim]) -> Self:
        """Hash the texts of claims."""
        return cls.of_hashes(value for claim in claims for value in claim_hashes(claim))

    @classmethod
    def of_hashes(cls, hashes: Iterable[bytes], unrecorded: Iterable[str] = ()) -> Self:
        packed = b"".join(sorted(set(hashes)))
        names = sorted(set(unrecorded))
        return cls(packed, tuple(names))

    @cached_property
    def hashes(self) -> frozenset[bytes]:
        starts = range(0, len(self.packed), WIDTH)
        return frozenset(self.packed[start : start + WIDTH] for start in starts)

    @property
    def sha256(self) -> str:
        return content_hash([_TEXTS, _HASH, self.as_text(), list(self.unrecorded)])

    def knows(self, claim: Claim) -> bool:
        """Whether the claim was trained on, in any of its forms."""
        return not self.hashes.isdisjoint(claim_hashes(claim))

    def __bool__(self) -> bool:
        return bool(self.packed or self.unrecorded)

    def __or__(self, other: TrainedOn) -> TrainedOn:
        if other == self:
            return self
        names = (*self.unrecorded, *other.unrecorded)
        return TrainedOn.of_hashes(self.hashes | other.hashes, names)

    def as_text(self) -> str:
        """Write the hashes in base64."""
        return base64.b64encode(self.packed).decode()

    @classmethod
    def from_text(cls, text: str, unrecorded: Iterable[str] = ()) -> Self:
        """Read hashes in base64. Raises `ValueError` for anything else."""
        try:
            packed = base64.b64decode(text, validate=True)
        except binascii.Error:
            raise ValueError("not base64") from None
        if len(packed) % WIDTH:
            raise ValueError("a hash is cut")
        numbers = np.frombuffer(packed, ">u8")
        if not (numbers[1:] > numbers[:-1]).all():
            raise ValueError("not sorted")
        return cls(packed, tuple(unrecorded))

    def write(self, folder: Path) -> None:
        """Write `trained_on.json` into a folder, atomically."""
        count = len(self.packed) // WIDTH
        file = _File(1, _TEXTS, _HASH, count, self.unrecorded, self.sha256, self.as_text())
        write_json(folder / TRAINED_ON, asdict(file))

    @classmethod
    def read(cls, folder: Path, sha256: str | None = None) -> Self:
        """Read the file of a folder; `sha256` is that in the manifest next to it.

        Raises `InputError` if the file is missing, damaged or replaced.
        """
        path = folder / TRAINED_ON
        if file_error(path) == "no such file" and sha256 is not None:
            raise InputError(path, reason="is missing, but the manifest names it")
        raw = read_json(path)
        file = validated(_File, _as_json(raw, path), path)
        try:
            read = cls.from_text(file.hashes, file.unrecorded)
        except ValueError as error:
            raise InputError(path, field="hashes", reason=f"damaged: {error}") from None
        if read.sha256 != file.sha256 or len(read.packed) != file.count * WIDTH:
            raise InputError(path, field="sha256", reason="does not match the hashes: damaged")
        if sha256 is not None and read.sha256 != sha256:
            raise InputError(path, reason="its sha256 is not the manifest's: damaged or replaced")
        return read


def is_trained_on(folder: Path) -> bool:
    """Whether a folder has a `trained_on.json` of ours."""
    try:
        TrainedOn.read(folder)
    except InputError:
        return False
    return True


_Texts = Literal["NFKC, small letters, single spaces; own text and translation"]
_Hash = Literal["the first 8 bytes of sha256, sorted, in base64"]
_TEXTS: _Texts = "NFKC, small letters, single spaces; own text and translation"
_HASH: _Hash = "the first 8 bytes of sha256, sorted, in base64"


@dataclass(frozen=True)
class _File(Strict):
    """Fields of `trained_on.json`.

    `texts` and `hash` describe how a text is hashed; a file with another rule is refused.
    """

    format: Literal[1]
    texts: _Texts
    hash: _Hash
    count: int
    unrecorded: tuple[str, ...]
    sha256: str
    hashes: str


def _as_json(raw: object, path: Path) -> str:
    if not isinstance(raw, dict):
        raise InputError(path, reason="not a JSON object")
    return json.dumps(raw)
