"""Remove copyright lines and other notices of publishers and databases from abstracts."""

from __future__ import annotations

import re
from dataclasses import replace

from claim2source.data.papers import Paper

# Every notice contains one of these; most abstracts contain none.
_HINTS = (
    "© ⓒ copyright (c) reserved reserva réservés riservati vorbehalten abstract urheberrecht "
    "d'auteur d’auteur derechos open-access supplement supplément supporting zusatz zusätz ergänz "
    "onlineversion online-version permission reuse re-use licence license copying responsibility "
    "author/funder wiley elsevier thieme (contain (author (as auteurs autor (dipf (hof (iab (bibb "
    "(zpid (orig résumé resumen"
).split() + [
    "open access",
    "accès libre",
    "creative commons",
    "online version",
    "database record",
    "published by",
    "publié par",
    "publicado por",
    "pubblicato da",
    "veröffentlicht von",
    "veröffentlicht durch",
    "source document",
    "hosting by",
    "government work",
    "communicated by",
    "special issue",
    "themed issue",
    "directed issue",
    "competing interest statement",
    "commercial use",
    "hard copies",
    "email articles",
    "no warranty",
    "original published version",
    "artificial intelligence tools",
]
# Where a notice may begin: after the end of a sentence, at a bracket, or at a copyright sign.
_BEGIN = re.compile(
    r"(?:^|(?<=[.!?;:)\]\"”’»])(?=[\s©ⓒ(\[])|(?<=\s)(?=[©ⓒ(\[]|(?:Copyright|COPYRIGHT|###)"
    r"|(?:[Ee]lectronic |ELECTRONIC )?(?i:supplement(?:ary|al) (?:information|materials?|data):)"
    r"|(?i:(?:graphical|visual) abstract:?\s*(?:$|\[image))))\s*"
)

_YEAR = r"(?:19|20)\d\d"
_PUBLISHERS = (
    r"(?:Elsevier|Wiley|John Wiley|Blackwell|Springer|Macmillan|Nature Publishing|Oxford|"
    r"Cambridge University|Lippincott|Wolters|S\. Karger|Karger|Taylor|Informa|Sage|SAGE|Mosby|"
    r"Saunders|IEEE|ACM|MDPI|BMJ|Thieme|Hogrefe|Emerald|IOP|AIP|Academic Press|Mary Ann Liebert|"
    r"American [A-Z]|International [A-Z]|European [A-Z]|Massachusetts Medical|CAB International)"
)
_AUTHORS = r"(?:The|the|Der|Die|Les?|El|Los) Aut(?:h?or|eur)"
# Begin of a copyright line; its owner and words of `_LINE_WORDS` follow.
_COPYRIGHT = re.compile(
    rf"(?:(?:Crown|Published|Society|Journal)\s+)?(?:Copyright|COPYRIGHT)\s*(?:©|ⓒ|\([cC]\)|:)?\s*"
    rf"(?=,?\s*{_YEAR}|[Bb]y\s+(?:the\s+)?[A-Z]|{_AUTHORS}|{_PUBLISHERS}|©"
    rf"|(?<=[©ⓒ)])\s*[A-Z(]|(?:[A-Z][\w&.,-]*\s+){{1,8}}\(?{_YEAR})"
    rf"|[©ⓒ]\s*(?=[Cc]opyright|,?\s*{_YEAR}|(?:[Bb]y\s+)?(?:the\s+)?[A-Z(])"
    rf"|\([cC]\)\s*(?=,?\s*{_YEAR})"
)
# Lines without "copyright": "Published by Elsevier Inc.", "2004 Wiley-Liss, Inc.".
_OWNER = re.compile(
    rf"(?:Published (?:online )?by|Publié par|Publicado por|Pubblicato da"
    rf"|Veröffentlicht (?:von|durch)|Production and hosting by|Licensee|Exclusive licensee)\s+"
    rf"|{_YEAR},?\s+(?:by\s+)?(?={_AUTHORS}|{_PUBLISHERS})|(?=(?:Georg )?Thieme\b)"
)
# "Journal of Invented Studies published by Wiley": only after another line.
_JOURNAL = re.compile(
    r"(?:[A-Z][\w&:,-]*\s+)(?:(?:[A-Z][\w&:,-]*|of|the|and|in|for|on|&)\s+){0,12}published\s+by\s+"
)
# Owners in other languages, whose names have lower-case words.
_SOCIETY = re.compile(
    rf"\s*{_YEAR},?\s+(?:L['’ae]\s*)?(?:Société|Association|Académie|Collège|Fédération|Institut"
    r"|Deutsche|Österreichische|Schweizerische|Sociedad|Asociación|Società|Sociedade)[^.]{1,120}\."
)
_LINE_WORDS = frozenset(
    "by of the on behalf and for in to under an a with exclusive non-exclusive licence license "
    "licensed licensee published publisher publishers publishing corrected publication all some "
    "rights reserved or their its his her employer employers employer(s unless otherwise stated "
    "expressly granted where not already permitted affiliates author authors author(s et al "
    "article text part division member company ltd inc llc gmbh co kg ag mbh doi email e-mail "
    "le la les l de des du d en par pour tous droits réservés sous exclusif exclusive auteur "
    "auteurs auteur(s der die das und im von für durch alle rechte vorbehalten verlag autor "
    "autoren autor(en el los y por todos derechos reservados direitos os tutti i diritti riservati "
    "van di".split()
)
_TOKEN = re.compile(r"(?:B\.V\.|Ltd\.|Inc\.|LLC\.|GmbH\.|reserved\.)(?=[A-Z][a-z])|\S+")
_MOST_TOKENS = 70
_INITIAL = re.compile(r"(?:[A-Z]|U\.S|U\.K|St|Dr|Prof|Univ|Soc|Assoc|Dept|e|eds?|No|Vol)\.\Z")
# Words that end an owner's name if no full stop follows.
_OWNER_ENDS = frozenset(
    "B.V Ltd Inc LLC GmbH AG KGaA S.A SAS Limited IEEE ACM Elsevier Wiley Springer Nature "
    "Author Authors Author(s Society Association Press".split()
)

