"""Define styles of claims and sources: prompts, rules and checks, and folders of their texts.

2025 paper, section 2.2: claims as posted (C0), formal (C1), as a scientific claim (C2), as an
abstract (C3) or a question (C4); sources as published (S0), formal (S1), summarised (S2) or as a
tweet (S3).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal, Self, get_args

from claim2source.core.config import require_one_of
from claim2source.core.errors import InputError, Problems, UserError
from claim2source.core.files import atomic_path, file_error, write_json
from claim2source.core.records import Dataset
from claim2source.core.run import Thinking
from claim2source.core.validate import read_json, validated
from claim2source.data.jsonl import JsonLines, Row
from claim2source.text import style_rules
from claim2source.text.language import detect, rewrite_error
from claim2source.text.prompts import Prompt
from claim2source.text.quality import Quality, WrittenText, first_lines, judge_text

Side = Literal["claims", "sources"]
# The text that is rewritten, and used as C0, for a claim in another language than English.
ClaimText = Literal["original", "translation"]
INFO = "styles.json"
RULES = "rules"  # the origin of texts made by rules
LISTED = 5  # failed texts to list
# Number of words of an abstract in C3: "about 150".
_MIN_WORDS = 100
_MAX_WORDS = 200
# A formal rewriting may spell things out, but a longer text is not a rewriting.
_TIMES = 3


@dataclass(frozen=True)
class Style:
    """Style with its prompt, its rule and the form of its texts.

    `prompt` and `rule` are None for unchanged texts. `form` returns the reason if a text lacks the
    style's form; `same` is whether a text may have the style already, so that a copy is a good
    answer; `longest` is the maximum length in characters (None: relative to the original's).
    """

    name: str
    side: Side
    what: str
    prompt: str | None = None
    rule: Callable[[str, str | None], str] | None = None
    form: Callable[[str], str | None] = lambda text: None
    same: bool = False
    longest: int | None = None

    def judge(self, original: Original, reply: str) -> WrittenText:
        """Judge a reply as a rewriting of a text; it is doubtful without the style's form."""
        error = rewrite_error(
            reply,
            original.text,
            language=original.language or detect(original.text) or "en",
            longest=self.longest or max(400, _TIMES * len(original.text)),
            may_repeat=self.same,
        )
        doubt = None if error is not None else self.form(reply)
        return judge_text(reply, error, doubt)


def _abstract_error(text: str) -> str | None:
    words = len(text.split())
    if _MIN_WORDS <= words <= _MAX_WORDS:
        return None
    return f"{words} words, not about {style_rules.ABSTRACT} ({_MIN_WORDS} to {_MAX_WORDS})"


def _question_error(text: str) -> str | None:
    if text.count("?") == 1 and text.rstrip().endswith("?"):
        return None
    return "not one question"


def _tweet_error(text: str) -> str | None:
    limit = style_rules.TWEET
    if len(text) <= limit:
        return None
    return f"{len(text)} characters, more than {limit}"


STYLES: dict[str, Style] = {
    style.name: style
    for style in (
        Style("C0", "claims", "as posted"),
        Style("C1", "claims", "formal", "c1", style_rules.formal, same=True),
        Style("C2", "claims", "scientific claim", "c2", style_rules.claim, same=True),
        Style(
            "C3", "claims", "abstract", "c3", style_rules.abstract, _abstract_error, longest=4000
        ),
        Style("C4", "claims", "question", "c4", style_rules.question, _question_error, longest=600),
        Style("S0", "sources", "as published"),
        Style("S1", "sources", "formal", "s1", style_rules.plain_abstract, same=True),
        Style("S2", "sources", "summary", "s2", style_rules.summary, same=True),
        Style("S3", "sources", "tweet", "s3", style_rules.tweet, _tweet_error, longest=1000),
    )
}
CLAIM_STYLES = tuple(name for name in STYLES if STYLES[name].side == "claims")
SOURCE_STYLES = tuple(name for name in STYLES if STYLES[name].side == "sources")
REWRITTEN = tuple(name for name in STYLES if STYLES[name].prompt)


@dataclass(frozen=True)
class Rewrite:
    """One version of a rewritten text.

    `title` is the source's title, None for claims. `failure` is the reason if it failed; `text` is
    then empty, unless only the style's form is wrong. `of` is the original's `sign`.
    """

    id: str
    version: int
    text: str
    title: str | None = None
    failure: str | None = None
    of: str | None = None


@dataclass(frozen=True)
class Original:
    """Text to rewrite: a claim's, or a source's abstract with its title."""

    id: str
    text: str
    language: str | None = None
    title: str | None = None

    @property
    def sign(self) -> str:
        """Hash of title and text, to detect later changes."""
        return sha256(f"{self.title or ''}\n{self.text}".encode()).hexdigest()[:12]

    def rewritten(self, text: str, version: int = 1, failure: str | None = None) -> Rewrite:
        return Rewrite(self.id, version, text, self.title, failure, self.sign)


def originals(dataset: Dataset, side: Side, claims: ClaimText = "original") -> list[Original]:
    """List the texts of a data set to rewrite.

    If `claims` is "translation", a claim in another language than English is replaced by its
    translation, if it has one. Sources without an abstract are skipped.
    """
    require_one_of("claims", claims, get_args(ClaimText))
    texts: list[Original] = []
    if side == "sources":
        for source in dataset.sources:
            if source.abstract.strip():
                texts.append(Original(source.id, source.abstract, title=source.title))
        return texts
    for claim in dataset.claims:
        if claims == "translation" and claim.lang != "en" and claim.translation:
            texts.append(Original(claim.id, claim.translation, "en"))
        else:
            texts.append(Original(claim.id, claim.text, claim.lang))
    return texts


@dataclass(frozen=True)
class StyleOrigin:
    """Origin of a style's texts: the model or the rules, the prompt and the original texts.

    `prompt` is name and version; `claims` is the text of claims that was rewritten, None for
    sources; `split` is the claims' split; `texts` and `failures` are counts. `thinking` is the
    thinking setting sent to the server, and the number of replies with reasoning; "" for rules.
    """

    by: str
    dataset: str
    split: str | None
    versions: int = 1
    prompt: str | None = None
    claims: ClaimText | None = None
    texts: int = 0
    failures: int = 0
    thinking: tuple[Thinking, ...] = ()

    @classmethod
    def of(
        cls,
        style: Style,
        data: Dataset,
        claims: ClaimText,
        versions: int,
        model: str,
        prompt: Prompt | None,
    ) -> Self:
        of_claims = style.side == "claims"
        return cls(
            by=RULES if prompt is None else model,
            dataset=data.name,
            split=data.split if of_claims else None,
            versions=versions,
            prompt=None if prompt is None else f"{prompt.name} {prompt.version}",
            claims=claims if of_claims else None,
        )


@dataclass(frozen=True)
class _Info:
    format: Literal[1]
    styles: dict[str, StyleOrigin]


def rewrite_by_rules(style: Style, texts: Iterable[Original]) -> list[Rewrite]:
    """Rewrite texts in a style without a model; see `style_rules`."""
    if style.rule is None:
        raise ValueError(f"style {style.name} is the unchanged text")
    rewrites: list[Rewrite] = []
    for original in texts:
        text = style.rule(original.text, original.title).strip()
        # A post with only emojis is unchanged.
        rewrites.append(original.rewritten(text or original.text))
    return rewrites


def write_style(
    folder: Path,
    style: Style,
    rewrites: Sequence[Rewrite],
    origin: StyleOrigin,
) -> None:
    """Add a style's texts to a folder, with their origin."""
    made_before = read_origin(folder)
    with atomic_path(folder / f"{style.name}.jsonl") as temporary:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            for rewrite in rewrites:
                row: dict[str, object] = {"_id": rewrite.id}
                for key, value in asdict(rewrite).items():
                    if key != "id" and value is not None:
                        row[key] = value
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    failures = sum(rewrite.failure is not None for rewrite in rewrites)
    made_before[style.name] = replace(origin, texts=len(rewrites), failures=failures)
    entries = {name: asdict(made_before[name]) for name in STYLES if name in made_before}
    write_json(folder / INFO, {"format": 1, "styles": entries})


def style_lines(style: Style, texts: Sequence[Original], rewrites: Sequence[Rewrite]) -> list[str]:
    """Count a style's rewritings, measure their quality, and list some failures."""
    originals_by_id = {text.id: text.text for text in texts}
    pairs: list[tuple[str, str]] = []
    failed: list[str] = []
    for rewrite in rewrites:
        if rewrite.text:
            pairs.append((originals_by_id[rewrite.id], rewrite.text))
        if rewrite.failure is not None:
            failed.append(f"{rewrite.id} version {rewrite.version}: {rewrite.failure}")

    line = f"{style.name} ({style.what}): {len(pairs)} of {len(rewrites)} texts"
    quality = Quality.of(pairs)
    if quality is not None:
        line += f"; {quality.sentence()}"
    lines = [line]
    if failed:
        unused = len(rewrites) - len(pairs)
        lines.append(f"  {len(failed)} failed, of which {unused} have no text:")
    return lines + first_lines(failed, LISTED, f", in {style.name}.jsonl")


def read_origin(folder: Path) -> dict[str, StyleOrigin]:
    """Read the origin of a folder's texts, by style; empty if it has none.

    Raises `InputError` if `styles.json` is not one of ours.
    """
    path = folder / INFO
    if not path.exists():
        return {}
    origins = validated(_Info, read_json(path), path).styles
    for name in origins:
        if name not in STYLES:
            raise InputError(path, field=f"styles.{name}", reason="no such style")
    return origins


def require_texts(folder: Path | None, names: Iterable[str]) -> None:
    """Raise `InputError` if a folder of texts lacks a style; do nothing without a folder."""
    if folder is None:
        return
    if not folder.is_dir():
        raise InputError(folder, reason="no such folder")
    origins = read_origin(folder)
    for name in names:
        if name not in origins:
            raise InputError(folder, reason=f"contains no texts of style {name}")


def refuse_other_origins(folder: Path, styles: Mapping[str, StyleOrigin]) -> None:
    """Raise `UserError` if a folder has texts of a style with another origin."""
    origins = read_origin(folder)
    for name, new in styles.items():
        before = origins.get(name, new)
        for key in ("by", "dataset", "split", "versions", "prompt", "claims"):
            old = getattr(before, key)
            now = getattr(new, key)
            if old != now:
                how = key if key == "by" else f"with {key}"
                raise UserError(
                    f"{folder}: {name} already exists, made {how} {old}, not {now}; "
                    "add --overwrite or choose another --out"
                )


def refuse_other_folder(folder: Path) -> None:
    """Raise `UserError` unless a folder is missing, empty or a folder of styles."""
    if not folder.exists() or not folder.is_dir() or not any(folder.iterdir()):
        return
    names = {INFO, *(f"{name}.jsonl" for name in STYLES)}
    for path in sorted(folder.iterdir()):
        if path.name not in names and not path.name.startswith("."):
            raise UserError(f"{folder}: contains {path.name!r}, so it is not a folder of styles")
    if not (folder / INFO).is_file():
        raise UserError(f"{folder}: has no {INFO}, so it is not a folder of styles")


def read_style(
    folder: Path,
    style: Style,
    texts: Sequence[Original] | None = None,
) -> list[Rewrite]:
    """Read a style's texts, in file order.

    With `texts`, only their rewritings are returned; each text must have all its versions, made
    from this very text. Raises `InputError` with file, line and field.
    """
    path = folder / f"{style.name}.jsonl"
    origin = read_origin(folder).get(style.name)
    if origin is None or file_error(path) is not None:
        raise InputError(folder, reason=f"contains no texts of style {style.name}")
    rewrites = _read_rewrites(path, style, origin.versions)
    if texts is None:
        return [rewrite for rewrite, _ in rewrites.values()]

    problems = Problems()
    versions: list[Rewrite] = []
    for original in texts:
        for version in range(1, origin.versions + 1):
            if (original.id, version) not in rewrites:
                problems.add(path, None, "_id", f"lacks {original.id!r} version {version}")
                continue
            rewrite, line = rewrites[original.id, version]
            if rewrite.of not in (None, original.sign):
                reason = f"{original.id!r} has changed since it was rewritten"
                problems.add(path, line, "of", reason)
            versions.append(rewrite)
    problems.raise_if_any()
    return versions


def _read_rewrites(
    path: Path,
    style: Style,
    versions: int,
) -> dict[tuple[str, int], tuple[Rewrite, int]]:
    """Read a file's texts with their lines, by id and version."""
    problems = Problems()
    rewrites: dict[tuple[str, int], tuple[Rewrite, int]] = {}
    for row in JsonLines(path, problems).records():
        rewrite = _rewrite(row, versions, style)
        if rewrite is None:
            continue
        key = (rewrite.id, rewrite.version)
        _, line = rewrites.setdefault(key, (rewrite, row.line))
        if line != row.line:
            row.complain("_id", f"{key[0]!r} version {key[1]} is already on line {line}")
    problems.raise_if_any()
    return rewrites


@dataclass(frozen=True)
class StyleTexts:
    """Texts of a split in a style, by id for each version, and their origin.

    A text that could not be rewritten is missing, and the original is used. `lost` counts such
    texts over all versions.
    """

    by: str
    versions: tuple[Mapping[str, str], ...]
    lost: int = 0

    @classmethod
    def of(cls, rewrites: Sequence[Rewrite], by: str) -> StyleTexts:
        count = max((rewrite.version for rewrite in rewrites), default=1)
        versions: list[dict[str, str]] = [{} for _ in range(count)]
        lost = 0
        for rewrite in rewrites:
            if rewrite.text.strip():
                versions[rewrite.version - 1][rewrite.id] = rewrite.text
            else:
                lost += 1
        return cls(by, tuple(versions), lost)


def style_texts(
    style: Style,
    dataset: Dataset,
    claims: ClaimText,
    folder: Path | None,
) -> StyleTexts:
    """Read a split's texts in a style from a folder, or make them by rules. Raises `InputError`.

    `claims` is the text of a claim that was rewritten.
    """
    before = originals(dataset, style.side, claims)
    if folder is None:
        return StyleTexts.of(rewrite_by_rules(style, before), RULES)
    rewrites = read_style(folder, style, before)
    return StyleTexts.of(rewrites, read_origin(folder)[style.name].by)


def _rewrite(row: Row, versions: int, style: Style) -> Rewrite | None:
    key = row.as_id("_id", row.record.get("_id"))
    version = row.record.get("version")
    if type(version) is not int or not 1 <= version <= versions:
        row.complain("version", f"is not a whole number from 1 to {versions}")
        return None
    fields = {name: row.text(name) for name in ("failure", "of") if name in row.record}
    title = None
    if "title" in row.record:
        title = row.text("title")
    text = row.text("text")
    if not text.strip() and not fields.get("failure"):
        row.complain("text", "is empty, but there is no failure")
    if title is not None and style.side == "claims":
        row.complain("title", "claims have no title")
    if key is None:
        return None
    return Rewrite(key, version, text, title, **fields)
