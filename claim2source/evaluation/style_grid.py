"""Run systems over every pair of claim and source style; each pair is a cell of a grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from claim2source.core.config import Settings, require_one_of
from claim2source.core.costs import SystemCost
from claim2source.core.errors import UserError
from claim2source.core.progress import track
from claim2source.core.records import Claim, Dataset, Source
from claim2source.core.report import (
    MAIN_METRIC,
    NotRun,
    Report,
)
from claim2source.core.run import Cost
from claim2source.core.tables import Part, TextTable
from claim2source.evaluation.evaluate import (
    ScoredSystem,
    Scoring,
    run_tests,
    score_system,
    with_scores,
)
from claim2source.evaluation.files import write_runs, write_submissions
from claim2source.evaluation.published.scores import with_published
from claim2source.evaluation.rows import SystemRow, not_run_row
from claim2source.evaluation.style_tables import (
    BY_RULES,
    CLAIM,
    SOURCE,
    WRITERS,
    StyleGrid,
    cell_name,
    grid_parts,
    grid_tables,
    mean_scores,
)
from claim2source.evaluation.views import write_markdown
from claim2source.metrics import metrics as scoring
from claim2source.metrics.families import Family, tests_parts
from claim2source.metrics.metrics import Scores
from claim2source.search.routes import Routes
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.system import SystemResult, SystemRunner
from claim2source.text import ClaimForm
from claim2source.text.styles import (
    CLAIM_STYLES,
    RULES,
    SOURCE_STYLES,
    STYLES,
    ClaimText,
    StyleTexts,
    style_texts,
)
from claim2source.text.views import same_forms_reason, with_claim_texts, with_source_texts

FOLDER = "styles"
# Deep enough for MRR@10: whole lists of 300 cells would fill a disk.
RUN_DEPTH = 10


@dataclass(frozen=True, kw_only=True)
class StyleOptions(Settings):
    """Set the styles to compare, and the folder of their texts.

    Args:
        claim_styles: C0 (as posted) to C4; C0 is always among them.
        source_styles: S0 (as published) to S3; S0 is always among them.
        texts: folder of rewritten texts (`claim2source rewrite`), one file per style; none:
            rules rewrite the texts. Results by rules tell nothing about the papers' styles.
        keep_title: rewritten sources keep their title; in the papers' examples they do not.
    """

    claim_styles: tuple[str, ...] = CLAIM_STYLES
    source_styles: tuple[str, ...] = SOURCE_STYLES
    texts: Path | None = None
    keep_title: bool = True

    def check(self) -> None:
        for key, allowed in (("claim_styles", CLAIM_STYLES), ("source_styles", SOURCE_STYLES)):
            for style in getattr(self, key):
                require_one_of(key, style, allowed)

    def cells(self) -> Iterator[tuple[str, str]]:
        """Yield the claim and source style of every cell but S0C0, in the papers' order.

        The outer loop is over sources: their index is used for all claim styles.
        """
        for sources in SOURCE_STYLES:
            for claims in CLAIM_STYLES:
                is_included = claims in (CLAIM, *self.claim_styles)
                is_included = is_included and sources in (SOURCE, *self.source_styles)
                if is_included and (claims, sources) != (CLAIM, SOURCE):
                    yield claims, sources

    @property
    def rewritten(self) -> tuple[str, ...]:
        """List the styles that need rewritten texts."""
        styles = dict.fromkeys(style for cell in self.cells() for style in cell)
        return tuple(style for style in STYLES if style in styles and STYLES[style].prompt)


@dataclass(frozen=True)
class StyleViews:
    """Split's claims and sources in every style, once for each version."""

    texts: Mapping[str, StyleTexts]
    claims: Mapping[str, Sequence[tuple[Claim, ...]]]
    sources: Mapping[str, Sequence[tuple[Source, ...]]]

    @classmethod
    def read(cls, dataset: Dataset, options: StyleOptions, form: ClaimForm) -> StyleViews:
        """Read the styles' texts for claims of a form, or make them by rules. Raises `InputError`.

        As in the 2026 companion paper, the translation is rewritten if the claim form contains it.
        """
        read: ClaimText = "original" if form == "original" else "translation"
        texts: dict[str, StyleTexts] = {}
        for name in options.rewritten:
            texts[name] = style_texts(STYLES[name], dataset, read, options.texts)
        claims = {CLAIM: [dataset.claims]}
        sources = {SOURCE: [dataset.sources]}
        for name, style in texts.items():
            for version in style.versions:
                if name in CLAIM_STYLES:
                    rewritten = with_claim_texts(dataset.claims, version, form)
                    claims.setdefault(name, []).append(rewritten)
                else:
                    papers = with_source_texts(
                        dataset.sources,
                        version,
                        keep_title=options.keep_title,
                    )
                    sources.setdefault(name, []).append(papers)
        return cls(texts, claims, sources)

    def notes(self, dataset: Dataset, options: StyleOptions, form: ClaimForm) -> list[str]:
        """Note the origin of the texts and how they are used."""
        notes = []
        for by in dict.fromkeys(text.by for text in self.texts.values()):
            styles = ", ".join(name for name, text in self.texts.items() if text.by == by)
            author = "rules, which stand in for a language model" if by == RULES else by
            notes.append(f"{styles}: rewritten by {author}.")
        if same_forms_reason(dataset.claims) is None:
            which = "original" if form == "original" else "translation"
            notes.append(f"Of claims in other languages the {which} is rewritten.")
        if not options.keep_title:
            notes.append("Rewritten sources have no title.")
        return notes


