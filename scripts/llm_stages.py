"""Run every stage that calls a language model on a few claims, and tabulate replies and costs.

python scripts/llm_stages.py --llm FILE --out out/llm --results FILE.json --page FILE.md

The claims are the first of a split, from each language in turn, and on different papers if
possible. Re-rankers and verifiers get the first sources of BM25. Rumours come from the organisers'
file of CheckThat! 2024 Task 5. A finished row is not run again, and an interrupted row keeps its
answers. The table has seconds of wall time, and the seconds of the server's processor.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import Between, Settings, list_field, read_config, require
from claim2source.core.errors import InputError, run_program
from claim2source.core.files import content_hash, write_json, write_text
from claim2source.core.reasons import failure_kind
from claim2source.core.records import Claim, Dataset, sorted_languages
from claim2source.core.report import MAIN_METRIC, Report
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.data.beir import write_beir
from claim2source.data.loading import load
from claim2source.data.rumors import load_rumors
from claim2source.data.store import Store
from claim2source.evaluation.table import evaluate_systems
from claim2source.llm.answers import ANSWERS, AnswerStore
from claim2source.llm.client import LLM
from claim2source.llm.config import LLMConfig, is_safe
from claim2source.llm.log import AnswerLog, logged_answers
from claim2source.llm.texts import (
    AUTO,
    WritingTask,
    style_prompt,
    style_tasks,
    translation_tasks,
    write_texts,
)
from claim2source.systems.read import make_system, read_stage
from claim2source.systems.system import RunSettings, run_system
from claim2source.text import ClaimForm
from claim2source.text.styles import STYLES, Original, originals
from claim2source.text.translate import CLAIM, ForeignText

StageSettings = Mapping[str, Any]  # as a systems file has them
REPEATS = 10_000
# The keys that people need first.
COMMON = (
    "llm.model",
    "llm.url",
    "out",
    "results",
    "page",
    "dataset",
    "rumors",
    "claims",
    "only",
    "sample",
)
FIRST = "BM25"
START, END = "<!-- rows -->", "<!-- end of rows -->"
# Kinds of failures that have a column of their own; `failed` has all but the doubtful texts.
SHOWN = ("cut", "refused", "language", "schema", "echo")
_COLUMNS = (
    *("stage", "languages", "requests", "answered", "doubtful", "failed"),
    *(("cut", "refused", "wrong language", "wrong schema", "echo", "other")),
    *("tokens in", "tokens out", "seconds", "processor seconds"),
)
_RANKING = ("stage", FIRST, "with the stage")


@dataclass(frozen=True, kw_only=True)
class LLMStagesConfig(Settings):
    """Settings of `scripts/llm_stages.py`.

    Args:
        llm: the language model; its server's processor time is measured if it runs here.
        out: folder of answers.
        results: JSON file of the rows; none: llm.json in `out`.
        page: Markdown file to write; if it exists, only its rows are replaced.
        dataset: folder in BEIR layout, or its name in CLAIM2SOURCE_DATA, or `demo`; or a file of
            pairs.
        rumors: the organisers' JSON; none: rows on rumours are left out.
        claims: number of claims in each row.
        sample: do not run the stages, but write their claims and a pool of sources to this folder,
            as a data set for `claim2source rewrite`. The pool has the golds, then the first
            sources of BM25.
        pool: number of sources in the sample; never fewer than the golds.
    """

    llm: LLMConfig = field(default_factory=LLMConfig)
    out: Path
    results: Path | None = None
    page: Path | None = None
    dataset: str = "demo"
    split: str = "dev"
    rumors: Path | None = None
    claims: Annotated[int, Between(1, 1000)] = 20
    sample: Path | None = None
    pool: Annotated[int, Between(1, 1_000_000)] = 100
    only: list[str] = list_field((), help="only these rows")


@dataclass(frozen=True)
class Score:
    """State MRR@5 with its 95 % interval by gold paper."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"


@dataclass(frozen=True)
class Ranking:
    """Compare the score of a stage with that of the stage before it."""

    before: Score
    after: Score


