"""Fine-tune a re-ranker: `python train/finetune_reranker.py [--config FILE] [--key value]`.

Reads a data set, a file of `train/mine.py`, a first stage and a base model. Trains on the mined
negatives, scores the whole pipeline on val after every epoch, and writes checkpoints, logs and
`report.json` to `--out`. Prints one table at the end: the first stage, the re-ranker before
training, and each epoch. A stopped run continues with `--resume`. The run's folder can be used as
the model of a stage: `{rerank: cross_encoder, model: OUT}`.
"""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.training.reranker_config import RerankerConfig

COMMON = (
    "data.dataset",
    "model.kind",
    "model.name",
    "first.system",
    "first.checkpoint",
    "mined",
    "out",
    "tuning",
    "optimisation.epochs",
    "resume",
)


def main(argv: Sequence[str] | None = None) -> None:
    config = read_config(
        RerankerConfig,
        argv,
        program="train/finetune_reranker.py",
        description=__doc__ or "",
        common=COMMON,
    )
    from claim2source.training.early import check_reranker_early

    inputs = check_reranker_early(config)
    # Import torch, and everything that needs it, only after the arguments are checked.
    from claim2source.training.reranker import finetune_reranker

    finetune_reranker(config, inputs)


if __name__ == "__main__":
    run_program(main)
