"""Find the configs that ship with the package, where there is no checkout around."""

from __future__ import annotations

import logging
from pathlib import Path

from claim2source.core.errors import InputError

log = logging.getLogger(__name__)

# A link to the repository's configs; in an installed package the files themselves.
CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def shipped(path: Path, program: str) -> Path:
    """Return `path`, or the config of the package that `configs/...` names where it is absent.

    Raises `InputError` that lists the configs of `program` where there is neither.
    """
    if path.exists() or path.is_symlink():
        return path
    parts = path.parts
    if parts[:1] == ("configs",) and (packaged := CONFIGS.joinpath(*parts[1:])).is_file():
        log.warning("%s is not here: the one that ships with claim2source is read", path)
        return packaged
    files = sorted(CONFIGS.glob(f"{Path(program).stem}/*.yaml"))
    names = [f"configs/{file.relative_to(CONFIGS).as_posix()}" for file in files]
    why = "no such file or directory"
    if names:
        why += f"; these ship with claim2source: {', '.join(names)}"
    raise InputError(path, why=why)
