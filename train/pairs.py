"""Make a data set of a pool's papers alone: `python train/pairs.py --dataset DIR --out DIR`.

A title is the claim of its paper, whose source in the new set has no title; a sentence is the
claim of its paper, whose abstract there lacks it. No claim of the data set is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

from claim2source.core.config import (
    Between,
    Seed,
    Settings,
    SplitShare,
    flag,
    list_field,
    read_config,
    require,
    require_one_of,
)
from claim2source.core.errors import run_program
from claim2source.core.files import require_writable
from claim2source.core.terminal import say
from claim2source.datasets import LENIENT, folder_of, load, write_beir
from claim2source.datasets.beir import check_folders
from claim2source.datasets.pool_pairs import Kind, pool_pairs


@dataclass(frozen=True)
class PairsConfig(Settings):
    """Settings of `train/pairs.py`.

    Args:
        out: folder of the new data set, with the splits train and dev.
        dataset: folder in BEIR layout, or `demo`; its whole pool is read.
        split: any split of it; its claims are not used.
        seed: decides the sentences and the papers of dev.
        dev_share: share of the papers whose pairs are reported on and not trained on.
        min_words: fewest words of a sentence, and of what it leaves of its abstract.
        lang: language of the papers.
    """

    out: Path
    dataset: str = "demo"
    split: str = "train"
    seed: Seed = 13
    dev_share: SplitShare = 0.05
    min_words: Annotated[int, Between(1, 1000)] = 8
    lang: str = "en"
    kinds: list[Kind] = list_field(get_args(Kind), help="title, sentence or both")
    lenient: bool = flag(LENIENT)
    overwrite: bool = flag("replace an older data set there, which is moved to NAME.replaced")

    def check(self) -> None:
        kinds = get_args(Kind)
        require(bool(self.kinds), "kinds", self.kinds, "one or more of " + ", ".join(kinds))
        for kind in self.kinds:
            require_one_of("kinds", kind, kinds)


def pairs(config: PairsConfig) -> list[str]:
    """Write the pairs of a pool as a data set; return what to print."""
    require_writable(config.out, "folder")
    check_folders(folder_of(config.dataset), config.out, config.overwrite)
    data = load(config.dataset, config.split, lenient=config.lenient)
    made = pool_pairs(
        data.sources,
        config.kinds,
        seed=config.seed,
        dev_share=config.dev_share,
        min_words=config.min_words,
        lang=config.lang,
    )
    write_beir([made.train, made.dev], config.out, overwrite=config.overwrite)
    counts = f"{len(made.train.claims)} pairs in train, {len(made.dev.claims)} in dev"
    return [f"{config.out}: {len(made.train.sources)} sources, {counts}", *made.notes]


def main(argv: Sequence[str] | None = None) -> None:
    """Write the data set, print what it holds and what was left out."""
    config = read_config(PairsConfig, argv, program="train/pairs.py", description=__doc__)
    for line in pairs(config):
        say(line)


if __name__ == "__main__":
    run_program(main)
