"""Write a small spaCy pipeline: looked-up lemmas, and entities by rules."""

from __future__ import annotations

from pathlib import Path

LEMMAS = {"masks": "mask", "Masks": "mask", "worked": "work", "works": "work", "Tests": "test"}
ENTITIES = ["WHO", "Boris Johnson", "London", "Cuomo", "New York"]


def write_pipeline(folder: Path) -> str:
    import spacy
    from spacy.lookups import Lookups

    pipeline = spacy.blank("en")
    lookups = Lookups()
    lookups.add_table("lemma_lookup", LEMMAS)
    pipeline.add_pipe("lemmatizer", config={"mode": "lookup"}).initialize(lookups=lookups)
    rules = [{"label": "NAME", "pattern": name} for name in ENTITIES]
    pipeline.add_pipe("entity_ruler").add_patterns(rules)
    pipeline.to_disk(folder)
    return str(folder)