_MEANT = r"(?:article|work|paper|review|publication|document|chapter|report|study|content)"
_SUPPLEMENT = (
    r"(?:(?:electronic |online )?supplement(?:ary|al) "
    r"(?:information|materials?|data|content)\s*:?\s+)?"
)
# Beginnings of notices that extend to the end of their sentence.
_SENTENCES = (
    # Rights.
    r"(?:all|some) rights? (?:are )?reserved\b(?! (?:for|to|in)\b)",
    r"no rights reserved\b",
    r"alle rechte vorbehalten\b",
    r"tous droits réservés\b",
    r"todos los derechos reservados\b",
    r"todos os direitos reservados\b",
    r"tutti i diritti (?:sono )?riservati\b",
    rf"th(?:is|e) {_MEANT} is protected by (?:us |u\.s\. |international )?copyright\b",
    r"die(?:ser|se|ses) (?:artikel|beitrag|arbeit|werk|publikation) ist urheberrechtlich geschützt",
    r"cet(?:te)? (?:article|étude|publication|œuvre) est protégée? par (?:le |un )?"
    r"(?:droits? d.auteur|copyright)",
    r"este (?:artículo|trabajo) está protegido por (?:derechos|copyright)",
    rf"this {_MEANT} (?:is a|has been contributed to by) u\.?s\.? government (?:work|employee)",
    r"no claim to original u\.?s\.? government works?",
    r"the copyright holder for this preprint\b",
    r"no (?:commercial )?re-?use(?: (?:is )?(?:allowed|permitted) (?:without|unless)|(?=\.))",
    # Permissions.
    r"no commercial (?:re-?)?use (?:is permitted unless|without|\.)",
    r"re-?use permitted under\b",
    r"see rights and permissions\b",
    r"for (?:commercial re-?use|permissions?(?: requests)?|reprints?|permission to (?:re)?use)\b"
    r"[^.]{0,80}(?:please|contact|e-?mail|visit|go to|see)\b",
    r"(?:abstract )?(?:reprinted|reproduced|reused|adapted|published|used) (?:by|with)(?: the)?"
    r"(?: kind)? (?:permission|arrangement)\b",
    r"permission to make digital or hard copies\b",
    r"(?:to copy otherwise|abstracting with credit is permitted|copyrights? for components of this"
    r" work|request permissions? from)\b",
    # Licences of the article itself.
    rf"this (?:is|{_MEANT} is) an open[- ]access {_MEANT}\b"
    r"(?=[^.]*(?:under|licen[cs]e|creative commons|cc[- ]by))",
    rf"this {_MEANT} is (?:made |openly |freely )?(?:distributed|licensed|published|available|open"
    r"(?:ly)? access)\b(?=[^.]{0,60}(?:creative commons|cc[- ]by|licen[cs]e|open access))",
    r"(?:published )?open access under\b",
    r"distributed under (?:a |the )?(?:terms of )?(?:the )?(?:creative commons|cc[- ]by)",
    r"cet article est (?:publié|distribué|disponible) (?:en|sous)\b"
    r"(?=[^.]*(?:open access|accès libre|licence))",
    r"dieser (?:artikel|beitrag) (?:ist|wird|wurde)\b"
    r"(?=[^.]*(?:creative commons|lizenz|open access))",
    # Databases.
    r"psyc(?:info|articles|tests|extra)[®™]? database record\b",
    r"copyright of .{3,300}? is the property of\b",
    r"however,? users may print,? download,? or email articles for individual use",
    r"(?:this abstract may be abridged|no warranty is given about the accuracy of the copy)",
    r"users should refer to the original published version\b",
    r"additionally,? content may not be used with any artificial intelligence",
    r"\(?copyright applies to all abstracts",
    r"adapted from the source document\b",
    r"abstract (?:from (?:the )?(?:authors?|publisher)|by (?:the )?authors?)\s*(?=[.\])]|$)",
    # Additions to the article.
    rf"{_SUPPLEMENT}the online version (?:of this (?:article|paper|chapter) )?(?:\([^)]*\) )?"
    r"contains supplement",
    rf"{_SUPPLEMENT}(?:additional |online |electronic )*(?:supplement(?:ary|al)|supporting)"
    r"(?: digital)? (?:information|materials?|data|tables?|figures?|files?|content|methods?"
    r"|appendi(?:x|ces))(?:,? (?:and|or|including|for|of|to|with|associated|related|accompanying"
    r"|the|this|article|paper|s?[0-9]+|tables?|figures?|figs?|videos?|methods?|text|data|files?)"
    r"\b){0,9}"
    r" (?:is|are|may be|can be)(?: also| freely)? (?:available|found"
    r"|accessed|obtained)\b(?=.{0,120}?(?:online|article|https?:|www\.|doi|journal|publisher"
    r"|authori[sz]ed users|web ?site|internet))",
    r"(?:les|des) (?:données|informations|documents) supplémentaires\b"
    r"[^.]{0,80}\bdisponibles?\b",
    r"(?:zusätzliche|ergänzende|weitere)s? (?:online-?)?"
    r"(?:material|materialien|daten|informationen)\b"
    r"[^.]{0,80}\b(?:verfügbar|abrufbar|enthalten|zu finden)\b",
    r"(?:zusatzmaterial online\b|die online-?version dieses (?:beitrags|artikels)\b)",
    r"(?:selection and )?peer[- ]review under (?:the )?responsibility of\b",
    rf"this {_MEANT} is part of (?:a|the) (?:special|themed|directed) "
    r"(?:issue|section|collection)\b",
    r"communicated by [A-Z][\w. -]{2,40}(?=\.\s*$)",
    r"go to the publisher.s online edition\b",
)
_SENTENCE = re.compile("|".join(_SENTENCES), re.IGNORECASE)
# Headings of missing pictures.
_PICTURE = re.compile(
    r"(?:graphical|visual|video) abstract\s*[:.]?\s*(?:\[image: see text\][.]?\s*)?"
    r"(?=$|highlights\b)",
    re.IGNORECASE,
)
# To the end of the abstract: the declarations that preprint servers add to it.
_TAIL = re.compile(r"###\s*Competing Interest Statement\b", re.IGNORECASE)
# The entire text in brackets.
_BRACKETED = re.compile(
    r"publication abstract|abstract (?:from|by|vom) (?:the )?(?:authors?|publishers?|autor|\w+)"
    r"|(?:journal|authors?|publishers?)['’]?s? abstract|as provided"
    r"|résumé (?:d['’]auteurs?|de l['’]auteur|des auteurs)|resumen del? autor"
    r"|zusammenfassung des autors|autorenreferat"
    r"|contains? \d+ (?:tables?|figures?|footnotes?|notes?|endnotes?|charts?)\b[^()]{0,80}"
    r"|copyright applies to all abstracts\.?",
    re.IGNORECASE,
)
# The same at the end of an abstract.
_LAST = re.compile(
    r"authors?(?:/[A-Z]{2,4})?|autor(?:en)?|(?:dipf|hof|iab|bibb|zpid)(?:/[\w.]+)?|orig\.?",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?][\"”’)\]]*(?=\s|$)")
