"""Our trainer with its pieces switched off one by one: what each is worth."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from claim2source.core.errors import UserError
from claim2source.core.tables import plain_table
from claim2source.models import Encoder, TokenBatch, Tokens
from claim2source.models.encoder import EXTRA_BACKWARD
from claim2source.models.tokens import grouped
from claim2source.training.batches import BatchPlan
from claim2source.training.data import TrainBatch, TrainingPairs
from claim2source.training.module import RetrieverModule
from scripts.timing_common import alternating, median_and_spread
from scripts.timing_trainers import Material, Recipe, Steps, run_ours, with_negatives

# Mined negatives per claim of the demo's texts: papers then repeat within a batch.
NEGATIVES = 4


class Asked(Protocol):
    """What the ablation reads of scripts/bench_training.py's settings."""

    @property
    def chosen(self) -> list[str]: ...
    @property
    def repeats(self) -> int: ...
    @property
    def warmup(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def tolerance(self) -> float: ...
    def material(self, cell: str) -> Material: ...
    def recipe(self, cell: str) -> Recipe: ...


class Padded(Encoder):
    """Sub-batches of texts of like length, padded, as for models that cannot be packed."""

    def batch(self, tokens: Sequence[Tokens]) -> TokenBatch:
        """Padded to the longest."""
        return self.collate(tokens)

    def length_batches(self, tokens: Sequence[Tokens]) -> Iterator[list[int]]:
        """Groups with the least padding."""
        return grouped(tokens, self._token_budget(), EXTRA_BACKWARD)


class Unsorted(Padded):
    """Padded sub-batches within the token budget, but of texts in the order they come in."""

    def length_batches(self, tokens: Sequence[Tokens]) -> Iterator[list[int]]:
        """Neighbours, as long as they fit padded."""
        rows: list[int] = []
        longest = 0
        for row, text in enumerate(tokens):
            longest = max(longest, len(text.ids))
            if rows and longest * (len(rows) + 1) > self._token_budget():
                yield rows
                rows, longest = [], len(text.ids)
            rows.append(row)
        yield rows


class TwoSides(Padded):
    """One padded batch of claims and one of sources, as other trainers encode them."""

    claims = 0

    def length_batches(self, tokens: Sequence[Tokens]) -> Iterator[list[int]]:
        """Claims, then sources."""
        yield list(range(self.claims))
        yield list(range(self.claims, len(tokens)))


class OneBatch(Padded):
    """All texts of a step in one batch, padded to the longest of them."""

    def length_batches(self, tokens: Sequence[Tokens]) -> Iterator[list[int]]:
        """Everything."""
        yield list(range(len(tokens)))


class Apart(Tokens):
    """A text that equals no other, so that it is encoded anew wherever it stands."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Repeated(TrainingPairs):
    """Every pair's gold and negatives encoded in their own right; the loss is the same."""

    def batch(self, plan: BatchPlan) -> TrainBatch:
        """A source that comes again is encoded again, and masked: it counts once."""
        batch = super().batch(plan)
        own = [self.rows[i] for i in plan.rows]
        names = [
            name
            for row in own
            for name in (row.positive, *(n.source for n in self.negatives_of(row, plan.epoch)))
        ]
        first: dict[str, int] = {}
        for column, name in enumerate(names):
            first.setdefault(name, column)
        again = torch.tensor([first[name] != column for column, name in enumerate(names)])
        masked = again.repeat(len(own), 1)
        for i, row in enumerate(own):
            texts = self._gold_texts(row.claim)
            for name, column in first.items():
                if name != row.positive and self.reads_as[name] in texts:
                    masked[i, column] = True
        return replace(
            batch,
            claims=[_apart(text) for text in batch.claims],
            sources=[_apart(self.source_tokens[name]) for name in names],
            counts=(len(names),),
            positives=torch.tensor([first[row.positive] for row in own]),
            masked=masked,
        )


class NotFused(RetrieverModule):
    """AdamW weight by weight."""

    def configure_optimizers(self) -> Any:
        """The trainer's, but not fused."""
        found = super().configure_optimizers()
        for group in found["optimizer"].param_groups:
            group["fused"] = False
        return found


@dataclass
class Variant:
    """One way to train, and what it took by repeat."""

    name: str
    run: Callable[[], Steps]
    seconds: list[float]
    loss: float = float("nan")


def variants(pairs: Material, recipe: Recipe, warmup: int) -> list[Variant]:
    """Ours as it is, then with one piece off."""
    sides = type("Sides", (TwoSides,), {"claims": recipe.batch_size})
    run = partial(run_ours, pairs, recipe)
    ways: list[tuple[str, Callable[[], Steps]]] = [
        ("as it is", run),
        ("padded, not packed", partial(run, encoder_kind=Padded)),
        ("padded, not sorted by length", partial(run, encoder_kind=Unsorted)),
        ("one batch of claims, one of sources", partial(run, encoder_kind=sides)),
        ("one batch of everything", partial(run, encoder_kind=OneBatch)),
        ("texts that repeat encoded again", partial(run, pairs_kind=Repeated)),
        ("AdamW not fused", partial(run, module_kind=NotFused)),
    ]
    return [Variant(name, way, []) for name, way in ways]


def ablation(config: Asked) -> dict[str, Any]:
    """Seconds a step of every variant over those of ours, on each chosen cell's kind of texts.

    The demo's claims get mined negatives here, since without them no text repeats. Only
    plain losses: the cached one has its own chunks. Raises `UserError` where a variant's
    first loss is another.
    """
    found: dict[str, Any] = {"ratio": None}
    for cell in [cell for cell in config.chosen if cell.endswith("plain")]:
        pairs, recipe = config.material(cell), config.recipe(cell)
        name = cell
        if cell.startswith("short"):
            pairs, name = (
                with_negatives(pairs, NEGATIVES, config.seed),
                f"{cell}_{NEGATIVES}_negatives",
            )
        ways = variants(pairs, recipe, config.warmup)

        def turn(way: Variant) -> None:
            steps = way.run()
            way.seconds.append(statistics.mean(steps.seconds[config.warmup :]))
            way.loss = steps.losses[0]

        alternating([partial(turn, way) for way in ways], config.repeats)
        for way in ways[1:]:
            if not abs(way.loss - ways[0].loss) <= config.tolerance * abs(ways[0].loss):
                raise UserError(f"{name}, {way.name}: loss {way.loss}, not {ways[0].loss}")
        found[name] = {}
        for way in ways:
            shares = [a / b for a, b in zip(way.seconds, ways[0].seconds, strict=True)]
            middle, spread = median_and_spread(shares)
            found[name][way.name] = {
                "times_as_long": middle,
                "spread": spread,
                "seconds": round(statistics.median(way.seconds), 4),
            }
            # What all pieces on texts and batches are worth against a plain collator.
            if way.name.startswith("one batch of claims") and found["ratio"] is None:
                found["ratio"] = middle
    return found


def ablation_table(found: dict[str, Any]) -> str:
    """The same for a person."""
    rows = [
        [
            cell,
            name,
            way["seconds"],
            way["times_as_long"],
            f"{way['spread'][0]:.2f} - {way['spread'][1]:.2f}",
        ]
        for cell, ways in found.items()
        if isinstance(ways, dict) and cell != "versions"
        for name, way in ways.items()
    ]
    return "\n".join(
        [
            f"seconds a step, and how many times as long as ours takes; {found['repeats']} repeats",
            plain_table(["texts", "ours", "seconds", "times", "spread"], rows, digits=3),
            f"Load average: {found['load_average']}",
        ]
    )


def _apart(text: Tokens) -> Tokens:
    return Apart(text.ids, text.skip)