def add_styles(
    report: Report,
    rows: Sequence[SystemRow],
    runner: SystemRunner,
    options: StyleOptions,
    settings: Scoring,
    out: Path,
) -> tuple[Report, list[Part], dict[str, TextTable]]:
    """Run systems over the grid of styles; every cell becomes a row of their report.

    S0C0 is a system's own row. Variations, and checkpoints with stages, have no grid. The grid's
    table and the cells' runs are written to the folder `styles` of `out`. Returns the report, the
    parts to print, and the tables for W&B.
    """
    grids = _run_grids(rows, runner, options, settings, out)
    systems = {}
    for name, cell in grids.cells.items():
        systems[name] = cell.report
    report = replace(
        report,
        systems={**report.systems, **systems},
        notes=(*report.notes, *(f"Styles: {note}" for note in grids.notes)),
        not_run=(*report.not_run, *grids.not_run),
    )
    if runner.reported.golds and settings.repeats:
        report = _with_tests(report, rows, grids, runner.reported, settings)
    grid = StyleGrid.of(report)
    if grid is None:
        return report, [], {}
    title = f"Styles: {report.dataset}, {report.split}"
    parts: list[Part] = [*grids.notes, *grid_parts(grid, wide=True)]
    parts += tests_parts(grid.report.tests, MAIN_METRIC)
    write_markdown(out / FOLDER, title, parts)
    tables = {}
    for name, table in grid_tables(grid).items():
        tables[f"styles {name}"] = table
    return report, ["Styles:", *grids.notes, *grid_parts(grid)], tables


@dataclass
class _Grids:
    """Cells of all systems by name, their families of tests, and the failed rows."""

    cells: dict[str, ScoredSystem] = field(default_factory=dict)
    families: list[Family] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _run_grids(
    rows: Sequence[SystemRow],
    runner: SystemRunner,
    options: StyleOptions,
    settings: Scoring,
    out: Path,
) -> _Grids:
    """Run every row's cells and write their runs; list failed rows as not run."""
    grids = _Grids()
    read: dict[bool, StyleViews] = {}
    grid_rows = [row for row in rows if _has_grid(row)]
    for row in track(grid_rows, "styles", len(grid_rows)):
        own: dict[str, ScoredSystem] = {}
        try:
            key = _reads_originals(row, runner.runtime)
            if key not in read:
                read[key] = StyleViews.read(runner.reported, options, row.form)
            notes = read[key].notes(runner.reported, options, row.form)
            grids.notes += [note for note in notes if note not in grids.notes]
            for claims, sources in options.cells():
                cell = _cell(row, read[key], claims, sources, runner, options, settings)
                own[cell.report.name] = cell
        except (UserError, MemoryError, RuntimeError) as error:
            # CUDA and FAISS raise RuntimeErrors: a system's failure must not end the grid.
            failed = not_run_row(row.plan.system, row.form, error)
            grids.not_run.append(replace(failed, system=f"{failed.system}: styles"))
            continue
        _write_cells(own, row, runner, out)
        grids.cells |= own
        if own:
            title = f"{row.name}: every cell against S0C0"
            grids.families.append(Family.against(title, row.name, list(own)))
    return grids


