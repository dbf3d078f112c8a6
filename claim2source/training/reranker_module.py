"""Define the re-ranker's LightningModule: a training step over groups of pairs, and its losses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from claim2source.mining import MinedRow
from claim2source.stages.pairs import Pair
from claim2source.training.batches import BatchPlan
from claim2source.training.gradcache import Forward, chunked_forward, whole_forward
from claim2source.training.module import TrainingModule
from claim2source.training.reranker_config import RerankerConfig, RerankerLossConfig
from claim2source.training.reranker_data import RerankerPairs
from claim2source.training.reranker_models import Features, TrainedReranker
from claim2source.training.resume import StopSignals

_TOP = 5  # places that LambdaLoss looks at


def given_logits(labels: int) -> Any:
    """Stand for a cross-encoder whose `logits` [pairs, labels] are known: a text is a row number.

    The losses of sentence-transformers run the model themselves. Pairs are scored in chunks here,
    and their gradients taken chunk by chunk.
    """
    from sentence_transformers.cross_encoder import CrossEncoder

    class GivenLogits(CrossEncoder):
        """Look up the logits of rows."""

        logits = torch.zeros(0, labels)

        def __init__(self) -> None:
            nn.Module.__init__(self)

        @property
        def num_labels(self) -> int:
            return labels

        @property
        def device(self) -> torch.device:
            return self.logits.device

        def preprocess(
            self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any
        ) -> dict[str, Tensor]:
            return {"rows": torch.tensor([row for _, row in inputs])}

        def forward(self, input: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
            return {"scores": self.logits[input["rows"]]}

    return GivenLogits()


class GroupLoss:
    """Compute the loss of groups of pairs: a claim's golds and negatives.

    All losses take raw logits (identity activation): squashed to 0..1, the softmax over a group
    could hardly prefer any of its sources.
    """

    def __init__(self, config: RerankerLossConfig, labels: int = 1) -> None:
        from sentence_transformers.cross_encoder import losses

        self.config, self.given = config, given_logits(labels)
        raw = nn.Identity()
        kinds: Mapping[str, Any] = {
            "listwise": lambda: losses.ListNetLoss(self.given, raw, mini_batch_size=-1),
            "lambda": lambda: losses.LambdaLoss(
                self.given, k=_TOP, activation_fn=raw, mini_batch_size=-1
            ),
            "bce": lambda: losses.BinaryCrossEntropyLoss(self.given, raw),
            "cross_entropy": lambda: losses.CrossEntropyLoss(self.given, raw),
            "margin_mse": lambda: losses.MarginMSELoss(self.given, raw),
            "mse": lambda: losses.MSELoss(self.given, raw),
        }
        self.loss = kinds[config.kind]()

    def __call__(
        self, logits: Tensor, sizes: Sequence[int], golds: Tensor, teacher: Tensor | None = None
    ) -> Tensor:
        """Compute the mean loss, a scalar.

        `logits` [pairs, labels] come group after group, each of the next of `sizes` pairs; `golds`
        [pairs] tells which are golds. `teacher` [pairs] are its scores.
        """
        self.given.logits = logits
        ends = torch.tensor(sizes).cumsum(0).tolist()
        rows = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        kind = self.config.kind
        if kind in ("listwise", "lambda"):
            parts = golds.split(list(sizes))
            if kind == "listwise":
                # Its targets are a softmax: these give the golds all of it.
                wanted = [torch.where(part, 0.0, -math.inf) for part in parts]
            else:
                wanted = [part.float() for part in parts]
            found: Tensor = self.loss([[""] * len(rows), [list(part) for part in rows]], wanted)
            return found
        if kind == "margin_mse":
            assert teacher is not None
            # Groups may differ in size: one at a time, each claim counts alike.
            single = [
                self.loss([[""], *([row] for row in part)], teacher[None, part.start : part.stop])
                for part in rows
            ]
            return torch.stack(single).mean()
        every = list(range(len(logits)))
        if kind == "cross_entropy":
            target = golds.long()
        else:
            target = golds.float() if teacher is None else teacher
        found = self.loss([[""] * len(every), every], target)
        return found


# Optimizer steps in a row whose scores are all alike: a lost training, not a bad batch.
MOST_ALIKE = 10
ALIKE = "alike"
# Scores of a claim that lie closer, relative to their size, rank nothing.
_NEAR, _ROUNDING = 1e-4, 1e-7
COLLAPSED = (
    "the re-ranker has collapsed: it gives all of a claim's sources the same score ({where}); "
    "lower optimisation.learning_rate, or raise optimisation.warmup_ratio, and begin again"
)


def are_alike(scores: Tensor) -> bool:
    """Tell whether a claim's scores are so near each other that they rank nothing."""
    spread = float(scores.max() - scores.min())
    return spread <= _NEAR * float(scores.abs().mean()) + _ROUNDING


