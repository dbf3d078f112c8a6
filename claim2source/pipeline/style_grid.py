"""Run systems over every pair of claim and source style; a cell is a result over other texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from claim2source.core.errors import UserError
from claim2source.core.files import atomic_path, write_json, write_text
from claim2source.core.records import Claim, Dataset, Source
from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    Intervals,
    NotRun,
    Report,
    SystemCost,
)
from claim2source.core.run import Cost, Run
from claim2source.core.tables import Cell as Text
from claim2source.core.tables import Part, TextTable
from claim2source.datasets.grouping import gold_groups
from claim2source.evaluation.families import Family
from claim2source.evaluation.style_grid import (
    CLAIM,
    SOURCE,
    StyleGrid,
    as_csv,
    cell_name,
    comparison_parts,
    draw,
    grid_parts,
    grid_tables,
    mean_scores,
    table_csv,
)
from claim2source.metrics import metrics as scoring
from claim2source.metrics.metrics import (
    judged_claims,
    language_masks,
    language_strata,
    language_table,
    macro,
)
from claim2source.metrics.significance import bootstrap_intervals
from claim2source.models import Side
from claim2source.pipeline.evaluate import (
    ScoredSystem,
    Scoring,
    make_report,
    published_beside,
    run_tests,
    score_system,
    write_runs,
    write_submissions,
)
from claim2source.pipeline.rows import Cell, form_of_failed, not_run_row
from claim2source.pipeline.style_texts import (
    StyleOptions,
    Texts,
    plan_texts,
    quality_table,
    read_texts,
    rewritten_text,
)
from claim2source.pipeline.views import write_markdown
from claim2source.retrieve import FusionConfig, fuse
from claim2source.systems.nodes import AnyNode, DenseNode, RouteNode
from claim2source.systems.system import StageResult, System, SystemResult, SystemRunner
from claim2source.text import ClaimForm, Rendering
from claim2source.text.styles import CLAIM_STYLES, RULES, ClaimText, Rewrite
from claim2source.text.views import why_same_forms

METRICS = ("mrr@1", MAIN_METRIC, "mrr@10", "recall@5")
# Deep enough for all of these metrics: whole lists of 300 cells would fill a disk.
WRITTEN = 10
GRID_FILE = "grid.json"


class StyledData:
    """Hold a split in every style: the same ids and judgements with other texts.

    `claims` says which text of a claim was rewritten.
    """

    def __init__(
        self, dataset: Dataset, texts: Texts, options: StyleOptions, claims: ClaimText
    ) -> None:
        append = options.combine == "append"
        self._texts, self._dataset = texts, dataset
        self._claims: dict[str, list[tuple[Claim, ...]]] = {CLAIM: [dataset.claims]}
        self._sources: dict[str, list[tuple[Source, ...]]] = {SOURCE: [dataset.sources]}
        for name, style in texts.items():
            versions = [style.version(n) for n in range(1, style.versions + 1)]
            if name in CLAIM_STYLES:
                self._claims[name] = [
                    tuple(_claim(one, new.get(one.id), claims, append) for one in dataset.claims)
                    for new in versions
                ]
            else:
                self._sources[name] = [
                    tuple(
                        _source(one, new.get(one.id), options.keep_title, append)
                        for one in dataset.sources
                    )
                    for new in versions
                ]

    def cell(self, claims: str, sources: str) -> list[Dataset]:
        """Return the split of a cell, once for every pair of versions."""
        return [
            replace(self._dataset, claims=of_claims, sources=of_sources)
            for of_sources in self._sources[sources]
            for of_claims in self._claims[claims]
        ]

    def similarity(
        self, style: str, rendering: Rendering, encode: Callable[[Side, Sequence[str]], np.ndarray]
    ) -> float:
        """Return the mean cosine of a style's texts to their originals, over all versions."""
        if style in self._claims:
            before = encode("claim", rendering.claim_texts(self._dataset.claims))
            new = [encode("claim", rendering.claim_texts(one)) for one in self._claims[style]]
        else:
            before = encode("source", rendering.source_texts(self._dataset.sources))
            new = [encode("source", rendering.source_texts(one)) for one in self._sources[style]]
        return float(np.mean([(before * one).sum(axis=1) for one in new]))

    def failures(self, claims: str, sources: str) -> dict[str, int]:
        """Count the texts of a cell that were not rewritten: reason -> versions of texts."""
        return {
            f"{style}: not rewritten, read as it is": self._texts[style].lost
            for style in (claims, sources)
            if style in self._texts and self._texts[style].lost
        }


