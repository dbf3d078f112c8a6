"""Order the first sources by how many of the post's entities they hold (2026 companion paper).

A language model reads the post and the sources at once and lists the post's entities, and for
every source those of them that it names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from claim2source.core.config import Between
from claim2source.core.records import nfkc
from claim2source.llm.work import Answer, Request
from claim2source.stages.llm_scores import (
    Asked,
    Listed,
    VersionedStage,
    mean_known,
    numbered,
    post_values,
)
from claim2source.stages.pairs import DEEPEST
from claim2source.text.prompts import Prompt, read_prompt

_TEXTS = {"type": "array", "items": {"type": "string"}}
_DOCUMENT = {
    "type": "object",
    "properties": {"document": {"type": "integer"}, "entities": _TEXTS},
    "required": ["document", "entities"],
    "additionalProperties": False,
}
_SCHEMA = {
    "type": "object",
    "properties": {"query_entities": _TEXTS, "documents": {"type": "array", "items": _DOCUMENT}},
    "required": ["query_entities", "documents"],
    "additionalProperties": False,
}


@dataclass(frozen=True, kw_only=True)
class Entities(VersionedStage):
    """Re-rank by the number of the post's entities that a source holds.

    Args:
        chunk: sources of one request; none: all.
        prompt: a prompt's name or YAML file with the variables count, post, translation and
            documents.
    """

    chunk: Annotated[int, Between(1, DEEPEST)] | None = None
    prompt: str = "entities"

    @property
    def prompts(self) -> tuple[str, ...]:
        """Name the prompt."""
        return (self.prompt,)

    def fill(self, lists: Sequence[Listed], asked: Asked) -> None:
        """Count the entities of every source, as the mean over the versions."""
        prompt = read_prompt(self.prompt)
        requests: list[Request] = []
        spans: list[tuple[Listed, np.ndarray, slice]] = []
        counts: list[list[np.ndarray]] = []
        for one in lists:
            counts.append([np.full(len(one.texts), np.nan) for _ in self.samples])
            size = self.chunk or len(one.texts)
            for sample, row in zip(self.samples, counts[-1], strict=True):
                for start in range(0, len(one.texts), size):
                    span = slice(start, start + size)
                    requests.append(_request(prompt, one, one.texts[span], sample))
                    spans.append((one, row, span))
        answers = asked.count(self.answers(requests, _why_not, "entities"))
        for (one, row, span), answer in zip(spans, answers, strict=True):
            if answer.failure is not None:
                one.failures.append(answer.failure)
            else:
                row[span] = matched(answer.data or {}, len(row[span]))
        for one, rows in zip(lists, counts, strict=True):
            one.scores = mean_known(rows)


def matched(data: Mapping[str, object], count: int) -> np.ndarray:
    """Count the post's distinct entities in each of `count` sources, letter case aside.

    What a source is said to hold and the post does not, is not counted.
    """
    wanted = _plain(data.get("query_entities"))
    held: list[set[str]] = [set() for _ in range(count)]
    documents = data.get("documents")
    for entry in documents if isinstance(documents, list) else []:
        number = int(entry["document"])
        if 1 <= number <= count:
            held[number - 1] |= _plain(entry["entities"]) & wanted
    return np.array([len(one) for one in held], dtype=np.float64)


def _plain(texts: object) -> set[str]:
    found = texts if isinstance(texts, list) else []
    return {" ".join(nfkc(str(text)).casefold().split()) for text in found} - {""}


def _request(prompt: Prompt, one: Listed, texts: Sequence[str], sample: int) -> Request:
    values = {"count": str(len(texts)), "documents": numbered(texts), **post_values(one.claim)}
    made = f"{prompt.name} {prompt.version}"
    return Request(one.claim.id, prompt.messages(values), made, schema=_SCHEMA, sample=sample)


def _why_not(request: Request, answer: Answer) -> str | None:
    """Refuse a reply that passes over the documents."""
    return None if (answer.data or {}).get("documents") else "names no document"