@dataclass(frozen=True)
class ReadyGroups:
    """Hold a batch as its step takes it: groups of pairs, in chunks of tensors, on the CPU.

    `sizes` are those of the groups, one after another; `golds` [pairs] tells which pairs have a
    gold, `teacher` [pairs] has its scores. `chunks` are the numbers of pairs, chunk by chunk.
    """

    plan: BatchPlan
    sizes: Sequence[int]
    golds: Tensor
    teacher: Tensor | None
    chunks: Sequence[Sequence[int]]
    parts: Sequence[Features]


class RerankerModule(TrainingModule):
    """Train a re-ranker on groups: a claim's gold and its negatives."""

    measures = frozenset({ALIKE})

    def __init__(
        self,
        reranker: TrainedReranker,
        pairs: RerankerPairs,
        config: RerankerConfig,
        optimizer_steps: int,
        stop: StopSignals | None = None,
    ) -> None:
        super().__init__(reranker.model, config.optimisation, optimizer_steps, stop)
        self.reranker, self.pairs = reranker, pairs
        self.chunk_size = config.optimisation.chunk_size
        self.loss_of_groups = [GroupLoss(config.loss, reranker.labels)]  # no part of the model
        self._alike = 0

    @property
    def shown_rows(self) -> Sequence[MinedRow]:
        """List the pairs that are trained on."""
        return self.pairs.rows

    def ready(self, plan: BatchPlan) -> ReadyGroups:
        """Make the tensors of a planned batch's groups."""
        texts: list[Pair] = []
        sizes, golds, taught = [], [], []
        for row in plan.rows:
            number = row % len(self.pairs.rows)
            ids = self.pairs.sources(number, plan.epoch)
            texts += self.pairs.pairs(number, ids)
            sizes.append(len(ids))
            gold = self.pairs.rows[number].positive
            golds += [source == gold for source in ids]
            if self.pairs.teacher is not None:
                taught += self.pairs.taught(number, ids)
        # Pairs of like length share a chunk; the longest come last, and are read only once.
        order = sorted(range(len(texts)), key=lambda place: len("".join(texts[place])))
        size = self.chunk_size or len(order)
        first = len(order) % size
        cuts = [*([0] if first else []), *range(first, len(order) + 1, size)]
        chunks = [order[start:end] for start, end in zip(cuts, cuts[1:], strict=False)]
        parts = [self.reranker.features([texts[place] for place in chunk]) for chunk in chunks]
        teacher = torch.tensor(taught) if taught else None
        return ReadyGroups(plan, sizes, torch.tensor(golds), teacher, chunks, parts)

    def halve_chunks(self, ready: ReadyGroups) -> bool:
        """Make the chunks of later batches half as large as this one's; false for single pairs."""
        largest = max(map(len, ready.chunks))
        self.chunk_size = max(1, min(largest // 2, self.chunk_size or largest))
        return largest > 1

    def loss_of_batch(self, ready: ReadyGroups) -> tuple[Forward, BatchPlan]:
        """Compute the loss of one batch, and count what it used."""
        part_of = {chunk[0]: part for chunk, part in zip(ready.chunks, ready.parts, strict=True)}

        def encode(rows: Sequence[int]) -> Tensor:
            part = part_of[rows[0]]
            if torch.is_grad_enabled():
                self._count(part)
            return self.reranker.logits(_moved(part, self.device))

        def loss_of(logits: Tensor) -> Tensor:
            # In bf16 logits would be coarse.
            with torch.autocast(logits.device.type, enabled=False):
                golds = ready.golds.to(logits.device)
                teacher = None if ready.teacher is None else ready.teacher.to(logits.device)
                loss = self.loss_of_groups[0](logits.float(), ready.sizes, golds, teacher)
            found = logits.detach().float()
            scores = found[:, -1] - found[:, 0] if found.shape[1] == 2 else found[:, 0]
            alike = [are_alike(one) for one in scores.split(list(ready.sizes))]
            share = torch.tensor(sum(alike) / len(alike), device=loss.device)
            self.window.terms.append({"loss": loss.detach(), ALIKE: share})
            return loss

        self.window.claims += len(ready.sizes)
        run = whole_forward if self.chunk_size is None else chunked_forward
        return run(ready.chunks, encode, loss_of), ready.plan

    def _count(self, part: Features) -> None:
        """Count the tokens that are read, and their padding."""
        masks = [v for k, v in part.items() if k.rpartition(".")[2] == "attention_mask"]
        self.window.real += sum(int(mask.sum()) for mask in masks)
        self.window.padded += sum(mask.numel() for mask in masks)

    def configure_gradient_clipping(self, *arguments: Any, **more: Any) -> None:
        """Clip the gradients, and stop where the scores have been alike for many steps.

        Raises `UserError` after `MOST_ALIKE` of them in a row.
        """
        super().configure_gradient_clipping(*arguments, **more)
        self._alike = self._alike + 1 if self.step.terms[ALIKE] == 1 else 0
        if self._alike == MOST_ALIKE:
            where = f"{MOST_ALIKE} steps in a row, to step {self.steps_done}"
            self.give_up(COLLAPSED.format(where=where))


def _moved(part: Features, device: torch.device) -> Features:
    return {
        key: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for key, value in part.items()
    }
