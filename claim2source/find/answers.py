"""Write answers for people, programs, spreadsheets and reference managers.

Posts and papers are untrusted text: it cannot control a terminal, become a spreadsheet formula, or
break out of its field.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

from claim2source.core.terminal import printable_line
from claim2source.data.doi import plain_doi
from claim2source.data.papers import Paper, without_emails
from claim2source.find.abstention import FUSED
from claim2source.find.finder import NOT_JUDGED, Answer, IndexState, Match, Verdict
from claim2source.search.table import NEW

COLUMNS = (
    "post rank id title authors venue date doi link score abstained present sentence post_sentence "
    "reasoning verdict retracted words version model searched untranslated"
).split()
# One more column for several indexes: the name of the paper's index.
INDEX_COLUMN = "index"
NOT_JUDGED_LINE = "Not judged: these are the nearest papers; the right one may not be among them."
_AUTHORS = 3
# Words of the abstract that replace a missing title.
_HEADING = 12
# Names of scores, and which scores are comparable between posts.
_SCORES = {
    **dict.fromkeys(("lexical", "bm25"), "BM25"),
    "dense": "similarity",
    **dict.fromkeys(("fused", "fuse"), "fused"),
}
ABOUT_SCORES = (
    "BM25 and similarity can be compared between posts; the fused score cannot, since it scales "
    "both within one post's list."
)
# Characters that begin a formula in spreadsheets.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_INNER_FORMULA = re.compile(rf"([;,\t\n] *)(?=[{re.escape(''.join(_FORMULA))}][^;,\t\n]*[(|!])")
_NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]+)*%?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_"},
}


def json_rows(answer: Answer) -> list[dict[str, object]]:
    """Return an answer as JSON values: one object for each paper, even if it abstains."""
    return [_json_row(answer, match) for match in answer.matches]


def _json_row(answer: Answer, match: Match) -> dict[str, object]:
    paper, source = match.paper, match.paper.source
    post_words, paper_words = match.words
    score: float | None = match.score
    parts = dict(match.parts)
    if answer.verdict == NOT_JUDGED:
        # Scaled within the list: the first paper's is near 1 for any post.
        score = None
        parts.pop(FUSED, None)
    return {
        "rank": match.rank,
        "id": source.id,
        "title": without_emails(source.title),
        "score": score,
        "abstained": answer.abstained,
        "present": answer.present,
        "authors": author_names(paper),
        "venue": without_emails(source.venue),
        "date": paper.date,
        "doi": plain_doi(paper.doi) or paper.doi,
        "link": paper.link,
        "lang": paper.lang,
        "parts": parts,
        "sentence": without_emails(match.sentence),
        "post_sentence": match.post_sentence,
        "reasoning": answer.reasoning,
        "verdict": answer.verdict,
        "retracted": paper.retracted,
        "words": {"post": list(post_words), "paper": list(paper_words)},
        "index": _index_state(match.of or answer.of),
        "searched": answer.searched,
        "untranslated": answer.untranslated,
    }


def _index_state(state: IndexState | None) -> dict[str, object] | None:
    if state is None:
        return None
    values = asdict(state)
    if not state.name:
        del values["name"]
    return values


def blocks(answers: Iterable[Answer], form: str, *, several: bool = False) -> Iterator[str]:
    """Write answers one by one as `text`, `json` or `csv`, or all at once as `bibtex`.

    `several`: whether there may be more than one answer.
    """
    if form == "bibtex":
        yield as_bibtex(answers)
        return
    for number, answer in enumerate(answers):
        if form == "json" and several:
            yield json.dumps({"post": answer.post.id, "papers": json_rows(answer)})
        elif form == "json":
            yield json.dumps(json_rows(answer), indent=2)
        elif form == "text":
            yield ("\n" if number else "") + as_text(answer, several=several)
        elif rows := as_csv(answer, header=not number):
            yield rows.removesuffix("\n")


def as_csv(answer: Answer, header: bool) -> str:
    """Write a row for each paper."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [*COLUMNS, INDEX_COLUMN] if answer.indexes else list(COLUMNS)
    if header:
        writer.writerow(columns)
    for paper in json_rows(answer):
        values = {"post": answer.post.id, **table_values(paper)}
        writer.writerow([result_cell(values[column]) for column in columns])
    return text.getvalue()