@dataclass(frozen=True)
class Spent:
    """Count the requests that one run of a row answered, their tokens and time."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    processor_seconds: float | None = None


@dataclass(frozen=True)
class RowResult:
    """Describe a row: its replies by kind, the reasons of failures, the ranking and the costs."""

    key: str
    claims: int
    languages: Sequence[str] = ()
    requests: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    ranking: Ranking | None = None
    spent: Sequence[Spent] = ()
    is_done: bool = False

    def a_claim(self, name: str) -> float | None:
        """Return the cost of a claim, scaled from the requests of all runs; None if unknown."""
        values = [getattr(spent, name) for spent in self.spent]
        asked = sum(spent.requests for spent in self.spent)
        if not asked or any(value is None for value in values):
            return None
        return float(sum(values)) / asked * self.requests / max(self.claims, 1)


@dataclass(frozen=True)
class Material:
    """Claims and sources of the rows, and their settings."""

    config: LLMStagesConfig
    dataset: Dataset
    foreign: Dataset
    rumors: Dataset | None


@dataclass(frozen=True)
class Row:
    """One stage with its settings; `run` runs it, with a folder for its answers."""

    name: str
    settings: Mapping[str, Any]
    dataset: Dataset
    run: Callable[[LLMConfig, Path], Ranking | None]

    def key(self, config: LLMStagesConfig) -> str:
        """Hash everything that a row depends on; not the server's address, nor time limits."""
        llm = asdict(config.llm)
        for name in ("url", "key_env", "concurrency", "timeout", "retries", "retry_failed"):
            llm.pop(name)
        claims = [claim.id for claim in self.dataset.claims]
        return content_hash([self.name, self.settings, llm, claims, self.dataset.name])


def main(argv: Sequence[str] | None = None) -> None:
    """Run the rows that are missing; write results and page after each."""
    config = read_config(
        LLMStagesConfig,
        argv,
        program="scripts/llm_stages.py",
        description=__doc__,
        common=COMMON,
    )
    if config.sample is not None:
        say(write_sample(config, config.sample))
        return
    say(run_stages(config))


def run_stages(config: LLMStagesConfig) -> str:
    """Run the rows; return their tables. Raises `UserError`."""
    material = _material(config)
    rows = {row.name: row for row in _rows(material)}
    unknown = [name for name in config.only if name not in rows]
    require(not unknown, "only", unknown, f"some of {', '.join(rows)}")
    path = config.results or config.out / "llm.json"
    results = _read_results(path, rows, config)
    wanted = [row for name, row in rows.items() if name in (config.only or rows)]
    todo = [row for row in wanted if row.name not in results or not results[row.name].is_done]
    began = time.monotonic()
    for number, row in enumerate(todo):
        minutes = (time.monotonic() - began) / 60
        left = f", about {minutes / number * (len(todo) - number):.0f} left" if number else ""
        say(f"{row.name}: row {number + 1} of {len(todo)}; {minutes:.0f} minutes{left}")

        def save(result: RowResult, name: str = row.name) -> None:
            results[name] = result
            ordered = {name: results[name] for name in rows if name in results}
            _write(path, config, material, ordered)

        _run_row(row, results.get(row.name), config, save)
    parts = _parts(config, material, results)
    return render(parts)


def write_sample(config: LLMStagesConfig, folder: Path) -> str:
    """Write the claims and their pool as a data set; return a line. Raises `UserError`."""
    dataset = load(config.dataset, config.split)
    claims = pick_claims(dataset.claims, config.claims)
    some = dataset.with_claims(claims)
    system = make_system(FIRST, {"retrieve": {"bm25": {}}})
    run = run_system(system, some, "translated").result.run
    ids = dict.fromkeys(gold for claim in claims for gold in claim.golds)
    for rank in range(config.pool):
        for claim in claims:
            for source in run.sources(claim.id)[rank : rank + 1]:
                if len(ids) < config.pool:
                    ids.setdefault(source)
    sources = tuple(source for source in dataset.sources if source.id in ids)
    write_beir(replace(some, sources=sources), folder, overwrite=True)
    return f"{folder}: {len(claims)} claims, {len(sources)} sources"


