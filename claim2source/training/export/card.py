"""Write an export's model card in the hub's format, and upload the folder where that is wanted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from claim2source.core.errors import UserError
from claim2source.core.report import MAIN_METRIC, Report
from claim2source.models.hub import one_line
from claim2source.models.manifest import Manifest, RerankerManifest, base_record

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
    system = None if report is None else report.systems.get(report.chosen or "")
    if report is None or system is None or not system.table:
        sections.append("None: it was not evaluated, so its quality is unknown.")
    else:
        dataset, languages = Path(report.dataset).name, languages or list(system.languages)
        lines = ["| language | claims | MRR@5 | 95 % interval by paper |", "|---|---|---|---|"]
        for language, row in system.table.items():
            value, text, interval = float(row[MAIN_METRIC]), "", None
            if system.intervals and (ends := system.intervals.of(MAIN_METRIC, language)):
                text, interval = f"{ends[0]:.4f} to {ends[1]:.4f}", [round(end, 4) for end in ends]
            lines.append(f"| {language} | {int(row['queries'])} | {value:.4f} | {text} |")
            results.append(
                EvalResult(
                    task_type="text-retrieval",
                    dataset_type=dataset,
                    dataset_name=dataset,
                    dataset_config=language,
                    dataset_split=report.split,
                    metric_type=MAIN_METRIC,
                    metric_value=round(value, 4),
                    metric_args={"interval_95": interval} if interval else None,
                )
            )
        sections += [f"MRR@5 on {report.split} of {dataset}:", "\n".join(lines)]
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
