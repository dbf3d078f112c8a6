"""Write a comparison as one HTML file that needs no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from claim2source import __version__
from claim2source.core.config import as_plain
from claim2source.core.files import refuse_input, write_text
from claim2source.core.folders import require_output_file
from claim2source.core.records import Claim, Dataset, Source
from claim2source.core.report import FILE, MACRO, Comparison
from claim2source.core.run import Run
from claim2source.core.tables import TextTable, cell_text
from claim2source.core.terminal import listed
from claim2source.data.folders import dataset_files
from claim2source.data.grouping import gold_groups
from claim2source.data.wandb import log_tables, require_tracking
from claim2source.evaluation.compare import ScoredRuns, read_scored, sharing_highest
from claim2source.evaluation.groups import GroupsReport
from claim2source.evaluation.html.plots import Bar
from claim2source.evaluation.html.sections import (
    DEPTHS,
    PageData,
    groups_section,
    published_section,
    report_sections,
)
from claim2source.evaluation.ranks import gold_moves
from claim2source.evaluation.reports import ReportConfig, named_reports
from claim2source.metrics.families import TOO_FEW, WITHIN_NOISE, Family, compare_family
from claim2source.metrics.metrics import language_masks, language_strata

if TYPE_CHECKING:
    import jinja2

FOLDER = Path(__file__).parent
GENERATOR = '<meta name="generator" content="Claim2Source'
TEMPLATE, SCRIPT, STYLE = "report.html", "report.js", "report.css"
MOST_CLAIMS = 1_000
_LONG = 40  # letters of a cell that wraps
_MOST_NAMED = 4  # comparisons that are listed by name
SEVERAL, NOBODY = "several", "nobody"
# Moves of a claim's first gold, from the first stage to the last.
TO_FIRST, ROSE, EQUAL, FELL, ABSENT = "to rank 1", "promoted", "same rank", "demoted", "not found"
OUTCOMES = (TO_FIRST, ROSE, EQUAL, FELL, ABSENT)
# Number of first sources that are listed for each system, and for each stage.
_OF_SYSTEM, _OF_STAGE = 5, 10


def require_page(config: ReportConfig) -> Path:
    """Return the page's file; raise `UserError` if it would replace a file that is not ours."""
    out = Path(config.html or "")
    inputs = []
    for path in config.reports:
        for file in (path / FILE, *path.rglob("*.trec")):
            inputs.append(file)
    inputs += dataset_files(config.dataset) if config.dataset else []
    refuse_input(out, inputs, "--html")
    require_output_file(out, GENERATOR, option="--html")
    return out


def html_report(
    config: ReportConfig,
    published: Mapping[str, tuple[TextTable, str]] | None = None,
    groups: GroupsReport | None = None,
) -> str:
    """Write the page of the reports' systems to `config.html`; return a line with its name.

    `published` has the papers' tables with our scores, and notes. `groups` has the same systems
    with their ranks. Raises as `read_scored` does.
    """
    out = require_page(config)
    require_tracking(config.wandb)
    metric = config.metric
    repeats = config.repeats
    seed = config.seed
    folder, systems, scored = read_scored(config, [f"recall@{depth}" for depth in DEPTHS])
    reports = named_reports(config.reports)
    compared = PageData(scored, systems, repeats, seed, config.languages or (), reports)
    sections = [
        *groups_section(groups),
        *report_sections(compared),
        *published_section(published or {}),
    ]
    best = max(compared.bars[MACRO].values(), key=lambda bar: bar.value)
    entries = compared_claims(scored, config.claims)
    total = len(scored.claim_ids)
    page = render_page(
        title=f"{Path(folder).name}, {scored.dataset.split}: {metric}",
        subtitle=f"{total} claims with a gold, {len(scored.dataset.sources)} sources, "
        f"{len(systems)} system{'s' * (len(systems) > 1)}.",
        verdict=verdict(scored, best, repeats, seed),
        sections=sections,
        claims=entries,
        claims_note=f"{len(entries)} of {total} claims."
        if len(systems) == 1
        else f"{len(entries)} of {total} claims; claims that systems differ on come first. "
        f"Won by: the one system with the best {metric}.",
        languages=scored.dataset.languages,
        systems=list(systems),
        tag="Won by",
        tags=[*systems, SEVERAL, NOBODY],
        made=f"Claim2Source {__version__}, {repeats} draws, seed {seed}.",
    )
    write_text(out, page)
    tables = {}
    for s in sections:
        for name, table in s.tables.items():
            tables[name] = table
    log_tables(config.wandb, tables, folder=out.parent, program="report", config=as_plain(config))
    return f"{len(systems)} system{'s' * (len(systems) > 1)} in {out}"


