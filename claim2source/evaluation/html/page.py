"""What `eval/report.py` does: one HTML file that shows a comparison and needs no network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from claim2source.core.config import as_plain, list_field, require
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.files import write_text
from claim2source.core.records import Dataset, Source
from claim2source.core.run import Run
from claim2source.core.tables import COST_COLUMNS, cost_cells, text_of
from claim2source.datasets import load
from claim2source.evaluation.by_language import tested_families
from claim2source.evaluation.families import Family, family_note, family_table
from claim2source.evaluation.html.plots import heat_map, interval_plot, line_plot, scatter_plot
from claim2source.evaluation.metrics import Scores, cutoff, evaluate, judged_claims
from claim2source.evaluation.ranks import BUCKETS, NOT_FOUND, bucket_changes, first_ranks
from claim2source.evaluation.saved import SavedSystem, common_data, judged_run, read_reports
from claim2source.evaluation.significance import claim_weights
from claim2source.evaluation.slices import breakdown, language_strata, slices_of
from claim2source.io.wandb import LoggedTable, Tracking, log_tables, require_tracking

TEMPLATE = "report.html"
DEPTHS = (1, 2, 5, 10, 20, 50, 100)
_TOP = 5
_SEVERAL, _NOBODY = "several", "nobody"
# Filters the claims; everything it reads was escaped when the page was made.
_SCRIPT = """
"use strict";
const claims = [...document.querySelectorAll(".claim")];
const [language, winner, text, count] = ["language", "winner", "text", "count"].map(
  (id) => document.getElementById(id));
