"""Fine-tune a retriever: `python train/finetune.py [--config FILE] [--key value]`.

Reads a data set and a base model. Mines hard negatives, trains, scores every epoch on val, and
writes checkpoints, logs and `report.json` to `--out`. Prints MRR@5 after every epoch, and at the
end for the model before training and the chosen checkpoint. A stopped run continues with
`--resume`. Without arguments it runs configs/finetune/demo.yaml. Use `accelerate launch` instead
of `python` to train in several processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from claim2source.core.config import CONFIGS, read_config
from claim2source.core.errors import run_program
from claim2source.training.config import FinetuneConfig

COMMON = (
    "data.dataset",
    "model.name",
    "out",
    "tuning",
    "optimisation.epochs",
    "optimisation.batch_size",
    "optimisation.learning_rate",
    "optimisation.negatives",
    "wandb.mode",
    "resume",
)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the config and fine-tune; without arguments, or with only these flags, the demo."""
    words = list(sys.argv[1:] if argv is None else argv)
    if set(words) <= {"--resume", "--overwrite"}:
        words = ["--config", str(CONFIGS / "finetune" / "demo.yaml"), *words]
    config = read_config(
        FinetuneConfig,
        words,
        program="train/finetune.py",
        description=__doc__ or "",
        common=COMMON,
    )
    # Reduces fragmentation of GPU memory; must be set before torch is imported.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    from claim2source.training.early import check_early

    inputs = check_early(config)
    # Import torch, and everything that needs it, only after the arguments are checked.
    from claim2source.training.finetune import finetune

    finetune(config, inputs)


if __name__ == "__main__":
    run_program(main)
