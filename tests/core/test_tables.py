"""Tables before they are rendered: text, Markdown and HTML of one table."""

import pytest

from claim2source.core.tables import TextTable, render

TABLE = TextTable(["run", "p"], [["a|<b>", 0.125], ["c", None]], digits=2)


@pytest.mark.parametrize("style", ["plain", "markdown", "html"])
def test_names_cannot_steer_a_terminal_or_break_a_table(style):
    name = "a\x1b]0;owned\x07\n\u202eb"
    text = render([name, TextTable([name], [[name]])], style)
    escaped = "a\\x1b]0;owned\\x07 \\u202eb"
    # A paragraph keeps its line break, a cell does not.
    assert (text.count(escaped), text.count(escaped.replace(" ", "\n"))) == (2, 1)
    assert text.replace("\n", "").isprintable()


def test_paragraphs_and_tables_are_rendered():
    assert render(["Head & <i>", TABLE]) == "Head & <i>\n\nrun       p\na|<b>  0.12\nc         -"
    assert render(["Head", TABLE], "markdown") == (
        "Head\n\n| run | p |\n| --- | ---: |\n| a\\|&lt;b&gt; | 0.12 |\n| c | - |"
    )
    assert render([]) == render([], "html") == ""
    right = ' style="text-align: right"'
    assert render(["Head & <i>", TABLE], "html") == (
        "<p>Head &amp; &lt;i&gt;</p>\n<table>\n"
        f"<tr><th>run</th><th{right}>p</th></tr>\n"
        f"<tr><td>a|&lt;b&gt;</td><td{right}>0.12</td></tr>\n"
        f"<tr><td>c</td><td{right}>-</td></tr>\n</table>"
    )


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("`x` *y* _z_", r"\`x\` \*y\* \_z\_"),
        ("[a](http://b)", r"[a\](http://b)"),
        ("<script>x</script>&lt;", "&lt;script&gt;x&lt;/script&gt;&amp;lt;"),
        ("~~gone~~ \\", r"\~\~gone\~\~ \\"),
        ("e5_large >3.2 <12.0 [0.1, 0.2] R&D", "e5_large >3.2 <12.0 [0.1, 0.2] R&D"),
    ],
)
def test_names_are_no_markup(name, written):
    assert (
        render([name, TextTable([name], [])], "markdown") == f"{written}\n\n| {written} |\n| --- |"
    )
    # Pages of results are written in Markdown.
    assert render([name, TextTable([name], [])], "markup").count(name) == 2


def test_a_heading_begins_a_paragraph_and_no_cell():
    text = render(["# Owned", TextTable(["# Owned"], [])], "markdown")
    assert text == "\\# Owned\n\n| # Owned |\n| --- |"


def test_a_name_with_a_pipe_breaks_no_row():
    (row,) = render([TextTable(["n"], [["a|b\\|c"]])], "markdown").splitlines()[2:]
    assert row == r"| a\|b\\\|c |"