def _material(config: LLMStagesConfig) -> Material:
    dataset = load(config.dataset, config.split)
    foreign = [claim for claim in dataset.claims if claim.lang != "en"]
    rumors = None
    if config.rumors is not None:
        rumors = load_rumors(config.rumors).dataset
        rumors = rumors.with_claims(rumors.claims[: config.claims])
    return Material(
        config,
        dataset.with_claims(pick_claims(dataset.claims, config.claims)),
        dataset.with_claims(pick_claims(foreign, config.claims)),
        rumors,
    )


def pick_claims(claims: Sequence[Claim], count: int) -> list[Claim]:
    """Take claims in the split's order, their languages in turn, new papers first."""
    languages = sorted_languages(claim.lang for claim in claims)
    left = {language: [c for c in claims if c.lang == language] for language in languages}
    papers: set[str] = set()
    picked: list[Claim] = []
    while len(picked) < count and any(left.values()):
        for language in languages:
            if not left[language] or len(picked) == count:
                continue
            fresh = [claim for claim in left[language] if papers.isdisjoint(claim.golds)]
            claim = (fresh or left[language])[0]
            left[language].remove(claim)
            papers.update(claim.golds)
            picked.append(claim)
    return picked


def _rows(material: Material) -> Iterator[Row]:
    """Yield all rows, in the order of the page."""
    foreign = [
        ForeignText(claim.id, CLAIM, claim.text, claim.lang) for claim in material.foreign.claims
    ]
    for name, prompt in (("translate", AUTO), ("translate, generic", "translate_generic")):
        tasks = translation_tasks(foreign, prompt)
        yield _writing_row(name, tasks, material.foreign)
    golds = {gold for claim in material.dataset.claims for gold in claim.golds}
    sources = [source for source in material.dataset.sources if source.id in golds]
    papers = replace(material.dataset, sources=tuple(sources))
    for style in STYLES.values():
        if style.prompt is not None:
            texts: list[Original] = originals(papers, style.side)
            tasks = style_tasks(style, texts, style_prompt(style), 1)
            yield _writing_row(f"rewrite {style.name}, {style.what}", tasks, papers)
    for name, stage in RANKING.items():
        yield _ranking_row(name, stage, material.dataset)
    if material.rumors is not None:
        for name, stage in RUMORS.items():
            yield _ranking_row(name, stage, material.rumors)


# Short lists: a processor reads 70 tokens a second.
RANKING: Mapping[str, StageSettings] = {
    "entities": {"rerank": "entities", "depth": 2, "sources": "title_abstract"},
    "attribution: facts and support": {"rerank": "attribution", "depth": 2},
    "select": {"verify": "select", "depth": 3},
    "select, a number": {
        "verify": "select",
        "depth": 2,
        "reply": "number",
        "prompt": "verify_short",
    },
    "select, only in doubt": {"verify": "select", "depth": 3, "when": {"margin_below": 0.2}},
    "select, up to 3 votes": {"verify": "select", "depth": 2, "votes": 3},
    "letters": {"verify": "letters", "depth": 3},
}
RUMORS: Mapping[str, StageSettings] = {
    "rumours: relevance": {"rerank": "relevance", "depth": 2},
    "rumours: relevance of rewrites": {"rerank": "relevance", "depth": 2, "rewrites": 1},
    "rumours: stance": {"verify": "stance", "depth": 2},
    "rumours: stance of summaries": {
        "verify": "stance",
        "depth": 2,
        "rewrites": 1,
        "summaries": True,
    },
}


def _writing_row(name: str, tasks: Sequence[WritingTask], dataset: Dataset) -> Row:
    def run(llm: LLMConfig, folder: Path) -> None:
        with AnswerStore(folder / ANSWERS) as store:
            write_texts(LLM(llm, store), tasks, name)

    requests = [[*map(list, task.request.messages), task.request.version] for task in tasks]
    return Row(name, {"requests": content_hash(requests)}, dataset, run)


