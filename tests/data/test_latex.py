"""LaTeX from reference managers."""

from __future__ import annotations

import time

import pytest

from claim2source.data.latex import LatexReader


@pytest.fixture(scope="module")
def reader() -> LatexReader:
    return LatexReader()


SIGNS = {
    **{"textless": "<", "textgreater": ">", "textbar": "|", "textunderscore": "_"},
    **{"textalpha": "α", "textbeta": "β", "textGamma": "Γ", "textminus": "−", "texttimes": "×"},
    **{"textgreatereq": "≥", "textgreaterequal": "≥", "textlessequal": "≤", "textleq": "≤"},
    **{"textapproxequal": "≈", "textnotequal": "≠", "textinfinity": "∞", "textsim": "∼"},
    **{"textperiodcentered": "·", "textasciitilde": "~", "textasciicircum": "^", "texteuro": "€"},
    **{"textmu": "µ", "upmu": "μ", "textdegree": "°", "textbackslash": "\\", "lt": "<"},
    **{"geq": "≥", "lesssim": "≲", "textpm": "±", "textdollar": "$", "textbraceleft": "{"},
    **{"guillemotleft": "«", "textquotesingle": "'", "i": "ı", "oe": "œ", "textsection": "§"},
}


@pytest.mark.parametrize("name", SIGNS)
def test_a_sign_in_each_spelling(reader: LatexReader, name: str) -> None:
    reader.unknown.clear()
    for written in (f"a {{\\{name}}} b", f"a \\{name}{{}} b", f"a {{\\{name}{{}}}} b"):
        assert reader.text(written) == f"a {SIGNS[name]} b"
    assert not reader.unknown


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\v{C}apek {\v C}apek {\v{C}}apek \v Capek", "Čapek Čapek Čapek Čapek"),
        (r"\'{\i} \'\i{} {\'{\i}} \"{u} {\"u} \"u \c{s} \H{o} \k{a} \r{u}", "í í í ü ü ü ş ő ą ů"),
        (r"\textcommabelow{s} \t{oo} \~{}x", "ș o͡o ~x"),
        (
            r"$p < 0.05$, $\alpha_{2}$ \(x_1\) $$y^2$$ costs $5 or $10",
            "p < 0.05, α2 x1 y2 costs $5 or $10",
        ),
        (r"\emph{a} {\em b} \textbf{c \textit{d}} \enquote{e} \mkbibquote{f}", "a b c d “e” “f”"),
        (
            r"\ce{H2O} H\textsubscript{2}O \SI{5}{mg} \href{http://x.y}{here} \cite{k}.",
            "H2O H2O 5 mg here .",
        ),
        (r"\ifmmode \beta \else \textbeta \fi{} x\noopsort{1}", "β  x"),
        (r"R \documentclass[12pt]{minimal} \begin{document}$$R_0$$\end{document} x", "R R0 x"),
    ],
)
def test_text(reader: LatexReader, latex: str, text: str) -> None:
    reader.unknown.clear()
    assert " ".join(reader.text(latex).split()) == " ".join(text.split())
    assert not reader.unknown


def test_unknown_macros_stay_and_are_listed(reader: LatexReader) -> None:
    reader.unknown.clear()
    assert reader.text(r"a \foo{caf\'e}{c} b \apj, \textnothing d") == (
        "a \\foo{café}{c} b \\apj, \\textnothing d"
    )
    assert reader.unknown == ["foo", "apj", "textnothing"]


def test_hostile_latex_takes_linear_time(reader: LatexReader) -> None:
    begin = time.process_time()
    for part in (r"\documentclass ", r"\ifmmode ", "$ ", r"\foo{", r"\(", "$$x"):
        try:
            reader.text(part * 3_000)
        except ValueError:
            pass
    assert time.process_time() - begin < 20