def verdict(scored: ScoredRuns, best: Bar, repeats: int, seed: int) -> list[str]:
    """Describe the system with the best macro score, which has the interval `best`, in sentences.

    It was picked on the claims of the tests, so Holm corrects over all pairs of systems, not only
    over its own.
    """
    ranked = sorted(scored.macro, key=lambda name: -scored.macro[name])
    first = ranked[0]
    masks = language_masks(scored.dataset.claims, scored.claim_ids)
    of = f", the mean of {', '.join(masks)}" if len(masks) > 1 else ""
    score = f"{best.value:.3f} (95 % interval {best.low:.3f} to {best.high:.3f}){of}"
    if len(ranked) == 1:
        return [f"{first} has {scored.metric} {score}."]
    pairs = tuple(combinations(ranked, 2))
    result = compare_family(
        scored.values,
        Family("All pairs", pairs),
        gold_groups(scored.dataset.qrels, scored.claim_ids),
        language_strata(scored.dataset.claims, scored.claim_ids) if len(masks) > 1 else None,
        repeats=repeats,
        seed=seed,
    )
    own = []
    for pair in result.comparisons:
        if pair.system == first:
            own.append(pair)
    sharing = sharing_highest(scored.macro)
    is_shared = len(sharing) > 1
    others = []
    for pair in own:
        if pair.baseline not in sharing:
            others.append(pair)
    opening = f"{first} {_wins(own)}"
    if is_shared:
        opening = f"{listed(sharing, _MOST_NAMED)} share the highest score"
        if any(pair.verdict == "better" for pair in others):
            opening += f"; {first} {_wins(others)}"
    sentences = "; ".join(filter(None, [opening, _ties(others)]))
    pair_count = f"all {len(pairs)} pairs of systems" if len(pairs) > 1 else "one pair"
    return [
        f"{sentences}.",
        f"{'Their' if is_shared else 'Its'} {scored.metric} is {score}.",
        f"p is from a paired randomisation test by gold paper, with Holm over {pair_count}"
        + (", because the best was picked on these claims." if len(pairs) > 1 else ".")
        + (
            " Inside the noise: these claims cannot tell the two apart, which does not mean that "
            "they are equal."
            if any(pair.verdict == WITHIN_NOISE for pair in others)
            else ""
        ),
    ]


def p_text(p: float) -> str:
    text = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _wins(own: Sequence[Comparison]) -> str:
    better = []
    for pair in own:
        if pair.verdict == "better":
            better.append(pair)
    if not better:
        return "has the highest score"
    if len(better) <= _MOST_NAMED:
        parts = (
            f"{test.baseline} by {test.difference:.3f}, {p_text(test.p_holm)}" for test in better
        )
        return f"beats {'; '.join(parts)}"
    whom = f"all {len(own)}" if len(better) == len(own) else f"{len(better)} of the {len(own)}"
    worst = max(pair.p_holm for pair in better)
    p_values = "all with p < 0.001" if worst < 0.001 else f"p at most {worst:.3f}"
    return (
        f"beats {whom} others by {min(test.difference for test in better):.3f} or more, {p_values}"
    )


