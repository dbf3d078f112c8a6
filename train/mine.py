"""Mine hard negatives: `python train/mine.py --out mined.jsonl [--dataset DIR]`.

They come from the fused rankings of BM25 and `model`, or from the ranking of a first stage:
`--first.system NAME`. Both trainers read the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from claim2source.core.config import (
    Between,
    Number,
    PartialShare,
    Seed,
    Settings,
    Share,
    flag,
    list_field,
    read_config,
)
from claim2source.core.errors import run_program
from claim2source.core.files import refuse_input
from claim2source.core.folders import require_output_file
from claim2source.core.records import Dataset
from claim2source.core.terminal import say
from claim2source.data.folders import dataset_files
from claim2source.data.lenient import LENIENT
from claim2source.data.store import Store
from claim2source.mining import Miner, MiningConfig, RankingMiner, check_ranked, write_mined
from claim2source.mining.files import INSTRUCTION, sign, write_gritlm
from claim2source.models import ModelConfig, resolve
from claim2source.models.hub import require_model
from claim2source.systems.heldout import ChoosingOn, carve
from claim2source.text import Rendering
from claim2source.text.views import untranslated_sentences
from claim2source.training.reranker_config import FirstStageConfig
from claim2source.training.splits import load_judged

# Keys that are listed first in the help.
COMMON = (
    "dataset",
    "out",
    "model.name",
    "format",
    "split",
    "first.system",
    "mining.hard",
    "mining.random",
    "mining.first_rank",
    "mining.last_rank",
)


@dataclass(frozen=True)
class MineConfig(Settings):
    """Settings of `train/mine.py`.

    Args:
        out: JSONL file to write.
        format: `ids` of claims and sources with scores, for our trainers; `gritlm`: their texts
            (query, pos, neg), for the fine-tuning code of GritLM and of the 2026 paper.
        instruction: with `gritlm`, the instruction before each claim.
        dataset: folder in BEIR layout, or its name in CLAIM2SOURCE_DATA, or `demo`; or a file of
            pairs.
        split: split whose claims are mined.
        val_share: share carved out as val and not mined, as in training; 0 mines all.
        val_seed: seed that selects val's papers.
        val_seen_share: share of claims of other papers that are also held out; none: as val_share.
        seen_share_expected: share of seen papers' claims in val, as in training without
            data.val_seen_share; none: as val_seen_share says.
        limit: mine only for this many first claims, as `data.limit` in training; none: all.
        model: encoder of the dense scores; a checkpoint has its own rendering.
        first: a first stage whose ranking is mined instead of BM25's and the model's.
        rendering: representation of claims and sources.
        mining: choice of the negatives.
        store: folder of the embedding store; none: the user's cache.
        device: none takes a GPU if the machine has one.
    """

    out: Path
    format: Literal["ids", "gritlm"] = "ids"
    instruction: str = INSTRUCTION
    dataset: str = "demo"
    split: str = "train"
    val_share: PartialShare = 0.1
    val_seed: Seed = 13
    val_seen_share: Annotated[float, Between(0, 0.9)] | None = None
    seen_share_expected: Share | None = None
    limit: Number | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    first: FirstStageConfig = field(default_factory=FirstStageConfig)
    rendering: Rendering = field(default_factory=Rendering)
    mining: MiningConfig = field(default_factory=MiningConfig)
    store: Path | None = None
    device: Literal["cpu", "cuda"] | None = None
    languages: list[str] | None = list_field(help="mine claims in these languages only")
    lenient: bool = flag(LENIENT)

    def check(self) -> None:
        if self.ranked:
            check_ranked(self.mining)

    @property
    def ranked(self) -> bool:
        return self.first.system is not None


def mine(config: MineConfig) -> list[str]:
    """Mine negatives for the training claims and write them; return lines to print."""
    require_output_file(config.out)
    refuse_input(config.out, dataset_files(config.dataset))
    require_output_file(config.out, '"positive"', sign(config.instruction))
    if not config.ranked:
        require_model(config.model)
    train = load_judged(config.dataset, config.split, config.languages, lenient=config.lenient)
    if config.val_share:
        expected = config.seen_share_expected
        seen = config.val_seen_share
        if seen is None and expected is None:
            seen = config.val_share
        train = carve(train, config.val_share, config.val_seed, seen, expected).train
    if config.limit is not None:
        train = train.with_claims(train.claims[: config.limit])
    store = Store(config.store)
    miner: Miner | RankingMiner
    if config.ranked:
        miner, rendering = ranking_miner(config, train, store), config.rendering
    else:
        resolved = resolve(config.model, config.device)
        rendering = resolved.rendering or config.rendering
        miner = Miner(train, resolved.encoder, rendering, config.mining, store, progress=True)
    lines = untranslated_sentences(train.claims, rendering.claims)
    if config.format == "ids":
        rows = write_mined(miner.mine(), config.out)
        return [*lines, *miner.counts.sentences(), f"{rows} rows in {config.out}"]
    counts = write_gritlm(miner.mine(), config.out, train, rendering, config.instruction)
    lines += miner.counts.sentences()
    if counts.left_out:
        lines.append(f"{counts.left_out} pairs without a negative are left out")
    return [*lines, f"{counts.rows} rows of texts in {config.out}"]


def ranking_miner(config: MineConfig, train: Dataset, store: Store) -> RankingMiner:
    """Rank the training claims with the first stage, to mine from its candidates."""
    from claim2source.systems.system import RunSettings, SystemRunner
    from claim2source.training.reranker_data import first_system

    settings = RunSettings(
        config.dataset,
        ChoosingOn(lenient=config.lenient),
        store=store,
        device=config.device,
        depth=max(config.first.depth, config.mining.last_rank),
    )
    # A system chooses its settings on train, which is not reported here.
    runner = SystemRunner(replace(train, split="mined"), settings)
    ranked = runner.run(first_system(config.first), None, train).result
    return RankingMiner(train, ranked.run, config.mining, config.first.depth)


def main(argv: Sequence[str] | None = None) -> None:
    """Mine, write the JSONL, and print the numbers of negatives and of missing ones."""
    config = read_config(
        MineConfig, argv, program="train/mine.py", description=__doc__, common=COMMON
    )
    for line in mine(config):
        say(line)


if __name__ == "__main__":
    run_program(main)
