"""Read, write, split and prepare data sets in the native BEIR layout."""

from claim2source.datasets.beir import DEMO, files_of, folder_of, load, read_beir, write_beir
from claim2source.datasets.lenient import HELP as LENIENT
from claim2source.datasets.split import carve_val

__all__ = [
    "DEMO",
    "LENIENT",
    "carve_val",
    "files_of",
    "folder_of",
    "load",
    "read_beir",
    "write_beir",
]
