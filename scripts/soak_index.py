"""Kill -9 what writes an index, again and again: `python scripts/soak_index.py --kills 30`.

A process adds, replaces and removes papers and builds the index; what it has begun and what is
done stands in a journal. It is killed at any moment, also while it builds. After each kill the
index must open and hold exactly what was done, with the last step wholly or not at all; at the
end it must score as an index that was made at once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from claim2source.core.config import flag, read_config, require_between
from claim2source.core.errors import UserError, run_program
from claim2source.core.records import Claim, Source
from claim2source.core.terminal import say
from claim2source.datasets.papers import Paper
from claim2source.engines import Engine
from claim2source.engines.manifest import IndexManifest
from claim2source.engines.rows import SPLIT, Rows, half, stamp_of
from claim2source.retrieve import BM25, BM25Config
from claim2source.retrieve.analyser import Analyser
from claim2source.text import Rendering

WIDTH, WORDS, BUILD_EVERY = 32, 500, 4
# What a step does: add and replace, remove, or build.
UPSERT, DELETE, BUILD = "upsert", "delete", "build"
# Seconds within which a writer must have begun.
BEGIN = 120.0


@dataclass(frozen=True)
class Config:
    """Settings of `scripts/soak_index.py`.

    Args:
        kills: how often the writer is killed.
        batch: papers that a step adds or replaces.
        seed: decides the steps and the moments.
        folder: where the index is made; none: a temporary folder.
        exact_below: papers from which vectors are divided.
    """

    kills: int = 30
    batch: int = 500
    seed: int = 0
    folder: Path | None = None
    exact_below: int = 2_000
    write: bool = flag("be the writer: for the program itself")

    def __post_init__(self) -> None:
        require_between("kills", self.kills, 1, 10_000)
        require_between("batch", self.batch, 10, 100_000)


@dataclass(frozen=True)
class Step:
    """Hold what step `number` does to which papers; it depends on the seed alone."""

    number: int
    kind: str
    ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, number: int, config: Config) -> Step:
        """Draw a step: most papers of an upsert are new, some replace older ones."""
        if number % BUILD_EVERY == BUILD_EVERY - 1:
            return cls(number, BUILD)
        draw = random.Random(f"{config.seed} {number}")
        known = number * config.batch
        if number % (2 * BUILD_EVERY + 1) == BUILD_EVERY:
            return cls(number, DELETE, tuple(draw.sample(range(known), config.batch // 5)))
        old = draw.sample(range(known), min(known, config.batch // 5))
        new = range(known, known + config.batch - len(old))
        return cls(number, UPSERT, (*old, *new))

    def applied(self, state: dict[str, str]) -> dict[str, str]:
        """Return what an index holds after this step: id -> stamp."""
        if self.kind == UPSERT:
            papers = [paper_of(one, self.number) for one in self.ids]
            return state | {paper.source.id: stamp_of(paper) for paper in papers}
        gone = {f"p{one}" for one in self.ids}
        return {one: stamp for one, stamp in state.items() if one not in gone}


def paper_of(one: int, version: int) -> Paper:
    """Make a version of a paper."""
    draw = random.Random(f"{one} {version}")
    words = [f"w{int(WORDS * draw.random() ** 3)}" for _ in range(draw.randint(5, 60))]
    return Paper(Source(f"p{one}", f"version {version}", " ".join(words)))


def rows_of(step: Step) -> Rows:
    """Make what an upsert writes."""
    papers = [paper_of(one, step.number) for one in step.ids]
    terms = Analyser(BM25Config()).sources([paper.source for paper in papers])
    vectors = np.stack(
        [np.random.default_rng([one, step.number]).normal(size=WIDTH) for one in step.ids]
    )
    texts, stamps = [" ".join(one) for one in terms], [*map(stamp_of, papers)]
    # Of one sentence, whose vector is the paper's.
    return Rows(papers, texts, half(vectors), stamps, [*half(vectors)[:, None]])


def main(argv: Sequence[str] | None = None) -> None:
    """Kill, look, and say what was found; or write."""
    config = read_config(Config, argv, program="scripts/soak_index.py", description=__doc__)
    if config.write:
        write(config)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = config.folder or Path(temporary)
        say(soak(config, folder))


def write(config: Config) -> None:
    """Do step after step, until killed."""
    assert config.folder is not None
    engine = opened(config.folder / "index", config)
    engine.lock()
    journal = config.folder / "journal"
    number = sum(line.startswith("done") for line in journal.read_text().splitlines())
    while True:
        step = Step.of(number, config)
        note(journal, f"begin {number} {step.kind}")
        if step.kind == UPSERT:
            engine.upsert(rows_of(step))
        elif step.kind == DELETE:
            engine.delete([f"p{one}" for one in step.ids])
        else:
            engine.build()
        note(journal, f"done {number}")
        number += 1


def note(journal: Path, line: str) -> None:
    """Add a line to the journal."""
    with open(journal, "a", encoding="ascii") as file:
        file.write(line + "\n")


def opened(folder: Path, config: Config) -> Engine:
    """Open the index, or make it."""
    if (folder / "manifest.json").is_file():
        return Engine.open(folder, exact_below=config.exact_below)
    bm25 = BM25Config()
    keys: dict[str, object] = {"encoders": {"claim": {}, "source": {}}}
    versions = Analyser(bm25).versions
    manifest = IndexManifest(keys, None, Rendering(), bm25, versions, WIDTH, sentences=SPLIT)
    return Engine.create(folder, manifest, exact_below=config.exact_below)


def soak(config: Config, folder: Path) -> str:
    """Kill the writer `kills` times and look each time; say how often in what.

    Raises `UserError` where the index holds anything but what was done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / "journal"
    journal.touch()
    draw, state, done = random.Random(config.seed), dict[str, str](), 0
    killed: Counter[str] = Counter()
    for kill in range(config.kills):
        run_and_kill(config, folder, draw, in_build=kill % 2 == 1)
        lines = journal.read_text().splitlines()
        finished = sum(line.startswith("done") for line in lines)
        for number in range(done, finished):
            state = Step.of(number, config).applied(state)
        done = finished
        last = Step.of(done, config)
        begun = bool(lines) and lines[-1].startswith("begin")
        killed[last.kind if begun else "between steps"] += 1
        held = contents(folder, config)
        if begun and held == last.applied(state):
            # The step was written, though nobody was told.
            state, done = held, done + 1
            note(journal, f"done {last.number}")
        elif held != state:
            lost = sum(held.get(one) != stamp for one, stamp in state.items())
            more = len(held.keys() - state.keys())
            raise UserError(
                f"{folder}: after kill {kill + 1}, in {last.kind}: {lost} of {len(state)} papers "
                f"lost or changed, {more} that should not be there"
            )
    return f"{report(killed, done, len(state))}\n{final(config, folder, state)}"