function show() {
  const wanted = text.value.toLowerCase();
  let shown = 0;
  for (const claim of claims) {
    const keep = (!language.value || claim.dataset.language === language.value)
      && (!winner.value || claim.dataset.winner === winner.value)
      && (!wanted || claim.textContent.toLowerCase().includes(wanted));
    claim.hidden = !keep;
    shown += keep;
  }
  count.textContent = shown + " of " + claims.length + " claims";
}
for (const control of [language, winner, text]) control.addEventListener("input", show);
show();
"""


@dataclass(frozen=True)
class ReportConfig:
    """Settings of `eval/report.py`.

    Args:
        out: HTML file to write.
        dataset: folder in BEIR layout, or `demo`: the claims that the runs are of; none: as all
            the reports say.
        split: split that the runs are of; none: as all the reports say.
        metric: what is compared.
        baseline: the system that the others are tested against; none: the first.
        claims: most claims to list, those that the systems differ on first.
        repeats: bootstrap draws and permutations.
        seed: of both.
        wandb: log the page's tables to Weights & Biases.
    """

    out: Path
    reports: list[Path] = list_field(
        Path, repeats=True, help="folders that eval/checkpoint.py or eval/hybrid.py wrote"
    )
    dataset: str | None = None
    split: str | None = None
    metric: str = "mrr@5"
    baseline: str | None = None
    claims: int = 1_000
    repeats: int = 10_000
    seed: int = 0
    wandb: Tracking = "off"
    languages: list[str] | None = list_field(str, help="claims in these languages only")

    def __post_init__(self) -> None:
        require(bool(self.reports), "reports", self.reports, "one or more folders")
        require(self.claims >= 0, "claims", self.claims, "0 or more")
        require(self.repeats >= 1, "repeats", self.repeats, "1 or more")
        cutoff(self.metric)


@dataclass(frozen=True)
class Section:
    """A heading with a plot, a note and a table, each where there is one."""

    title: str
    svg: str = ""
    note: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = field(default_factory=list)


@dataclass(frozen=True)
class Compared:
    """What every section is made of.

    `name` is the data set's, `macro` the metric's mean of the languages by system: of the
    claims that are compared, which may be fewer than a report's.
    """

    config: ReportConfig
    name: str
    dataset: Dataset
    systems: Mapping[str, SavedSystem]
    runs: Mapping[str, Run]
    scores: Mapping[str, Scores]
    baseline: str
    macro: Mapping[str, float]


def html_report(config: ReportConfig) -> str:
    """Write the page; returns one line that says where. Raises as `eval/compare.py` does."""
    import jinja2

    require_tracking(config.wandb)
    compared = _compared(config)
    sections = [section for section in _sections(compared) if section.svg or section.rows]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    claims = _claims(compared)
    total = len(judged_claims(compared.dataset.qrels))
    page = environment.get_template(TEMPLATE).render(
        title=f"{compared.name}, {compared.dataset.split}: {config.metric}",
        subtitle=f"{total} claims with a gold, {len(compared.dataset.sources)} sources. "
        f"Intervals are 95 %, by gold paper.",
        sections=sections,
        claims=claims,
        claims_note=f"{len(claims)} of {total} claims, those that systems differ on first. "
        f"Won by: the one system with the best {config.metric}.",
        languages=compared.dataset.languages,
        winners=[*compared.systems, _SEVERAL, _NOBODY],
        script=_SCRIPT,
        script_hash=f"sha256-{digest}",
    )
    write_text(config.out, page)
    tables = {s.title: LoggedTable(s.columns, s.rows) for s in sections if s.rows}
    log_tables(
        config.wandb, tables, folder=config.out.parent, program="report", config=as_plain(config)
    )
    return f"{len(compared.systems)} systems in {config.out}"


def _compared(config: ReportConfig) -> Compared:
    systems = {system.name: system for system in read_reports(config.reports)}
    if not systems:
        raise UserError("reports: none of them holds a system with scores")
    folder, split = common_data([*systems.values()], config.dataset, config.split)
    dataset = load(folder, split, config.languages)
    baseline = config.baseline or next(iter(systems))
    if baseline not in systems:
        raise ConfigError("baseline", baseline, f"a system of the reports: {', '.join(systems)}")
    runs = {name: judged_run(system, dataset) for name, system in systems.items()}
    claims = judged_claims(dataset.qrels)
    recalls = [f"recall@{depth}" for depth in DEPTHS]
    metrics = list(dict.fromkeys([config.metric, *recalls]))
    scores = {name: evaluate(run, dataset.qrels, metrics, claims) for name, run in runs.items()}
    weights = claim_weights(language_strata(dataset.claims, claims), len(claims))
    macro = {name: float(found[config.metric] @ weights) for name, found in scores.items()}
    return Compared(config, Path(folder).name, dataset, systems, runs, scores, baseline, macro)


def _sections(compared: Compared) -> list[Section]:
    return [
        _by_language(compared),
        *_tests(compared),
        _learning_curve(compared),
        _recall(compared),
        *_changes(compared),
        _representations(compared),
        _cost(compared),
    ]


def _by_language(compared: Compared) -> Section:
    config, dataset = compared.config, compared.dataset
    parts = [part for part in slices_of(dataset.claims) if part.by == "language"]
    rows = breakdown(
        compared.scores, config.metric, dataset, parts, repeats=config.repeats, seed=config.seed
    )
    table: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in rows:
        table.setdefault(row.part, {})[row.system] = row.value, row.low, row.high
    shown = {part: table[part] for part in [*dataset.languages, "macro", "micro"] if part in table}
    cells = [
        [
            name,
            *(
                f"{v:.4f} [{low:.4f}, {high:.4f}]"
                for v, low, high in (found[name] for found in shown.values())
            ),
            *_costs(system),
        ]
        for name, system in compared.systems.items()
    ]
    return Section(
        "Score by language",
        interval_plot(shown, config.metric),
        "",
        ["system", *shown, *COST_COLUMNS],
        cells,
    )


def _tests(compared: Compared) -> list[Section]:
    """All others against the baseline: the macro average, then each language by itself."""
    config, others = compared.config, tuple(n for n in compared.systems if n != compared.baseline)
    if not others:
        return []
    found = tested_families(
        {name: scores[config.metric] for name, scores in compared.scores.items()},
        [Family(f"All against {compared.baseline}", compared.baseline, others)],
        compared.dataset,
        compared.scores[compared.baseline].claim_ids,
        repeats=config.repeats,
        seed=config.seed,
    )
    costs = {name: system.cost for name, system in compared.systems.items()}
    sections = []
    for result in found:
        columns, rows = family_table(result, costs)
        note = f"{config.metric} ({result.average}), {result.groups} papers. {family_note(result)}"
        texts = [list(map(text_of, row)) for row in rows]
        sections.append(Section(f"Tests: {result.family}", "", note, columns, texts))
    return sections


def _learning_curve(compared: Compared) -> Section:
    lines: dict[tuple[Path, str, str], list[tuple[float, float]]] = {}
    for name, system in compared.systems.items():
        # As eval/checkpoint.py calls them: the checkpoint, its hybrid, another form of claims.
        named = re.fullmatch(r"(H-)?epoch-([0-9]+)(\.[a-z]+)?", system.folder.name)
        if named:
            key = (system.folder.resolve().parent, named[1] or "", named[3] or "")
            lines.setdefault(key, []).append((float(named[2]), compared.macro[name]))
    runs = {key: sorted(points) for key, points in lines.items() if len(points) > 1}
    if not runs:
        return Section("Learning curve")
    folders = list(dict.fromkeys(folder for folder, _, _ in runs))
    names = dict(zip(folders, _told_apart(folders), strict=True))
    curves = {f"{kind}{names[folder]}{form}": p for (folder, kind, form), p in runs.items()}
    metric = f"macro {compared.config.metric}"
    rows = [[name, f"{x:.0f}", f"{y:.4f}"] for name, points in curves.items() for x, y in points]
    plot = line_plot(curves, "epoch", metric)
    return Section("Learning curve", plot, "", ["run", "epoch", metric], rows)


def _told_apart(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths, all of one length, that no two folders share."""
    ends: list[str] = []
    for length in range(1, max(len(folder.parts) for folder in folders) + 1):
        ends = ["/".join(folder.parts[-length:]) for folder in folders]
        if len(set(ends)) == len(ends):
            break
    return ends