_LONGEST = 900
_CLOSING = {"(": ")", "[": "]"}


def without_boilerplate(text: str) -> str:
    """Remove copyright lines, permissions, and notices of databases and publishers.

    The study's own sentences are kept, even if they are about copyright.

    Example:
        >>> without_boilerplate("Masks help. © 2020 Elsevier B.V. All rights reserved.")
        'Masks help.'
    """
    lowered = text.lower()
    if not any(hint in lowered for hint in _HINTS):
        return text
    kept: list[str] = []
    position = 0
    for begin in _BEGIN.finditer(text):
        start = begin.end()
        if start < position:
            continue
        end = _notice_end(text, start)
        if end > start:
            kept.append(text[position : begin.start()])
            position = _end_of_journal(text, end)
    if not kept:
        return text
    kept.append(text[position:])
    return " ".join(" ".join(kept).split())


def cut_boilerplate(paper: Paper) -> Paper:
    """Remove the boilerplate from a paper's abstract; return the same paper if there is none."""
    source = paper.source
    abstract = without_boilerplate(source.abstract)
    # A paper without a title keeps its abstract.
    if abstract == source.abstract or not (abstract or source.title):
        return paper
    return replace(paper, source=replace(source, abstract=abstract))


def _notice_end(text: str, start: int) -> int:
    """Find the end of a notice that begins here; 0 if none does."""
    if text[start : start + 1] in _CLOSING:
        end = _bracketed_end(text, start)
        if end:
            return end
    if _TAIL.match(text, start):
        return len(text)
    if picture := _PICTURE.match(text, start):
        return picture.end()
    if sentence := _SENTENCE.match(text, start):
        return _sentence_end(text, sentence.end())
    if line := _COPYRIGHT.match(text, start):
        if line[0].strip().lower() == "(c)" and "(b)" in text.lower():
            return 0  # an item of a list: (a), (b), (c)
        if society := _SOCIETY.match(text, line.end()):
            return society.end()
        return _line_end(text, line.end(), is_marked=True)
    if owner := _OWNER.match(text, start):
        return _line_end(text, owner.end(), is_marked=False)
    return 0


