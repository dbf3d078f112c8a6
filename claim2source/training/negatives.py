"""Mine a run's hard negatives, once or again every few epochs, and save them with its state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from claim2source.core.errors import UserError
from claim2source.core.files import atomic_path, file_hash
from claim2source.core.records import Dataset
from claim2source.core.tables import TextTable
from claim2source.io.store import Store
from claim2source.mining import MinedRow, Miner, read_mined, write_mined
from claim2source.mining.baseline import RandomBaseline, sampled_baseline
from claim2source.models import Encoder
from claim2source.training.config import FinetuneConfig, OptimisationConfig
from claim2source.training.distributed import World, barrier, encode_shares, gather_values
from claim2source.training.resume import MinedFile
from claim2source.training.run_folder import RunFolder
from claim2source.training.teacher import Teacher, teachers_rows

# Random scores' standard deviation in temperatures. At 1.18 a claim's softmax over a batch is
# spread over half of its sources; at 8 the hardest of thousands takes nearly all of the gradient.
FLATTEST, SHARPEST = 1.18, 8.0
# E5 at 0.01 and MiniLM at 0.05, as they were trained; less where all papers are of one field, as E5
# has 1.4 on the demo's.
USUAL = 2.0
# First losses above so many times that of a guess are warned of.
_FAR = 2.0


def temperature_sentences(baseline: RandomBaseline | None, temperature: float) -> list[str]:
    """Warn in a line where a claim's softmax over random sources is too flat or too sharp.

    Normally distributed scores spread it over exp(-(deviation / temperature)^2 / 2) of them, the
    perplexity's share. Nothing is said where the scores are not known.
    """
    if baseline is None or not baseline.deviation:
        return []
    ratio = baseline.deviation / temperature
    if FLATTEST <= ratio <= SHARPEST:
        return []
    share = math.exp(-(ratio**2) / 2)
    effect = (
        f"flat: a claim's softmax is spread over {share:.0%} of its batch's sources"
        if ratio < FLATTEST
        else "sharp: a claim's softmax sees little but the nearest source"
    )
    return [
        f"warning: optimisation.temperature {temperature:g} is {effect}, since this model's "
        f"scores of random pairs deviate by {baseline.deviation:.3f}; about "
        f"{baseline.deviation / USUAL:.1g} would fit"
    ]


def first_loss_sentences(loss: float, candidates: int, temperature: float) -> list[str]:
    """Warn in a line where the first InfoNCE is far above that of scores that are all alike.

    Random scores that deviate by `USUAL` temperatures lie 1.6 times above it with 8 candidates.
    """
    chance = math.log(max(candidates, 2))
    if math.isfinite(loss) and loss <= _FAR * chance:
        return []
    return [
        f"the first loss is {loss:.3g}, where a guess among {candidates} sources has {chance:.3g}: "
        f"this model's scores are too large for optimisation.temperature {temperature:g}, or rank "
        "golds last; a higher temperature, or model.normalize: true, brings them down"
    ]


# Training pairs whose negatives are shown in W&B.
SHOWN_PAIRS = 50


class RunNegatives:
    """Keep the file of mined negatives that a run trains on, in its folder and with its state.

    `current` is that file. The first process writes, every process reads. `sentences` say how it
    was mined.
    """

    def __init__(self, train: Dataset, run: RunFolder, world: World) -> None:
        self.train, self.run, self.world = train, run, world
        self.current: Path = run.mined
        self.sentences: list[str] = []

    @property
    def exists(self) -> bool:
        """Tell all processes whether the first one has the current file."""
        return gather_values(self.current.is_file(), self.world)[0]

    def state(self) -> MinedFile:
        """Return the current file's name and bytes, for the state a run resumes from."""
        content = bytearray(self.current.read_bytes())
        return {"file": self.current.name, "content": torch.frombuffer(content, dtype=torch.uint8)}

    def restore(self, state: MinedFile) -> list[MinedRow]:
        """Continue with the rows of a saved state. Raises `UserError` if the file was changed."""
        self.current = self.run.path / Path(state["file"]).name
        content = state["content"].numpy().tobytes()
        if self.world.is_first:
            if not self.current.is_file():
                with atomic_path(self.current) as temporary:
                    temporary.write_bytes(content)
            elif self.current.read_bytes() != content:
                raise UserError(f"{self.current} is not what the run was trained on")
        return self.read()

    @property
    def sha256(self) -> str | None:
        """Hash the rows that are trained on, once there are any."""
        return file_hash(self.current) if self.current.is_file() else None

    def read(self) -> list[MinedRow]:
        """Read the current file in every process, once the first one has written it."""
        barrier(self.world)
        return read_mined(self.current, self.train)


