"""Compare evaluated systems: `python eval/report.py --reports DIR... [--html FILE]`.

Prints the leaderboard: scores by language, and paired tests against one row (`--against`). `--out`
saves it, with costs and the tests of each language, as `compare.json` and `compare.md`. `--html`
writes the comparison as a single page, without other files. `--published` prints our scores next
to the papers' tables instead, and adds them to the page.

`--groups` lists who is tied with the first: it prints an interval of ranks for every system, and
the groups that no paired test separates. It also takes runs: `--groups --runs FILE... --qrels
FILE`. `--out` saves them as `groups.json`, `groups.md` and `groups.csv`; with `--html` the page of
the reports begins with them.
"""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.core.files import write_json, write_text
from claim2source.core.folders import require_output, require_output_file
from claim2source.core.terminal import say
from claim2source.data.wandb import require_tracking
from claim2source.evaluation.compare import Leaderboard
from claim2source.evaluation.groups import CSV_COLUMNS as GROUPS_COLUMNS
from claim2source.evaluation.groups import TITLE, GroupsReport, read_groups
from claim2source.evaluation.html.page import html_report, require_page
from claim2source.evaluation.published.scores import CSV_COLUMNS, PublishedTables
from claim2source.evaluation.published.tables import load_published
from claim2source.evaluation.reports import ReportConfig, read_reports

# The keys that people need first.
COMMON = (
    "reports",
    "groups",
    "runs",
    "qrels",
    "html",
    "published",
    "out",
    "dataset",
    "split",
    "against",
)


def main(argv: Sequence[str] | None = None) -> None:
    """Compare the reports' systems, with each other or the papers'; print, and write the page."""
    config = read_config(
        ReportConfig, argv, program="eval/report.py", description=__doc__ or "", common=COMMON
    )
    require_tracking(config.wandb)
    if config.out is not None:
        require_output(config.out)
    if config.html is not None:
        require_page(config)
    published = None
    groups = None
    if config.published:
        published = beside_published(config).with_ours()
    elif config.groups:
        groups = group(config)
    else:
        compare(config)
    if config.html is not None:
        say(html_report(config, published, groups))


def beside_published(config: ReportConfig) -> PublishedTables:
    """Write or print the papers' tables with our scores."""
    out = None if config.out is None else config.out / "published.md"
    if out is not None:
        require_output_file(out, *(f"[{table.id}]" for table in load_published()))
        require_output_file(out.with_suffix(".csv"), ",".join(CSV_COLUMNS[:3]))
    published = PublishedTables.of(read_reports(config.reports), config.tables)
    text = published.text(markdown=out is not None)
    if out is None:
        say(text.rstrip("\n"))
    else:
        write_text(out, text)
        write_text(out.with_suffix(".csv"), published.csv())
        say(f"{len(published.tables)} tables in {out}, their cells in {out.with_suffix('.csv')}")
    return published


def compare(config: ReportConfig) -> None:
    """Score and test the systems of the reports; write and print the comparison."""
    board = Leaderboard.read(config)
    if config.out is not None:
        write_json(config.out / "compare.json", board.as_json())
        write_text(config.out / "compare.md", f"{board.markdown()}\n")
    say(board.text("--out DIR" if config.out is None else f"{config.out}/compare.md"))


def group(config: ReportConfig) -> GroupsReport:
    """Bound the systems' ranks, and group those that no test separates; write and print them."""
    out = config.out
    if out is not None:
        require_output_file(out / "groups.json", '"tied_with_first"')
        require_output_file(out / "groups.md", f"# {TITLE}")
        require_output_file(out / "groups.csv", ",".join(GROUPS_COLUMNS[:3]))
    report = read_groups(config)
    if out is not None:
        write_json(out / "groups.json", report.as_json())
        write_text(out / "groups.md", f"{report.markdown()}\n")
        write_text(out / "groups.csv", report.csv())
    say(str(report))
    return report


if __name__ == "__main__":
    run_program(main)
