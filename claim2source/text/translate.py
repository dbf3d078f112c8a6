"""Find texts in other languages than English in a data set, and add translations to it."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from claim2source.core.errors import ConfigError, Problems, UserError
from claim2source.core.files import atomic_folder, atomic_path, require_writable
from claim2source.core.languages import is_in_language, language_tag, primary_language
from claim2source.core.records import sorted_languages
from claim2source.data.beir import CORPUS, QRELS, QUERIES, check_folders
from claim2source.data.folders import DEMO, dataset_folder
from claim2source.data.jsonl import JsonLines, Row
from claim2source.data.pair_files import is_pair_file
from claim2source.text.language import detect, rewrite_error
from claim2source.text.quality import WrittenText, judge_text, lost_facts

CLAIM, TITLE, ABSTRACT = "claim", "title", "abstract"
_OTHER_PART = "another part of this source has no translation"
_SURROGATE = re.compile("[\ud800-\udfff]")
_FIELDS = {TITLE: "title", ABSTRACT: "text"}
# A translation is about as long as its text; a longer one contains something else.
_TIMES = 3
_ALWAYS = 400


@dataclass(frozen=True)
class ForeignText:
    """Text in another language: a claim's, or a source's title or abstract."""

    id: str
    part: str
    text: str
    language: str

    @property
    def name(self) -> str:
        """Name for messages: the claim's id, or the source's id with the part."""
        if self.part == CLAIM:
            return self.id
        return f"{self.id} ({self.part})"

    def judge(self, reply: str) -> WrittenText:
        """Judge a reply as the English translation of the text.

        It is doubtful if it lost numbers, percentages, handles or hashtags.
        """
        longest = max(_ALWAYS, _TIMES * len(self.text))
        error = rewrite_error(reply, self.text, language="en", longest=longest, may_repeat=False)
        doubt = None
        if error is None:
            doubt = "; ".join(lost_facts(self.text, reply, is_translation=True)) or None
        return judge_text(reply, error, doubt)


def require_translatable(dataset: str, out: Path | None, report: Path | None) -> Path:
    """Return a data set's folder; raise `UserError` if a file would be lost or is not writable."""
    if out is not None:
        require_writable(out, "folder")
    folder = dataset_folder(dataset)
    if out is not None:
        check_folders([folder], out)
    elif folder.resolve() == DEMO.resolve():
        raise ConfigError("out", None, "a folder, because the packaged demo set is not changed")
    elif is_pair_file(dataset):
        raise ConfigError("out", None, "a folder, because a file of pairs is not changed")
    else:
        require_writable(folder / QUERIES, "file")
    if report is not None:
        require_writable(report, "file")
        if report.resolve().is_relative_to((out or folder).resolve()):
            raise UserError(f"{report}: is in the data set; choose another --report")
    return folder


def foreign_claims(
    folder: Path,
    languages: Collection[str] | None = None,
    ids: Collection[str] | None = None,
    *,
    overwrite: bool = False,
) -> list[ForeignText]:
    """List the claims that are not English and have no translation (`overwrite`: all of them).

    Only those in `languages` and with one of the `ids`, if these are given.
    """
    texts: list[ForeignText] = []
    for row in _rows(folder / QUERIES):
        language = language_tag(row.text("metadata.lang")) or "en"
        text = row.text("text")
        if primary_language(language) == "en" or not text.strip():
            continue
        if languages is not None and not _is_in_any(language, languages):
            continue
        if ids and row.key not in ids:
            continue
        if overwrite or not row.text("metadata.translation").strip():
            texts.append(ForeignText(row.key, CLAIM, text, language))
    return texts


def foreign_sources(
    folder: Path,
    languages: Collection[str] | None = None,
    *,
    overwrite: bool = False,
) -> list[ForeignText]:
    """List titles and abstracts of sources that are certainly in another language than English.

    Texts that were translated before are skipped, or, with `overwrite`, listed in their original.
    """
    foreign: list[ForeignText] = []
    wanted: set[str] | None = None
    if languages is not None:
        # A detected language has no region.
        wanted = set(map(primary_language, languages))
    for row in _rows(folder / CORPUS):
        before = row.meta.get("original")
        if before and not overwrite:
            continue
        texts = before if isinstance(before, dict) else row.record
        parts = {part: str(texts.get(field) or "") for part, field in _FIELDS.items()}
        language = detect(" ".join(parts.values()))
        if language is None or language == "en":
            continue
        if wanted is not None and language not in wanted:
            continue
        for part, text in parts.items():
            if text.strip():
                foreign.append(ForeignText(row.key, part, text, language))
    return foreign


def _is_in_any(language: str, wanted: Collection[str]) -> bool:
    return any(is_in_language(language, one) for one in wanted)


# A text with its English.
Translated = tuple[ForeignText, WrittenText]


