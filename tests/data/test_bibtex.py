"""BibTeX as reference managers and databases export it."""

from __future__ import annotations

from pathlib import Path

from claim2source.core.records import Source
from claim2source.data.papers import Paper
from tests.data.reading import read

BIBTEX = r"""
@comment{not read}
@string{lancet = "The Lancet"}
@article{smith2020,
  title = {50% of {M{\"u}ller}'s $\mathrm{CO}_2$ $\alpha$ {\&} \emph{E. coli} --- a trial},
  author = {Doe, Jane and {World Health Organization} and van der Berg, Jan and others},
  journal = lancet, year = 2020, month = may,
  abstract = "At q$<$0.01 {$\mu$}g costs $5/$10 or $10, <i>x</i> at p &lt; 0.05",
  url = {https://doi.org/10.1000/ABC},
}
@misc{smith2020, abstract = {At q}, doi = {10.1000/ABC}}
"""


def test_bibtex(tmp_path: Path) -> None:
    papers, _ = read(tmp_path / "lib.bib", BIBTEX)
    assert papers == [
        Paper(
            Source(
                "smith2020",
                "50% of Müller's CO2 α & E. coli — a trial",
                "At q<0.01 μg costs $5/$10 or $10, x at p < 0.05",
                ("Jane Doe", "World Health Organization", "Jan van der Berg"),
                "The Lancet",
                "2020-05",
            ),
            "10.1000/abc",
            "https://doi.org/10.1000/ABC",
        )
    ]
