"""Define the re-ranker's LightningModule: a training step over groups of pairs, and its losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from claim2source.core.errors import EXIT_CODE, UserError
from claim2source.core.run import Result, join_results
from claim2source.metrics.metrics import evaluate
from claim2source.pipeline.evaluate import METRICS, Scoring, score_result
from claim2source.stages.pairs import Pair
from claim2source.training.batches import BatchPlan
from claim2source.training.checkpoint import without_copies
from claim2source.training.choose import ValScores, val_scores
from claim2source.training.data import TrainingData
from claim2source.training.distributed import gather_values
from claim2source.training.fit import EvaluateOnVal
from claim2source.training.gradcache import length_chunks
from claim2source.training.module import TrainingModule
from claim2source.training.reranker_config import RerankerLossConfig
from claim2source.training.reranker_data import RerankerPairs
from claim2source.training.reranker_models import Features, TrainedReranker
from claim2source.training.resume import StopSignals

_TOP = 5  # places that LambdaLoss looks at


def logits_table(labels: int) -> Any:
    """Stand for a cross-encoder whose `logits` [pairs, labels] are known: a text is a row number.

    The losses of sentence-transformers run the model themselves. Pairs are scored in chunks here,
    and their gradients taken chunk by chunk.
    """
    from sentence_transformers.cross_encoder import CrossEncoder

    class LogitsTable(CrossEncoder):
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

    return LogitsTable()


class GroupLoss:
    """Compute the loss of groups of pairs: a claim's golds and negatives.

    All losses take raw logits (identity activation): squashed to 0..1, the softmax over a group
    could hardly prefer any of its sources.
    """

    def __init__(self, config: RerankerLossConfig, labels: int = 1) -> None:
        from sentence_transformers.cross_encoder import losses

        self.config, self.table = config, logits_table(labels)
        raw = nn.Identity()
        kinds: Mapping[str, Any] = {
            "listwise": lambda: losses.ListNetLoss(self.table, raw, mini_batch_size=-1),
            "lambda": lambda: losses.LambdaLoss(
                self.table, k=_TOP, activation_fn=raw, mini_batch_size=-1
            ),
            "bce": lambda: losses.BinaryCrossEntropyLoss(self.table, raw),
            "cross_entropy": lambda: losses.CrossEntropyLoss(self.table, raw),
            "margin_mse": lambda: losses.MarginMSELoss(self.table, raw),
        }
        self.loss = kinds[config.kind]()

    def __call__(
        self, logits: Tensor, sizes: Sequence[int], golds: Tensor, teacher: Tensor | None = None
    ) -> Tensor:
        """Compute the mean loss, a scalar.

        `logits` [pairs, labels] come group after group, each of the next of `sizes` pairs; `golds`
        [pairs] tells which are golds. `teacher` [pairs] are its scores.
        """
        self.table.logits, kind = logits, self.config.kind
        ends = torch.tensor(sizes).cumsum(0).tolist()
        rows = [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
        loss: Tensor
        if kind in ("bce", "cross_entropy"):
            target = golds.float() if kind == "bce" else golds.long()
            loss = self.loss([[""] * len(logits), sum(rows, [])], target)
        elif kind == "margin_mse":
            assert teacher is not None
            # Groups may differ in size: one at a time, each claim counts alike.
            single = [
                self.loss([[""], *([row] for row in part)], teacher[None, part]) for part in rows
            ]
            loss = torch.stack(single).mean()
        else:
            targets = [part.float() for part in golds.split(list(sizes))]
            if kind == "listwise":
                # Its targets are a softmax: these give the golds all of it.
                targets = [part.log() for part in targets]
            loss = self.loss([[""] * len(rows), rows], targets)
        return loss


# Optimizer steps in a row whose scores are all alike: a lost training, not a bad batch.
MOST_ALIKE = 10
EQUAL = "alike"
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
class CollatedGroups:
    """Hold a batch as its step takes it: groups of pairs, in chunks of tensors, on the CPU.

    `texts` are the pairs, `sizes` those of the groups, one after another; `golds` [pairs] tells
    which pairs have a gold, `teacher` [pairs] has its scores. `chunks` are the numbers of pairs,
    chunk by chunk.
    """

    plan: BatchPlan
    texts: Sequence[Pair]
    sizes: Sequence[int]
    golds: Tensor
    teacher: Tensor | None
    chunks: Sequence[Sequence[int]]
    parts: Sequence[Features]


class RerankerModule(TrainingModule):
    """Train a re-ranker on groups: a claim's gold and its negatives."""

    measures = frozenset({EQUAL})
    pairs: RerankerPairs

    def __init__(
        self,
        reranker: TrainedReranker,
        pairs: RerankerPairs,
        optimizer_steps: int,
        stop: StopSignals | None = None,
    ) -> None:
        recipe = reranker.recipe
        super().__init__(reranker.model, recipe.optimisation, optimizer_steps, stop)
        self.reranker, self.pairs = reranker, pairs
        self.chunk_size = recipe.optimisation.chunk_size
        self.loss_of_groups = [GroupLoss(recipe.loss, recipe.model.labels)]  # no part of the model
        self._equal_steps = 0

    def collate(self, plan: BatchPlan) -> CollatedGroups:
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
        lengths = [len(claim + source) for claim, source in texts]
        chunks = length_chunks(lengths, self.chunk_size or len(lengths))
        parts = [self.reranker.features([texts[index] for index in chunk]) for chunk in chunks]
        teacher = torch.tensor(taught) if taught else None
        return CollatedGroups(plan, texts, sizes, torch.tensor(golds), teacher, chunks, parts)

    def training_step(self, groups: CollatedGroups, batch_idx: int) -> Tensor:
        """Compute the loss of one batch, and count its claims and tokens."""
        chunks, terms = groups.chunks, dict[str, Tensor]()
        part_of = {tuple(rows): part for rows, part in zip(chunks, groups.parts, strict=True)}

        def encode(rows: Sequence[int]) -> Tensor:
            part = part_of.get(tuple(rows))
            if part is None:
                part = self.reranker.features([groups.texts[row] for row in rows])
            part = {
                key: value.to(self.device, non_blocking=True)
                if isinstance(value, Tensor)
                else value
                for key, value in part.items()
            }
            return self.reranker.logits(part)

        def loss_of(logits: Tensor) -> Tensor:
            # In bf16 logits would be coarse.
            with torch.autocast(logits.device.type, enabled=False):
                golds = groups.golds.to(logits.device)
                teacher = None if groups.teacher is None else groups.teacher.to(logits.device)
                loss = self.loss_of_groups[0](logits.float(), groups.sizes, golds, teacher)
            values = logits.detach().float()
            scores = values[:, -1] - values[:, 0] if values.shape[1] == 2 else values[:, 0]
            uniform = [are_alike(of_claim) for of_claim in scores.split(list(groups.sizes))]
            share = torch.tensor(sum(uniform) / len(uniform), device=loss.device)
            terms.update({"loss": loss.detach(), EQUAL: share})
            return loss

        with without_copies(self.model):
            forward = self.run_chunks(chunks, encode, loss_of, one_chunk=self.chunk_size is None)
        self.window.terms.append(terms)
        self.window.claims += len(groups.sizes)
        for part in groups.parts:
            masks = [v for k, v in part.items() if k.rpartition(".")[2] == "attention_mask"]
            self.window.real += sum(int(mask.sum()) for mask in masks)
            self.window.padded += sum(mask.numel() for mask in masks)
        return self.share_of_step(forward, groups.plan)

    def configure_gradient_clipping(self, *arguments: Any, **options: Any) -> None:
        """Clip the gradients, and stop where the scores have been alike for many steps.

        Raises `UserError` after `MOST_ALIKE` of them in a row.
        """
        super().configure_gradient_clipping(*arguments, **options)
        self._equal_steps = self._equal_steps + 1 if self.window.means[EQUAL] == 1 else 0
        if self._equal_steps == MOST_ALIKE:
            reason = f"{MOST_ALIKE} steps in a row, to step {self.steps_done}"
            self.give_up(COLLAPSED.format(where=reason))