def _claim(claim: Claim, new: Rewrite | None, of: ClaimText, append: bool) -> Claim:
    if new is None:
        return claim
    english = of == "translation" and claim.lang != "en" and claim.translation
    text = f"{claim.translation if english else claim.text}\n{new.text}" if append else new.text
    return replace(claim, translation=text) if english else replace(claim, text=text)


def _source(source: Source, new: Rewrite | None, keep_title: bool, append: bool) -> Source:
    if new is None:
        return source
    if append:
        return replace(source, abstract=f"{source.abstract} {new.text}")
    return replace(source, title=(new.title or "") if keep_title else "", abstract=new.text)


class GridRun:
    """Run and score the grid of one system after another, over the texts of one split.

    `texts` gives every style's texts for either text of a claim; none: as the options say, for
    the data set in `folder`. A split without golds is ranked and not scored.
    """

    def __init__(
        self,
        dataset: Dataset,
        options: StyleOptions,
        texts: Callable[[ClaimText], Texts] | None = None,
        *,
        folder: str = "",
        repeats: int = 10_000,
        seed: int = 0,
    ) -> None:
        self.dataset, self.options = dataset, options
        self.folder, self.repeats, self.seed = folder, repeats, seed
        self._texts = texts or (lambda claims: read_texts(options, dataset, folder, claims))
        self._data: dict[ClaimText, tuple[Texts, StyledData]] = {}
        self._cells: dict[str, ScoredSystem] = {}
        self._styles: dict[str, str] = {}
        self._retrievers: list[str] = []
        self._not_run: list[NotRun] = []

    def add(
        self,
        runner: SystemRunner,
        system: System,
        form: ClaimForm | None = None,
        *,
        model: str,
        name: str | None = None,
    ) -> None:
        """Score every cell of a system; one that cannot run is listed with the reason.

        `model` is the name that published tables know it by, `name` the one to show.
        """
        name = name or system.name
        try:
            cells = self._run(runner, system, form, name)
        except (UserError, MemoryError, RuntimeError) as error:
            # CUDA and FAISS raise RuntimeErrors: one system's failure is not the grid's.
            shown = Cell(system.name, form_of_failed(system, runner.runtime, form))
            self._not_run.append(not_run_row(shown, system, error))
            return
        self._retrievers.append(name)
        for cell, one in cells.items():
            self._cells[cell] = replace(one, report=replace(one.report, model=model))

    def _run(
        self, runner: SystemRunner, system: System, form: ClaimForm | None, name: str
    ) -> dict[str, ScoredSystem]:
        texts, data = self._styled(self._claim_text(runner, system, form))
        base: SystemResult | None = None
        cells = {}
        # Sources outside: a system's index of them serves all claim styles.
        for sources in self.options.asked_sources:
            for claims in self.options.asked_claims:
                found = [runner.run(system, form, one) for one in data.cell(claims, sources)]
                base = base or found[0]
                if self.options.combine == "fuse" and (claims, sources) != (CLAIM, SOURCE):
                    found = [_fused(base, one, self.options.fusion) for one in found]
                cell = cell_name(name, claims, sources)
                self._styles[cell] = f"{sources}{claims}"
                cells[cell] = self._scored(cell, found, data.failures(claims, sources), texts)
        self._measure(runner, system, form)
        return cells

    def _measure(self, runner: SystemRunner, system: System, form: ClaimForm | None) -> None:
        """Compare rewritten texts with their originals by the first dense system's vectors.

        It has encoded these texts for the grid: they come from the store.
        """
        first, store = system.first, runner.runtime.store
        claims = self._claim_text(runner, system, form)
        texts, data = self._data[claims]
        known = any(one.quality and one.quality.similarity for one in texts.values())
        if not isinstance(first, DenseNode) or store is None or known:
            return
        if self.options.combine == "append":
            return
        dense = first.retriever(runner.runtime, system.claims or form)

        def encode(side: Side, read: Sequence[str]) -> np.ndarray:
            vectors = dense.encoder.encode(read, side, store=store, progress=None)[0]
            unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            return unit

        measured = {
            name: one.with_similarity(data.similarity(name, dense.rendering, encode))
            for name, one in texts.items()
        }
        self._data[claims] = measured, data

    def _claim_text(
        self, runner: SystemRunner, system: System, form: ClaimForm | None
    ) -> ClaimText:
        first, form = system.first, system.claims or form
        parts = first.parts if isinstance(first, RouteNode) else (first,)
        texts = {
            rewritten_text(self.options.rewritten, part.form_of(form, runner.runtime), self.dataset)
            for part in parts
        }
        if len(texts) > 1:
            raise UserError(f"{system.name}: some of its parts read translations and some do not")
        return texts.pop()

    def _styled(self, claims: ClaimText) -> tuple[Texts, StyledData]:
        if claims not in self._data:
            texts = self._texts(claims)
            self._data[claims] = texts, StyledData(self.dataset, texts, self.options, claims)
        return self._data[claims]

    def _scored(
        self, cell: str, found: Sequence[SystemResult], lost: Mapping[str, int], texts: Texts
    ) -> ScoredSystem:
        """Score a cell: every claim has the mean of its scores over the versions."""
        style = self._styles[cell]
        one = score_system(cell, found[0], self.dataset, Scoring(METRICS, 0))
        cost = sum((each.cost for each in found), Cost())
        stored = all(stage.result.stored for each in found for stage in each.stages)
        report = replace(
            one.report,
            style=style if self._is_papers(style, texts) else f"{style}, not the papers'",
            cost=SystemCost.of(cost, stored, found[0].parameters),
            failures={**one.report.failures, **lost},
            rewrites=None if style == f"{SOURCE}{CLAIM}" else str(self.options.texts or RULES),
            # Of several versions there is no one run; without golds it is the first one's.
            runs=f"runs/{cell}" if len(found) == 1 or one.scores is None else "",
        )
        if one.scores is None:
            return replace(one, report=report)
        others = [
            scoring.evaluate(each.result.run, self.dataset.qrels, METRICS, one.scores.claim_ids)
            for each in found[1:]
        ]
        scores = mean_scores([one.scores, *others])
        languages = language_table(scores, self.dataset.claims)
        report = replace(report, languages=languages, macro=macro(languages))
        return ScoredSystem(report, found[0].result.run, scores)

    def _is_papers(self, style: str, texts: Texts) -> bool:
        """Tell whether a cell is what a published table's is: a model's rewriting alone."""
        used = [one for name, one in texts.items() if name in style]
        replaced = self.options.combine == "replace" or not used
        return replaced and not any(one.by == RULES for one in used)

    def rankings(self, claims: str, sources: str, form: ClaimForm) -> int:
        """Count the rankings of a cell: one for each pair of versions of its texts."""
        read = rewritten_text(self.options.rewritten, form, self.dataset)
        versions, _ = plan_texts(self.options, self.dataset, self.folder, read)
        return versions[claims] * versions[sources]

    def plan(self, systems: Sequence[System], form: ClaimForm) -> list[Part]:
        """Say what `add` would have rewritten, encoded and searched for these systems."""
        claims = rewritten_text(self.options.rewritten, form, self.dataset)
        versions, parts = plan_texts(self.options, self.dataset, self.folder, claims)
        of_claims = sum(versions[style] for style in self.options.asked_claims)
        of_sources = sum(versions[style] for style in self.options.asked_sources)
        texts = of_claims * len(self.dataset.claims) + of_sources * len(self.dataset.sources)
        leaves: list[AnyNode] = []
        for node in (node for system in systems for node in system.first.walk()):
            if not node.parts and node.unsupported is None and node not in leaves:
                leaves.append(node)
        rows: list[list[Text]] = []
        for leaf in leaves:
            encoded = (of_claims + of_sources, texts) if isinstance(leaf, DenseNode) else (0, 0)
            rows.append([leaf.shown, *encoded, of_claims * of_sources])
        columns = ["system", "encodings", "texts encoded at most", "searches"]
        return [*parts, "What is in the store already is not made again:", TextTable(columns, rows)]

    def grid(self, names: Sequence[str] | None = None, *, name: str, program: str) -> StyleGrid:
        """Put the cells into a report, with intervals, tests and the published cells.

        `names` is the order of the systems in its tables; none: as they ran.
        """
        retrievers = tuple(n for n in names or self._retrievers if n in self._retrievers)
        if not self.dataset.golds:
            return self._unscored(name, program)
        reports = {cell: one.report for cell, one in self._bounded().items()}
        report = make_report(self.dataset, reports, None, name=name, program=program)
        families = []
        for retriever in retrievers:
            base = cell_name(retriever, CLAIM, SOURCE)
            others = [
                cell_name(retriever, claims, sources)
                for sources in self.options.asked_sources
                for claims in self.options.asked_claims
                if (claims, sources) != (CLAIM, SOURCE)
            ]
            if others:
                families.append(
                    Family.against(f"{retriever}: every cell against S0C0", base, others)
                )
        tests = run_tests(self._cells, families, self.dataset, self.repeats, self.seed)
        report = replace(
            report,
            tests=tests,
            notes=(*report.notes, *self._notes()),
            not_run=tuple(self._not_run),
        )
        report = self._with_published(report)
        return StyleGrid(report, retrievers, self.options.asked_claims, self.options.asked_sources)

    def _unscored(self, name: str, program: str) -> StyleGrid:
        """Put the cells of a split without golds into a report; its tables have no rows."""
        reports = {cell: one.report for cell, one in self._cells.items()}
        report = make_report(self.dataset, reports, None, name=name, program=program)
        notes = (*report.notes, *self._notes())
        report = replace(report, notes=notes, not_run=tuple(self._not_run))
        return StyleGrid(report, (), self.options.asked_claims, self.options.asked_sources)

    def run_of(self, system: str, claims: str, sources: str) -> Run:
        """Return the ranking of a cell. Raises `UserError` where it did not run."""
        cell = cell_name(system, claims, sources)
        if cell not in self._cells:
            why = next((row.reason for row in self._not_run if row.system == system), "")
            raise UserError(f"submit: {system} did not run: {why}")
        return self._cells[cell].run

    def _bounded(self) -> dict[str, ScoredSystem]:
        """Bound MRR@5 of all cells by the same draws: in one matrix product."""
        if not self._cells:
            return {}
        values = np.stack(
            [cell.scores[MAIN_METRIC] for cell in self._cells.values() if cell.scores]
        )
        claims = judged_claims(self.dataset.qrels)
        groups = gold_groups(self.dataset.qrels, claims)
        strata = language_strata(self.dataset.claims, claims)
        bounds = {MACRO: bootstrap_intervals(values, groups, strata, self.repeats, self.seed)}
        for language, mask in language_masks(self.dataset.claims, claims).items():
            bounds[language] = bootstrap_intervals(
                values[:, mask], groups[mask], None, self.repeats, self.seed
            )
        papers = int(groups.max()) + 1
        for row, (cell, one) in enumerate(self._cells.items()):
            found = {
                key: (float(both[row, 0]), float(both[row, 1])) for key, both in bounds.items()
            }
            intervals = Intervals({MAIN_METRIC: found}, self.repeats, self.seed, papers)
            self._cells[cell] = replace(one, report=replace(one.report, intervals=intervals))
        return self._cells

    def _with_published(self, report: Report) -> Report:
        """Set the papers' cells beside ours, whatever rewrote the texts: notes say what did."""
        cells = {
            cell: replace(self._cells[cell], report=replace(one, style=self._styles[cell]))
            for cell, one in report.systems.items()
        }
        return published_beside(cells, report, self.dataset, self.repeats, self.seed)

    def _notes(self) -> list[str]:
        """Say what made the texts, how they were used, and how many are missing."""
        notes: dict[str, None] = {}
        for claims, (texts, _) in self._data.items():
            for by in dict.fromkeys(one.by for one in texts.values()):
                styles = ", ".join(name for name, one in texts.items() if one.by == by)
                what = "rules, which stand in for a language model" if by == RULES else by
                notes[f"{styles}: rewritten by {what}."] = None
            if why_same_forms(self.dataset.claims) is None:
                notes[f"Of claims in other languages the {claims} is rewritten."] = None
        if self.options.combine == "append":
            notes["Rewritings are appended to the texts as they are."] = None
        if self.options.combine == "fuse":
            how = f"{self.options.fusion.method} fusion"
            notes[f"Every cell is fused with S0C0 ({how})."] = None
        if not self.options.keep_title and self.options.combine != "append":
            notes["Rewritten sources have no title."] = None
        return list(notes)

    def _quality(self) -> TextTable:
        return quality_table({claims: texts for claims, (texts, _) in self._data.items()})

    def parts(self, grid: StyleGrid, wide: bool = False) -> list[Part]:
        """Describe the grid: what made the texts, what they keep, scores, what did not run."""
        parts: list[Part] = list(grid.report.notes)
        if self._data and self.options.made:
            parts += ["Rewritten texts beside their originals:", self._quality()]
        parts += grid_parts(grid, wide)
        if (left := grid.report.not_run_table()) is not None:
            parts += [f"Not run ({len(grid.report.not_run)}):", left]
        return parts

    def tables(self, grid: StyleGrid) -> dict[str, TextTable]:
        """Name the tables of a grid, for W&B."""
        return {"quality": self._quality(), **grid_tables(grid)}

    def write(self, grid: StyleGrid, out: Path, title: str) -> None:
        """Write runs, reports, `grid.json`, `grid.csv`, `quality.csv` and heat maps to a folder."""
        for one in self._cells.values():
            if one.report.runs:
                write_runs(one.run.top(WRITTEN), self.dataset, out / one.report.runs)
                write_submissions(one.run, self.dataset, out / one.report.runs)
        grid.report.write(out)
        write_json(out / GRID_FILE, grid.plain())
        write_text(out / "grid.csv", as_csv(grid))
        write_text(out / "quality.csv", table_csv(self._quality()))
        for language in grid.languages if grid.retrievers else ():
            ending = "" if language == MACRO else f"_{language}"
            with atomic_path(out / f"heatmap{ending}.png") as temporary:
                draw(grid, language, f"{title}: {MAIN_METRIC}, {language}").savefig(
                    temporary, format="png", dpi=150
                )
        parts = [*self.parts(grid, wide=True), *comparison_parts(grid)]
        write_markdown(out, title, parts)


