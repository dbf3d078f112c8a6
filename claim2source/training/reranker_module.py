"""Define the re-ranker's LightningModule: a training step over groups of pairs, and its losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning_fabric.utilities.apply_func import move_data_to_device
from sentence_transformers.cross_encoder import CrossEncoder, losses
from torch import Tensor, nn

from claim2source.core.errors import EXIT_CODE, UserError
from claim2source.core.records import Claim
from claim2source.core.report import Epoch
from claim2source.core.run import Result, Run, join_results
from claim2source.evaluation.evaluate import METRICS, Scoring, score_result
from claim2source.metrics.metrics import evaluate
from claim2source.stages.pairs import Pair
from claim2source.training.batches import BatchPlan
from claim2source.training.checkpoint import without_copies
from claim2source.training.choose import scored_epoch
from claim2source.training.data import length_chunks
from claim2source.training.distributed import gather_values
from claim2source.training.module import TrainingModule
from claim2source.training.on_val import EvaluateOnVal
from claim2source.training.reranker_config import ALIKE, Loss
from claim2source.training.reranker_data import RerankerPairs
from claim2source.training.reranker_models import TrainedReranker
from claim2source.training.resume import StopSignals
from claim2source.training.splits import TrainingData

_TOP = 5  # ranks that LambdaLoss uses
# Consecutive optimizer steps with equal scores that mean a collapse, not a bad batch.
MOST_ALIKE = 10
# Scores of a claim count as equal if they differ by less than this, relative to their size.
_NEAR = 1e-4
_ROUNDING = 1e-7
COLLAPSED = (
    "the re-ranker has collapsed: all sources of a claim get the same score ({where}); "
    "lower optimisation.learning_rate, or raise optimisation.warmup_ratio, and start again"
)


class LogitsTable(CrossEncoder):
    """Stand in for a cross-encoder whose `logits` [pairs, labels] are known: texts are row numbers.

    The losses of sentence-transformers would run the model themselves, but here pairs are scored,
    and their gradients computed, chunk by chunk.
    """

    def __init__(self, labels: int) -> None:
        nn.Module.__init__(self)
        self.logits = torch.zeros(0, labels)

    @property
    def num_labels(self) -> int:
        return self.logits.shape[1]

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def preprocess(
        self,
        inputs: Sequence[Any],
        *_: Any,
        **__: Any,
    ) -> dict[str, Tensor]:
        rows = [row for _, row in inputs]
        return {"rows": torch.tensor(rows)}

    def forward(self, input: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        rows = input["rows"]
        return {"scores": self.logits[rows]}


_LOSSES: Mapping[str, Any] = {
    "listwise": partial(losses.ListNetLoss, mini_batch_size=-1),
    "lambda": partial(losses.LambdaLoss, k=_TOP, mini_batch_size=-1),
    "bce": losses.BinaryCrossEntropyLoss,
    "cross_entropy": losses.CrossEntropyLoss,
    "margin_mse": losses.MarginMSELoss,
}


class GroupLoss:
    """Compute the loss of groups of pairs: a claim's golds and negatives.

    All losses use raw logits (identity activation): squashed to 0..1, the softmax over a group
    could hardly prefer one of its sources.
    """

    def __init__(self, kind: Loss, labels: int = 1) -> None:
        self.kind = kind
        self.table = LogitsTable(labels)
        make_loss = _LOSSES[kind]
        self.loss = make_loss(self.table, activation_fn=nn.Identity())

    def __call__(
        self,
        logits: Tensor,
        sizes: Sequence[int],
        golds: Tensor,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Compute the mean loss, a scalar.

        `logits` [pairs, labels] are ordered by group; `sizes` are the groups' numbers of pairs.
        `golds` [pairs] marks golds, `teacher` [pairs] has the teacher's scores.
        """
        self.table.logits = logits
        kind = self.kind
        count = len(logits)
        if kind in ("bce", "cross_entropy"):
            target = golds.float() if kind == "bce" else golds.long()
            claims = [""] * count
            return self.loss([claims, range(count)], target)

        numbers = torch.arange(count)
        rows = [part.tolist() for part in numbers.split(list(sizes))]
        if kind == "margin_mse":
            assert teacher is not None
            return self._mean_margin_loss(rows, teacher)

        golds_by_group = golds.split(list(sizes))
        targets = [part.float() for part in golds_by_group]
        if kind == "listwise":
            # Its targets are a softmax: with these the golds get all of it.
            targets = [part.log() for part in targets]
        claims = [""] * len(rows)
        return self.loss([claims, rows], targets)

    def _mean_margin_loss(self, rows: Sequence[list[int]], teacher: Tensor) -> Tensor:
        """Average the losses of the groups with these rows."""
        # Groups may differ in size: one at a time, all claims have the same weight.
        single: list[Tensor] = []
        for part in rows:
            sources = [[row] for row in part]
            columns = [[""], *sources]
            target = teacher[None, part]
            single.append(self.loss(columns, target))
        return torch.stack(single).mean()