class PipelineOnVal(EvaluateOnVal):
    """Score the first stage, re-ranked: every process re-ranks a share of val's claims."""

    model: TrainedReranker

    def rank(self, first: Result | None) -> None:
        """Take the first stage's result on val in every process, as the first one knows it."""
        result = gather_values(first, self.world)[0]
        assert result is not None
        self._first = result.run

    def score(self, epoch: int) -> ValScores | None:
        """Score the pipeline. Raises `UserError` where a trained re-ranker has collapsed."""
        result = self._rerank_val()
        if epoch and self._has_collapsed(result):
            if not self.world.is_first:
                raise SystemExit(EXIT_CODE)
            raise UserError(COLLAPSED.format(where=f"on val, after epoch {epoch}"))
        if not self.world.is_first:
            return None
        return pipeline_scores(result, self.data, self.metric)

    def _rerank_val(self) -> Result:
        """Re-rank val with the current weights, a share in every process."""
        val, world, model = self.data.val, self.world, self.model.model
        share = val.claims[world.rank :: world.size]
        part = self._first.restricted([claim.id for claim in share])
        training = model.training
        model.eval()
        result = self.model.stage.apply(share, val.sources, part)
        model.train(training)
        return join_results(gather_values(result, world), val.claims)

    def _has_collapsed(self, result: Result) -> bool:
        """Tell whether every claim of val has equal scores for all its sources."""
        run, depth = result.run, self.model.stage.depth
        # Scores that are no numbers rank nothing either.
        failed = {failure.claim_id for failure in result.failures}
        ranked = {
            claim.id: list(run.scored(claim.id).values())[:depth] for claim in self.data.val.claims
        }
        several = {claim: torch.tensor(row) for claim, row in ranked.items() if len(row) > 1}
        uniform = (claim in failed or are_alike(row) for claim, row in several.items())
        return bool(several) and all(uniform)


def pipeline_scores(result: Result, data: TrainingData, metric: str) -> ValScores:
    """Score a ranking of val; `metric` is that of the choice."""
    settings = Scoring(METRICS, 0, 0, data.selection.train.golds)
    scored = score_result("val", result, data.val, settings)
    weighing = data.weighing
    values = evaluate(result.run, data.val.qrels, [metric], weighing.claim_ids)[metric]
    return val_scores(scored.report, values, weighing)
