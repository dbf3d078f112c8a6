"""What `eval/baselines.py` does: every zero-shot baseline, claim form and language."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from tqdm import tqdm

from claim2source.core.config import REPOSITORY, as_plain, flag, list_field, require, require_one_of
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.files import content_hash, write_json, write_text
from claim2source.core.records import Dataset
from claim2source.core.tables import markdown_table, plain_table
from claim2source.datasets import load
from claim2source.evaluation.baseline_report import (
    NotRun,
    baselines_tables,
    baselines_text,
    not_run_row,
)
from claim2source.evaluation.baseline_retrieval import Bench, Choosing, Found
from claim2source.evaluation.baseline_systems import (
    Systems,
    is_tuned,
    label_of,
    local,
    ordered,
    parts_of,
    read_systems,
)
from claim2source.evaluation.baseline_tests import ending, untested
from claim2source.evaluation.by_language import intervals_of
from claim2source.evaluation.retrieval import DEPTH, METRICS, cost_report, evaluate_result
from claim2source.evaluation.saved import REPORT
from claim2source.io.store import Store, VectorType
from claim2source.io.trec import write_trec_run
from claim2source.io.wandb import Tracking, log_tables, require_tracking
from claim2source.retrieve import IndexConfig
from claim2source.text import ClaimForm
from claim2source.text.render import missing_translations, why_same_forms
from claim2source.text.rewrites import read_rewrites

# Counted up when the same settings would give another report.
_FORMAT = 3
_FORMS: tuple[ClaimForm, ...] = get_args(ClaimForm)


@dataclass(frozen=True)
class BaselinesConfig:
    """Settings of `eval/baselines.py`.

    Args:
        out: folder for the reports; what lies there from the same settings is not done again.
        dataset: folder in BEIR layout, or `demo`.
        split: split to report on; nothing is chosen on it.
        train_split: split that tuned systems are chosen on.
        val: the claims of it that fusions are chosen on: a part `carved` out as in training, all
            of `train` (only for models that were not trained on it), or `auto`: carved for a
            trained checkpoint of ours, else train. BM25 is always chosen on all of train.
        val_share: share carved out.
        val_seed: seed of the carving.
        rewrites: JSON lines {"_id": claim, "text": ..}: a rewriting appended to each claim.
        models: folder of models by the last part of their name (models/all-mpnet-base-v2),
            taken before the hub's.
        repeats: samples of the bootstrap, which draws gold papers, and permutations of the tests.
        seed: of both.
        index: how source vectors are searched; its recall is reported where it is not exact.
        store: folder of the store of vectors and runs; none: the user's cache.
        vectors: float32, or float16 to keep vectors in half the room.
        wandb: log the tables to Weights & Biases.
        device: none takes a GPU if there is one.
    """

    out: Path
    dataset: str = "demo"
    split: str = "dev"
    files: list[Path] = list_field(
        Path, help="YAML files of systems; none: all of configs/baselines"
    )
    systems: list[str] = list_field(str, help="only these systems of the files")
    claims: list[str] = list_field(str, _FORMS, help="claim representations")
    languages: list[str] | None = list_field(str, help="score claims in these languages only")
    train_split: str = "train"
    val: Literal["auto", "carved", "train"] = "auto"
    val_share: float = 0.1
    val_seed: int = 13
    rewrites: Path | None = None
    models: Path | None = None
    offline: bool = flag("ask the hub for nothing: models from folders, packages and its cache")
    repeats: int = 10_000
    seed: int = 0
    tests: bool = flag("paired tests and the papers' numbers at the end", default=True)
    index: IndexConfig = field(default_factory=IndexConfig)
    store: Path | None = None
    vectors: VectorType = "float32"
    wandb: Tracking = "off"
    device: Literal["cpu", "cuda"] | None = None

    def __post_init__(self) -> None:
        require(bool(self.claims), "claims", self.claims, "one or more of " + ", ".join(_FORMS))
        for form in self.claims:
            require_one_of("claims", form, _FORMS)
        require(self.repeats >= 1, "repeats", self.repeats, "1 or more")
        require(0 < self.val_share < 1, "val_share", self.val_share, "more than 0, less than 1")


@dataclass(frozen=True)
class Cell:
    """One system over one claim form; its folder is its name."""

    system: str
    form: ClaimForm

    @property
    def name(self) -> str:
        """E5-Large.translated."""
        return f"{self.system}.{self.form}"


def evaluate_baselines(config: BaselinesConfig) -> str:
    """Run every system over every claim form; writes `config.out`, returns the table as text.

    A cell's folder holds `report.json` and `runs/` as `eval/checkpoint.py` writes them for one
    checkpoint; the top `report.json` is that of a training run, its checkpoints being the cells,
    with `not_run`, `tests` and `published` (the papers' numbers) besides. A system that cannot
    run is a row there.
    """
    require_tracking(config.wandb)
    systems, names = named_systems(config)
    dataset = load(config.dataset, config.split, config.languages)
    rewrites = read_rewrites(config.rewrites) if config.rewrites else {}
    if config.rewrites and rewrites.keys().isdisjoint(claim.id for claim in dataset.claims):
        raise UserError(f"{config.rewrites}: no rewriting of a claim of {config.split}")
    bench = Bench(
        {name: systems[name] for name in _with_parts(names, systems)},
        dataset,
        config.dataset,
        Choosing(config.train_split, config.val, config.val_share, config.val_seed),
        rewrites=rewrites,
        models=config.models,
        store=Store(config.store, config.vectors),
        device=config.device,
        index=config.index,
    )
    forms, notes = _forms(config, dataset)
    reports: dict[Cell, dict[str, Any]] = {}
    not_run: dict[Cell, NotRun] = {}
    cells = [Cell(name, form) for name in ordered(names, systems) for form in forms]
    with _hub(config.offline):
        for cell in tqdm(cells, desc="baselines", unit="cell", disable=None):
            try:
                reports[cell] = _cell(config, bench, cell)
            except (UserError, MemoryError, RuntimeError) as error:
                # CUDA and FAISS raise RuntimeErrors: one cell's failure is not the table's.
                not_run[cell] = not_run_row(cell.system, cell.form, systems, error)
    shown = [Cell(name, form) for name in names for form in forms]
    done = {cell.name: reports[cell] for cell in shown if cell in reports}
    left = [not_run[cell] for cell in shown if cell in not_run]
    end = None
    if config.tests and dataset.golds:
        end = ending(done, config.out, systems, dataset, config.repeats, config.seed)
        notes = [*notes, *untested(done, systems)]

    def text(table: Callable[..., str]) -> str:
        ended = end.text(table) if end else ""
        return "\n\n".join(filter(None, [baselines_text(done, left, notes, table), ended]))

    title = f"{config.dataset}, {config.split}"
    write_text(config.out / "report.md", f"# {title}\n\n{text(markdown_table)}\n")
    # Last: where it lies, all that it names does.
    write_json(
        config.out / REPORT,
        {
            "checkpoints": done,
            "chosen": None,
            "notes": notes,
            "not_run": as_plain(left),
            **(end.plain() if end else {}),
        },
    )
    log_tables(
        config.wandb,
        {**baselines_tables(done, left), **(end.tables() if end else {})},
        folder=config.out,
        program="baselines",
        config=as_plain(config),
    )
    return f"{title}\n{text(plain_table)}"


def named_systems(config: BaselinesConfig) -> tuple[Systems, list[str]]:
    """All systems of the files, and the names of those asked for.

    Raises `ConfigError` for a name that no file has.
    """
    systems = read_systems(_files(config))
    return systems, _named(config.systems, systems)


def _files(config: BaselinesConfig) -> list[Path]:
    if config.files:
        return list(config.files)
    found = sorted((REPOSITORY / "configs" / "baselines").glob("*.yaml"))
    if not found:
        raise UserError("files: no configs/baselines here; name the YAML files of systems")
    return found


def _named(asked: Sequence[str] | None, systems: Systems) -> list[str]:
    for name in asked or ():
        if name not in systems:
            raise ConfigError("systems", name, ", ".join(systems))
    return list(dict.fromkeys(asked)) if asked else list(systems)


def _with_parts(names: Sequence[str], systems: Systems) -> list[str]:
    return list(dict.fromkeys(part for name in names for part in (name, *parts_of(systems[name]))))


def _forms(config: BaselinesConfig, dataset: Dataset) -> tuple[list[ClaimForm], list[str]]:
    """The claim forms that differ here, and a note on each that is left out."""
    asked = [form for form in _FORMS if form in config.claims]
    if (why := why_same_forms(dataset.claims)) is None:
        return asked, []
    others = [form for form in asked if form != "original"]
    note = f"{' and '.join(others)}: the same as original here, since {why}."
    return ["original"], [note] if others else []


def _cell(config: BaselinesConfig, bench: Bench, cell: Cell) -> dict[str, Any]:
    """The cell's report: as it lies there from the same settings, or made now."""
    folder, key = config.out / cell.name, _key(config, bench, cell)
    data = bench.data(cell.form)
    if (known := _known(folder, key, data.languages)) is not None:
        return known
    # A report of other settings must not stand beside these runs if this stops halfway.
    (folder / REPORT).unlink(missing_ok=True)
    found = bench.find(cell.system, cell.form)
    for language in data.languages:
        claims = [claim.id for claim in data.claims if claim.lang == language]
        write_trec_run(found.result.run.restricted(claims), folder / "runs" / f"{language}.trec")
    report = _report(config, bench, cell, found) | {"key": key}
    write_json(folder / REPORT, report)
    return report


def _report(config: BaselinesConfig, bench: Bench, cell: Cell, found: Found) -> dict[str, Any]:
    data = bench.data(cell.form)
    report: dict[str, Any] = {
        "checkpoint": label_of(cell.system, bench.systems),
        "system": cell.system,
        "dataset": config.dataset,
        "split": data.split,
        "rendering": as_plain(found.rendering),
        "settings": _given(as_plain(bench.systems[cell.system])),
        "tuned": dict(found.chosen),
        "rewrites": str(config.rewrites) if config.rewrites else None,
        # Appended to the claims: none of the papers' styles, which replace them.
        "style": "rewritten" if config.rewrites else "S0C0",
        "cost": cost_report(found.result, found.parameters),
        "without_translation": len(missing_translations(data.claims, cell.form)),
        "failures": found.result.failure_counts(),
        "index": found.result.index.plain() if found.result.index else None,
    }
    if data.golds:
        evaluation = evaluate_result(found.result, data, METRICS)
        report |= {
            "languages": evaluation.languages,
            "macro": evaluation.macro,
            "intervals": intervals_of(found.result.run, data, config.repeats, config.seed),
        }
    return report


def _given(value: Any) -> Any:
    """Without what was not said, for a reader."""
    if not isinstance(value, dict):
        return value
    return {key: _given(item) for key, item in value.items() if item not in (None, "", [])}


def _key(config: BaselinesConfig, bench: Bench, cell: Cell) -> str:
    """Hash of all that makes a cell: another key, another report."""
    names = (cell.system, *parts_of(bench.systems[cell.system]))
    parts: dict[str, Any] = {
        "format": _FORMAT,
        "systems": {name: as_plain(bench.systems[name]) for name in names},
        "weights": {name: _weights(config, bench.systems, name) for name in names},
        "claims": cell.form,
        "split": bench.split,
        "data": bench.data(cell.form).fingerprint,
        "depth": DEPTH,
        "bootstrap": [config.repeats, config.seed],
    }
    if any(bench.systems[name].model is not None for name in names):
        parts["search"] = [as_plain(config.index), config.vectors]
    if is_tuned(cell.system, bench.systems):
        carved = [config.val, config.val_share, config.val_seed]
        parts["chosen on"] = [bench.data(cell.form, "train").fingerprint, carved]
    return content_hash(parts)


def _weights(config: BaselinesConfig, systems: Systems, name: str) -> Any:
    """What tells one folder's content from another; a hub's model is told by its revision."""
    model = systems[name].model
    if model is None:
        return None
    folder = Path(local(model, config.models).name)
    if not folder.is_dir():
        return None
    # Sizes and times, not hashes: seven billion weights take longer to read than to skip.
    states = {str(path.relative_to(folder)): path.stat() for path in sorted(folder.rglob("*"))}
    return {name: [state.st_size, state.st_mtime_ns] for name, state in states.items()}


def _known(folder: Path, key: str, languages: Sequence[str]) -> dict[str, Any] | None:
    try:
        report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    runs = [folder / "runs" / f"{language}.trec" for language in languages]
    same = isinstance(report, dict) and report.get("key") == key
    return report if same and all(run.is_file() for run in runs) else None


@contextmanager
def _hub(offline: bool) -> Iterator[None]:
    """Within it the hub is not asked for anything, if `offline`."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    try:
        # The environment variable is read once, when the library is imported.
        constants.HF_HUB_OFFLINE = before or offline
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
