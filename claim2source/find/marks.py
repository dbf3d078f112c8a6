"""Store people's marks of posts: the paper that a post means, or that it is not in the index."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path, PurePath

from claim2source.core.errors import InputError, Problem, UserError
from claim2source.core.files import content_hash, real_path
from claim2source.core.records import Claim, Dataset, Qrels
from claim2source.data.grouping import plain_text
from claim2source.data.identity import Identity
from claim2source.data.store import Store
from claim2source.data.text_files import text_error
from claim2source.search.engine import Engine
from claim2source.search.shards import Shards

# Fewest marks to fit abstention to.
ENOUGH = 50
# Replaces the id of a paper if the post's paper is not in the index.
NONE = "none"
# Most bytes of a file of marks.
MOST_BYTES = 64 * 2**20
# Papers found for each marked post, which may contain copies of its paper.
_NEAREST = 50


class UnknownPaper(UserError):
    """Raised if an index lacks the paper of a mark."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Person's judgement of a post: its `paper` in the index, None if it is not there.

    `version` is the index's, `time` that of the mark, in UTC. `index` names the index in a file of
    several.
    """

    post: str
    paper: str | None
    lang: str
    date: str = ""
    version: int = 0
    time: str = ""
    index: str = ""

    @classmethod
    def parse(cls, line: bytes) -> Mark:
        """Read a line of a file of marks. Raises ValueError if it is not one."""
        text = line.decode("utf-8")
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("is not a JSON object")

        known = {field.name for field in fields(cls)}
        for name in ("post", "paper", "lang"):
            if name not in values:
                raise ValueError(f"{name} is missing")

        for name, value in values.items():
            is_right = isinstance(value, str)
            if name == "version":
                is_right = isinstance(value, int) and not isinstance(value, bool)
            is_wrong = name in known and not is_right
            if is_wrong and (name, value) != ("paper", None):
                raise ValueError(f"{name} has a wrong type")
            if not isinstance(value, str):
                continue
            reason = text_error(value)
            if reason:
                raise ValueError(f"{name} {reason}")

        if not values["post"].strip():
            raise ValueError("post is empty")
        own_values = {name: value for name, value in values.items() if name in known}
        return cls(**own_values)


@dataclass(frozen=True)
class Marks:
    """Last mark of every post in a file, and the file's damaged lines."""

    path: Path
    marks: tuple[Mark, ...]
    damaged: tuple[Problem, ...] = ()

    @property
    def missing(self) -> int:
        """Return how many more marks are needed to fit abstention."""
        return max(0, ENOUGH - len(self.marks))

    def __str__(self) -> str:
        text = f"{self.path}: {len(self.marks)} marks"
        if self.damaged:
            text += f"; {len(self.damaged)} damaged lines are skipped"
        return text


class MarksFile:
    """File of marks, one JSON line each; several processes may append to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def beside(
        cls,
        location: str | Path,
        store: Path | None = None,
    ) -> MarksFile:
        """Return an index's own file: next to its folder, or in the store for a bucket."""
        address = str(location)
        if "://" in address:
            name = content_hash(address.rstrip("/"))
            marks_folder = Store(store).root / "marks"
            return cls(marks_folder / f"{name}.jsonl")
        folder = real_path(location)
        path = folder.with_name(f"{folder.name}.marks.jsonl")
        return cls(path)

    def add(self, mark: Mark) -> None:
        """Append a mark. Raises `UserError`, and writes nothing, if that fails."""
        text = json.dumps(asdict(mark), ensure_ascii=False)
        line = text.encode("utf-8") + b"\n"
        try:
            with self._locked() as file:
                self._append(file, line)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(self.path, reason=reason) from None

    @contextmanager
    def _locked(self) -> Iterator[int]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Opening a pipe without a reader would block.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(self.path, flags, 0o666)
        try:
            mode = os.fstat(file).st_mode
            if not stat.S_ISREG(mode):
                raise InputError(self.path, reason="is not a file")
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _append(self, file: int, line: bytes) -> None:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            line = b"\n" + line  # an earlier writer was stopped within its line
        if size + len(line) > MOST_BYTES:
            raise UserError(f"{self.path}: is full: {MOST_BYTES >> 20} MiB")
        try:
            written = os.write(file, line)
        except OSError:
            os.ftruncate(file, size)
            raise
        if written < len(line):
            os.ftruncate(file, size)
            raise InputError(self.path, reason="no space left for a mark")

    def read(self) -> Marks:
        """Read the last mark of every post; damaged lines are listed and not changed."""
        latest: dict[str, Mark] = {}
        damaged: list[Problem] = []
        try:
            with self.path.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if not line.strip():
                        continue
                    try:
                        mark = Mark.parse(line)
                    except (ValueError, RecursionError) as error:
                        reason = _reason(error)
                        problem = Problem(str(self.path), number, None, reason)
                        damaged.append(problem)
                        continue
                    key = plain_text(mark.post)
                    latest.pop(key, None)
                    latest[key] = mark
        except FileNotFoundError:
            pass
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(self.path, reason=reason) from None

        marks = tuple(latest.values())
        return Marks(self.path, marks, tuple(damaged))


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    return str(error)