def _end_of_journal(text: str, end: int) -> int:
    """Include the journal's line that may follow its publisher's line."""
    start = end + len(text[end:]) - len(text[end:].lstrip())
    journal = _JOURNAL.match(text, start)
    return (_line_end(text, journal.end(), is_marked=False) or end) if journal else end


def _bracketed_end(text: str, start: int) -> int:
    """Find the end of a notice in brackets, with a following full stop; 0 if it is not one."""
    depth = 0
    for end in range(start, min(len(text), start + _LONGEST)):
        if text[end] == text[start]:
            depth += 1
        elif text[end] == _CLOSING[text[start]]:
            depth -= 1
            if not depth:
                break
    else:
        return 0
    inner = text[start + 1 : end].strip()
    is_last = not text[end + 1 :].strip(" .")
    is_notice = bool(_BRACKETED.fullmatch(inner)) or is_last and bool(_LAST.fullmatch(inner))
    if not inner or not is_notice and without_boilerplate(inner):
        return 0
    return end + 2 if text[end + 1 : end + 2] == "." else end + 1


def _sentence_end(text: str, start: int) -> int:
    """Find the end of the sentence at a position."""
    position = start
    if text[start - 1 : start] == ".":
        position = start - 1
    for end in _SENTENCE_END.finditer(text, position, start + _LONGEST):
        before = text[max(0, end.start() - 12) : end.start() + 1].split()[-1:]
        follows = text[end.end() :].lstrip()[:1]
        if not follows.islower() and not _INITIAL.match("".join(before)):
            return end.end()
    return len(text) if len(text) - start < _LONGEST else 0


def _line_end(text: str, start: int, is_marked: bool) -> int:
    """Find the end of a line of names and years; 0 if other words follow before a full stop.

    A line that begins with © may end with its owner's name instead.
    """
    end = owner = since_owner = 0
    has_name = False
    for number, token in enumerate(_TOKEN.finditer(text, start)):
        word = token[0]
        core = word.strip(".,;:()[]\"'“”‘’·*")
        if number > _MOST_TOKENS or not _is_of_line(word, core):
            break
        if end and not word[:1].islower() and word[:1] not in "&(":
            return end
        has_name = has_name or any(map(str.isalpha, core))
        since_owner += 1
        if core in _OWNER_ENDS:
            owner, since_owner = token.end(), 0
        is_end = word.rstrip(')]"”’')[-1:] in (".", "!", "?")
        if has_name and is_end and not _INITIAL.match(word):
            end = token.end()
    else:
        return len(text)
    if not end and is_marked and since_owner <= 1:
        end = owner
    return end


def _is_of_line(word: str, core: str) -> bool:
    """Whether a word may be part of a line of names and years."""
    if not any(map(str.isalpha, core)) or "@" in core or core.startswith(("http", "www.")):
        return True
    if word.endswith(":") and len(core) > 3 and core.lower() != "copyright":
        return False  # a heading
    return core != core.lower() or core.lower() in _LINE_WORDS
