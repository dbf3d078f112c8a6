"""Define the options of programs that ask an index."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from claim2source.core.config import Share, require
from claim2source.data.store import Store
from claim2source.models.config import NUMPY, ModelChanges, ModelConfig
from claim2source.models.local import ModelOptions
from claim2source.search.engine import Engine

if TYPE_CHECKING:
    from claim2source.find.finder import Finder

INDEX = "CLAIM2SOURCE_INDEX"


@dataclass(frozen=True, kw_only=True)
class FinderOptions(ModelOptions):
    """Set the index that is searched, and the stages that follow it.

    Args:
        index: folder or bucket of the index; none: CLAIM2SOURCE_INDEX.
        pipeline: YAML file of a system whose stages follow the index, which is its first stage.
        system: which system of that file; none: the one that has stages.
        threshold: probability that the paper is there below which it is none of these; none: as
            it was fitted to the index.
        model: the model that made the index, if it lies elsewhere now.
        store: folder of the store, in which stages keep what they gave; none: the program's.
        device: none takes a GPU if there is one, but for one post of `find` NumPy if it can.
    """

    index: str | None = None
    pipeline: Path | None = None
    system: str | None = None
    threshold: Share | None = None
    model: str | None = None
    store: Path | None = None
    device: Literal["cpu", "cuda"] | None = None

    def check(self) -> None:
        require(self.index is not None, "index", None, f"a folder, or {INDEX}")
        good = self.system is None or self.pipeline is not None
        require(good, "system", self.system, "none without --pipeline")

    def open_finder(
        self,
        engine: Engine,
        store: Store | None,
        *,
        progress: bool = False,
        sentences: bool = True,
        one_post: bool = False,
    ) -> Finder:
        """Make a finder of an opened index. Raises `UserError` if something does not fit.

        For `one_post` the model runs in NumPy if it can: PyTorch takes longer to import.
        """
        from claim2source.find.finder import Finder

        pipeline = None
        if self.pipeline is not None:
            from claim2source.systems.read import read_staged

            pipeline = read_staged(self.pipeline, self.system)
        engine.device = NUMPY if one_post and self.device is None else self.device
        if self.model is not None:
            # Its settings are the index's.
            own = engine.manifest.model or ModelConfig()
            engine.load(ModelChanges(name=self.model).over(own))
        return Finder(
            engine,
            pipeline,
            threshold=self.threshold,
            store=store,
            device=self.device,
            progress=progress and pipeline is not None,
            sentences=sentences,
        )


def with_index(words: Sequence[str]) -> list[str]:
    """Name the index of the environment if the words name none."""
    options = list(words)
    if not any(word.partition("=")[0] in ("--index", "--help", "--config") for word in words):
        options += [f"--index={os.environ[INDEX]}"] if os.environ.get(INDEX) else []
    return options
