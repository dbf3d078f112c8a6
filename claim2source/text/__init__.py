"""Rendering: record -> text. Nothing here knows a model."""

from claim2source.text.claims import ClaimForm, render_claim
from claim2source.text.rendering import Rendering
from claim2source.text.sources import SourceForm, clean_authors, render_source

__all__ = [
    "ClaimForm",
    "Rendering",
    "SourceForm",
    "clean_authors",
    "render_claim",
    "render_source",
]