def put_translations(
    folder: Path, results: Sequence[Translated], out: Path | None, *, strict: bool
) -> list[Translated]:
    """Write translations into a data set or a copy of it; return them with their final kinds.

    A source is translated only if all its parts are; otherwise its good parts are `left out`.
    With `strict`, doubtful translations are not used.
    """
    parts: dict[tuple[str, str], list[Translated]] = {}
    for text, translation in results:
        parts.setdefault(_record(text), []).append((text, translation))
    changes: dict[str, dict[str, list[Translated]]] = {}
    for (file, key), pairs in parts.items():
        if all(_is_usable(translation, strict) for _, translation in pairs):
            changes.setdefault(file, {})[key] = pairs
    used: list[Translated] = []
    for text, translation in results:
        file, key = _record(text)
        if key not in changes.get(file, {}) and _is_usable(translation, strict):
            translation = replace(translation, kind="left out", reason=_OTHER_PART)
        used.append((text, translation))
    if changes or out is not None:
        _write_translations(folder, changes, out)
    return used


def _record(text: ForeignText) -> tuple[str, str]:
    """Return the file and the record id of a text."""
    return QUERIES if text.part == CLAIM else CORPUS, text.id


def _is_usable(translation: WrittenText, strict: bool) -> bool:
    """Whether a translation may be written into a data set."""
    if strict and translation.kind == "doubtful":
        return False
    return bool(translation.text)


def translation_report(results: Sequence[Translated]) -> dict[str, object]:
    """Count the results by kind, and list the failed, doubtful and unused ones."""
    problems: list[dict[str, str | None]] = []
    counts = Counter[str]()
    for text, translation in results:
        counts[translation.kind or "good"] += 1
        if translation.kind:
            problems.append(
                {
                    "_id": text.id,
                    "part": text.part,
                    "kind": translation.kind,
                    "why": translation.reason,
                    "text": text.text,
                    "translation": translation.text,
                }
            )
    return {"texts": len(results), "counts": dict(counts), "problems": problems}


def count_lines(texts: Sequence[ForeignText]) -> list[str]:
    """Count the texts to translate by language: a line for claims and one for sources."""
    claims = Counter[str]()
    others = Counter[str]()
    for text in texts:
        counts = claims if text.part == CLAIM else others
        counts[primary_language(text.language)] += 1
    lines: list[str] = []
    for kind, counts in (("claims", claims), ("titles and abstracts of sources", others)):
        if counts:
            languages = sorted_languages(counts)
            parts = ", ".join(f"{language} {counts[language]}" for language in languages)
            lines.append(f"{counts.total()} {kind} to translate ({parts})")
    return lines


def _write_translations(
    folder: Path,
    changes: Mapping[str, Mapping[str, Sequence[Translated]]],
    out: Path | None,
) -> None:
    """Write translations, by file and id, into a data set or into a copy of it at `out`.

    Other lines are unchanged. Each file is replaced atomically, and so is a copy.
    """
    if out is None:
        for name, by_id in changes.items():
            with atomic_path(folder / name) as temporary:
                _write_changed(folder / name, temporary, by_id)
        return
    with atomic_folder(out) as folder_out:
        for path in sorted(folder.iterdir()):
            if path.is_file():
                shutil.copyfile(path, folder_out / path.name)
        if (folder / QRELS).is_dir():
            shutil.copytree(folder / QRELS, folder_out / QRELS)
        for name, by_id in changes.items():
            _write_changed(folder / name, folder_out / name, by_id)


def _write_changed(path: Path, target: Path, by_id: Mapping[str, Sequence[Translated]]) -> None:
    with (
        open(path, encoding="utf-8-sig", newline="\n") as lines,
        open(target, "w", encoding="utf-8", newline="\n") as file,
    ):
        for line in lines:
            row = {}
            if line.strip():
                row = json.loads(line)
            pairs = None
            if "_id" in row:
                pairs = by_id.get(str(row["_id"]))
            if pairs:
                _translate(row, pairs)
                line = json.dumps(row, ensure_ascii=False) + "\n"
                if _SURROGATE.search(line):  # in a field that is not ours
                    line = json.dumps(row) + "\n"
            file.write(line)


def _translate(row: dict[str, object], pairs: Sequence[Translated]) -> None:
    """Put the English into `metadata.translation` of a claim, or replace a source's texts by it.

    The original texts are moved to `metadata.original`, with their language.
    """
    metadata = row.get("metadata")
    if not isinstance(metadata, dict):
        metadata = {}
    first, english = pairs[0]
    if first.part == CLAIM:
        row["metadata"] = {**metadata, "translation": english.text}
        return
    before = {name: row.get(name) for name in _FIELDS.values()}
    original = metadata.get("original") or {"lang": first.language, **before}
    for text, translation in pairs:
        row[_FIELDS[text.part]] = translation.text
    row["metadata"] = {**metadata, "original": original}


def _rows(path: Path) -> Iterator[Row]:
    problems = Problems()
    rows = list(JsonLines(path, problems).rows())
    problems.raise_if_any()
    yield from rows
    problems.raise_if_any()
