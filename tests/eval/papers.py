"""A few papers with hostile texts among them, and a post, for the tests of `find`."""

from __future__ import annotations

from claim2source.core.records import Source
from claim2source.data.papers import Paper

NASTY = '=HYPERLINK("http://x")\x1b[31m\u202e {\\input{x}} & 5 %\nclaim'
PAPERS = [
    *(
        Paper(
            Source(
                f"p{i}",
                f"claim {'abc'[i % 3]} number {i}",
                "A vaccine works. Masks cut outbreaks. The query passage: a b.",
                ("Ada Lovelace", "Émile Zola", "C", "D"),
                ("Nature", "Science")[i % 2],
                ("1 April 2019", "2021", "")[i % 3],
            ),
            f"10.1000/{i}",
            "",
            ("en", "de")[i % 2],
        )
        for i in range(12)
    ),
    Paper(
        Source("@bad id'\"".replace(" ", "_"), NASTY, NASTY, ("=1+1",), "-V", "2020"),
        url="javascript:alert(1)",
        retracted="retracted, 2021-03-04, <b>",
    ),
]
POST = "the claim b works: masks cut outbreaks 3.7x"
