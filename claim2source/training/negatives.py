"""The mined negatives of a run: mined once or anew every few epochs, kept with its state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from claim2source.core.errors import UserError
from claim2source.core.files import atomic_path, file_hash
from claim2source.core.records import Dataset
from claim2source.io.store import Store
from claim2source.mining import MinedRow, Miner, read_mined, write_mined
from claim2source.models import Encoder
from claim2source.training.config import FinetuneConfig
from claim2source.training.distributed import barrier
from claim2source.training.launch import World
from claim2source.training.run_folder import RunFolder

# Pairs whose negatives are shown in W&B.
SHOWN_PAIRS = 50


class RunNegatives:
    """Files of mined rows in a run's folder; `current` is the one that is trained on.

    The first process writes, every process reads.
    """

    def __init__(
        self, config: FinetuneConfig, train: Dataset, run: RunFolder, store: Store, world: World
    ) -> None:
        self.config, self.train, self.run = config, train, run
        self.store, self.world = store, world
        self.current: Path = run.mined
        self.sentences: list[str] = []

    def first(self, encoder: Encoder) -> list[MinedRow]:
        """Rows to begin with: mined by the base model, or a copy of the file that was named."""
        if self.world.is_first and not self.current.is_file():
            if self.config.mined is not None:
                write_mined(read_mined(self.config.mined, self.train), self.current)
            elif self.config.optimisation.negatives == 0:
                write_mined(_pairs(self.train), self.current)
            else:
                self._mine(encoder)
        return self._read()

    def again(self, encoder: Encoder, epoch: int) -> list[MinedRow]:
        """The same pairs in the same places, mined by the model as it stands after an epoch."""
        before, self.current = self.current, self.run.mined_after(epoch)
        # A file that is there is of a run that was killed after it: mined by the same weights.
        if self.world.is_first and not self.current.is_file():
            self._mine(encoder, read_mined(before, self.train))
        return self._read()

    def due(self, epoch: int) -> bool:
        """Whether negatives are mined anew after this epoch: not where none are trained on."""
        optimisation = self.config.optimisation
        if optimisation.negatives == 0 or optimisation.remine_every == 0:
            return False
        return epoch % optimisation.remine_every == 0 and epoch < optimisation.epochs

    def state(self) -> dict[str, Any]:
        """What a resumed run needs: the file itself, as bytes."""
        content = bytearray(self.current.read_bytes())
        return {"file": self.current.name, "content": torch.frombuffer(content, dtype=torch.uint8)}

    def restore(self, state: dict[str, Any]) -> list[MinedRow]:
        """Go on with the rows of a saved state. Raises `UserError` where its file was changed."""
        self.current = self.run.path / Path(str(state["file"])).name
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
        """Hash of the rows that are trained on, once there are any."""
        return file_hash(self.current) if self.current.is_file() else None

    def _mine(self, encoder: Encoder, pairs: Sequence[MinedRow] | None = None) -> None:
        """Mine all pairs of the data set, or only `pairs`, to the current file."""
        miner = Miner(
            self.train,
            encoder,
            self.config.rendering,
            self.config.mining,
            self.store,
            progress=True,
        )
        rows = miner.mine()
        write_mined(rows if pairs is None else _in_places_of(pairs, rows), self.current)
        self.sentences = miner.counts.sentences()

    def _read(self) -> list[MinedRow]:
        barrier(self.world)
        return read_mined(self.current, self.train)


def _in_places_of(pairs: Sequence[MinedRow], mined: Iterable[MinedRow]) -> list[MinedRow]:
    """Mined rows of these pairs, in their order; a pair that was not mined keeps its row."""
    # Batches are planned by row number, and a file that the user named need not hold every pair.
    found = {(row.claim, row.positive): row for row in mined}
    return [found.get((row.claim, row.positive), row) for row in pairs]


def _pairs(train: Dataset) -> Iterable[MinedRow]:
    """Claims with their golds and no negatives: nothing is mined that nobody uses."""
    for claim in train.claims:
        for gold in claim.golds:
            yield MinedRow(claim.id, gold, ())


def shown_negatives(
    rows: list[MinedRow], train: Dataset, seed: int
) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of a table of sampled pairs with their negatives, for a person's eye."""
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
    return columns, table
