"""Time our trainer with its pieces switched off one by one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from claim2source.core.errors import UserError
from claim2source.core.tables import Cell, plain_table
from claim2source.models import Encoder, TokenBatch, Tokens
from claim2source.models.encoder import EXTRA_BACKWARD
from claim2source.models.tokens import grouped
from claim2source.training.batches import BatchPlan
from claim2source.training.data import TrainBatch, TrainingPairs
from claim2source.training.module import RetrieverModule
from scripts.measure import median, ratio_and_spread, spread, take_turns
from scripts.timing_trainers import Material, Recipe, Steps, run_ours, with_negatives

# Mined negatives per claim of the demo's texts, so that papers repeat within a batch.
NEGATIVES = 4


class Padded(Encoder):
    """Pad sub-batches of texts of similar length, as for models that cannot be packed."""

    def batch(self, tokens: Sequence[Tokens]) -> TokenBatch:
        """Pad to the longest text."""
        return self.collate(tokens)

    def length_batches(self, tokens: Sequence[Tokens]) -> Iterator[list[int]]:
        """Group texts with the least padding."""
        return grouped(tokens, self._token_budget(), EXTRA_BACKWARD)


class Unsorted(Padded):
    """Pad sub-batches within the token budget, with texts in their given order."""

    def length_batches(self, tokens: Sequence[Tokens]) -> Iterator[list[int]]:
        """Group neighbouring texts as long as their padded batch fits."""
        rows: list[int] = []
        longest = 0
        for row, text in enumerate(tokens):
            longest = max(longest, len(text.ids))
            if rows and longest * (len(rows) + 1) > self._token_budget():
                yield rows
                rows, longest = [], len(text.ids)
            rows.append(row)
        yield rows


class ClaimsThenSources(Padded):
    """Pad one batch of claims and one of sources, as other trainers do."""

    claims = 0

    def length_batches(self, tokens: Sequence[Tokens]) -> Iterator[list[int]]:
        """Group claims, then sources."""
        yield list(range(self.claims))
        yield list(range(self.claims, len(tokens)))


class OneBatch(Padded):
    """Pad all texts of a step into one batch."""

    def length_batches(self, tokens: Sequence[Tokens]) -> Iterator[list[int]]:
        """Group everything."""
        yield list(range(len(tokens)))


class UniqueTokens(Tokens):
    """Compare unequal to every other text, so that repeated texts are encoded again."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def unique(text: Tokens) -> Tokens:
    """Copy a text so that it equals no other."""
    return UniqueTokens(text.ids, text.skip)


class Repeated(TrainingPairs):
    """Encode every pair's gold and negatives separately; the loss is the same."""

    def batch(self, plan: BatchPlan) -> TrainBatch:
        """Repeat sources that occur again, masked so that they count once."""
        batch = super().batch(plan)
        own = [self.rows[i] for i in plan.rows]
        names = [
            name
            for row, turn in zip(own, plan.turns, strict=True)
            for name in (row.positive, *(n.source for n in self.negatives_of(row, turn)))
        ]
        first: dict[str, int] = {}
        for column, name in enumerate(names):
            first.setdefault(name, column)
        again = torch.tensor([first[name] != column for column, name in enumerate(names)])
        masked = again.repeat(len(own), 1)
        for i, row in enumerate(own):
            papers = self.gold_papers(row.claim)
            for name, column in first.items():
                if name != row.positive and self.papers[name] in papers:
                    masked[i, column] = True
        return replace(
            batch,
            claims=[unique(text) for text in batch.claims],
            sources=[unique(self.source_tokens[name]) for name in names],
            counts=(len(names),),
            positives=torch.tensor([first[row.positive] for row in own]),
            masked=masked,
        )


class NotFused(RetrieverModule):
    """Run AdamW weight by weight."""

    def configure_optimizers(self) -> Any:
        """Switch off fusing in the trainer's optimizer."""
        found = super().configure_optimizers()
        for group in found["optimizer"].param_groups:
            group["fused"] = False
        return found


@dataclass
class Variant:
    """A way to train, with its seconds per step by repeat and its first loss."""

    name: str
    run: Callable[[], Steps]
    seconds: list[float] = field(default_factory=list)
    loss: float = float("nan")


def variants(pairs: Material, recipe: Recipe) -> list[Variant]:
    """List our trainer as it is, then with one piece switched off at a time."""
    split = type("Split", (ClaimsThenSources,), {"claims": recipe.batch_size})
    run = partial(run_ours, pairs, recipe)
    return [
        Variant("as it is", run),
        Variant("padded, not packed", partial(run, encoder_kind=Padded)),
        Variant("padded, not sorted by length", partial(run, encoder_kind=Unsorted)),
        Variant("one batch of claims, one of sources", partial(run, encoder_kind=split)),
        Variant("one batch of everything", partial(run, encoder_kind=OneBatch)),
        Variant("texts that repeat encoded again", partial(run, pairs_kind=Repeated)),
        Variant("AdamW not fused", partial(run, module_kind=NotFused)),
    ]


def ablation(
    cells: Mapping[str, tuple[Material, Recipe]],
    *,
    seed: int,
    warmup: int,
    repeats: int,
    tolerance: float,
) -> dict[str, Any]:
    """Compute how many times as long as ours every variant takes, for each cell (plain losses).

    The demo's claims get mined negatives here, because without them no text repeats. Cached
    losses are left out: they have their own chunks. Raises `UserError` where the first loss of
    a variant differs.
    """
    result: dict[str, Any] = {"ratio": None}
    for cell, (pairs, recipe) in cells.items():
        name = cell
        if cell.startswith("short"):
            pairs = with_negatives(pairs, NEGATIVES, seed)
            name = f"{cell}_{NEGATIVES}_negatives"
        ways = variants(pairs, recipe)

        def run(way: Variant) -> None:
            steps = way.run()
            way.seconds.append(statistics.mean(steps.seconds[warmup:]))
            way.loss = steps.losses[0]

        take_turns([partial(run, way) for way in ways], repeats)
        plain = ways[0]
        for way in ways[1:]:
            if not abs(way.loss - plain.loss) <= tolerance * abs(plain.loss):
                raise UserError(f"{name}, {way.name}: loss {way.loss}, not {plain.loss}")
        result[name] = {}
        for way in ways:
            times = [a / b for a, b in zip(way.seconds, plain.seconds, strict=True)]
            result[name][way.name] = {
                "times_as_long": median(times, 3),
                "spread": spread(times, 3),
                "seconds": median(way.seconds),
            }
            # The gain of all pieces that form batches over a plain collator.
            if way.name.startswith("one batch of claims") and result["ratio"] is None:
                result |= ratio_and_spread(times, digits=3)
    return result


def ablation_table(result: dict[str, Any]) -> str:
    """Format the ablation for a terminal."""
    rows: list[list[Cell]] = [
        [cell, name, way["seconds"], way["times_as_long"], "{:.2f} - {:.2f}".format(*way["spread"])]
        for cell, ways in result.items()
        if isinstance(ways, dict) and cell != "versions"
        for name, way in ways.items()
    ]
    return "\n".join(
        [
            f"seconds a step, and how many times as long as ours; {result['repeats']} repeats",
            plain_table(["texts", "ours", "seconds", "times", "spread"], rows, digits=3),
            f"Load average: {result['load_average']}",
        ]
    )
