"""Write an export's model card in the hub's format, and upload the folder where that is wanted."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from claim2source.core.errors import UserError
from claim2source.core.report import MACRO, MAIN_METRIC, Report, SystemReport
from claim2source.models.hub import one_line
from claim2source.models.manifest import Manifest
from claim2source.models.places import base_record
from claim2source.models.reranker_manifest import RerankerManifest

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

FILE = "README.md"
_TASK = {"retriever": "sentence-similarity", "re-ranker": "text-ranking"}
_USE = {
    "retriever": """\
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("{name}")
scores = model.similarity(model.encode_query(posts), model.encode_document(papers))""",
    "re-ranker": """\
from sentence_transformers import CrossEncoder
model = CrossEncoder("{name}")
logits = model.predict([(post, paper)])""",
}


@dataclass(frozen=True)
class CardResults:
    """Hold the report that has a model's scores, and the name of its system there."""

    report: Report
    systems: Sequence[str] = field(default_factory=tuple)

    @property
    def named(self) -> list[SystemReport]:
        """List the systems that have scores."""
        return [self.report.systems[name] for name in self.systems]


def write_card(
    folder: Path,
    manifest: Manifest | RerankerManifest,
    notes: Sequence[str],
    results: CardResults | None = None,
    name: str | None = None,
) -> None:
    """Write `README.md`: base, data, languages, use, results by language, what differs.

    `notes` are what the export's check says; `name` is the hub's, by default the folder's. The
    licence is left to whoever publishes: that of the base, and of the data, may bind.
    """
    from huggingface_hub import ModelCard, ModelCardData

    kind = "re-ranker" if isinstance(manifest, RerankerManifest) else "retriever"
    name = name or folder.name
    base = base_record(manifest.base.name)
    data = manifest.data.dataset
    # A base that is no name of the hub is named in the text alone.
    on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", base) and not base.startswith(".")
    metadata = ModelCardData(
        base_model=base if on_hub else None,
        language=_languages(manifest, results) or None,
        library_name="sentence-transformers",
        pipeline_tag=_TASK[kind],
        tags=["sentence-transformers", "claim-source-retrieval", "claim2source"],
        model_name=name,
        eval_results=_results(kind, results) or None,
    )
    text = "\n\n".join(_sections(kind, name, base, data, manifest, notes, results))
    card = ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n{text}\n", ignore_metadata_errors=True)
    card.save(folder / FILE)


def _languages(manifest: Manifest | RerankerManifest, results: CardResults | None) -> list[str]:
    trained = list(manifest.data.languages or ())
    scored = list(results.named[0].languages) if results is not None and results.named else []
    return trained or scored


def _results(kind: str, results: CardResults | None) -> list[EvalResult]:
    """List MRR@5 by language, as the hub's `model-index` has results."""
    from huggingface_hub import EvalResult

    if results is None:
        return []
    found: list[EvalResult] = []
    for system in results.named[:1]:
        for language, row in _scores(system):
            interval = _interval(system, language)
            found.append(
                EvalResult(
                    task_type="text-retrieval" if kind == "retriever" else "text-ranking",
                    dataset_type=Path(results.report.dataset).name,
                    dataset_name=Path(results.report.dataset).name,
                    dataset_config=language,
                    dataset_split=results.report.split,
                    metric_type=MAIN_METRIC,
                    metric_name="MRR@5",
                    metric_value=round(float(row[MAIN_METRIC]), 4),
                    metric_args={"interval_95": [round(end, 4) for end in interval]}
                    if interval
                    else None,
                )
            )
    return found


def _scores(system: SystemReport) -> list[tuple[str, dict[str, int | float]]]:
    rows = [*system.languages.items(), *([(MACRO, system.macro)] if system.macro else [])]
    return [(language, dict(row)) for language, row in rows if MAIN_METRIC in row]


def _interval(system: SystemReport, language: str) -> tuple[float, float] | None:
    if system.intervals is None:
        return None
    return system.intervals.values.get(MAIN_METRIC, {}).get(language)


def _sections(
    kind: str,
    name: str,
    base: str,
    data: str | None,
    manifest: Manifest | RerankerManifest,
    notes: Sequence[str],
    results: CardResults | None,
) -> list[str]:
    rendering = manifest.rendering
    place = Path(data).name if data else "data that its manifest does not name"
    found = [
        f"# {name}",
        f"A {kind} that finds the scientific paper that a social media post means, tuned from "
        f"{base} on {place}. It gives no verdict on what a post says.",
        "## Use",
        f"```python\n{_USE[kind].format(name=name)}\n```",
        f"It was trained on {rendering.claims} claims and on sources written as "
        f"`{rendering.sources}` (title and abstract, with `metadata` authors and venue too).",
        "## Licence",
        "Left to you: that of the base model and of the training data apply.",
    ]
    if results is not None and results.named:
        report = results.report
        found += [
            "## Results",
            f"MRR@5 on {report.split} of {Path(report.dataset).name}, with 95 % intervals by gold "
            "paper where they were computed:",
            _table(results),
        ]
    if notes:
        found += ["## What was checked", "\n".join(f"- {_plain(line)}" for line in notes)]
    return found


def _table(results: CardResults) -> str:
    lines = ["| system | language | claims | MRR@5 | interval |", "|---|---|---|---|---|"]
    for system in results.named:
        for language, row in _scores(system):
            interval = _interval(system, language)
            ends = f"{interval[0]:.4f} to {interval[1]:.4f}" if interval else ""
            count = int(row.get("queries", 0))
            value = f"{row[MAIN_METRIC]:.4f}"
            lines.append(f"| {_plain(system.name)} | {language} | {count} | {value} | {ends} |")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Keep a line of another program from being markup."""
    return re.sub(r"([|<>`*_\[\]])", r"\\\1", " ".join(text.split()))


def push_to_hub(folder: Path, name: str) -> str:
    """Upload a folder to a model repository of the hub, made private if new; returns its address.

    The hub and the token are huggingface_hub's: `HF_ENDPOINT`, `HF_TOKEN`. Raises `UserError`,
    with the folder where it is, for what the hub refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise UserError(f"{folder}: not uploaded: HF_HUB_OFFLINE is set")
    api = HfApi()
    try:
        address = api.create_repo(name, repo_type="model", private=True, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=folder, commit_message="Upload from claim2source"
        )
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        raise UserError(f"{folder}: not uploaded to {name}: {one_line(error)}") from None
    return str(address)
