"""Compare evaluated systems: `python eval/report.py --reports DIR... [--html FILE]`.

Prints the leaderboard: scores by language, and paired tests against any row. `--out` keeps it,
with costs and the tests of each language, as `compare.json` and `compare.md`. `--html` writes the
comparison as one page that loads nothing. `--published` sets our scores beside the papers' tables
instead, and adds them to the page. `--checklist` writes what working notes and the ACM ask for,
from reports alone; `--benchmarks` writes the page of results of a folder like `docs/results`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
from claim2source.core.files import finite, write_json, write_text
from claim2source.core.folders import require_output, require_output_file
from claim2source.core.tables import Part, render
from claim2source.core.terminal import say
from claim2source.datasets import LENIENT
from claim2source.evaluation.benchmarks import TITLE as BENCHMARKS
from claim2source.evaluation.benchmarks import Benchmarks
from claim2source.evaluation.checklist import TITLE as CHECKLIST
from claim2source.evaluation.checklist import checklist
from claim2source.evaluation.compare import leaderboard, read_scored
from claim2source.evaluation.families import family_parts
from claim2source.evaluation.html.page import html_report, require_page
from claim2source.evaluation.published.tables import load_published
from claim2source.evaluation.published.text import CSV_COLUMNS, Format, PublishedTables
from claim2source.evaluation.reports import named_reports, read_reports
from claim2source.io.wandb import Tracking, require_tracking
from claim2source.metrics.metrics import cutoff

PUBLISHED = {"text": "published.txt", "markdown": "published.md", "csv": "published.csv"}


@dataclass(frozen=True)
class Config(Settings):
    """Settings of `eval/report.py`.

    Args:
        html: HTML file to write; none: no page.
        checklist: Markdown file to write, and nothing else: data, prompts, seeds, decoding,
            hardware, software and costs, or "not recorded"; none: no checklist.
        benchmarks: Markdown file to write, and nothing else: the page of results whose figures
            and words lie in the one folder of `reports`; none: no such page.
        out: folder for `compare.json` and `compare.md`, or for the papers' tables; none: they are
            printed only.
        dataset: folder in BEIR layout, or `demo`: the claims that the runs are of; none: as all
            the reports say.
        split: split that the runs are of; none: as all the reports say.
        against: the system that every other is tested against; none: the first.
        metric: what is compared.
        alpha: level of the family of tests.
        repeats: permutations and draws; permutations are raised where Holm needs more.
        seed: of permutations and draws.
        claims: most claims to list on the page, those that the systems differ on first.
        format: of what is printed: `text`, `markdown` or, of the papers' tables, `csv` with one
            line a cell.
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
    rows: list[str] | None = list_field(
        help="of these rows that names do not match: 'GritLM-F=NAME' puts system NAME in"
    )
    format: Format = "text"
    wandb: Tracking = "off"
    lenient: bool = flag(LENIENT)

    def check(self) -> None:
        needless = self.published and self.html is None
        require(bool(self.reports) or needless, "reports", self.reports, "one or more folders")
        good = self.out is None or self.out.suffix.lower() not in (".html", ".htm")
        require(good, "out", self.out, "a folder; the page is --html FILE")
        good = self.format != "csv" or self.published
        require(good, "format", self.format, "text or markdown; csv is of --published")
        alone = "checklist" if self.checklist is not None else "benchmarks"
        for key in ("out", "html", "published", "benchmarks"):
            beside = key != alone and getattr(self, alone) is not None and getattr(self, key)
            why = f"none beside {alone}, which is written alone"
            require(not beside, key, getattr(self, key), why)
        is_one_folder = self.benchmarks is None or len(self.reports) == 1
        require(is_one_folder, "reports", self.reports, "one folder of results, with benchmarks")
        for key in ("tables", "rows"):
            given = getattr(self, key)
            require(given is None or self.published, key, given, "none without --published")
        for named in self.rows or ():
            require("=" in named, "rows", named, "ROW=SYSTEM, such as GritLM-F=epoch-2")
        good = self.wandb == "off" or self.html is not None
        require(good, "wandb", self.wandb, "off without --html: the page's tables are logged")
        # The permutations that Holm needs grow with 1 / alpha.
        cutoff(self.metric)