def run_and_kill(config: Config, folder: Path, draw: random.Random, in_build: bool) -> None:
    """Start the writer, and kill it soon after its first step, or in a build."""
    journal = folder / "journal"
    before = journal.stat().st_size
    words = [sys.executable, str(Path(__file__).resolve()), "--write", "--folder", str(folder)]
    for name in ("batch", "seed", "exact_below"):
        words += [f"--{name}", str(getattr(config, name))]
    writer = subprocess.Popen(words, stderr=subprocess.PIPE)
    end = time.monotonic() + BEGIN
    try:
        while True:
            new = journal.read_text()[before:]
            if (f" {BUILD}" if in_build else "begin") in new:
                break
            if writer.poll() is not None or time.monotonic() > end:
                assert writer.stderr is not None
                writer.kill()
                said = writer.stderr.read().decode("utf-8", "replace")[-500:]
                raise UserError(f"{folder}: the writer ended or hung: {said}")
            time.sleep(0.002)
        time.sleep(draw.random() * (0.3 if in_build else 0.2))
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()


def contents(folder: Path, config: Config) -> dict[str, str]:
    """Open the index as the next process would, search it, and read what it holds."""
    engine = opened(folder / "index", config)
    held = dict[str, str]()
    for rows in engine.rows():
        held.update(zip((one.source.id for one in rows.papers), rows.stamps, strict=True))
        if not np.array_equal(np.concatenate(rows.sentences or []), rows.vectors):
            raise UserError(f"{folder}: a sentence has another vector than it was written with")
    papers = len(held)
    if engine.stats().papers != papers:
        raise UserError(f"{folder}: {engine.stats().papers} rows for {papers} papers")
    hits = engine.dense(np.ones(WIDTH), 10)
    engine.lexical(["w1", "w2"], 10)
    if len(hits) != min(10, papers):
        raise UserError(f"{folder}: a search finds {len(hits)} of {papers} papers")
    engine.close()
    return held


def report(killed: Counter[str], done: int, papers: int) -> str:
    """Say when the writer was killed, and what there was in the end."""
    moments = ", ".join(f"{count} in {kind}" for kind, count in sorted(killed.items()))
    return f"{sum(killed.values())} kills ({moments}); {done} steps, {papers} papers, none lost"


def final(config: Config, folder: Path, state: dict[str, str]) -> str:
    """Build once more, and compare lexical scores with an index that was made at once."""
    engine = opened(folder / "index", config)
    engine.build()
    sources = [paper.source for rows in engine.rows() for paper in rows.papers]
    fresh = BM25().index(sources)
    worst = 0.0
    for number in range(20):
        claim = Claim("c", paper_of(number, -1).source.abstract)
        expected = list(fresh.search([claim], 50).scored("c").values())
        hits = engine.lexical(Analyser(BM25Config()).claim(claim), 50)
        found = np.array([score for _, score in hits])
        worst = max(worst, float(np.abs(found - np.array(expected)).max(initial=0)))
    engine.close()
    if worst > 1e-3 or len(sources) != len(state):
        raise UserError(f"{folder}: scores differ by {worst:.2g} from an index made at once")
    return f"scores differ by at most {worst:.1g} from an index made at once"


if __name__ == "__main__":
    run_program(main)
