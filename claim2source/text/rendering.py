"""How a data set's records become text: one claim form and one source form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from claim2source.core.config import require_one_of
from claim2source.core.records import Claim, Source
from claim2source.text.claims import ClaimForm, render_claim
from claim2source.text.sources import SourceForm, render_source


@dataclass(frozen=True)
class Rendering:
    """Representation of claims and sources; part of a checkpoint's manifest.

    Args:
        claims: original, translated (English translation) or bilingual (both).
        sources: title_abstract, metadata (ours: metadata before the abstract) or
            metadata_paper_order.
    """

    claims: ClaimForm = "original"
    sources: SourceForm = "metadata"

    def __post_init__(self) -> None:
        require_one_of("rendering.claims", self.claims, get_args(ClaimForm))
        require_one_of("rendering.sources", self.sources, get_args(SourceForm))

    def claim_texts(self, claims: Iterable[Claim]) -> list[str]:
        """Texts of claims, in order."""
        return [render_claim(claim, self.claims) for claim in claims]

    def source_texts(self, sources: Iterable[Source]) -> list[str]:
        """Texts of sources, in order."""
        return [render_source(source, self.sources) for source in sources]