def table_values(paper: Mapping[str, object]) -> dict[str, object]:
    """Convert the values of a paper's JSON for a table: lists and objects become text."""
    values = dict(paper)
    words, index = paper.get("words"), paper.get("index")
    values["authors"] = _joined(paper.get("authors"))
    values["words"] = _joined(words.get("paper")) if isinstance(words, Mapping) else ""
    state = index if isinstance(index, Mapping) else {}
    values["version"], values["model"] = state.get("version"), state.get("model")
    values["index"] = state.get("name")
    return values


def _joined(names: object) -> str:
    return "; ".join(map(str, names)) if isinstance(names, list | tuple) else ""


def result_cell(value: object) -> object:
    """Convert a value of an answer for CSV: text is on one line and never a formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    return safe_cell(printable_line(value))


def safe_cell(text: str) -> str:
    """Put ' in front of text that a spreadsheet would run as a formula; numbers are unchanged.

    A spreadsheet with another separator than the file's splits text there and at line breaks, so
    formulas after these are escaped, too.
    """
    safe = _INNER_FORMULA.sub(r"\1'", text)
    is_formula = safe.lstrip().startswith(_FORMULA)
    if is_formula and not _NUMBER.fullmatch(safe.strip()):
        return f"'{safe}"
    return safe


def as_bibtex(answers: Iterable[Answer]) -> str:
    """Write every paper once, after a comment with the verdict on each post."""
    papers: dict[tuple[str, str], Paper] = {}
    verdicts: list[str] = []
    for answer in answers:
        # BibTeX would parse an entry after @.
        post = printable_line(answer.post.id).replace("@", " ")
        verdicts.append(f"% post {post}: {answer.verdict}")
        for match in answer.matches:
            index = "" if match.of is None else match.of.name
            papers[index, match.paper.source.id] = match.paper
    entries: dict[str, str] = {}
    for paper in papers.values():
        base = re.sub(r"[^A-Za-z0-9_.:/-]+", "_", paper.source.id) or "paper"
        key, number = base, 1
        while key in entries:
            number += 1
            key = f"{base}_{number}"
        entries[key] = _bibtex_entry(key, paper)
    return "\n\n".join(["\n".join(verdicts), *entries.values()])


def _bibtex_entry(key: str, paper: Paper) -> str:
    source = paper.source
    fields = {
        "title": without_emails(source.title),
        "author": " and ".join(author_names(paper)),
        "journal": without_emails(source.venue),
        "year": paper.date[:4],
        "doi": plain_doi(paper.doi) or paper.doi,
        "url": paper.link,
        "note": retraction(paper),
    }
    lines = [f"@article{{{key},"]
    for name, text in fields.items():
        if text.strip():
            lines.append(f"  {name} = {{{_tex(text)}}},")
    lines.append("}")
    return "\n".join(lines)


def _tex(text: str) -> str:
    line = " ".join(_CONTROL.sub(" ", printable_line(text)).split())
    return "".join(_TEX.get(sign, sign) for sign in line)


def heading(paper: Paper) -> str:
    """Return a paper's title, else the first words of its abstract, else its id."""
    source = paper.source
    if source.title:
        return without_emails(source.title)
    words = without_emails(source.abstract).split()
    if len(words) > _HEADING:
        return " ".join(words[:_HEADING]) + " .."
    return " ".join(words) or source.id


def about(paper: Paper) -> list[str]:
    """List the known ones of a paper's first authors, venue and date."""
    names = author_names(paper)
    people = ", ".join(names[:_AUTHORS])
    if len(names) > _AUTHORS:
        people += " et al."
    return [text for text in (people, without_emails(paper.source.venue), paper.date) if text]


def author_names(paper: Paper) -> list[str]:
    """List a paper's authors without e-mail addresses, which an older index may have."""
    names = [without_emails(name).strip(" ,;") for name in paper.source.authors]
    return [name for name in names if name]


def retraction(paper: Paper) -> str:
    """Write a paper's retraction (in capitals) or correction; "" if it has none."""
    state, comma, details = paper.retracted.partition(",")
    state = state.upper() if paper.is_retracted else state.capitalize()
    return f"{state}{comma}{details}"


def headline(answer: Answer) -> str:
    """Return a sentence on whether the paper was found."""
    if not answer.matches:
        if answer.of is not None and answer.of.version == NEW:
            return f"Version {NEW} of the index has no papers yet: it was not complete."
        return "The index has no papers to choose from."
    if answer.present is None:
        return NOT_JUDGED_LINE
    share = f"{answer.present:.0%} that it is here".replace("%", " %")
    return {
        "found": f"Found: the paper is probably one of these ({share}).",
        "uncertain": f"Uncertain: the paper may be one of these, or not in this index ({share}).",
        "not here": f"Not here: the paper is probably not in this index ({share}).",
    }.get(answer.verdict, NOT_JUDGED_LINE)


