"""A writer of an index that is killed again and again loses nothing.

What it has begun and done stands in a journal. After each kill the index must open and hold exactly
what was done, the last step wholly or not at all; at the end it scores as one made at once.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from claim2source.core.records import Claim, Source
from claim2source.data.papers import Paper
from claim2source.search.analyser import Analyser
from claim2source.search.bm25 import BM25
from claim2source.search.engine import Engine
from claim2source.search.rows import Rows, half, paper_stamp
from tests.search.engines import WIDTH, read_any_manifest

WORDS, BUILD_EVERY = 500, 4
# Papers of a step, and papers from which vectors are divided.
BATCH, EXACT_BELOW = 200, 500
# Seconds within which a writer must have begun.
BEGIN = 120.0


@dataclass(frozen=True)
class Step:
    """What step `number` does to which papers; it depends only on the seed."""

    number: int
    kind: Literal["upsert", "delete", "build"]
    ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, number: int) -> Step:
        """Draw a step: most papers of an upsert are new, some replace older ones."""
        if number % BUILD_EVERY == BUILD_EVERY - 1:
            return cls(number, "build")
        draw = random.Random(f"{number}")
        total = number * BATCH
        if number % (2 * BUILD_EVERY + 1) == BUILD_EVERY:
            return cls(number, "delete", tuple(draw.sample(range(total), BATCH // 5)))
        old = draw.sample(range(total), min(total, BATCH // 5))
        new = range(total, total + BATCH - len(old))
        return cls(number, "upsert", (*old, *new))

    def applied(self, state: dict[str, str]) -> dict[str, str]:
        if self.kind == "upsert":
            papers = [to_paper(number, self.number) for number in self.ids]
            return state | {paper.source.id: paper_stamp(paper) for paper in papers}
        deleted = {f"p{number}" for number in self.ids}
        return {key: stamp for key, stamp in state.items() if key not in deleted}

    def write(self, engine: Engine) -> None:
        if self.kind == "upsert":
            engine.upsert(read_rows(self))
        elif self.kind == "delete":
            engine.delete([f"p{number}" for number in self.ids])
        else:
            engine.build()


def to_paper(paper_number: int, version: int) -> Paper:
    draw = random.Random(f"{paper_number} {version}")
    words = [f"w{int(WORDS * draw.random() ** 3)}" for _ in range(draw.randint(5, 60))]
    return Paper(Source(f"p{paper_number}", f"version {version}", " ".join(words)))


def read_rows(step: Step) -> Rows:
    papers = [to_paper(number, step.number) for number in step.ids]
    terms = Analyser(BM25()).sources([paper.source for paper in papers])
    vectors = np.stack(
        [np.random.default_rng([number, step.number]).normal(size=WIDTH) for number in step.ids]
    )
    texts, stamps = [" ".join(term) for term in terms], [*map(paper_stamp, papers)]
    # Of one sentence, whose vector is the paper's.
    return Rows(papers, texts, half(vectors), stamps, [*half(vectors)[:, None]])


def write(folder: Path) -> None:
    engine = reopen(folder)
    engine.lock()
    number = (folder / "journal").read_text(encoding="ascii").count("done")
    while True:
        step = Step.of(number)
        note(folder, f"begin {number} {step.kind}")
        step.write(engine)
        note(folder, f"done {number}")
        number += 1


def note(folder: Path, line: str) -> None:
    with open(folder / "journal", "a", encoding="ascii") as file:
        file.write(line + "\n")


def reopen(folder: Path) -> Engine:
    index = folder / "index"
    if (index / "manifest.json").is_file():
        return Engine.open(index, exact_below=EXACT_BELOW)
    return Engine.create(index, read_any_manifest(), exact_below=EXACT_BELOW)


def soak(folder: Path, kills: int) -> Counter[str]:
    """Kill the writer and look each time; count how often in what."""
    (folder / "journal").touch()
    draw, state, start = random.Random(0), dict[str, str](), 0
    killed: Counter[str] = Counter()
    for kill in range(kills):
        run_and_kill(folder, draw, in_build=kill % 2 == 1)
        lines = (folder / "journal").read_text(encoding="ascii").splitlines()
        finished = sum(line.startswith("done") for line in lines)
        for number in range(start, finished):
            state = Step.of(number).applied(state)
        start, last = finished, Step.of(finished)
        interrupted = bool(lines) and lines[-1].startswith("begin")
        killed[last.kind if interrupted else "between steps"] += 1
        stamps = contents(folder)
        if interrupted and stamps == last.applied(state):
            # The step was written, but not acknowledged.
            state, start = stamps, start + 1
            note(folder, f"done {last.number}")
        assert stamps == state, f"kill {kill}: {len(stamps)} papers, not {len(state)} as written"
    compare(folder, len(state))
    return killed


def run_and_kill(folder: Path, draw: random.Random, in_build: bool) -> None:
    """Start the writer, and kill it soon after its first step, or in a build."""
    journal = folder / "journal"
    before = journal.stat().st_size
    writer = multiprocessing.get_context("spawn").Process(target=write, args=(folder,))
    writer.start()
    end = time.monotonic() + BEGIN
    try:
        while (" build" if in_build else "begin") not in journal.read_text("ascii")[before:]:
            assert writer.is_alive() and time.monotonic() < end, "the writer ended or hung"
            time.sleep(0.002)
        time.sleep(draw.random() * (0.3 if in_build else 0.2))
    finally:
        writer.kill()
        writer.join()


def contents(folder: Path) -> dict[str, str]:
    """Open the index as the next process would, search it, and read its content."""
    engine, stamps = reopen(folder), dict[str, str]()
    for rows in engine.rows():
        stamps.update(zip((paper.source.id for paper in rows.papers), rows.stamps, strict=True))
        assert np.array_equal(np.concatenate(rows.sentences or []), rows.vectors)
    assert engine.stats().papers == len(stamps)
    assert len(engine.dense(np.ones(WIDTH), 10)) == min(10, len(stamps))
    engine.lexical(["w1", "w2"], 10)
    engine.close()
    return stamps


def compare(folder: Path, papers: int) -> None:
    """Build once more; lexical scores must be those of an index that was made at once."""
    engine = reopen(folder)
    engine.build()
    sources = [paper.source for rows in engine.rows() for paper in rows.papers]
    assert len(sources) == papers
    fresh = BM25().index(sources)
    for number in range(20):
        claim = Claim("c", to_paper(number, -1).source.abstract)
        expected = list(fresh.search([claim], 50).scored("c").values())
        hits = engine.lexical(Analyser(BM25()).claim(claim), 50)
        np.testing.assert_allclose([score for _, score in hits], expected, atol=1e-3)
    engine.close()


@pytest.mark.slow
def test_no_acknowledged_paper_is_lost_in_ten_kills(tmp_path: Path) -> None:
    killed = soak(tmp_path, 10)
    assert sum(killed.values()) == 10 and killed["build"]
