"""Verify rankings: `python eval/verify.py --system NAME --dataset DIR --out DIR`.

Every stage of the system is scored; of a verifier also what it was asked, and what that cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claim2source.core.config import read_config, require
from claim2source.core.errors import run_program
from claim2source.core.folders import require_output
from claim2source.core.report import Choice, Rule
from claim2source.core.terminal import say
from claim2source.datasets import load
from claim2source.models.local import with_local_models
from claim2source.pipeline.stage_choices import with_chosen_margin
from claim2source.pipeline.staged import StagedOptions, evaluate_staged, read_staged
from claim2source.pipeline.sweep import evaluate_sweep


@dataclass(frozen=True)
class VerifyConfig(StagedOptions):
    """Settings of `eval/verify.py`.

    Args:
        system: name of a system of the YAML files; one without stages is its first stage alone.
        run: a ranking of another program (TREC, a lab's TSV, the 2026 paper's score JSON) in
            place of the system's first stage.
        choose_on: split on whose claims `when.margin_below` of the last stage is chosen, such as
            train; none: as the system has it.
        rule: `one_se`: of the margins within one standard error of the best, by paper, the one
            that asks about fewest claims; or the `best`.
        vary: settings of stages to change, one at a time, each with its values, such as
            verify.depth: [5, 20]; every variation is tested against the system as it is.
    """

    system: str
    run: Path | None = None
    choose_on: str | None = None
    rule: Rule = "one_se"
    vary: dict[str, list[Any]] | None = None


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stages, score each against the one before, print the tables."""
    config = read_config(VerifyConfig, argv, program="eval/verify.py", description=__doc__ or "")
    say(verify(config))


@with_local_models
def verify(config: VerifyConfig) -> str:
    """Run a system's stages, score and test each; write `config.out`, return the tables.

    Raises `UserError` for a system that is not there.
    """
    require_output(config.out)
    system = read_staged(config.files, config.system, config.run)
    allowed = "none with --run"
    require(config.run is None or config.choose_on is None, "choose_on", config.choose_on, allowed)
    if config.vary:
        require(config.choose_on is None, "choose_on", config.choose_on, "none with vary")
        return evaluate_sweep(config, system, config.vary, program="eval/verify.py")
    dataset = config.reported([config.system])
    choices: list[Choice] = []
    if config.choose_on is not None:
        allowed = "another split than the one that is reported"
        require(config.choose_on != config.split, "choose_on", config.choose_on, allowed)
        val = load(config.dataset, config.choose_on, lenient=config.lenient)
        require(bool(val.golds), "choose_on", config.choose_on, "a split with golds")
        runner = config.runner(val)
        system, choice = with_chosen_margin(system, runner, config.claims, val, config.rule)
        choices.append(choice)
    return evaluate_staged(
        config,
        dataset,
        system,
        program="eval/verify.py",
        heading="Verification",
        choices=choices,
    )


if __name__ == "__main__":
    run_program(main)
