"""Turning CheckThat! 2026 Task 1, as JSON files or from the hub, into the native layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from claim2source.core.errors import InputError, Problems, UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.datasets.authors import author_names
from claim2source.datasets.beir import check_folders, refuse_foreign, write_beir
from claim2source.io.jsonl import JsonLines, Row

COLLECTION = "collection_data.json"
SPLITS = ("train", "dev", "test")
LANGUAGES = ("en", "de", "fr")
# The task's own files and copies of them spell the gold's field in two ways.
GOLD = ("pubkey", "pub_key")
HUB_COLLECTION, HUB_TEST = "collection", "test"


class Prepared(NamedTuple):
    """The splits written, and a sentence for everything that was not there."""

    splits: list[Dataset]
    notes: list[str]


class _Table(NamedTuple):
    """The entries of one file, or of one split of a hub configuration; `place` names it."""

    place: str
    entries: Sequence[Any]


_Parts = dict[tuple[str, str], _Table]


def prepare(
    source: str | Path, target: str | Path, translations: str | Path | None = None
) -> Prepared:
    """Read the task's JSON files in `source`, write a BEIR folder `target`.

    Claim ids are `<split>-<language>-<index>`: the task's `index` is unique within a file only.
    The collection is required; of the claims' files (`<language>_<split>.json`) those that are
    absent are noted, and none at all is an error. `translations` is a JSONL file of English
    translations: {"id", "translation"} with our claim id, or {"index", "lang", "split",
    "translation"}.

    Raises `InputError` on bad input, a line a problem, and `UserError` where `target` holds
    anything but an older BEIR folder; nothing is written then.
    """
    source, target = Path(source), Path(target)
    check_folders(source, target)
    problems = Problems()
    collection = _read_json(source / COLLECTION, problems)
    parts: _Parts = {}
    notes = []
    for split in SPLITS:
        for lang in LANGUAGES:
            path = source / f"{lang}_{split}.json"
            if not path.exists():
                notes.append(f"{path}: no such file; left out")
            elif (table := _read_json(path, problems)) is not None:
                parts[split, lang] = table
    # Without a part of them, what the others lack cannot be told.
    problems.raise_if_any()
    assert collection is not None
    return _write(str(source), collection, parts, notes, target, translations)


def prepare_hub(
    name: str,
    target: str | Path,
    translations: str | Path | None = None,
    revision: str | None = None,
) -> Prepared:
    """The same from a data set of the Hugging Face hub (or a folder laid out as one).

    It has the configurations `collection`, `en`, `de`, `fr` (splits train, dev) and `test`
    (splits en, de, fr). The user's own login or HF_TOKEN opens a gated set. Needs `datasets`,
    the extra `hub`. Raises `UserError` where it cannot be loaded, else as `prepare`.
    """
    target = Path(target)
    refuse_foreign(target.resolve())
    tables = _load_hub(name, revision)
    if HUB_COLLECTION not in tables:
        raise UserError(f"{name}: no configuration {HUB_COLLECTION!r}; there are: {_named(tables)}")
    entries = [entry for part in tables[HUB_COLLECTION].values() for entry in part]
    parts: _Parts = {}
    notes = []
    for split in SPLITS:
        for lang in LANGUAGES:
            config, part = (HUB_TEST, lang) if split == "test" else (lang, split)
            place = f"{name}/{config}/{part}"
            if part in tables.get(config, {}):
                parts[split, lang] = _Table(place, tables[config][part])
            else:
                notes.append(f"{place}: not there; left out")
    collection = _Table(f"{name}/{HUB_COLLECTION}", entries)
    return _write(name, collection, parts, notes, target, translations)


def written_index(split: str, lang: str) -> Callable[[str], str]:
    """Claim id -> the task's own index, for a submission: "dev-de-7" -> "7".

    Of an id that does not name its language only "<split>-" is dropped.
    """
    whole = f"{split}-{lang}-"
    return lambda claim: claim.removeprefix(whole if claim.startswith(whole) else f"{split}-")


def _load_hub(name: str, revision: str | None) -> dict[str, dict[str, list[Any]]]:
    """Configuration -> split -> entries, of the configurations that the task has."""
    try:
        import datasets
    except ImportError:
        raise UserError("--hub needs `datasets`: pip install 'claim2source[hub]'") from None
    wanted = (HUB_COLLECTION, *LANGUAGES, HUB_TEST)
    try:
        there = datasets.get_dataset_config_names(name, revision=revision)
        return {
            config: {
                str(split): part.to_list()
                for split, part in datasets.load_dataset(name, config, revision=revision).items()
            }
            for config in wanted
            if config in there
        }
    # The library, the hub and the network fail in many ways; none of them is a bug of ours.
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        raise UserError(
            f"{name}: cannot be loaded: {type(error).__name__}: {_without_token(said)} (a gated "
            "set needs access granted on its page, and your login: `hf auth login` or HF_TOKEN)"
        ) from None


def _without_token(text: str) -> str:
    from huggingface_hub import get_token

    token = get_token()
    return text.replace(token, "<token>") if token else text


def _named(names: Mapping[str, Any]) -> str:
    return ", ".join(names) or "none of this task's"


def _write(
    origin: str,
    collection: _Table,
    parts: _Parts,
    notes: list[str],
    target: Path,
    translations: str | Path | None,
) -> Prepared:
    problems = Problems()
    papers = _papers(collection, problems)
    known = {paper.id for paper in papers}
    claims: dict[str, dict[str, Claim]] = {}
    for (split, lang), table in parts.items():
        found = claims.setdefault(split, {})
        before = len(problems)
        for claim in _claims(table, split, lang, known, problems):
            found[claim.id] = claim
        if not table.entries and len(problems) == before:
            problems.add(table.place, None, None, "holds no claims")
    if not parts:
        raise InputError.at(origin, why="holds no claims: no train, dev or test in en, de or fr")
    if translations is not None:
        notes = notes + _translate(claims, Path(translations), problems)
    problems.raise_if_any()
    splits = []
    for split, of_split in claims.items():
        grades = {claim.id: dict.fromkeys(claim.golds, 1) for claim in of_split.values()}
        qrels = Qrels({claim: golds for claim, golds in grades.items() if golds})
        splits.append(Dataset(tuple(of_split.values()), papers, qrels, split))
    write_beir(splits, target)
    return Prepared(splits, notes)


def _read_json(path: Path, problems: Problems) -> _Table | None:
    """The entries of a JSON file; None where it cannot be read, and that is noted."""
    line, why = None, "is not a list of entries"
    try:
        entries = json.loads(path.read_bytes().decode("utf-8-sig"))
        if isinstance(entries, list):
            return _Table(str(path), entries)
    except FileNotFoundError:
        why = "no such file"
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        why = f"is not UTF-8: byte 0x{error.object[error.start]:02x} at byte {error.start + 1}"
    except json.JSONDecodeError as error:
        line, why = error.lineno, f"broken JSON: {error.msg}"
    except (ValueError, RecursionError):
        why = "broken JSON: a number is too long, or it is nested too deeply"
    problems.add(path, line, None, why)
    return None


def _rows(table: _Table, problems: Problems) -> Iterator[Row]:
    """Entries that are objects; what is wrong with one names its number, from 1."""
    for number, entry in enumerate(table.entries, start=1):

        def complain(field: str | None, why: str, number: int = number) -> None:
            problems.add(table.place, None, field, f"entry {number}: {why}")

        if isinstance(entry, dict):
            # `metadata` means something in our layout, nothing in this one.
            yield Row({k: v for k, v in entry.items() if k != "metadata"}, number, complain)
        else:
            complain(None, "is not an object")


def _papers(table: _Table, problems: Problems) -> tuple[Source, ...]:
    seen: dict[str, int] = {}
    papers = []
    for row in _rows(table, problems):
        name = next((n for n in GOLD if row.record.get(n) is not None), GOLD[0])
        key = row.as_id(name, row.record.get(name)) or ""
        if key and seen.setdefault(key, row.line) != row.line:
            row.complain(name, f"{key!r} is already entry {seen[key]}")
        title, abstract = row.text("title"), row.text("abstract")
        given = (row.record.get("title"), row.record.get("abstract"))
        if all(value is None or isinstance(value, str) and not value.strip() for value in given):
            row.complain("title", "is empty, and so is abstract")
        papers.append(Source(key, title, abstract, _authors(row), row.text("venue")))
    if not table.entries:
        problems.add(table.place, None, None, "holds no papers")
    return tuple(papers)


def _authors(row: Row) -> tuple[str, ...]:
    given = row.record.get("authors")
    if isinstance(given, list):
        names = [row.as_text("authors", name) for name in given if name is not None]
        return tuple(name for name in names if name.strip())
    return author_names(row.text("authors"))


def _claims(
    table: _Table, split: str, lang: str, known: set[str], problems: Problems
) -> Iterator[Claim]:
    seen: dict[str, int] = {}
    for row in _rows(table, problems):
        index = row.as_id("index", row.record.get("index"))
        if index and seen.setdefault(index, row.line) != row.line:
            row.complain("index", f"{index!r} is already entry {seen[index]}")
        text = row.text("text")
        given = row.record.get("text")
        if given is None:
            row.complain("text", "is missing")
        elif isinstance(given, str) and not given.strip():
            row.complain("text", "is empty")
        gold = _gold(row, required=split != "test")
        if gold and gold not in known:
            row.complain(GOLD[0], f"gold {gold!r} is not in the collection")
        yield Claim(f"{split}-{lang}-{index}", text, lang, golds=(gold,) if gold else ())


def _gold(row: Row, required: bool) -> str | None:
    given = [name for name in GOLD if row.record.get(name) not in (None, "")]
    ids = [row.as_id(name, row.record[name]) for name in given]
    if not given and required:
        row.complain(GOLD[0], "is missing")
    if len(set(ids)) > 1:
        row.complain(GOLD[1], f"{ids[1]!r} is not the pubkey, {ids[0]!r}")
    return ids[0] if ids else None


def _translate(claims: dict[str, dict[str, Claim]], path: Path, problems: Problems) -> list[str]:
    """Put translations into the claims; notes what is still without one."""
    if not path.is_file():
        problems.add(path, None, None, "no such file")
        return []
    file = JsonLines(path, problems)
    split_of = {claim: split for split, found in claims.items() for claim in found}
    for row in file.records():
        key = _claim_id(row, split_of)
        text = row.text("translation")
        if not text.strip():
            row.complain("translation", "is empty")
        if key is None:
            continue
        if key not in split_of:
            row.complain("id", f"{key!r} is no claim; ids are such as dev-de-7")
        elif file.seen.setdefault(key, row.line) != row.line:
            row.complain("id", f"{key!r} is already on line {file.seen[key]}")
        else:
            found = claims[split_of[key]]
            found[key] = replace(found[key], translation=text)
    notes = []
    for split, found in claims.items():
        foreign = [claim for claim in found.values() if claim.lang != "en"]
        without = sum(claim.translation is None for claim in foreign)
        if without:
            notes.append(f"{split}: {without} of {len(foreign)} de and fr claims not translated")
    return notes


def _claim_id(row: Row, known: Mapping[str, str]) -> str | None:
    """The claim that a translation is of: our id, or the task's index with lang and split."""
    name = "id" if row.record.get("id") is not None else "index"
    key = row.as_id(name, row.record.get(name))
    lang, split = row.text("lang").strip().lower(), row.text("split").strip()
    if key is None or not lang and not split:
        return key
    if not lang or not split:
        row.complain("split" if lang else "lang", "is missing; lang and split go together")
        return None
    prefix = f"{split}-{lang}-"
    whole = key.startswith(prefix) and prefix + key not in known
    return key if whole else prefix + key
