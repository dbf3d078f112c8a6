"""Write a small spaCy pipeline of looked-up lemmas."""

from __future__ import annotations

from pathlib import Path

LEMMAS = {"masks": "mask", "Masks": "mask", "worked": "work", "works": "work", "Tests": "test"}


def write_pipeline(folder: Path) -> str:
    import spacy
    from spacy.lookups import Lookups

    pipeline = spacy.blank("en")
    lookups = Lookups()
    lookups.add_table("lemma_lookup", LEMMAS)
    pipeline.add_pipe("lemmatizer", config={"mode": "lookup"}).initialize(lookups=lookups)
    pipeline.to_disk(folder)
    return str(folder)