def are_alike(scores: Tensor) -> bool:
    """Whether a claim's scores are too close to each other to rank its sources."""
    spread = float(scores.max() - scores.min())
    size = float(scores.abs().mean())
    return spread <= _NEAR * size + _ROUNDING


def share_alike(logits: Tensor, sizes: Sequence[int]) -> float:
    """Compute the share of groups of these sizes whose scores are too close to rank."""
    has_two_labels = logits.shape[1] == 2
    scores = logits[:, 0]
    if has_two_labels:
        scores = logits[:, 1] - logits[:, 0]
    groups = scores.split(list(sizes))
    alike = sum(map(are_alike, groups))
    return alike / len(groups)


@dataclass(frozen=True)
class CollatedGroups:
    """Batch in the form that a step needs: groups of pairs, in chunks of tensors, on the CPU.

    `texts` are the pairs, ordered by group, `sizes` the sizes of the groups; `golds` [pairs] marks
    pairs with a gold, `teacher` [pairs] has the teacher's scores. `chunks` are the numbers of the
    pairs, chunk by chunk.
    """

    plan: BatchPlan
    texts: Sequence[Pair]
    sizes: Sequence[int]
    golds: Tensor
    teacher: Tensor | None
    chunks: Sequence[Sequence[int]]
    parts: Sequence[Mapping[str, Any]]


class RerankerModule(TrainingModule):
    """Train a re-ranker on groups: a claim's gold and its negatives."""

    measures = frozenset({ALIKE})
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
        self.stage = reranker.stage
        self.pairs = pairs
        self.chunk_size = recipe.optimisation.chunk_size
        self.loss_of_groups = GroupLoss(recipe.loss.kind, recipe.model.labels)
        self._equal_steps = 0

    def collate(self, plan: BatchPlan) -> CollatedGroups:
        texts: list[Pair] = []
        sizes: list[int] = []
        golds: list[bool] = []
        taught: list[float] = []
        teacher_scores = self.pairs.teacher
        for row in plan.rows:
            number = row % len(self.pairs.rows)
            mined = self.pairs.rows[number]
            ids = self.pairs.group(mined, plan.epoch)
            texts += self.pairs.pairs(number, ids)
            sizes.append(len(ids))
            for source in ids:
                is_gold = source == mined.positive
                golds.append(is_gold)
                if teacher_scores is not None:
                    scores = teacher_scores[mined.claim]
                    taught.append(scores[source])

        # Pairs of similar length share a chunk; the longest come last and are encoded only once.
        lengths = [len(claim + source) for claim, source in texts]
        chunk_size = self.chunk_size or len(lengths)
        chunks = length_chunks(lengths, chunk_size)
        parts: list[Mapping[str, Any]] = []
        for chunk in chunks:
            chunk_texts = [texts[index] for index in chunk]
            parts.append(self.stage.features(chunk_texts))
        return CollatedGroups(
            plan=plan,
            texts=texts,
            sizes=sizes,
            golds=torch.tensor(golds),
            teacher=torch.tensor(taught) if taught else None,
            chunks=chunks,
            parts=parts,
        )

    def training_step(self, groups: CollatedGroups, batch_idx: int) -> Tensor:
        """Compute the loss of one batch, and count its claims and tokens."""
        chunks = groups.chunks
        terms: dict[str, Tensor] = {}
        parts_by_rows: dict[tuple[int, ...], Mapping[str, Any]] = {}
        for chunk, features in zip(chunks, groups.parts, strict=True):
            parts_by_rows[tuple(chunk)] = features

        def encode(rows: Sequence[int]) -> Tensor:
            part = parts_by_rows.get(tuple(rows))
            if part is None:
                texts = [groups.texts[row] for row in rows]
                part = self.stage.features(texts)
            on_device = move_data_to_device(part, self.device)
            logits = self.stage.logits(on_device)
            return logits.reshape(len(rows), -1)

        def batch_loss(logits: Tensor) -> Tensor:
            # In bf16, logits would be coarse.
            with torch.autocast(logits.device.type, enabled=False):
                golds = groups.golds.to(logits.device)
                teacher = groups.teacher
                if teacher is not None:
                    teacher = teacher.to(logits.device)
                loss = self.loss_of_groups(
                    logits.float(),
                    groups.sizes,
                    golds,
                    teacher,
                )
            scores = logits.detach().float()
            share = share_alike(scores, groups.sizes)
            terms["loss"] = loss.detach()
            terms[ALIKE] = torch.tensor(share, device=loss.device)
            return loss

        with without_copies(self.model):
            forward = self.run_chunks(
                chunks,
                encode,
                batch_loss,
                one_chunk=self.chunk_size is None,
            )
        self.window.terms.append(terms)
        self.window.claims += len(groups.sizes)
        for part in groups.parts:
            mask = part["attention_mask"]
            self.window.real += int(mask.sum())
            self.window.padded += mask.numel()
        return self.step_share(forward, groups.plan)

    def configure_gradient_clipping(self, *arguments: Any, **options: Any) -> None:
        """Clip the gradients, and stop if scores have been equal for many steps.

        Raises `UserError` after `MOST_ALIKE` such steps in a row.
        """
        super().configure_gradient_clipping(*arguments, **options)
        scores_are_equal = self.window.means[ALIKE] == 1
        if scores_are_equal:
            self._equal_steps += 1
        else:
            self._equal_steps = 0
        if self._equal_steps == MOST_ALIKE:
            reason = f"{MOST_ALIKE} steps in a row, to step {self.steps_done}"
            self.give_up(COLLAPSED.format(where=reason))


