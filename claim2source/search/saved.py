"""Read a ranking from files instead of searching: another program's run as a first stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from claim2source.core.arguments import whole_number
from claim2source.core.config import Settings, require
from claim2source.core.errors import InputError, UserError
from claim2source.core.languages import by_primary_language
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.core.stage import Claims, as_claims
from claim2source.core.terminal import one_line
from claim2source.data.released import RankedBy, read_selections, with_selected
from claim2source.data.trec import RunFile, named_as, read_run
from claim2source.search.topk import candidate_pool

ALL = "all"
_MAX_NAMES = 3


@dataclass(frozen=True)
class Saved(Settings):
    """Rank by the files of another program.

    Args:
        files: language -> run of its claims, or `all` -> one run of all: TREC, a lab's TSV or the
            2026 paper's score JSON. Ids are the data set's, or the task's own ("7").
        ranked_by: the ranking of a score JSON to use: `reranker`, if one ran, or `embedding`.
        selections: the 2026 paper's file of its LLM's selections, which are moved to the front of
            the lists in `files`.

    Example:
        >>> import tempfile
        >>> import claim2source as c2s
        >>> dev = c2s.load("demo", "dev")
        >>> file = tempfile.mkdtemp() + "/bm25.trec"
        >>> c2s.write_trec_run(c2s.BM25().index(dev.sources).search(dev.claims).run, file)
        >>> saved = c2s.Saved({"all": file}).index(dev.sources).search(dev.claims, k=5)
        >>> len(saved.run.claim_ids) == len(dev.claims)
        True
    """

    files: dict[str, Path] = field(default_factory=dict)
    ranked_by: RankedBy = "reranker"
    selections: Path | None = None

    def check(self) -> None:
        require(bool(self.files), "run.files", self.files, "a file for each language, or for all")
        has_all = ALL in self.files
        is_valid = not has_all or len(self.files) == 1
        require(is_valid, "run.files", self.files, "`all` alone, or languages")
        by_language = self.selections is None or not has_all
        require(by_language, "run.selections", self.selections, "none with `all`: by language")

    def index(self, sources: Sequence[Source]) -> SavedIndex:
        """Read the files. Raises `InputError` if they rank unknown sources."""
        path = self.selections
        selections = None
        if path is not None:
            selections = read_selections(path)
        ids = {source.id for source in sources}
        run_paths = by_primary_language(self.files, "run.files")

        files: dict[str, RunFile] = {}
        for lang, run_path in run_paths.items():
            file = read_run(run_path, self.ranked_by)
            # Every id of a run's vocabulary is ranked somewhere.
            vocabulary = file.run.vocabulary
            strange = [str(source) for source in vocabulary if source not in ids]
            _refuse(file.path, "source", strange, "in the corpus")
            if path is not None and selections is not None:
                complete = complete_run(file)
                selected = with_selected(complete, path, selections, lang)
                file = replace(file, run=selected)
            files[lang] = file
        return SavedIndex(files)


def complete_run(file: RunFile) -> Run:
    """Return a run with a list for each claim, so that selections can be moved to the front.

    Raises `InputError` for a TREC run, which has no line for a claim without results.
    """
    if not file.complete:
        reason = "selections need a score JSON or a lab's TSV: a TREC run may leave claims out"
        raise InputError(file.path, reason=reason)
    return file.run


class SavedIndex:
    """Look up the rankings of claims in the files."""

    def __init__(self, files: dict[str, RunFile]) -> None:
        self.files = files

    def __repr__(self) -> str:
        paths: dict[str, str] = {}
        for name, file in self.files.items():
            paths[name] = str(file.path)
        return one_line(self, files=paths)

    def search(self, claims: Claims, k: int = 100) -> Result:
        """Return the first `k` sources of every claim, best first.

        The cost of the other program is unknown. Raises `UserError` for a language without a file,
        and `InputError` for a file that has none of the claims, or that has as many claims as there
        are, some of which are unknown.
        """
        posts = as_claims(claims)
        k = whole_number(k, "k")
        ranked: dict[str, list[tuple[str, float]]] = {}
        langs = dict.fromkeys(claim.lang for claim in posts)
        for lang in langs:
            file = self._file(lang)
            mine = posts
            if ALL not in self.files:
                mine = [claim for claim in posts if claim.lang == lang]
            run = _known_run(file, mine)
            for claim in mine:
                ranked[claim.id] = _within(claim, run, k)

        lists = {claim.id: ranked[claim.id] for claim in posts}
        pool = candidate_pool(posts)
        run = Run.from_lists(lists, pool=pool)
        return Result(run)

    def _file(self, lang: str) -> RunFile:
        """Return the file of a language. Raises `UserError` if there is none."""
        file = self.files.get(lang) or self.files.get(ALL)
        if file is None:
            have = ", ".join(self.files)
            raise UserError(f"run.files: none for {lang!r} claims, only for {have}")
        return file


def _known_run(
    file: RunFile,
    claims: Sequence[Claim],
) -> Run:
    """Name a run's claims as these. Raises `InputError` if it has none of them, or others."""
    golds = {claim.id: claim.golds for claim in claims}
    named = named_as(file, golds)
    run = named.run
    ids = {claim.id for claim in claims}
    if ids.isdisjoint(run.claim_ids):
        reason = f"ranks none of the {len(claims)} claims, such as {claims[0].id!r}"
        raise InputError(file.path, field="claim", reason=reason)
    if len(run.claim_ids) <= len(ids):
        strange = [claim for claim in run.claim_ids if claim not in ids]
        _refuse(file.path, "claim", strange, "among the claims of the data set")
    return run


def _within(
    claim: Claim,
    run: Run,
    k: int,
) -> list[tuple[str, float]]:
    scores = run.scored(claim.id)
    allowed = claim.candidates
    pairs: list[tuple[str, float]] = []
    for source, score in scores.items():
        is_candidate = allowed is None or source in allowed
        if is_candidate and source not in claim.excluded:
            pairs.append((source, score))
    return pairs[:k]


def _refuse(
    path: Path,
    field: str,
    strange: Sequence[str],
    container: str,
) -> None:
    if not strange:
        return
    first = strange[:_MAX_NAMES]
    names = ", ".join(map(repr, first))
    remainder = ""
    if len(strange) > _MAX_NAMES:
        remaining = len(strange) - _MAX_NAMES
        remainder = f" and {remaining} more"
    reason = f"not {container}: {names}{remainder}"
    raise InputError(path, field=field, reason=reason)