def add_mark(
    engine: Engine,
    file: MarksFile,
    post: str,
    lang: str,
    date: str,
    paper: str | None,
) -> Mark:
    """Mark a post of an index. Raises `UnknownPaper`, or `UserError` if writing fails."""
    if paper is not None and paper not in engine.stamps([paper]):
        raise UnknownPaper(f"{paper[:100]}: no paper of the index has this id")

    now = datetime.now(UTC)
    time = now.isoformat(timespec="seconds")
    text = _writable(post)
    mark = Mark(text, paper, lang, date, engine.version, time)
    file.add(mark)
    return mark


def add_marks(
    shards: Shards,
    file: MarksFile | None,
    mark: Mark,
    store: Path | None = None,
    index: str = "",
) -> Mark:
    """Mark a post of several indexes, in one common file or in the file of each.

    The file of an index that has the paper names its own copy; the others record that they lack
    it. `index` names the index of the paper's id, if several have this id. Raises `UnknownPaper`,
    or `UserError` if a mark cannot be written.
    """
    indexes = shards.indexes()
    ids: dict[str, str | None] = dict.fromkeys(indexes)
    first = next(iter(indexes))
    if mark.paper is not None:
        first = _index_with(indexes, mark.paper, index)
        ids |= _copies(indexes, first, mark.paper)

    now = datetime.now(UTC)
    time = now.isoformat(timespec="seconds")
    mark = replace(mark, post=_writable(mark.post), time=time)
    version = indexes[first].version
    if file is not None:
        named = "" if mark.paper is None else first
        mark = replace(mark, version=version, index=named)
        file.add(mark)
        return mark

    for name, engine in indexes.items():
        own = replace(mark, paper=ids[name], version=engine.version)
        own_file = MarksFile.beside(engine.location, store)
        own_file.add(own)
    named = first if mark.paper else ""
    return replace(mark, version=version, index=named)


def _index_with(
    indexes: Mapping[str, Engine],
    paper: str,
    index: str,
) -> str:
    """Return the first index with a paper's id.

    Raises `UnknownPaper` if there is none, or if the id belongs to another paper in another index.
    """
    names: list[str] = []
    records: list[Identity] = []
    for name, engine in indexes.items():
        if index not in ("", name):
            continue
        found = engine.fetch([paper])
        if paper in found:
            record = Identity.read(found[paper])
            names.append(name)
            records.append(record)

    if not names:
        raise UnknownPaper(f"{paper[:100]}: no paper of the indexes has this id")
    first, *others = records
    are_copies = all(first.common(record) for record in others)
    if not are_copies:
        listed = ", ".join(names)
        raise UnknownPaper(f"{paper[:100]}: is an id in several indexes: {listed}")
    return names[0]


def _copies(
    indexes: Mapping[str, Engine],
    first: str,
    paper: str,
) -> dict[str, str]:
    """Return a paper's id in each index that has it."""
    papers = indexes[first].fetch([paper])
    record = Identity.read(papers[paper])
    ids = {first: paper}
    for name, engine in indexes.items():
        keys = set(record.keys) if engine.has_keys else None
        if name == first or keys == set():
            continue
        for own in engine.headings(engine.version, keys):
            own_record = Identity.read(own)
            if record.common(own_record):
                ids[name] = own.source.id
                break
    return ids


def _writable(post: str) -> str:
    """Replace unpaired surrogates by ?, and remove NUL."""
    encoded = post.encode("utf-8", "replace")
    text = encoded.decode("utf-8")
    return text.replace("\0", " ")


def marked_dataset(engine: Engine, marks: Marks) -> tuple[Dataset, int]:
    """Convert marks to claims with and without golds; count marks whose paper is missing.

    The sources are the papers nearest to the posts, which include copies of their papers.
    """
    named: set[str] = set()
    for mark in marks.marks:
        if mark.paper is not None:
            named.add(mark.paper)
    there = set(engine.stamps(sorted(named)))

    location = str(engine.location).rstrip("/")
    own_names = ("", location, PurePath(location).name)
    claims: list[Claim] = []
    for number, mark in enumerate(marks.marks):
        if mark.index not in own_names:
            continue
        claim_id = f"mark {number}"
        if mark.paper is None:
            claims.append(Claim(claim_id, mark.post, mark.lang))
        elif mark.paper in there:
            golds = (mark.paper,)
            claims.append(Claim(claim_id, mark.post, mark.lang, golds=golds))

    nearest = _nearest_papers(engine, claims)
    papers = engine.fetch(sorted(there | nearest))
    sources = tuple(paper.source for paper in papers.values())
    grades: dict[str, dict[str, int]] = {}
    for claim in claims:
        if claim.golds:
            grades[claim.id] = dict.fromkeys(claim.golds, 1)

    qrels = Qrels(grades)
    dataset = Dataset(tuple(claims), sources, qrels, "marks", marks.path.name)
    left_out = len(marks.marks) - len(claims)
    return dataset, left_out


def _nearest_papers(engine: Engine, claims: Sequence[Claim]) -> set[str]:
    found: set[str] = set()
    if not claims:
        return found
    results = engine.find(claims, _NEAREST)
    for result in (results.lexical, results.dense):
        for claim in claims:
            sources = result.run.sources(claim.id, _NEAREST)
            found.update(sources)
    return found
