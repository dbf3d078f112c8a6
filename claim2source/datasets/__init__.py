"""Data sets: the native BEIR layout, what is made from it, and what is turned into it."""

from claim2source.datasets.beir import (
    DEMO,
    data_folder,
    folder_of,
    load,
    read_beir,
    write_beir,
)
from claim2source.datasets.split import carve_val

__all__ = ["DEMO", "carve_val", "folder_of", "data_folder", "load", "read_beir", "write_beir"]
