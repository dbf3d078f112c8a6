"""Markup in titles and abstracts of registries and databases."""

from __future__ import annotations

import time

import pytest

from claim2source.data.markup import without_markup


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Masks &amp; <i>E. coli</i>", "Masks & E. coli"),
        # Entities of signs are not tags, and neither are the signs.
        ("p &lt; 0.05 and q &gt; 0.1", "p < 0.05 and q > 0.1"),
        ("p<0.05 and q>0.1, a < b > c, x <T> y", "p<0.05 and q>0.1, a < b > c, x <T> y"),
        ('H<sub>2</sub>O <mml:math xmlns:mml="http://x"><mml:mi>C</mml:mi></mml:math>', "H2O C"),
        ("a <jats:inline-formula>x</jats:inline-formula> <inline-formula>", "a x "),
        ("x<tex-math id='m'>\\frac{1}{2}</tex-math>", "x "),
        (
            "<jats:title>Abstract</jats:title><jats:sec><jats:title>Aim</jats:title>"
            "<jats:p>One.</jats:p><jats:p>Two.</jats:p></jats:sec>",
            "Aim: One. Two.",
        ),
        # Europe PMC.
        (
            "<h4>Background</h4>Masks.<h4>Methods.</h4> We ran. <h4>Why?</h4>So. <h4></h4>x",
            "Background: Masks. Methods: We ran. Why? So. x",
        ),
        ("<title>Masks</title>", "Masks"),
        ("<h4>Aim</h4><p>One.</p><h4>Graphical abstract</h4><p>A mask.</p>", "Aim: One."),
        ("<h3>Visual Abstract</h3>A mask.<h3>Aim</h3>One.", "Aim: One."),
        # Scopus and Elsevier.
        ("CO<inf>2</inf> and H<sup>+</sup>", "CO2 and H+"),
        (
            "<ce:section-title>Aim</ce:section-title><ce:simple-para>In <ce:italic>E. coli"
            "</ce:italic> CO<ce:inf loc='post'>2</ce:inf></ce:simple-para>",
            "Aim: In E. coli CO2",
        ),
        ("<simple-para>One.</simple-para><simple-para>Two.</simple-para>", "One. Two."),
        # Escaped twice or more.
        ("&lt;i&gt;E. coli&lt;/i&gt; &lt;br/&gt;x", "E. coli x"),
        (
            "&amp;lt;i&amp;gt;E. coli&amp;lt;/i&amp;gt; &amp;amp;amp; p &amp;lt; 0.05",
            "E. coli & p < 0.05",
        ),
        ("&lt;jats:p&gt;One.&lt;/jats:p&gt;&lt;jats:p&gt;Two.&lt;/jats:p&gt;", "One. Two."),
        ("R&amp;D AT&amp;T; a&amp;b", "R&D AT&T; a&b"),
        # Unknown tags with a partner, a namespace, attributes or a self-closing end.
        ("<zz>a</zz> <x:y>b <k n='1'>c <m/>d", "a b c d"),
        # Not tags.
        (
            "n<i>m, a<b>c, x<T>y, p < 0.05 and n > 3, <5 and >3",
            "n<i>m, a<b>c, x<T>y, p < 0.05 and n > 3, <5 and >3",
        ),
        ("i &lt;p&gt; k, p &lt;b and c&gt; d", "i <p> k, p <b and c> d"),
        ("see <http://a.org> and <x@y.org>", "see <http://a.org> and <x@y.org>"),
        # Repeated figures, captions and formulas.
        (
            "<p>One.</p><fig id='f'><label>1</label><caption><p>A mask.</p></caption></fig>Two.",
            "One. Two.",
        ),
        ("<jats:p>x</jats:p><jats:fig><jats:caption>A.</jats:caption></jats:fig>", "x"),
        (
            "R0 \\documentclass[12pt]{minimal} \\usepackage{a} \\begin{document}$$R_0$$"
            "\\end{document} rose",
            "R0 R_0 rose",
        ),
    ],
)
def test_tags_are_removed_before_entities_are_read(text: str, expected: str) -> None:
    assert " ".join(without_markup(text).split()) == expected.strip()


def test_markup_of_a_hostile_text_takes_linear_time() -> None:
    begin = time.process_time()
    for part in (
        '<a b="',
        "<tex-math>",
        "<a b='c' ",
        "<i ",
        "&amp",
        "<title>abstract ",
        "<fig>",
        "</h4>",
        "<h4>",
        "&amp;lt;",
        "<h4>graphical abstract</h4>",
        "<a></b>",
        "\\documentclass ",
    ):
        without_markup(part * 30_000)
    assert time.process_time() - begin < 5
