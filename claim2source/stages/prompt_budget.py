"""Write papers for a prompt, within a budget of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from claim2source.core.records import Source
from claim2source.llm.work import Request, prompt_tokens
from claim2source.text.prompts import Message
from claim2source.text.views import SourceForm, render_source

_STEPS = 1000


def papers_text(sources: Sequence[Source], names: Sequence[str], form: SourceForm) -> str:
    """Write papers under their names: `Paper 1`, and its text below, each line indented.

    A text cannot begin another paper: its line breaks are gone, and all its lines are indented.
    """
    blocks = []
    for name, source in zip(names, sources, strict=True):
        lines = render_source(flat(source), form).splitlines()
        blocks.append("\n".join([f"Paper {name}", *(f"  {line}" for line in lines)]))
    return "\n\n".join(blocks)


def flat(source: Source) -> Source:
    """Put each field of a source on one line."""
    return replace(
        source,
        title=" ".join(source.title.split()),
        abstract=" ".join(source.abstract.split()),
        venue=" ".join(source.venue.split()),
        authors=tuple(" ".join(author.split()) for author in source.authors),
    )


def fitted(
    write: Callable[[Sequence[Source]], tuple[Message, ...]],
    sources: Sequence[Source],
    budget: int,
) -> tuple[Message, ...] | None:
    """Write a prompt of at most `budget` tokens, estimated; None where titles alone have more.

    Authors are dropped first, then every abstract loses the same share.
    """

    def fits(messages: tuple[Message, ...]) -> bool:
        return prompt_tokens(Request("", messages)) <= budget

    if fits(messages := write(sources)):
        return messages
    bare = [replace(source, authors=()) for source in map(flat, sources)]
    if fits(messages := write(bare)):
        return messages
    best, low, high = None, 0, _STEPS
    while low < high:
        middle = (low + high) // 2
        messages = write([_cut(source, middle / _STEPS) for source in bare])
        if fits(messages):
            best, low = messages, middle + 1
        else:
            high = middle
    return best


def _cut(source: Source, share: float) -> Source:
    """Shorten an abstract to a share of its characters, at a word's end."""
    kept = source.abstract[: int(len(source.abstract) * share)]
    words = kept.rpartition(" ")[0] or kept
    return replace(source, abstract=f"{words} .." if words else "")
