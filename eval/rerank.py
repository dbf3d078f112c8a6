"""Re-rank, and score each stage: `python eval/rerank.py --system NAME --dataset DIR --out DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from claim2source.core.config import Share, list_field, read_config, require
from claim2source.core.errors import run_program
from claim2source.core.folders import require_output
from claim2source.core.report import Choice
from claim2source.core.terminal import say
from claim2source.models.local import with_local_models
from claim2source.pipeline.options import ChoosingOptions
from claim2source.pipeline.stage_choices import choose_mix
from claim2source.pipeline.staged import StagedOptions, evaluate_staged, read_staged
from claim2source.systems.heldout import ChoosingOn


@dataclass(frozen=True)
class RerankConfig(StagedOptions, ChoosingOptions):
    """Settings of `eval/rerank.py`.

    Args:
        system: name of a system of the YAML files; one without stages is its first stage alone.
        run: a ranking of another program (TREC, a lab's TSV, the 2026 paper's score JSON) in
            place of the system's first stage.
        val: claims that a mix, a fusion and routes are chosen on: `carved` from the training
            split, all of `train`, or `auto`: carved for a trained checkpoint, else train.
    """

    system: str
    run: Path | None = None
    choose_mix: list[Share] | None = list_field(
        help="weights of the stage before, among which the last re-ranker's is chosen"
    )
    val: Literal["auto", "carved", "train"] = "auto"

    @property
    def choosing_on(self) -> ChoosingOn:
        """Name the claims that a mix, a fusion and routes are chosen on."""
        return self.choosing(self.val)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stages, score each against the one before, print the tables."""
    config = read_config(RerankConfig, argv, program="eval/rerank.py", description=__doc__ or "")
    say(rerank(config))


@with_local_models
def rerank(config: RerankConfig) -> str:
    """Run a system's stages, score and test each; write `config.out`, return the tables.

    Raises `UserError` for a system that is not there.
    """
    require_output(config.out)
    system = read_staged(config.files, config.system, config.run)
    dataset = config.reported([config.system])
    choices: tuple[Choice, ...] = ()
    if config.choose_mix:
        require(config.run is None, "choose_mix", config.choose_mix, "nothing with --run: no train")
        runner = config.runner(dataset)
        selection = runner.choosing_claims(system)
        system, choice = choose_mix(runner, system, config.claims, selection, config.choose_mix)
        choices = (choice,)
    return evaluate_staged(
        config,
        dataset,
        system,
        program="eval/rerank.py",
        heading="Re-ranking",
        choices=choices,
    )


if __name__ == "__main__":
    run_program(main)
