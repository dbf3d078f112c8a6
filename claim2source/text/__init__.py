"""Render records as text; nothing here knows a model."""

from claim2source.text.views import (
    ClaimForm,
    Rendering,
    SourceForm,
    clean_authors,
    render_claim,
    render_source,
)

__all__ = [
    "ClaimForm",
    "Rendering",
    "SourceForm",
    "clean_authors",
    "render_claim",
    "render_source",
]
