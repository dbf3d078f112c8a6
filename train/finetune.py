"""Fine-tune a retriever: `accelerate launch train/finetune.py [--config FILE] [--key value]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.training.config import FinetuneConfig
from claim2source.training.finetune import finetune

DEMO = Path(__file__).resolve().parents[1] / "configs" / "finetune" / "demo.yaml"


def main(argv: Sequence[str] | None = None) -> None:
    """Without arguments, the demo's config; so too where all that is said is how to go on."""
    given = list(sys.argv[1:] if argv is None else argv)
    if set(given) <= {"--resume", "--overwrite"}:
        given = ["--config", str(DEMO), *given]
    config = read_config(
        FinetuneConfig,
        given,
        program="train/finetune.py",
        description=__doc__,
    )
    finetune(config)


if __name__ == "__main__":
    run_program(main)