def mine_first(
    negatives: RunNegatives,
    config: FinetuneConfig,
    encoder: Encoder,
    store: Store,
    teacher: Teacher | None = None,
) -> list[MinedRow]:
    """Mine with the base model, copy the config's file, or take the teacher's candidates."""
    train, world, current = negatives.train, negatives.world, negatives.current
    candidates = config.losses.distillation.candidates
    pairs_alone = config.optimisation.negatives == 0
    exists, baseline = negatives.exists, None
    if not exists and config.mined is None and not candidates and not pairs_alone:
        baseline = _mine(negatives, config, encoder, store)
    elif not exists and world.is_first:
        rows: Iterable[MinedRow]
        if config.mined is not None:
            rows = read_mined(config.mined, train)
        elif candidates:
            assert teacher is not None
            rows = teachers_rows(teacher, train, config.mining)
        else:
            rows = [MinedRow(claim.id, gold, ()) for claim in train.claims for gold in claim.golds]
        write_mined(rows, current)
    if world.is_first:
        if baseline is None:
            seed = config.mining.seed
            baseline = sampled_baseline(train, encoder, config.rendering, store, seed)
        negatives.sentences += temperature_sentences(baseline, config.optimisation.temperature)
    return negatives.read()


def mine_again(
    negatives: RunNegatives, config: FinetuneConfig, encoder: Encoder, store: Store, epoch: int
) -> list[MinedRow]:
    """Mine the same pairs, in the same order, with the model as it is after an epoch."""
    before, negatives.current = negatives.current, negatives.run.mined_after(epoch)
    # An existing file is from a run that was killed after mining: the same weights mined it.
    if not negatives.exists:
        _mine(negatives, config, encoder, store, before)
    return negatives.read()


def mines_after(config: OptimisationConfig, epoch: int) -> bool:
    """Tell whether to mine again after this epoch; never after the last."""
    if config.negatives == 0 or config.remine_every == 0:
        return False
    return 0 < epoch < config.epochs and epoch % config.remine_every == 0


def _mine(
    negatives: RunNegatives,
    config: FinetuneConfig,
    encoder: Encoder,
    store: Store,
    before: Path | None = None,
) -> RandomBaseline | None:
    """Mine all pairs of the data set, or those of the file `before`, to the current file."""
    train, rendering = negatives.train, config.rendering
    encode_shares(encoder, rendering, train.claims, train.sources, store, negatives.world)
    if not negatives.world.is_first:
        return None
    miner = Miner(train, encoder, rendering, config.mining, store, progress=True)
    rows: Iterable[MinedRow] = miner.mine()
    if before is not None:
        rows = _in_places_of(read_mined(before, train), rows)
    write_mined(rows, negatives.current)
    negatives.sentences = miner.counts.sentences()
    return miner.counts.baseline


def _in_places_of(pairs: Sequence[MinedRow], mined: Iterable[MinedRow]) -> list[MinedRow]:
    """Order mined rows as these pairs; a pair that was not mined keeps its row."""
    # Batches are planned by row number, and a file named by the user need not hold every pair.
    by_pair = {(row.claim, row.positive): row for row in mined}
    return [by_pair.get((row.claim, row.positive), row) for row in pairs]


def negatives_table(rows: Sequence[MinedRow], train: Dataset, seed: int) -> TextTable:
    """Sample pairs and list their negatives, for a reader."""
    columns = ["language", "claim", "gold", "negative", "score", "origin"]
    claims = {claim.id: claim for claim in train.claims}
    titles = {source.id: source.title or source.id for source in train.sources}
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    table = [
        [
            claims[row.claim].lang,
            claims[row.claim].text,
            titles[row.positive],
            titles[negative.source],
            negative.score,
            negative.origin,
        ]
        for row in (rows[i] for i in order[:SHOWN_PAIRS])
        for negative in row.negatives
    ]
    return TextTable(columns, table)
