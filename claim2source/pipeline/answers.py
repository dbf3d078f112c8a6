"""Write answers for people, programs, spreadsheets and reference managers.

Posts and papers are anybody's text: nothing in them steers a terminal, becomes a spreadsheet's
formula, or leaves its field.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from claim2source.core.terminal import printable_line
from claim2source.datasets.papers import first_day
from claim2source.pipeline.asking import Answer, Match
from claim2source.stages.abstain import NONE_OF_THESE

COLUMNS = (
    "post",
    "rank",
    "id",
    "title",
    "authors",
    "venue",
    "date",
    "doi",
    "link",
    "score",
    "abstained",
    "present",
    "sentence",
    "reasoning",
    "verdict",
    "retracted",
    "words",
    "version",
    "model",
)
_AUTHORS = 3
# What a spreadsheet may take for a formula.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_"},
}


def plain(answer: Answer) -> list[dict[str, object]]:
    """Write an answer as JSON values: one object for each paper, also where it abstains."""
    return [
        {
            "rank": match.rank,
            "id": match.paper.source.id,
            "title": match.paper.source.title,
            "score": match.score,
            "abstained": answer.abstained,
            "present": answer.present,
            "authors": list(match.paper.source.authors),
            "venue": match.paper.source.venue,
            "date": match.paper.source.date,
            "doi": match.paper.doi,
            "link": match.paper.link,
            "lang": match.paper.lang,
            "parts": dict(match.parts),
            "sentence": match.sentence,
            "reasoning": answer.reasoning,
            "verdict": answer.verdict,
            "retracted": match.paper.retracted,
            "words": {"post": list(match.words[0]), "paper": list(match.words[1])},
            "index": None if answer.of is None else asdict(answer.of),
        }
        for match in answer.matches
    ]


def as_json(answer: Answer) -> str:
    """Write the list of papers for one post as indented JSON."""
    return json.dumps(plain(answer), indent=2)


def as_json_line(answer: Answer) -> str:
    """Write the id of one of many posts and its list of papers on one line."""
    return json.dumps({"post": answer.post.id, "papers": plain(answer)})


def as_csv(answers: Iterable[Answer], header: bool = True) -> str:
    """Write a row for each paper."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(COLUMNS)
    for answer in answers:
        for match, values in zip(answer.matches, plain(answer), strict=True):
            values |= {
                "post": answer.post.id,
                "authors": "; ".join(match.paper.source.authors),
                "words": "; ".join(match.words[1]),
                "version": None if answer.of is None else answer.of.version,
                "model": None if answer.of is None else answer.of.model,
            }
            writer.writerow([_cell(values[column]) for column in COLUMNS])
    return text.getvalue()


def _cell(value: object) -> object:
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else value
    line = printable_line(value)
    return f"'{line}" if line.lstrip().startswith(_FORMULA) else line


def as_bibtex(answers: Iterable[Answer]) -> str:
    """Write every paper once."""
    papers = {match.paper.source.id: match.paper for a in answers for match in a.matches}
    entries, keys = [], set[str]()
    for paper in papers.values():
        source = paper.source
        key = base = re.sub(r"[^A-Za-z0-9_.:/-]+", "_", source.id) or "paper"
        number = 1
        while key in keys:
            number += 1
            key = f"{base}_{number}"
        keys.add(key)
        year = first_day(source.date) // 10_000
        fields = {
            "title": source.title,
            "author": " and ".join(name for name in source.authors if name.strip()),
            "journal": source.venue,
            "year": f"{year:04}" if year else "",
            "doi": paper.doi,
            "url": paper.link,
            "note": paper.retracted.upper() if paper.is_retracted else paper.retracted,
        }
        lines = [f"  {name} = {{{_tex(text)}}}," for name, text in fields.items() if text.strip()]
        entries.append("\n".join([f"@article{{{key},", *lines, "}"]))
    return "\n\n".join(entries)


def _tex(text: str) -> str:
    line = " ".join(_CONTROL.sub(" ", printable_line(text)).split())
    return "".join(_TEX.get(sign, sign) for sign in line)


def as_text(answer: Answer, several: bool = False) -> str:
    """Write an answer for people; of `several` posts each has its id in front."""
    lines = [f"post {answer.post.id}:"] if several else []
    lines += [f"The post links to {link}" for link in answer.post.links]
    lines += [_verdict(answer)] if answer.matches else ["The index holds no paper to choose from."]
    if answer.reasoning:
        lines.append(f"Verifier: {answer.reasoning}")
    shown = [_match(match) for match in answer.matches]
    if answer.of is not None:
        shown.append(f"index version {answer.of.version}, model {answer.of.model}")
    return "\n\n".join(["\n".join(map(printable_line, lines)), *shown])


def _verdict(answer: Answer) -> str:
    if answer.present is None:
        said = "whether the paper is in the index at all was not judged: no abstention is fitted"
        return f"{NONE_OF_THESE}." if answer.abstained else f"Of these the first fits best; {said}."
    share = f"{answer.present:.0%} that the paper is in the index"
    if answer.abstained:
        return f"Not here: probably {NONE_OF_THESE} ({share}). Nearest are:"
    if answer.verdict == "uncertain":
        return f"Uncertain: it may be among these, or {NONE_OF_THESE} ({share}):"
    return f"Found: probably among these ({share}):"


def _match(match: Match) -> str:
    source = match.paper.source
    about = ", ".join(filter(None, (_people(source.authors), source.venue, source.date)))
    parts = ", ".join(f"{name} {score:.4g}" for name, score in match.parts.items())
    lines = [
        f"{match.rank:>2}. {source.title or source.id}",
        f"!! {match.paper.retracted.upper()}" if match.paper.retracted else "",
        about,
        match.paper.link or f"id {source.id}",
        f'"{match.sentence}"' if match.sentence else "",
        f"words: {', '.join(match.words[0])} ~ {', '.join(match.words[1])}"
        if match.words[0]
        else "",
        f"score {match.score:.4g} ({parts})",
    ]
    kept = [printable_line(line) for line in lines if line]
    return "\n    ".join(kept)


def _people(authors: Sequence[str]) -> str:
    shown = [name for name in authors if name.strip()]
    return ", ".join(shown[:_AUTHORS]) + (" et al." if len(shown) > _AUTHORS else "")
