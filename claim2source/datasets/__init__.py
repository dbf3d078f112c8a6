"""Read, write, split and prepare data sets in the native BEIR layout."""

from claim2source.datasets.beir import files_of, folder_of, write_beir
from claim2source.datasets.lenient import HELP as LENIENT
from claim2source.datasets.loading import load
from claim2source.datasets.split import carve_val, expected_seen_share, seen_claims

__all__ = [
    "LENIENT",
    "carve_val",
    "expected_seen_share",
    "files_of",
    "folder_of",
    "load",
    "seen_claims",
    "write_beir",
]