def _write_cells(
    cells: Mapping[str, ScoredSystem],
    row: SystemRow,
    runner: SystemRunner,
    out: Path,
) -> None:
    """Write the runs and submissions of cells that have a run."""
    trained_on = row.plan.system.trained_on(runner.settings.dataset)
    for cell in cells.values():
        if cell.report.runs:
            folder = out / cell.report.runs
            write_runs(cell.run.top(RUN_DEPTH), runner.reported, folder, trained_on)
            write_submissions(cell.run, runner.reported, folder)


def _with_tests(
    report: Report,
    rows: Sequence[SystemRow],
    grids: _Grids,
    dataset: Dataset,
    settings: Scoring,
) -> Report:
    """Add the tests of cells against S0C0, and the papers' cells next to ours."""
    scored: dict[str, ScoredSystem] = {}
    for row in rows:
        scored |= row.stages
    scored |= grids.cells
    tests = run_tests(scored, grids.families, dataset, settings.repeats, settings.seed)
    # The papers' cells are listed whatever rewrote the texts: a note names the author.
    papers = []
    for name, cell in grids.cells.items():
        papers.append(replace(cell.report, style=name.rpartition(".")[2]))
    report = with_published(report, papers)
    return replace(report, tests=(*report.tests, *tests))


def _has_grid(row: SystemRow) -> bool:
    is_reranked = row.plan.checkpoint is not None and bool(row.plan.system.stages)
    return row.plan.varied is None and not is_reranked


def _reads_originals(row: SystemRow, runtime: SystemRuntime) -> bool:
    """Whether originals of foreign claims are rewritten; `UserError` if parts differ."""
    first, form = row.plan.system.first, row.plan.system.claims or row.form
    parts = first.parts if isinstance(first.retriever, Routes) else (first,)
    if len({part.choose_form(form, runtime) == "original" for part in parts}) > 1:
        raise UserError(f"{row.name}: some of its parts use translations, others do not")
    return row.form == "original"


def _cell(
    row: SystemRow,
    views: StyleViews,
    claims: str,
    sources: str,
    runner: SystemRunner,
    options: StyleOptions,
    settings: Scoring,
) -> ScoredSystem:
    """Run and score a cell; the scores of several versions of a claim are averaged."""
    dataset = runner.reported
    system = row.plan.system
    name = cell_name(row.name, claims, sources)
    results = []
    for source_version in views.sources[sources]:
        for claim_version in views.claims[claims]:
            version = replace(dataset, claims=claim_version, sources=source_version)
            results.append(runner.run(system, row.form, version))
    scored = score_system(name, results[0], dataset, replace(settings, repeats=0))
    texts = [views.texts[style] for style in (claims, sources) if style in views.texts]
    style = f"{sources}{claims}"
    if any(text.by == RULES for text in texts):
        style += f", {BY_RULES}"
    failures = dict(scored.report.failures)
    for text_style in (claims, sources):
        if text_style in views.texts and views.texts[text_style].lost:
            reason = f"{text_style}: not rewritten, the original was used"
            failures[reason] = views.texts[text_style].lost
    row_settings = dict(scored.report.settings)
    writers = dict.fromkeys(text.by for text in texts if text.by != RULES)
    if writers:
        row_settings[WRITERS] = list(writers)
    # Of several versions there is no one run; without golds it is the first one's.
    has_run = len(results) == 1 or scored.scores is None
    scored = scored.with_report(
        model=row.whole.report.model,
        style=style,
        cost=_joint_cost(results),
        failures=failures,
        rewrites=str(options.texts or RULES),
        settings=row_settings,
        runs=f"{FOLDER}/runs/{name}" if has_run else "",
    )
    if scored.scores is None:
        return scored
    return _with_mean(scored, scored.scores, results[1:], dataset, settings)


def _joint_cost(results: Sequence[SystemResult]) -> SystemCost:
    """Sum the costs of a cell's versions."""
    cost = Cost()
    from_store = True
    for result in results:
        cost += result.cost
        from_store = from_store and all(stage.result.stored for stage in result.stages)
    return SystemCost.of(cost, from_store, results[0].parameters)


def _with_mean(
    scored: ScoredSystem,
    first: Scores,
    others: Sequence[SystemResult],
    dataset: Dataset,
    settings: Scoring,
) -> ScoredSystem:
    """Replace the scores of the first version by the mean of all versions, with intervals."""
    versions = [first]
    for other in others:
        run = other.result.run
        versions.append(scoring.evaluate(run, dataset.qrels, settings.metrics, first.claim_ids))
    scores = mean_scores(versions)
    return with_scores(scored, scores, dataset, settings)