def main(argv: Sequence[str] | None = None) -> None:
    """Compare the reports' systems, or set them beside the papers'; print, and write the page."""
    config = read_config(Config, argv, program="eval/report.py", description=__doc__ or "")
    require_tracking(config.wandb)
    if config.benchmarks is not None:
        require_output_file(config.benchmarks, BENCHMARKS, option="--benchmarks")
        write_text(config.benchmarks, Benchmarks(config.reports[0]).page())
        say(f"results in {config.benchmarks}")
        return
    if config.checklist is not None:
        require_output_file(config.checklist, CHECKLIST, option="--checklist")
        write_text(config.checklist, checklist(named_reports(config.reports)))
        say(f"checklist in {config.checklist}")
        return
    if config.out is not None:
        require_output(config.out)
    if config.html is not None:
        require_page(config.html, config.reports, config.dataset)
    tables = None
    if config.published:
        tables = beside_published(config)
    else:
        compare(config)
    if config.html is not None:
        page = html_report(
            config.reports,
            config.html,
            dataset=config.dataset,
            split=config.split,
            languages=config.languages,
            metric=config.metric,
            baseline=config.against,
            claims=config.claims,
            repeats=config.repeats,
            seed=config.seed,
            wandb=config.wandb,
            lenient=config.lenient,
            published=None if tables is None else tables.with_ours(),
        )
        # What is printed as CSV is read by programs.
        if config.format != "csv" or config.out is not None:
            say(page)


def beside_published(config: Config) -> PublishedTables:
    """Write or print the papers' tables with our scores."""
    out = None if config.out is None else config.out / PUBLISHED[config.format]
    if out is not None:
        marks = [f"[{table.id}]" for table in load_published()]
        require_output_file(out, ",".join(CSV_COLUMNS[:3]), *marks)
    published = PublishedTables.of(read_reports(config.reports), config.tables, config.rows or ())
    text = published.text(config.format)
    if out is None:
        say(text.rstrip("\n"))
    else:
        write_text(out, text)
        say(f"{len(published.tables)} tables in {out}")
    return published


def compare(config: Config) -> None:
    """Score and test the systems of the reports; write and print the comparison."""
    folder, systems, scored = read_scored(
        config.reports,
        config.dataset,
        config.split,
        config.languages,
        metric=config.metric,
        baseline=config.against,
        lenient=config.lenient,
    )
    bounds = scored.bounds(config.repeats, config.seed)
    tests = scored.tests(micro=True, alpha=config.alpha, repeats=config.repeats, seed=config.seed)
    parts: list[Part] = [
        f"{folder}, {scored.dataset.split}: {config.metric}",
        *leaderboard(systems, scored, bounds, tests),
        *scored.notes,
        *(part for test in tests for part in family_parts(test, config.metric)),
    ]
    markdown = f"# Comparison\n\n{render(parts, 'markdown')}"
    if config.out is not None:
        record = {
            "dataset": folder,
            "split": scored.dataset.split,
            "metric": config.metric,
            "baseline": scored.baseline,
            "scores": {
                part: {name: bound._asdict() for name, bound in bars.items()}
                for part, bars in bounds.items()
            },
            "tests": [asdict(result) for result in tests],
        }
        write_json(config.out / "compare.json", finite(record))
        write_text(config.out / "compare.md", f"{markdown}\n")
    if config.format == "markdown":
        say(markdown)
        return
    # A terminal gets the leaderboard, which has the first family's tests.
    rest = "--out DIR, or --format markdown" if config.out is None else f"{config.out}/compare.md"
    board, _ = leaderboard(systems, scored, bounds, tests)
    short = {f"- {scored.baseline}": "difference", "p (Holm)": "p"}
    board = board._replace(columns=[short.get(name, name) for name in board.columns])
    say(render([parts[0], board, *scored.notes, f"costs, and every test by language: {rest}"]))


if __name__ == "__main__":
    run_program(main)