def next_step(answer: Answer) -> str:
    """Return what to do next, by the verdict."""
    if not answer.matches:
        return "Next: loosen the filters, or add papers to the index."
    return {
        "found": (
            "Next: check that the paper's finding and numbers are those of the post, then open "
            "the paper."
        ),
        "uncertain": (
            "Next: compare findings and numbers of the first papers. If none fits, add what you "
            "know to the post, such as an author, a journal or a year, and search again."
        ),
        "not here": (
            "Next: look elsewhere, such as in a literature database, or ask the post's author for "
            "the link."
        ),
    }.get(answer.verdict, "Next: compare the post with the papers yourself, the first one first.")


def notes(answer: Answer) -> list[str]:
    """List notes on how far to trust an answer: measured rates, and reasons for less."""
    notices = [f"Not searched, because it cannot be read: index {name}." for name in answer.lost]
    notices += answer.warnings
    if answer.untranslated:
        notices.append("The translator failed: the original post was searched.")
    if answer.unencoded:
        notices.append(
            "The papers could not be encoded: they were ranked only by words, and not judged."
        )
    elif answer.matches and answer.present is None and answer.unjudged:
        notices.append(f"{answer.unjudged}.")
    elif answer.matches and answer.present is None and answer.indexes:
        notices.append(
            "The indexes have no verdict in common: scores show which paper is nearer, not how "
            "probable it is."
        )
    elif answer.matches and answer.present is None:
        notices.append(
            "This index has no fitted verdict (claim2source index --claims DATASET fits one): "
            "scores show which paper is nearer, not how probable it is."
        )
    if answer.matches and answer.measured is not None:
        measured = answer.measured
        here = _percent(measured.here, measured.answers)
        first = _percent(measured.first, measured.answers)
        posts = "held-out posts"
        if answer.shared:
            posts = "posts of other collections"
        notices.append(
            f"Of {measured.answers} {posts} with this verdict {here} had their paper in the "
            f"index, and for {first} it came first."
        )
    return notices


def _percent(part: int, total: int) -> str:
    return f"{part / total:.0%}".replace("%", " %")


def matching_words(match: Match) -> str:
    """Return the post's words that match, and the paper's if they differ."""
    post_words, paper_words = match.words
    post = ", ".join(post_words)
    if not post:
        return ""
    in_post = set(map(str.casefold, post_words))
    in_paper = set(map(str.casefold, paper_words))
    if in_post == in_paper:
        return f"words in common: {post}"
    return f"words in common: {post}; in the paper: {', '.join(paper_words)}"


def format_scores(match: Match, verdict: Verdict) -> str:
    """Return a paper's scores; the fused score, scaled within the list, only if judged."""
    scores = []
    for name, score in match.parts.items():
        if name == FUSED and verdict == NOT_JUDGED:
            continue
        label = _SCORES.get(name, name)
        scores.append(f"{label} {score:.4g}")
    return ", ".join(scores)


def as_text(answer: Answer, several: bool = False) -> str:
    """Format an answer for people; with `several` posts it begins with the post's id."""
    lines = [f"post {answer.post.id}:"] if several else []
    lines += [f"The post links to {link}" for link in answer.post.links]
    lines += [headline(answer), *notes(answer)]
    if answer.searched:
        lines.append(f'searched: "{answer.searched}"')
    if answer.reasoning:
        lines.append(f"Verifier: {answer.reasoning}")
    blocks = ["\n".join(map(printable_line, lines))]
    blocks += [_match(match, answer.verdict) for match in answer.matches]
    if answer.matches:
        blocks.append(ABOUT_SCORES)
    if answer.of is not None:
        blocks.append(f"index version {answer.of.version}, model {answer.of.model}")
    return "\n\n".join(blocks)


def _match(match: Match, verdict: Verdict) -> str:
    paper = match.paper
    lines = [f"{match.rank:>2}. {heading(paper)}"]
    if paper.retracted:
        lines.append(f"!! {retraction(paper)}")
    lines.append(", ".join(about(paper)))
    lines.append(paper.link or f"id {paper.source.id}")
    if match.of is not None:
        lines.append(f"index {match.of.name}, version {match.of.version}")
    if match.sentence:
        if match.post_sentence:
            lines.append(f'post: "{match.post_sentence}"')
        lines.append(f'paper: "{without_emails(match.sentence)}"')
    lines += [matching_words(match), format_scores(match, verdict)]
    return "\n    ".join(printable_line(line) for line in lines if line)
