"""Run a pipeline: `python eval/pipeline.py --config FILE.yaml --dataset DIR --out DIR`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from claim2source.core.config import read_config
from claim2source.core.errors import ConfigError, run_program
from claim2source.core.folders import require_output
from claim2source.core.terminal import say
from claim2source.models.local import with_local_models
from claim2source.pipeline.checkpoints import route_words
from claim2source.pipeline.options import ChoosingOptions
from claim2source.pipeline.staged import (
    StagedOptions,
    evaluate_staged,
    pipeline_words,
    read_pipeline,
)
from claim2source.systems.heldout import ChoosingOn


@dataclass(frozen=True)
class PipelineConfig(StagedOptions, ChoosingOptions):
    """Settings of `eval/pipeline.py`; on the command line `--config` is `--pipeline`.

    Args:
        pipeline: YAML file of a system with stages; what it names and does not have is taken of
            `files`.
        system: which system of the file; none: the one that has stages.
        checkpoint: takes the place of the first stage's dense model: a checkpoint, the folder of
            a training run (its chosen checkpoint), or a model's name.
        routes: language -> checkpoint that ranks its claims in place of `checkpoint`; on the
            command line also `--checkpoint A de=B`.
    """

    pipeline: Path
    system: str | None = None
    checkpoint: str | None = None
    routes: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        super().check()
        if self.routes and self.checkpoint is None:
            raise ConfigError("routes", self.routes, "none without --checkpoint")

    @property
    def choosing_on(self) -> ChoosingOn:
        """Name the claims that a fusion and routes are chosen on."""
        return self.choosing("auto")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stages, score each against the one before, print the tables."""
    words = route_words(pipeline_words(sys.argv[1:] if argv is None else argv))
    config = read_config(PipelineConfig, words, program="eval/pipeline.py", description=__doc__)
    say(run_pipeline(config))


@with_local_models
def run_pipeline(config: PipelineConfig) -> str:
    """Run a file's pipeline, score and test each stage; write `config.out`, return the tables."""
    require_output(config.out)
    system = read_pipeline(config.pipeline, config.system, config.files)
    if config.checkpoint is not None:
        system = system.on_checkpoint(config.checkpoint, config.routes)
    dataset = config.reported([system.name])
    return evaluate_staged(config, dataset, system, program="eval/pipeline.py", heading=system.name)


if __name__ == "__main__":
    run_program(main)
