"""A comparison as one HTML file: `python eval/report.py --reports DIR... --out FILE.html`."""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.evaluation.html.page import ReportConfig, html_report


def main(argv: Sequence[str] | None = None) -> None:
    """Read runs, draw, write the page, say where it is."""
    config = read_config(ReportConfig, argv, program="eval/report.py", description=__doc__)
    print(html_report(config))


if __name__ == "__main__":
    run_program(main)
