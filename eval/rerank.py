"""Re-rank, and score each stage: `python eval/rerank.py --system NAME --dataset DIR --out DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.core.terminal import say
from claim2source.pipeline.staged import StagedOptions, evaluate_staged, read_staged


@dataclass(frozen=True)
class RerankConfig(StagedOptions):
    """Settings of `eval/rerank.py`.

    Args:
        system: name of a system with stages, of the YAML files.
        run: a ranking of another program (TREC, a lab's TSV, the 2026 paper's score JSON) in
            place of the system's first stage.
    """

    system: str
    run: Path | None = None


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stages, score each against the one before, print the tables."""
    config = read_config(RerankConfig, argv, program="eval/rerank.py", description=__doc__ or "")
    say(rerank(config))


def rerank(config: RerankConfig) -> str:
    """Run a system's stages, score and test each; write `config.out`, return the tables.

    Raises `UserError` for a system that is not there, or has no stages.
    """
    systems = read_staged(config.files, config.system, config.run)
    return evaluate_staged(
        config, systems, config.system, program="eval/rerank.py", heading="Re-ranking"
    )


if __name__ == "__main__":
    run_program(main)