def with_cells(report: Report, grid: StyleGrid, folder: str) -> Report:
    """Add a grid's cells, written to `folder`, to the report that has its systems.

    S0C0 is in it already, under the system's own name.
    """
    own = {cell_name(name, CLAIM, SOURCE): name for name in grid.retrievers}
    cells = {
        name: replace(one, runs=one.runs and f"{folder}/{one.runs}")
        for name, one in grid.report.systems.items()
        if name not in own
    }
    tests = tuple(
        replace(
            test,
            comparisons=tuple(replace(one, baseline=own[one.baseline]) for one in test.comparisons),
        )
        for test in grid.report.tests
    )
    notes = [f"Styles: {one}" for one in grid.report.notes if one not in report.notes]
    not_run = [replace(one, system=f"{one.system}: styles") for one in grid.report.not_run]
    return replace(
        report,
        systems={**report.systems, **cells},
        tests=(*report.tests, *tests),
        notes=(*report.notes, *notes),
        not_run=(*report.not_run, *not_run),
    )


def _fused(base: SystemResult, found: SystemResult, config: FusionConfig) -> SystemResult:
    """Fuse a cell's ranking with that of the texts as they are."""
    depth = config.depth
    fused = fuse(base.result, found.result, config, k=depth)
    stage = StageResult("fuse with S0C0", fused)
    return replace(found, stages=(*found.stages, stage), cost=found.cost)
