"""Remember which translators of indexes may run here: a copied index names its maker's.

An index's manifest may name a program or a server. It is used only if the same user set it with
`index --translator` on this machine; otherwise users name it again with `--translator`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from claim2source.core.config import as_plain
from claim2source.core.errors import UserError
from claim2source.core.files import content_hash, write_text
from claim2source.search.translator import TranslatorConfig

FILE = "translators.txt"


def allowed_file() -> Path:
    """Return the user's file of allowed translators, one hash per line."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "claim2source" / FILE


def allow(config: TranslatorConfig) -> None:
    """Allow a translator that indexes name, on this machine and for this user."""
    hashes = _allowed()
    if _hash(config) not in hashes:
        write_text(allowed_file(), "".join(f"{line}\n" for line in [*hashes, _hash(config)]))


def require_allowed(config: TranslatorConfig, location: str) -> None:
    """Raise `UserError` if an index names a program, model or server that was not allowed here."""
    if config.only_reads_words or _hash(config) in _allowed():
        return
    named = [*config.program, config.llm.model and config.llm.url, config.seq2seq.name]
    raise UserError(
        f"{location}: the index names a translator that was not allowed here: "
        f"{', '.join(filter(None, named))}; set it with --translator, or use --no_translate"
    )


def _allowed() -> list[str]:
    with suppress(FileNotFoundError):
        return allowed_file().read_text(encoding="utf-8").split()
    return []


def _hash(config: TranslatorConfig) -> str:
    return content_hash(as_plain(config))
