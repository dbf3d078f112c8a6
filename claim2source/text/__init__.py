"""Render records as text, independently of any model."""

from claim2source.text.views import ClaimForm as ClaimForm
from claim2source.text.views import Rendering as Rendering
from claim2source.text.views import SourceForm as SourceForm
from claim2source.text.views import clean_authors as clean_authors
from claim2source.text.views import render_claim as render_claim
from claim2source.text.views import render_source as render_source