class PipelineOnVal(EvaluateOnVal):
    """Score the re-ranked first stage; every process re-ranks a share of val's claims."""

    model: TrainedReranker

    def rank(self, first: Result | None) -> None:
        """Send the first stage's result on val from the first process to all others."""
        gathered = gather_values(first, self.world)
        self._first = gathered[0]

    def score(self, epoch: int) -> Epoch | None:
        """Score the pipeline. Raises `UserError` if a trained re-ranker has collapsed."""
        val = self.data.val
        world = self.world
        assert self._first is not None
        # Every process re-ranks with the current weights.
        share = val.claims[world.rank :: world.size]
        share_ids = [claim.id for claim in share]
        first = self._first.run.restricted(share_ids)
        part = self._rank_again(share, first)
        parts = gather_values(part, world)
        result = join_results(parts, val.claims)
        if epoch and self._has_collapsed(result):
            if not world.is_first:
                raise SystemExit(EXIT_CODE)
            place = f"on val, after epoch {epoch}"
            raise UserError(COLLAPSED.format(where=place))
        if not world.is_first:
            return None
        return pipeline_scores(epoch, result, self.data, self.metric)

    def _rank_again(self, claims: Sequence[Claim], first: Run) -> Result:
        """Re-rank the first stage's candidates of these claims, without dropout."""
        model = self.model.model
        training = model.training
        model.eval()
        result = self.model.stage.apply(claims, self.data.val.sources, first)
        model.train(training)
        return result

    def _has_collapsed(self, result: Result) -> bool:
        """Whether every claim of val has equal scores for all its sources."""
        run = result.run
        depth = self.model.stage.depth
        # NaN scores rank nothing either.
        failed = {failure.claim_id for failure in result.failures}
        uniform = []
        for claim in run.claim_ids:
            ranked = list(run.scored(claim).values())
            scores = torch.tensor(ranked[:depth])
            if len(scores) > 1:
                uniform.append(claim in failed or are_alike(scores))
        return bool(uniform) and all(uniform)


def pipeline_scores(
    epoch: int,
    result: Result,
    data: TrainingData,
    metric: str,
) -> Epoch:
    """Score a ranking of val; `metric` is the metric of the choice."""
    train_golds = data.selection.train.golds
    settings = Scoring(METRICS, 0, 0, train_golds)
    scored = score_result("val", result, data.val, settings)
    weighing = data.weighing
    by_metric = evaluate(
        result.run,
        data.val.qrels,
        [metric],
        weighing.claim_ids,
    )
    return scored_epoch(epoch, scored.report, by_metric[metric], weighing)