def _ranking_row(name: str, stage: StageSettings, dataset: Dataset) -> Row:
    def run(llm: LLMConfig, folder: Path) -> Ranking | None:
        # A stored run would ask nothing; answers stay.
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_dir():
                shutil.rmtree(path)
        asking = {**stage, "llm": asdict(llm)}
        system = make_system(name, {"retrieve": {"bm25": {}}, "stages": [asking]})
        settings = RunSettings(store=Store(folder))
        form: ClaimForm = (
            "original" if all(claim.lang == "en" for claim in dataset.claims) else "translated"
        )
        report = evaluate_systems({name: system}, dataset, [form], settings, repeats=REPEATS)
        for failed in report.not_run:
            raise InputError(name, reason=failed.reason)
        return _ranking(report)

    asked: Any = read_stage({**stage, "llm": {"model": name}}).stage
    return Row(name, {**stage, "prompts": asked.identity}, dataset, run)


def _ranking(report: Report) -> Ranking | None:
    """Read the scores of the first stage and of the whole system; None without golds."""
    scores: list[Score] = []
    for system in report.systems.values():
        bounds = system.interval(MAIN_METRIC)
        if bounds is not None:
            scores.append(Score(float(system.macro[MAIN_METRIC]), *bounds))
    if len(scores) != 2:
        return None
    return Ranking(*scores)


def _run_row(
    row: Row,
    before: RowResult | None,
    config: LLMStagesConfig,
    save: Callable[[RowResult], None],
) -> None:
    """Run a row and save its result; if it is interrupted, save its costs."""
    key = row.key(config)
    languages = sorted_languages(claim.lang for claim in row.dataset.claims)
    result = RowResult(key, len(row.dataset.claims), languages)
    if before is not None:
        result = replace(result, spent=before.spent)
    folder = config.out / "answers" / key
    stored = _stored_answers(folder)
    with logged_answers() as log, _clock(config.llm.url) as clock:
        try:
            ranking = row.run(config.llm, folder)
        except BaseException:
            asked = _stored_answers(folder) - stored
            save(_with_spent(result, asked, log, clock))
            raise
    asked = sum(not answer.stored for answer in log.answers)
    result = _with_spent(result, asked, log, clock)
    save(replace(_counted(result, log), ranking=ranking, is_done=True))


def _with_spent(result: RowResult, asked: int, log: AnswerLog, clock: _Clock) -> RowResult:
    """Add the costs of one run that answered `asked` requests; nothing if there were none."""
    if not asked:
        return result
    tokens = log.usage.prompt, log.usage.completion
    spent = Spent(asked, *tokens, clock.seconds, clock.processor_seconds)
    return replace(result, spent=(*result.spent, spent))


def _counted(result: RowResult, log: AnswerLog) -> RowResult:
    """Count the answers of a row by the kind of their failure, and the failures' reasons."""
    kinds: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for answer in log.answers:
        if answer.failure is None:
            kinds["answered"] += 1
        else:
            kinds[failure_kind(answer.failure)] += 1
            reasons[answer.failure] += 1
    return replace(result, requests=len(log.answers), kinds=dict(kinds), reasons=dict(reasons))


def _stored_answers(folder: Path) -> int:
    with AnswerStore(folder / ANSWERS) as store:
        return len(store)


@dataclass
class _Clock:
    """Measure the wall time, and the processor time of a process."""

    server: Any
    began: float
    processor_began: float | None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def processor_seconds(self) -> float | None:
        now = processor_time(self.server)
        if now is None or self.processor_began is None:
            return None
        return now - self.processor_began


@contextmanager
def _clock(url: str) -> Iterator[_Clock]:
    server = server_process(url)
    yield _Clock(server, time.monotonic(), processor_time(server))


def server_process(url: str) -> Any:
    """Find the process of this machine that listens at an address; None if there is none."""
    import psutil  # type: ignore[import-untyped]

    port = urlsplit(url).port
    if port is None or not is_safe(url) or urlsplit(url).scheme == "https":
        return None
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return None
    for connection in connections:
        is_server = connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        if is_server and connection.pid is not None:
            return psutil.Process(connection.pid)
    return None