def _recall(compared: Compared) -> Section:
    lines = {
        name: [(float(depth), scores.mean(f"recall@{depth}")) for depth in DEPTHS]
        for name, scores in compared.scores.items()
    }
    rows = [[name, *(f"{y:.4f}" for _, y in points)] for name, points in lines.items()]
    plot = line_plot(lines, "depth", "recall (micro)", log=True)
    return Section("Recall by depth", plot, "", ["system", *map(str, DEPTHS)], rows)


def _changes(compared: Compared) -> list[Section]:
    claims = judged_claims(compared.dataset.qrels)
    ranks = {n: first_ranks(r, compared.dataset.qrels, claims)[1] for n, r in compared.runs.items()}
    names = [*BUCKETS, NOT_FOUND]
    sections = []
    for name in compared.systems:
        if name != compared.baseline:
            table = bucket_changes(ranks[compared.baseline], ranks[name])
            counts = np.array([[table[a][b] for b in names] for a in names], dtype=float)
            counts[counts == 0] = np.nan
            title = f"Rank of the gold: from {compared.baseline} (rows) to {name} (columns)"
            plot = heat_map(names, names, counts, 0)
            rows = [[a, *(str(table[a][b]) for b in names)] for a in names]
            sections.append(Section(title, plot, "Claims.", ["rank", *names], rows))
    return sections


def _representations(compared: Compared) -> Section:
    """Macro score by system and representation of claims, where there are several of either."""
    counts = Counter((system.system, system.claims) for system in compared.systems.values())
    cells: dict[tuple[str, str], float] = {}
    for name, system in compared.systems.items():
        # Two that a report calls alike, of two folders, are two rows.
        alone = counts[system.system, system.claims] == 1
        row = system.system if alone else name
        cells[row, system.claims] = compared.macro[name]
    rows, forms = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    if len(cells) < 2:
        return Section("Systems and representations")
    values = np.array([[cells.get((row, form), np.nan) for form in forms] for row in rows])
    title = f"Systems and representations, macro {compared.config.metric}"
    texts = [[row, *(text_of(cells.get((row, form))) for form in forms)] for row in rows]
    return Section(title, heat_map(rows, forms, values), "", ["system", *forms], texts)


def _cost(compared: Compared) -> Section:
    metric = compared.config.metric
    known = {
        name: (float(system.cost["seconds"]), compared.macro[name])
        for name, system in compared.systems.items()
        if system.cost.get("seconds")
    }
    rows = [
        [name, text_of(compared.macro[name]), *_costs(system)]
        for name, system in compared.systems.items()
    ]
    plot = scatter_plot(known, "seconds", f"macro {metric}") if known else ""
    note = "Costs are of the claims in all languages." if compared.config.languages else ""
    return Section("Cost against quality", plot, note, ["system", metric, *COST_COLUMNS], rows)


def _costs(system: SavedSystem) -> list[str]:
    return [text_of(cell) for cell in cost_cells(system.cost)]


def _claims(compared: Compared) -> list[dict[str, Any]]:
    """The claims for the browser, those that systems differ on most first."""
    metric, sources = compared.config.metric, {s.id: s for s in compared.dataset.sources}
    ids = compared.scores[compared.baseline].claim_ids
    values = np.stack([scores[metric] for scores in compared.scores.values()])
    by_id = {claim.id: claim for claim in compared.dataset.claims}
    order = np.argsort(-np.ptp(values, axis=0), kind="stable")[: compared.config.claims]
    ranks = {n: first_ranks(r, compared.dataset.qrels, ids)[1] for n, r in compared.runs.items()}
    shown = []
    for i in order:
        claim = by_id[ids[i]]
        golds = compared.dataset.qrels.golds(claim.id)
        systems = [
            {
                "name": name,
                "rank": f"{ranks[name][i]:.0f}" if np.isfinite(ranks[name][i]) else "-",
                "hits": [
                    {"title": _title(source, sources), "gold": source in golds}
                    for source in run.sources(claim.id, _TOP)
                ],
            }
            for name, run in compared.runs.items()
        ]
        shown.append(
            {
                "language": claim.lang,
                "text": claim.text,
                "translation": claim.translation or "",
                "golds": [_title(gold, sources) for gold in golds],
                "winner": _winner(list(compared.systems), values[:, i]),
                "systems": systems,
            }
        )
    return shown


def _title(source: str, sources: Mapping[str, Source]) -> str:
    known = sources.get(source)
    return f"{known.title or known.abstract[:120]} ({source})" if known else source


def _winner(names: Sequence[str], values: np.ndarray) -> str:
    best = np.flatnonzero(values == values.max())
    if values.max() <= 0:
        return _NOBODY
    return names[best[0]] if len(best) == 1 else _SEVERAL