def _ties(own: Sequence[Comparison]) -> str:
    parts = []
    for kind, words in ((WITHIN_NOISE, WITHIN_NOISE), (TOO_FEW, "too few papers differ to tell")):
        if names := [pair.baseline for pair in own if pair.verdict == kind]:
            parts.append(f"against {listed(names, _MOST_NAMED)} {words}")
    return "; ".join(parts)


def trace_page(runs: Mapping[str, Run], dataset: Dataset, out: Path, *, title: str) -> None:
    """Write the page of claims through a system's stages, sorted by the moves of their golds.

    Raises `UserError` if it would replace a file that is not ours.
    """
    require_output_file(out, GENERATOR)
    claims = traced_claims(runs, dataset)
    first = claims[:MOST_CLAIMS]
    moved = len(runs) > 1
    page = render_page(
        title=f"{title}: claims" + f" through {len(runs)} stages" * moved,
        subtitle="",
        verdict=_move_lines(runs, dataset),
        sections=[],
        claims=first,
        claims_note=f"{len(first)} of {len(claims)} claims"
        + ", sorted by the moves of their golds" * moved
        + ".",
        languages=dataset.languages,
        systems=list(runs),
        tag="Gold",
        tags=() if not dataset.golds else OUTCOMES if moved else (ABSENT,),
        made=f"Claim2Source {__version__}.",
    )
    write_text(out, page)


def _move_lines(runs: Mapping[str, Run], dataset: Dataset) -> list[str]:
    names = list(runs)
    steps = [(names[0], names[-1]), *(pairwise(names) if len(names) > 2 else ())]
    lines = []
    for number, (before, after) in enumerate(steps if len(names) > 1 else ()):
        moves = gold_moves(runs[before], runs[after], dataset, 1).get(MACRO)
        if moves is not None:
            unmoved = moves.claims - moves.promoted - moves.demoted
            heading = after if number else "From the first stage to the last"
            golds = f"{moves.promoted} gold{'s' * (moves.promoted != 1)}"
            lines.append(
                f"{heading}: {golds} promoted ({moves.to_first} to rank 1), "
                f"{moves.demoted} demoted ({moves.from_first} from rank 1), {unmoved} as before."
            )
    return lines


def render_page(**values: object) -> str:
    """Render the template with its script and style; all values are escaped."""
    script, style = ("\n" + (FOLDER / name).read_text(encoding="utf-8") for name in (SCRIPT, STYLE))
    return _template().render(
        script=script,
        style=style,
        script_hash=_hash(script),
        style_hash=_hash(style),
        **values,
    )


@cache
def _template() -> jinja2.Template:
    """Compile the template, once: it takes longer than to render a page."""
    import jinja2
    from markupsafe import Markup, escape

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = lambda value: cell_text(value).replace(" [", "\n[")
    environment.filters["word_columns"] = _word_columns
    # In a narrow column a system's name may break before its claim form.
    environment.filters["breakable"] = lambda name: Markup(str(escape(name)).replace(".", "<wbr>."))
    return environment.get_template(TEMPLATE)


def _word_columns(table: TextTable) -> dict[int, str]:
    """Map the columns of words to their classes; columns of sentences are `long` and wrap."""
    classes: dict[int, str] = {}
    for row in table.rows:
        for column, value in enumerate(row):
            if isinstance(value, str) and value[:1].isalpha():
                long = len(value) > _LONG or "long" in classes.get(column, "")
                classes[column] = "words long" if long else "words"
    return classes


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@dataclass(frozen=True)
class Candidate:
    """Source with its rank in every run; "-" if a run lacks it."""

    title: str
    gold: bool
    ranks: list[str]


@dataclass(frozen=True)
class ClaimEntry:
    """Claim on a page; `golds` are the ranks of its first gold, 0 if absent.

    `number` is used by links; `tag` is the filter's value: the system that wins the claim, or the
    move of its gold.
    """

    number: int
    claim: Claim
    golds: list[int]
    candidates: list[Candidate]
    tag: str = ""

    @property
    def ranks(self) -> str:
        return " ".join(map(str, self.golds))


