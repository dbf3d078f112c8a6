"""Convert LaTeX to plain text (accents, signs, formulas); unknown macros are kept."""

from __future__ import annotations

import html.entities
import logging
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pylatexenc.latex2text import LatexNodes2Text
    from pylatexenc.latexwalker import LatexMacroNode

# Markup of LaTeX, and signs that people write without a backslash.
_LATEX = re.compile(r"[\\{}$~]|--|``|''")
_MATH = re.compile(r"(?<!\\)\$(?=[^\s$])(?!\d[^$]*\$\d)([^$]*)(?<=[^\s\\])\$")  # not "$5 or $10"
_DISPLAYED = re.compile(
    r"(?<!\\)\$\$([^$]+)\$\$|\\\(((?:(?!\\\().)+?)\\\)|\\\[((?:(?!\\\[).)+?)\\\]", re.DOTALL
)
_UNESCAPED = re.compile(r"(?<!\\)([$%&#])")
# Both are kept in addresses.
_LIGATURE = re.compile(r"(?<!\\)~|-(?=-)|'(?=')|`(?=`)")
_MACRO = re.compile(r"\\(?:([A-Za-z]+)|.)", re.DOTALL)
_BRACE = re.compile(r"(?<!\\)[{}]")
# Physicists' "\ifmmode \beta \else \textbeta \fi".
_IF_MATH = re.compile(
    r"\\ifmmode\b(?:(?!\\ifmmode).)*?\\else\b((?:(?!\\else).)*?)\\fi\b(?:\{\})?", re.DOTALL
)
# Complete documents that Springer puts around a formula.
_DOCUMENT = re.compile(
    r"\\documentclass\b(?:(?!\\documentclass).)*?\\begin\{document\}(.*?)\\end\{document\}",
    re.DOTALL,
)
# People write "\~{}" for a tilde.
_LONE_ACCENT = re.compile(r"\\([~^])\{\s*\}")
_LONE_SIGNS = {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
# Placeholder for the backslash of an unknown macro.
_BACKSLASH = "\ue000"

_SIGNS = {
    "lt": "<",
    "gt": ">",
    "textasciicircum": "^",
    "textasciitilde": "~",
    "textasciigrave": "`",
    "textperiodcentered": "·",
    "textcelsius": "°C",
    "textohm": "Ω",
    "textdiv": "÷",
    "degree": "°",
    "celsius": "°C",
    "textquotedbl": '"',
    "copyright": "©",
    "pounds": "£",
    "slash": "/",
    "cite": "",
    "citep": "",
    "citet": "",
    "ref": "",
    "eqref": "",
    "newline": " ",
    "linebreak": " ",
    "par": " ",
}
# Signs by the part of a macro's name after \text, unless it is a macro or an HTML entity.
_TEXT_SIGNS = {
    "less": "<",
    "greater": ">",
    "bar": "|",
    "underscore": "_",
    "plus": "+",
    "equal": "=",
    "lesseq": "≤",
    "lessequal": "≤",
    "greatereq": "≥",
    "greaterequal": "≥",
    "notequal": "≠",
    "approxequal": "≈",
    "equivalence": "≡",
    "infinity": "∞",
    "integral": "∫",
    "summation": "∑",
    "product": "∏",
    "increment": "∆",
    "element": "∈",
    "intersection": "∩",
    "union": "∪",
    "degree": "°",
    "hyphen": "-",
    "slash": "/",
    "asterisk": "*",
    "at": "@",
    "ampersand": "&",
    "hash": "#",
    "numbersign": "#",
    "braceleft": "{",
    "braceright": "}",
    "bracketleft": "[",
    "bracketright": "]",
    "exclam": "!",
    "question": "?",
    "tilde": "~",
    "circumflex": "^",
    "space": " ",
    "nobreakspace": " ",
    "softhyphen": "",
    "horizontalbar": "―",
    "vertline": "|",
    "lozenge": "◊",
    "onethird": "⅓",
    "twothirds": "⅔",
}
# Macros that change the look of a text: switches, and macros with the text as argument.
_SWITCHES = (
    "em it bf rm sc sf tt sl tiny scriptsize footnotesize small normalsize large Large LARGE huge "
    "Huge normalfont itshape bfseries mdseries rmfamily sffamily ttfamily upshape slshape scshape "
    "protect relax centering noindent allowbreak nobreak left right big Big bigg Bigg limits "
    "nolimits displaystyle textstyle scriptstyle boldmath unboldmath selectfont ignorespaces unskip"
).split()
_WRAPPERS = (
    "mbox hbox fbox textnormal textmd textup textsl textsubscript textsuperscript subscript "
    "superscript mkbibemph mkbibitalic mkbibbold mkbibparens mkbibbrackets emph ul hl uline text "
    "underline boldsymbol bm mathbf mathit mathcal mathbb mathsf mathtt mathds mathscr mathfrak "
    "mathnormal mathop mathord mathrel operatorname ce cf si num ang unit nocase path nolinkurl "
    "MakeUppercase MakeLowercase uppercase lowercase uppercasetitle NoCaseChange"
).split()
_QUOTES = "enquote mkbibquote textquote".split()
_REMOVED = "noopsort label vspace hspace phantom hphantom vphantom nocite footnotemark".split()
# Accents that pylatexenc does not know.
_ACCENTS = {
    "t": "\u0361",
    "h": "\u0309",
    "G": "\u030f",
    "U": "\u030d",
    "f": "\u0311",
    "textcommabelow": "\u0326",
    "textcommaabove": "\u0313",
}
_GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi "
    "pi rho sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi "
    "Sigma Upsilon Phi Psi Omega".split()
)


