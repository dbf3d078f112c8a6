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
from claim2source.training.config import FinetuneConfig
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


class KeptNegatives:
    """Keep the file of what is trained on in a run's folder, and with its state.

    `current` is that file. The first process writes, every process reads.
    """

    def __init__(self, train: Dataset, run: RunFolder, world: World) -> None:
        self.train, self.run, self.world = train, run, world
        self.current: Path = run.mined
        self.sentences: list[str] = []

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
        return self._read()

    @property
    def sha256(self) -> str | None:
        """Hash the rows that are trained on, once there are any."""
        return file_hash(self.current) if self.current.is_file() else None

    def _read(self) -> list[MinedRow]:
        barrier(self.world)
        return read_mined(self.current, self.train)


class RunNegatives(KeptNegatives):
    """Mine a retriever's negatives, once or every few epochs."""

    def __init__(
        self,
        config: FinetuneConfig,
        train: Dataset,
        run: RunFolder,
        store: Store,
        world: World,
        teacher: Teacher | None = None,
    ) -> None:
        super().__init__(train, run, world)
        self.config, self.teacher, self.store = config, teacher, store
        self.baseline: RandomBaseline | None = None

    def first(self, encoder: Encoder) -> list[MinedRow]:
        """Mine with the base model, copy the config's file, or take the teacher's candidates."""
        made = gather_values(self.current.is_file(), self.world)[0]
        if not made and self._mines:
            self._share(encoder)
        if self.world.is_first and not made:
            if self.config.mined is not None:
                write_mined(read_mined(self.config.mined, self.train), self.current)
            elif self.config.losses.distillation.candidates:
                assert self.teacher is not None
                rows = teachers_rows(self.teacher, self.train, self.config.mining)
                write_mined(rows, self.current)
            elif self.config.optimisation.negatives == 0:
                write_mined(_pairs(self.train), self.current)
            else:
                self._mine(encoder)
        if self.world.is_first:
            if self.baseline is None:
                seed = self.config.mining.seed
                rendering, store = self.config.rendering, self.store
                self.baseline = sampled_baseline(self.train, encoder, rendering, store, seed)
            temperature = self.config.optimisation.temperature
            self.sentences += temperature_sentences(self.baseline, temperature)
        return self._read()

    def again(self, encoder: Encoder, epoch: int) -> list[MinedRow]:
        """Mine the same pairs, in the same order, with the model as it is after an epoch."""
        before, self.current = self.current, self.run.mined_after(epoch)
        # An existing file is from a run that was killed after mining: the same weights mined it.
        made = gather_values(self.current.is_file(), self.world)[0]
        if not made:
            self._share(encoder)
        if self.world.is_first and not made:
            self._mine(encoder, read_mined(before, self.train))
        return self._read()

    def due(self, epoch: int) -> bool:
        """Tell whether to mine again after this epoch; never after the last."""
        optimisation = self.config.optimisation
        if optimisation.negatives == 0 or optimisation.remine_every == 0:
            return False
        return 0 < epoch < optimisation.epochs and epoch % optimisation.remine_every == 0

    @property
    def _mines(self) -> bool:
        """Tell whether the run mines, rather than reads what others found."""
        given = self.config.mined is not None or self.config.losses.distillation.candidates
        return not given and self.config.optimisation.negatives > 0

    def _share(self, encoder: Encoder) -> None:
        """Encode this process's share of what is mined from."""
        texts = self.config.rendering, self.train.claims, self.train.sources
        encode_shares(encoder, *texts, self.store, self.world)

    def _mine(self, encoder: Encoder, pairs: Sequence[MinedRow] | None = None) -> None:
        """Mine all pairs of the data set, or only `pairs`, to the current file."""
        rendering, mining = self.config.rendering, self.config.mining
        miner = Miner(self.train, encoder, rendering, mining, self.store, progress=True)
        rows = miner.mine()
        write_mined(rows if pairs is None else _in_places_of(pairs, rows), self.current)
        self.baseline = miner.counts.baseline
        self.sentences = miner.counts.sentences()


def _in_places_of(pairs: Sequence[MinedRow], mined: Iterable[MinedRow]) -> list[MinedRow]:
    """Order mined rows as these pairs; a pair that was not mined keeps its row."""
    # Batches are planned by row number, and a file named by the user need not hold every pair.
    by_pair = {(row.claim, row.positive): row for row in mined}
    return [by_pair.get((row.claim, row.positive), row) for row in pairs]


def _pairs(train: Dataset) -> list[MinedRow]:
    """Pair claims with their golds, without negatives: none are trained on."""
    return [MinedRow(claim.id, gold, ()) for claim in train.claims for gold in claim.golds]


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