def compared_claims(scored: ScoredRuns, limit: int) -> list[ClaimEntry]:
    """List at most `limit` claims with their winner; claims that systems differ on come first."""
    values = np.stack(list(scored.values.values()))
    order = np.argsort(-np.ptp(values, axis=0), kind="stable")[:limit].tolist()
    rows = {}
    for i in order:
        rows[scored.claim_ids[i]] = i
    entries = _entries(scored.runs, scored.dataset, rows, _OF_SYSTEM)
    return [replace(e, tag=_winner(list(scored.runs), values[:, e.number])) for e in entries]


def traced_claims(runs: Mapping[str, Run], dataset: Dataset) -> list[ClaimEntry]:
    """List every claim with its ranks in the stages of a system, sorted by the gold's move."""
    rows = {}
    for i, claim in enumerate(dataset.claims):
        rows[claim.id] = i
    entries = []
    for entry in _entries(runs, dataset, rows, _OF_STAGE, arrows=True):
        known = dataset.qrels.golds(entry.claim.id)
        tag = _outcome(entry.golds[0], entry.golds[-1]) if known else ""
        entries.append(replace(entry, tag="" if tag == EQUAL and len(runs) == 1 else tag))
    return sorted(entries, key=_reciprocal_rank_change, reverse=True)


def _entries(
    runs: Mapping[str, Run],
    dataset: Dataset,
    rows: Mapping[str, int],
    top: int,
    arrows: bool = False,
) -> list[ClaimEntry]:
    sources = {source.id: source for source in dataset.sources}
    claims = {}
    for claim in dataset.claims:
        claims[claim.id] = claim
    entries = []
    for name, row in rows.items():
        orders = []
        for run in runs.values():
            orders.append(run.sources(name))
        ranks = []
        for order in orders:
            ranks.append({source: rank for rank, source in enumerate(order, 1)})
        golds = dataset.qrels.golds(name)
        # In the order of the last run; then sources of earlier runs, and golds that no run has.
        ids = dict.fromkeys([s for order in reversed(orders) for s in order[:top]] + [*golds])
        first = []
        for rank in ranks:
            first.append(min((rank[gold] for gold in golds if gold in rank), default=0))
        candidates = []
        for source in ids:
            mine = []
            for rank in ranks:
                mine.append(rank.get(source, 0))
            before = [mine[0], *mine[:-1]] if arrows else mine
            texts = []
            for old, new in zip(before, mine, strict=True):
                texts.append(f"{new or '-'}{_arrow(old, new)}")
            candidates.append(Candidate(_source_title(source, sources), source in golds, texts))
        entries.append(ClaimEntry(row, claims[name], first, candidates))
    return entries


def _source_title(source: str, sources: Mapping[str, Source]) -> str:
    record = sources.get(source)
    return f"{record.title or record.abstract[:120]} ({source})" if record else source


def _arrow(before: int, after: int) -> str:
    old = before or float("inf")
    new = after or float("inf")
    return "" if old == new else "↑" if new < old else "↓"


def _winner(names: Sequence[str], values: np.ndarray) -> str:
    best = np.flatnonzero(values == values.max())
    if values.max() <= 0:
        return NOBODY
    return names[best[0]] if len(best) == 1 else SEVERAL


def _outcome(before: int, after: int) -> str:
    if not after:
        return FELL if before else ABSENT
    if after == 1 and before != 1:
        return TO_FIRST
    return EQUAL if before == after else ROSE if not before or after < before else FELL


def _reciprocal_rank_change(entry: ClaimEntry) -> float:
    values = []
    for rank in entry.golds:
        values.append(1 / rank if rank else 0.0)
    return max(values) - min(values) if values else 0.0
