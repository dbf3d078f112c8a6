"""Write an export's model card in the hub's format, and upload the folder on request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Source
from claim2source.core.report import MAIN_METRIC, Report
from claim2source.models.hub import one_line
from claim2source.models.manifest import Manifest, RerankerManifest, base_record
from claim2source.stages.pairs import Pair
from claim2source.stages.yes_no import YesNo

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

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


_CLAIM = Claim(
    "example",
    "Neue Studie: Masken in Schulen halbieren die Ansteckungen #corona",
    "de",
    "New study: masks in schools halve infections #corona",
)
_SOURCE = Source(
    "example",
    "Masks in schools: a trial",
    "In 31 schools we compared classes with masks and without.",
    ("Ada Writer", "Ben Author"),
    "Journal of Examples",
    "2021-03-01",
)


def write_card(
    folder: Path,
    manifest: Manifest | RerankerManifest,
    notes: Sequence[str],
    title: str,
    report: Report | None,
) -> None:
    """Write `README.md`: base, data, languages, use, an example, results by language, checks.

    `notes` are the results of the export's check; in `report` the model is the chosen system. The
    languages are those of the training claims, if the manifest has them. The licence is left to
    the publisher, who may be bound by those of the base and the data.
    """
    from huggingface_hub import ModelCard, ModelCardData

    kind = RERANKER if isinstance(manifest, RerankerManifest) else RETRIEVER
    base, rendering, data = base_record(manifest.base.name), manifest.rendering, manifest.data
    trained = Path(data.dataset).name if data.dataset else "data that is not in its manifest"
    languages = list(data.train_languages or data.languages or ())
    in_languages = f", in {', '.join(languages)}" if languages else ""
    results = _chosen_results(report)
    sections = [
        f"# {title}",
        f"A {kind} that finds the scientific paper behind a social media post, fine-tuned from "
        f"{base} on {trained}{in_languages}. It does not judge whether a post is true.",
        "## Use",
        f"```python\n{_USE[kind].format(title=title)}\n```",
        f"It was trained on {rendering.claims} claims, and on sources written as "
        f"`{rendering.sources}`. An example of its input:",
        *_example(manifest),
        *_choice_sentences(data.chosen_for),
        "## Licence",
        "Not set. Those of the base model and of the training data apply.",
        "## Results",
        *_results_sections(report, results),
    ]
    escaped = [re.sub(r"([|<>*_`])", r"\\\1", line) for line in notes]
    sections += ["## What was checked", "\n".join(f"- {line}" for line in escaped)]
    metadata = ModelCardData(
        # A base that is not on the hub is named only in the text.
        base_model=base if re.fullmatch(r"\w[\w.-]*/[\w.-]+", base) else None,
        language=languages or None,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity" if kind == RETRIEVER else "text-ranking",
        tags=["sentence-transformers", "claim2source"],
        model_name=title,
        eval_results=[result.as_metadata(report) for result in results] or None,
    )
    text = "\n\n".join(sections)
    full_card = ModelCard(
        f"---\n{metadata.to_yaml()}\n---\n\n{text}\n", ignore_metadata_errors=True
    )
    full_card.save(folder / FILE)


@dataclass(frozen=True)
class _Result:
    """Language's score, and its interval if the report has one."""

    language: str
    claims: int
    score: float
    interval: tuple[float, float] | None

    def as_metadata(self, report: Report | None) -> EvalResult:
        from huggingface_hub import EvalResult

        assert report is not None
        dataset = Path(report.dataset).name
        bounds = None
        if self.interval is not None:
            bounds = {"interval_95": [round(end, 4) for end in self.interval]}
        return EvalResult(
            task_type="text-retrieval",
            dataset_type=dataset,
            dataset_name=dataset,
            dataset_config=self.language,
            dataset_split=report.split,
            metric_type=MAIN_METRIC,
            metric_value=round(self.score, 4),
            metric_args=bounds,
        )


def _choice_sentences(chosen_for: str) -> list[str]:
    if not chosen_for:
        return []
    return [f"Its checkpoint was chosen on val, claims held out from training: {chosen_for}."]


def _chosen_results(report: Report | None) -> list[_Result]:
    """Read the scores of a report's chosen system by language; none if it was not scored."""
    system = None if report is None else report.systems.get(report.chosen or "")
    if system is None:
        return []
    results = []
    for language, row in system.table.items():
        interval = system.intervals.of(MAIN_METRIC, language) if system.intervals else None
        ends = None if interval is None else (interval[0], interval[1])
        results.append(_Result(language, int(row["queries"]), float(row[MAIN_METRIC]), ends))
    return results


def _results_sections(report: Report | None, results: Sequence[_Result]) -> list[str]:
    """Tabulate the scores, with a column of intervals if there are any."""
    if report is None or not results:
        return ["The model was not evaluated, so its quality is unknown."]
    header = ["language", "claims", "MRR@5"]
    is_bounded = any(result.interval is not None for result in results)
    if is_bounded:
        header.append("95 % interval by paper")
    rows = [header, ["---"] * len(header)]
    for result in results:
        row = [result.language, str(result.claims), f"{result.score:.4f}"]
        if is_bounded:
            ends = result.interval
            row.append("" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}")
        rows.append(row)
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return [f"MRR@5 on {report.split} of {Path(report.dataset).name}:", table]


def _example(manifest: Manifest | RerankerManifest) -> list[str]:
    """Show a post and a paper in the model's input format, with its prompts."""
    claim = manifest.rendering.claim_texts([_CLAIM])[0]
    source = manifest.rendering.source_texts([_SOURCE])[0]
    if isinstance(manifest, Manifest):
        template = manifest.encoder.template
        claim = f"{template.claim}{claim}{template.append_token}"
        source = f"{template.source}{source}{template.append_token}"
        return [*_block("A post", claim), *_block("A paper", source)]
    settings = manifest.reranker
    if settings.kind == "yes_no":
        stage = YesNo(instruction=settings.instruction or "released", template=settings.template)
        return _block("A post and a paper", "".join(stage.prompt(Pair(claim, source))))
    if settings.instruction is not None:
        claim = f"{settings.instruction}{claim}"
    return [*_block("A post", claim), *_block("A paper", source)]


def _block(name: str, text: str) -> list[str]:
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{name}:", f"{fence}text\n{text}\n{fence}"]


def require_hub(name: str) -> None:
    """Raise `ConfigError` before the export if a folder could not be uploaded to `name`.

    The reasons are a wrong name, no network, no token, or a token that may only read.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import validate_repo_id

    key = "push_to_hub"
    try:
        validate_repo_id(name)
        user = HfApi().whoami()
    except Exception as error:  # any error of the libraries: it is not a mistake of ours
        allowed = f"a repository that is accessible with HF_TOKEN ({one_line(error)})"
        raise ConfigError(key, name, allowed) from None
    token = user.get("auth", {}).get("accessToken", {})
    if token.get("role") == "read":
        raise ConfigError(key, name, "a repository that HF_TOKEN may write to, not only read")


def push_to_hub(folder: Path, name: str) -> str:
    """Upload a folder to a model repository of the hub, private if it is new; return its address.

    Hub and token are huggingface_hub's: `HF_ENDPOINT`, `HF_TOKEN`. Raises `UserError` if the
    upload fails; the folder stays.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload a model")
    except Exception as error:  # see `require_hub`
        reason = one_line(error)
        raise UserError(f"{folder}: written, but not uploaded to {name}: {reason}") from None
    return str(address)