def processor_time(process: Any) -> float | None:
    """Read the processor time of a process in seconds; None without one."""
    import psutil

    if process is None:
        return None
    try:
        times = process.cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)


def _read_results(
    path: Path, rows: Mapping[str, Row], config: LLMStagesConfig
) -> dict[str, RowResult]:
    """Read the results of rows that have not changed since. Raises `InputError`."""
    from pydantic import TypeAdapter, ValidationError

    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        read = TypeAdapter(dict[str, RowResult]).validate_python(values["rows"])
    except (ValueError, KeyError, TypeError, ValidationError):
        raise InputError(path, reason="is not a file of rows") from None
    kept: dict[str, RowResult] = {}
    for name, result in read.items():
        if name in rows and result.key == rows[name].key(config):
            kept[name] = result
    return kept


def _write(
    path: Path,
    config: LLMStagesConfig,
    material: Material,
    results: Mapping[str, RowResult],
) -> None:
    """Write the results, and the rows of the page."""
    rows = {name: asdict(result) for name, result in results.items()}
    about = {"model": config.llm.model, "dataset": config.dataset, "split": config.split}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**about, "rows": rows})
    if config.page is not None:
        text = render(_parts(config, material, results), "markdown")
        config.page.parent.mkdir(parents=True, exist_ok=True)
        write_text(config.page, _page(config.page, text))


def _page(page: Path, text: str) -> str:
    """Write the rows between their marks, in the existing page or in a new one."""
    old = f"# Every stage on a real model\n\n{START}\n{END}\n"
    if page.is_file():
        old = page.read_text(encoding="utf-8")
    before, start, rest = old.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise InputError(page, reason=f"has no {START} and {END} around its rows")
    return f"{before}{START}\n\n{text.strip()}\n\n{END}{after}"


def _parts(
    config: LLMStagesConfig,
    material: Material,
    results: Mapping[str, RowResult],
) -> list[Part]:
    """Write the rows as two tables: replies and costs, and rankings."""
    done = {name: result for name, result in results.items() if result.is_done}
    rows = [_cells(name, result) for name, result in done.items()]
    rankings: list[list[Cell]] = []
    for name, result in done.items():
        if result.ranking is not None:
            rankings.append([name, str(result.ranking.before), str(result.ranking.after)])
    numeric = [False, False, *[True] * (len(_COLUMNS) - 2)]
    parts: list[Part] = [
        f"The model is {config.llm.model}. It shows whether every stage works; nothing here says "
        "what a larger model achieves.",
        TextTable(_COLUMNS, rows, numeric=numeric),
        f"{len(material.dataset.claims)} claims a row, of {config.dataset} {config.split}. Failed "
        "replies failed three times; doubtful ones are used, although they lost a number or a tag, "
        "or the style's form. Tokens and seconds are means a claim, with all replies; processor "
        "seconds are the server's.",
    ]
    if rankings:
        parts.append(
            "MRR@5 with 95 % intervals by paper, first and then with the stage; with so few claims "
            "they tell what a stage changes, not what it is worth."
        )
        parts.append(TextTable(_RANKING, rankings, numeric=[False, True, True]))
    return parts


def _cells(name: str, result: RowResult) -> list[Cell]:
    kinds = result.kinds
    answered = kinds.get("answered", 0)
    doubtful = kinds.get("doubtful", 0)
    failed = result.requests - answered - doubtful
    shown = [kinds.get(kind, 0) for kind in SHOWN]
    share = f"{failed} ({failed / result.requests:.1%})" if failed else "0"
    cells: list[Cell] = [name, ", ".join(result.languages)]
    counts = [result.requests, answered, doubtful]
    cells += [str(count) for count in counts]
    cells.append(share)
    cells += [str(count) for count in (*shown, failed - sum(shown))]
    for field_name, digits in (
        ("prompt_tokens", 0),
        ("completion_tokens", 0),
        ("seconds", 1),
        ("processor_seconds", 1),
    ):
        value = result.a_claim(field_name)
        cells.append(None if value is None else f"{value:,.{digits}f}")
    return cells


if __name__ == "__main__":
    run_program(main)
