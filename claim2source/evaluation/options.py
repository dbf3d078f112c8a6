"""Define the options of the comparison of reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from claim2source.core.config import Between, Repeats, Seed, Settings, flag, list_field, require
from claim2source.datasets import LENIENT
from claim2source.io.wandb import Tracking
from claim2source.metrics.metrics import cutoff


@dataclass(frozen=True)
class ReportConfig(Settings):
    """Settings of `eval/report.py`.

    Args:
        html: HTML file to write; none: no page.
        checklist: Markdown file to write, and nothing else: data, prompts, seeds, decoding,
            hardware, software and costs, or "not recorded"; none: no checklist.
        benchmarks: Markdown file to write, and nothing else: the page of results whose figures
            and words lie in the one folder of `reports`; none: no such page.
        out: folder for `compare.json` and `compare.md`, or for the papers' tables as
            `published.md` and `published.csv`; none: they are printed only.
        dataset: folder in BEIR layout, or `demo`: the claims that the runs are of; none: as all
            the reports say.
        split: split that the runs are of; none: as all the reports say.
        against: the system that every other is tested against; none: the first.
        metric: what is compared.
        alpha: level of the family of tests.
        repeats: permutations and draws; permutations are raised where Holm needs more.
        seed: of permutations and draws.
        claims: most claims to list on the page, those that the systems differ on first.
        wandb: log the page's tables to Weights & Biases.
    """

    reports: list[Path] = list_field((), help="folders that an evaluation wrote")
    html: Path | None = None
    checklist: Path | None = None
    benchmarks: Path | None = None
    published: bool = flag("set our scores beside the papers' tables")
    out: Path | None = None
    dataset: str | None = None
    split: str | None = None
    languages: list[str] | None = list_field(
        help="claims in these languages only; none: those that all the reports scored"
    )
    against: str | None = None
    metric: str = "mrr@5"
    alpha: Annotated[float, Between(0.001, 0.9)] = 0.05
    repeats: Repeats = 10_000
    seed: Seed = 0
    claims: Annotated[int, Between(0, 10**6)] = 1_000
    tables: list[str] | None = list_field(
        help="of the papers' only these tables or papers, such as 2025-styles or 2026; none: all"
    )
    wandb: Tracking = "off"
    lenient: bool = flag(LENIENT)

    def check(self) -> None:
        needless = self.published and self.html is None
        require(bool(self.reports) or needless, "reports", self.reports, "one or more folders")
        good = self.out is None or self.out.suffix.lower() not in (".html", ".htm")
        require(good, "out", self.out, "a folder; the page is --html FILE")
        table = "checklist" if self.checklist is not None else "benchmarks"
        for key in ("out", "html", "published", "benchmarks"):
            beside = key != table and getattr(self, table) is not None and getattr(self, key)
            why = f"none beside {table}, which is written alone"
            require(not beside, key, getattr(self, key), why)
        is_one_folder = self.benchmarks is None or len(self.reports) == 1
        require(is_one_folder, "reports", self.reports, "one folder of results, with benchmarks")
        good = self.tables is None or self.published
        require(good, "tables", self.tables, "none without --published")
        good = self.wandb == "off" or self.html is not None
        require(good, "wandb", self.wandb, "off without --html: the page's tables are logged")
        cutoff(self.metric)