class LatexReader:
    """Convert LaTeX to text; `unknown` lists the macros that were kept.

    Raises ImportError if pylatexenc is missing.
    """

    def __init__(self) -> None:
        from pylatexenc.latex2text import (
            LatexNodes2Text,
            MacroTextSpec,
            get_default_latex_context_db,
        )
        from pylatexenc.latexwalker import get_default_latex_context_db as get_walker_db
        from pylatexenc.macrospec import MacroSpec

        # Callers report failures.
        logging.getLogger("pylatexenc").setLevel(logging.CRITICAL)
        texts = [MacroTextSpec(name, simplify_repl=sign) for name, sign in _SIGNS.items()]
        for name in (*_SWITCHES, *_REMOVED):
            texts.append(MacroTextSpec(name, simplify_repl=""))
        for name in _WRAPPERS:
            texts.append(MacroTextSpec(name, simplify_repl="%s"))
        for name in _QUOTES:
            texts.append(MacroTextSpec(name, simplify_repl="“%s”"))
        for name in ("SI", "qty"):
            texts.append(MacroTextSpec(name, simplify_repl="%s %s"))
        texts.append(MacroTextSpec("href", simplify_repl=_second_argument))
        texts.append(MacroTextSpec("texorpdfstring", simplify_repl=_second_argument))
        texts.append(MacroTextSpec("url", simplify_repl="%s"))
        for name in _ACCENTS:
            texts.append(MacroTextSpec(name, simplify_repl=_accented))
        arguments = [MacroSpec(name, "{{") for name in ("SI", "qty", "href", "texorpdfstring")]
        for name in (*_WRAPPERS, *_QUOTES, *_REMOVED, *_ACCENTS, "url"):
            arguments.append(MacroSpec(name, "{"))
        self._macros = get_default_latex_context_db()
        self._macros.add_context_category("ours", macros=texts, prepend=True)
        self._macros.set_unknown_macro_spec(MacroTextSpec("", simplify_repl=self._derived_text))
        self._arguments = get_walker_db()
        self._arguments.add_context_category("ours", macros=arguments, prepend=True)
        self._decoder: LatexNodes2Text = LatexNodes2Text(
            latex_context=self._macros, math_mode="text"
        )
        self._signs: dict[str, str | None] = {}
        self.unknown: list[str] = []

    def text(self, latex: str) -> str:
        """Convert LaTeX to text. Raises ValueError if it cannot be parsed."""
        if not _LATEX.search(latex):
            return latex
        latex = _IF_MATH.sub(r"{\1}", _DOCUMENT.sub(r"\1", latex))
        latex = _LONE_ACCENT.sub(lambda match: _LONE_SIGNS[match[1]], latex)
        latex = _DISPLAYED.sub(lambda match: _formula("".join(filter(None, match.groups()))), latex)
        latex = _MATH.sub(lambda match: _formula(match[1]), latex)
        latex = self._protected(_UNESCAPED.sub(r"\\\1", latex))
        try:
            text = self._decoder.latex_to_text(latex, latex_context=self._arguments)
        except (RecursionError, IndexError) as error:
            raise ValueError("its LaTeX cannot be parsed") from error
        return str(text).replace(_BACKSLASH, "\\")

    def address(self, latex: str) -> str:
        """Convert an address or a DOI, in which "~" and "--" are literal."""
        if "\\" not in latex and "{" not in latex and "$" not in latex:
            return latex

        def sign(match: re.Match[str]) -> str:
            return r"\textasciitilde{}" if match[0] == "~" else f"{match[0]}{{}}"

        latex = latex.replace(r"$\sim$", "~")
        return self.text(_LIGATURE.sub(sign, latex))

    def _protected(self, latex: str) -> str:
        """Mark unknown macros with their arguments, so that they are kept."""
        marks: dict[int, str] = {}
        closing: dict[int, int] | None = None
        for macro in _MACRO.finditer(latex):
            name = macro[1]
            if name is None or self._is_known(name):
                continue
            self.unknown.append(name)
            marks[macro.start()] = _BACKSLASH
            if closing is None:
                closing = _closing_braces(latex)
            position = macro.end()
            while position in closing:
                marks[position], marks[closing[position]] = r"\{", r"\}"
                position = closing[position] + 1
        if not marks:
            return latex
        return "".join(marks.get(number, sign) for number, sign in enumerate(latex))

    def _is_known(self, name: str) -> bool:
        if name not in self._signs:
            self._signs[name] = self._derived_sign(name)
        if self._signs[name] is not None or name in ("begin", "end"):
            return True
        # A macro that was never added has the spec of unknown macros, without a text.
        return bool(self._macros.get_macro_spec(name).macroname)

    def _derived_sign(self, name: str) -> str | None:
        """Derive a sign from a name such as \\textalpha or \\upmu; None if it is not one."""
        if self._macros.get_macro_spec(name).macroname:
            return None
        base = name.removeprefix("text")
        if base != name:
            sign = _TEXT_SIGNS.get(base)
            if sign is None:
                sign = self._macro_sign(base) or html.entities.html5.get(f"{base};")
            return sign
        for letter in (name.removeprefix("up"), name.removesuffix("up")):
            if letter in _GREEK:
                return self._macro_sign(letter)
        return None

    def _macro_sign(self, name: str) -> str | None:
        """Return the sign of a macro without arguments; None if it has none."""
        sign = self._macros.get_macro_spec(name).simplify_repl
        return sign if isinstance(sign, str) and sign and "%" not in sign else None

    def _derived_text(self, node: LatexMacroNode) -> str:
        return self._signs.get(node.macroname) or ""


def without_documents(text: str) -> str:
    """Replace each document around a formula by the formula: "\\documentclass .. $$R_0$$ .."."""
    return _DOCUMENT.sub(lambda match: match[1].strip().strip("$"), text)


def _formula(latex: str) -> str:
    return "{" + re.sub(r"(?<!\\)[_^]", "", latex) + "}"


def _closing_braces(latex: str) -> dict[int, int]:
    """Find the brace that closes each opening one, by position."""
    opened: list[int] = []
    closing: dict[int, int] = {}
    for brace in _BRACE.finditer(latex):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            closing[opened.pop()] = brace.start()
    return closing


def _second_argument(node: LatexMacroNode, l2tobj: LatexNodes2Text) -> str:
    return str(l2tobj.nodelist_to_text([node.nodeargd.argnlist[1]]))


def _accented(node: LatexMacroNode, l2tobj: LatexNodes2Text) -> str:
    letters = str(l2tobj.nodelist_to_text([node.nodeargd.argnlist[0]]))
    combined = letters[:1] + _ACCENTS[node.macroname] + letters[1:]
    return unicodedata.normalize("NFC", combined)
