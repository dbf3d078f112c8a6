"""Write an export's model card in the hub's format, and upload the folder where that is wanted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.errors import UserError
from claim2source.core.report import MACRO, MAIN_METRIC, Report
from claim2source.models.hub import one_line
from claim2source.models.manifest import Manifest
from claim2source.models.places import base_record
from claim2source.models.reranker_manifest import RerankerManifest

FILE = "README.md"
RETRIEVER, RERANKER = "retriever", "re-ranker"
_USE = {
    RETRIEVER: """\
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("{title}")
scores = model.similarity(model.encode_query(posts), model.encode_document(papers))""",
    RERANKER: """\
from sentence_transformers import CrossEncoder
model = CrossEncoder("{title}")
logits = model.predict([(post, paper)])""",
}


@dataclass(frozen=True)
class Score:
    """Hold MRR@5 in one language, or the macro average, with its interval where there is one."""

    language: str
    value: float
    claims: int
    interval: tuple[float, float] | None


def chosen_scores(report: Report) -> list[Score]:
    """List the scores of a report's chosen system by language, the macro average last."""
    system = report.systems.get(report.chosen or "")
    if system is None:
        return []
    bounds = system.intervals.values.get(MAIN_METRIC, {}) if system.intervals else {}
    rows = {**system.languages, **({MACRO: system.macro} if system.macro else {})}
    return [
        Score(name, float(row[MAIN_METRIC]), int(row.get("queries", 0)), bounds.get(name))
        for name, row in rows.items()
        if MAIN_METRIC in row
    ]


def write_card(
    folder: Path,
    manifest: Manifest | RerankerManifest,
    notes: Sequence[str],
    title: str,
    report: Report | None,
) -> None:
    """Write `README.md`: base, data, languages, use, results by language, checks.

    `notes` are what the export's check says, `report` has the model as its chosen system. The
    licence is left to whoever publishes: those of the base and of the data may bind.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    kind = RERANKER if isinstance(manifest, RerankerManifest) else RETRIEVER
    base, rendering, data = base_record(manifest.base.name), manifest.rendering, manifest.data
    trained = Path(data.dataset).name if data.dataset else "data that its manifest does not name"
    sections = [
        f"# {title}",
        f"A {kind} that finds the scientific paper that a social media post means, tuned from "
        f"{base} on {trained}. It gives no verdict on what a post says.",
        "## Use",
        f"```python\n{_USE[kind].format(title=title)}\n```",
        f"It was trained on {rendering.claims} claims, and on sources written as "
        f"`{rendering.sources}`.",
        "## Licence",
        "Left to you: those of the base model and of the training data apply.",
        "## Results",
    ]
    results, languages = [], list(data.languages or ())
    if report is not None and (scores := chosen_scores(report)):
        dataset = Path(report.dataset).name
        languages = languages or [row.language for row in scores if row.language != MACRO]
        lines = ["| language | claims | MRR@5 | 95 % interval by paper |", "|---|---|---|---|"]
        for row in scores:
            ends, interval = "", None
            if row.interval is not None:
                ends = f"{row.interval[0]:.4f} to {row.interval[1]:.4f}"
                interval = {"interval_95": [round(end, 4) for end in row.interval]}
            lines.append(f"| {row.language} | {row.claims} | {row.value:.4f} | {ends} |")
            results.append(
                EvalResult(
                    task_type="text-retrieval",
                    dataset_type=dataset,
                    dataset_name=dataset,
                    dataset_config=row.language,
                    dataset_split=report.split,
                    metric_type=MAIN_METRIC,
                    metric_value=round(row.value, 4),
                    metric_args=interval,
                )
            )
        sections += [f"MRR@5 on {report.split} of {dataset}:", "\n".join(lines)]
    else:
        sections.append("None: it was not evaluated, so its quality is unknown.")
    escaped = [re.sub(r"([|<>*_`])", r"\\\1", line) for line in notes]
    sections += ["## What was checked", "\n".join(f"- {line}" for line in escaped)]
    metadata = ModelCardData(
        # A base that is no name of the hub is named in the text alone.
        base_model=base if re.fullmatch(r"\w[\w.-]*/[\w.-]+", base) else None,
        language=languages or None,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity" if kind == RETRIEVER else "text-ranking",
        tags=["sentence-transformers", "claim2source"],
        model_name=title,
        eval_results=results or None,
    )
    text = "\n\n".join(sections)
    full_card = ModelCard(
        f"---\n{metadata.to_yaml()}\n---\n\n{text}\n", ignore_metadata_errors=True
    )
    full_card.save(folder / FILE)


def push_to_hub(folder: Path, name: str) -> str:
    """Upload a folder to a model repository of the hub, private if it is new; return its address.

    Hub and token are huggingface_hub's: `HF_ENDPOINT`, `HF_TOKEN`. Raises `UserError` where the
    hub refuses; the folder stays.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi()
    try:
        address = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload a model")
    except (HfHubHTTPError, HFValidationError, OSError, RuntimeError) as error:
        why = one_line(error)
        raise UserError(f"{folder}: is written, but not uploaded to {name}: {why}") from None
    return str(address)
