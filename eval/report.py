"""Write a comparison as one HTML file: `python eval/report.py --reports DIR... --out FILE.html`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from claim2source.core.config import (
    Between,
    Repeats,
    Seed,
    Settings,
    flag,
    list_field,
    read_config,
    require,
)
from claim2source.core.errors import run_program
from claim2source.core.terminal import say
from claim2source.datasets import LENIENT
from claim2source.evaluation.html.page import html_report
from claim2source.evaluation.metrics import cutoff
from claim2source.io.wandb import Tracking


@dataclass(frozen=True)
class Config(Settings):
    """Settings of `eval/report.py`.

    Args:
        out: HTML file to write.
        dataset: folder in BEIR layout, or `demo`: the claims that the runs are of; none: as all
            the reports say.
        split: split that the runs are of; none: as all the reports say.
        metric: what is compared.
        baseline: the system that the others are tested against; none: the first.
        claims: most claims to list, those that the systems differ on first.
        repeats: bootstrap draws and permutations.
        seed: of both.
        wandb: log the page's tables to Weights & Biases.
    """

    out: Path
    reports: list[Path] = list_field(help="folders that eval/checkpoint.py or eval/hybrid.py wrote")
    dataset: str | None = None
    split: str | None = None
    metric: str = "mrr@5"
    baseline: str | None = None
    claims: Annotated[int, Between(0, 10**6)] = 1_000
    repeats: Repeats = 10_000
    seed: Seed = 0
    wandb: Tracking = "off"
    languages: list[str] | None = list_field(help="claims in these languages only")
    lenient: bool = flag(LENIENT)

    def check(self) -> None:
        require(bool(self.reports), "reports", self.reports, "one or more folders")
        cutoff(self.metric)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the runs, write the page, print where it is."""
    config = read_config(Config, argv, program="eval/report.py", description=__doc__)
    say(html_report(**vars(config)))


if __name__ == "__main__":
    run_program(main)
