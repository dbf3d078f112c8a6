"""Re-rank with a generative model that answers yes or no, such as Qwen3-Reranker.

A pair's score is logit(yes) - logit(no) at the prompt's last position. The prompt is Qwen's own
(Qwen3-Reranker's model card). The 2026 paper's code HTML-escapes its last tags for the 8B model,
which was not trained on the resulting tokens: `template: escaped`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from os.path import commonprefix
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from claim2source.core.config import Between, require
from claim2source.core.errors import ConfigError
from claim2source.models.manifest import RerankerKind
from claim2source.stages.load import (
    LocalReranker,
    checkpoint_setting,
    load_causal,
    load_tokenizer,
)
from claim2source.stages.pairs import (
    CHUNK,
    Pair,
    RawScores,
    rows_by_claim,
    scored_alone,
    token_budget,
)
from claim2source.text.control import escape_control_tokens

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Increased if the same settings give other scores.
_FORMAT = 1
RELEASED = (
    "Given a scientific claim from a social media post, "
    "retrieve the source paper that supports or is related to the claim"
)
# Written after the 2026 paper's figure 3.
DETAILED = """\
You check facts of science with high precision. Decide whether a research paper (the Document) \
supports the claim that a tweet (the Query) makes.
Before you compare: pass over emojis, slang and filler words; look at the scientific facts and \
claims alone; take # and @ as noise unless they name a journal or an author.
Compare five things:
1. Subject and entities: the research subjects and terms; the same diseases, drugs, proteins, \
methods and other names.
2. Methodology: the kind of study that the paper reports and that the tweet implies.
3. Results and data: first of all the same numbers, statistics and findings.
4. Author: more confidence if a name behind @ is one of the paper's authors.
5. Venue: more confidence if a name behind # is where the paper was published.
Answer yes if the Document gives evidence enough to support the Query or is strongly related to \
it, otherwise no. Answer with that one word, without explanation."""
INSTRUCTIONS = {"released": RELEASED, "detailed": DETAILED}
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
Ending = Literal["qwen3", "escaped"]
_ENDINGS: Mapping[Ending, str] = {
    "qwen3": "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "escaped": "<|im_end|>\n<|im_start|>assistant\n<think&gt;\n\n</think&gt;\n\n",
}
# If a claim has fewer pairs, they share only the instruction.
_OWN_PREFIX = 4


@dataclass(frozen=True, kw_only=True)
class YesNo(LocalReranker):
    """Re-rank with a generative model's log-odds of yes.

    Args:
        instruction: the model's instruction: `released`, the line of the 2026 paper's code;
            `detailed`, rules after the paper's figure 3; or your own text.
        template: `qwen3`, the template of the model's training; `escaped`, that of the 2026
            paper's code for the 8B model.
    """

    model: str = "Qwen/Qwen3-Reranker-0.6B"
    max_length: Annotated[int, Between(8, 10**6)] | None = 8192
    instruction: str = "released"
    template: Ending = "qwen3"
    kind: ClassVar[RerankerKind | None] = "yes_no"

    def check(self) -> None:
        super().check()
        text = bool(self.instruction.strip())
        require(text, "instruction", self.instruction, "a text, released or detailed")
        require(self.max_length is not None, "max_length", None, "a number of tokens")

    @cached_property
    def prompt_settings(self) -> tuple[int, str, Ending]:
        """Return the prompt's length, instruction and form; a checkpoint determines them."""
        length = self.max_length
        instruction = self.instruction
        template = self.template
        if self.trained is not None:
            own = self.trained[1].reranker
            length = checkpoint_setting(self, "max_length", own.max_length)
            instruction = checkpoint_setting(self, "instruction", own.instruction)
            template = checkpoint_setting(self, "template", own.template)
        return length or 0, instruction, template

    @cached_property
    def identity(self) -> Mapping[str, object]:
        return {
            "reranker": "yes_no",
            "format": _FORMAT,
            "prompt": list(self.prompt(Pair("", ""))),
            **self.files[1],
        }

    @cached_property
    def network(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        folder, _, settings = self.files
        _ = self.answers  # a tokenizer without them is refused before weights are loaded
        return load_causal(folder, settings), self.tokenizer

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        folder, _, settings = self.files
        return load_tokenizer(folder, settings)

    def prompt(self, pair: Pair) -> tuple[str, str, str]:
        """Return a pair's prompt: head before the instruction, body with the texts, end."""
        _, instruction, template = self.prompt_settings
        # Tokenizers split special tokens in a text, but not `<think>` or `<tool_call>`.
        claim = escape_control_tokens(pair.claim)
        source = escape_control_tokens(pair.source)
        return write_prompt(Pair(claim, source), instruction, template)

    def tokens(self, pairs: Sequence[Pair]) -> list[list[int]]:
        """Tokenize prompts, truncating the source; empty if there is no room for it.

        Names of special tokens in a text are plain text.
        """
        from claim2source.models.load import count_positions

        tokenizer: Any = self.network[1]
        head, _, end = self.prompt(Pair("", ""))
        first = tokenizer(head, add_special_tokens=False)["input_ids"]
        last = tokenizer(end, add_special_tokens=False)["input_ids"]
        length = self.prompt_settings[0]
        positions = count_positions(self.network[0])
        if positions:
            length = min(length, positions)
        room = length - len(first) - len(last)

        bodies: list[str] = []
        claims: list[str] = []
        for pair in pairs:
            _, body, _ = self.prompt(pair)
            _, claim, _ = self.prompt(Pair(pair.claim, ""))
            bodies.append(body)
            claims.append(claim.rstrip())
        options = {"add_special_tokens": False, "split_special_tokens": True}
        body_ids = tokenizer(bodies, **options)["input_ids"]
        claim_ids = tokenizer(claims, **options)["input_ids"]
        ids: list[list[int]] = []
        for body_row, claim_row in zip(body_ids, claim_ids, strict=True):
            if len(body_row) <= room or len(claim_row) < room:
                ids.append([*first, *body_row[:room], *last])
            else:
                ids.append([])
        return ids

    @cached_property
    def answers(self) -> tuple[int, int]:
        """Return the ids of yes and no. Raises `ConfigError` if the tokenizer lacks one."""
        tokenizer: Any = self.tokenizer
        ids = []
        for word in ("yes", "no"):
            token = tokenizer.get_vocab().get(word)
            if token is None:
                raise ConfigError(
                    "model", self.model, f"one whose tokenizer has the token {word!r}"
                )
            ids.append(int(token))
        return ids[0], ids[1]

    def features(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        """Return the tensors of some pairs' prompts, padded on the left, on the CPU."""
        ids, mask = left_padded(self.tokens(pairs))
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}

    def logits(self, features: Mapping[str, Any]) -> torch.Tensor:
        """Compute logit(yes) - logit(no), [pairs], with gradients."""
        import torch

        model: Any = self.network[0]
        hidden = model.base_model(**features, use_cache=False).last_hidden_state[:, -1]
        with torch.autocast(hidden.device.type, enabled=False):
            direction, bias = answers_direction(model, self.answers)
            scores: torch.Tensor = hidden.float() @ direction + bias
        return scores

    def score(self, pairs: Sequence[Pair]) -> Iterator[RawScores]:
        """Score pairs claim by claim, so that the prompts' common prefix is computed once."""
        order: list[int] = []
        for rows in rows_by_claim(pairs).values():
            order += rows
        shared = _Prefixes(self.network[0], self.answers)
        for start in range(0, len(order), CHUNK):
            chunk = order[start : start + CHUNK]
            tokens = self.tokens([pairs[row] for row in chunk])
            ids = dict(zip(chunk, tokens, strict=True))
            yield from self._chunk(pairs, ids, shared)

    def _chunk(
        self,
        pairs: Sequence[Pair],
        ids: Mapping[int, list[int]],
        shared: _Prefixes,
    ) -> Iterator[RawScores]:
        groups: dict[str, list[int]] = {}
        for row, tokens in ids.items():
            if tokens:
                groups.setdefault(pairs[row].claim, []).append(row)
            else:
                reason = "the claim leaves no room for a source within max_length"
                nothing = np.full(1, np.nan, np.float32)
                yield RawScores([row], nothing, {row: reason})

        small: list[int] = []
        for rows in groups.values():
            if len(rows) >= _OWN_PREFIX:
                yield from self._group(rows, ids, shared)
            else:
                small += rows
        if small:
            yield from self._group(small, ids, shared)

    def _group(
        self,
        rows: Sequence[int],
        ids: Mapping[int, list[int]],
        shared: _Prefixes,
    ) -> Iterator[RawScores]:
        """Score prompts, computing their common prefix once."""
        from claim2source.models.tokens import grouped_lengths

        # Each pair keeps at least one token.
        prefix = list(commonprefix([ids[row][:-1] for row in rows]))
        lengths = [len(ids[row]) - len(prefix) for row in rows]

        def score(members: Sequence[int]) -> np.ndarray:
            rest = [ids[row][len(prefix) :] for row in members]
            return shared.score(prefix, rest)

        budget, extra = token_budget(self.network[0].device, self.batch_tokens)
        read = len(prefix)
        for group in grouped_lengths(lengths, budget, extra):
            tokens = read + sum(lengths[member] for member in group)
            yield from scored_alone([rows[member] for member in group], score, tokens)
            read = 0


def write_prompt(
    pair: Pair,
    instruction: str,
    template: Ending = "qwen3",
) -> tuple[str, str, str]:
    """Return the prompt of a pair with split control tokens: head, body and end."""
    words = INSTRUCTIONS.get(instruction, instruction)
    head = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
    body = f"<Instruct>: {words}\n<Query>: {pair.claim}\n<Document>: {pair.source}"
    return head, body, _ENDINGS[template]


def left_padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad tokens on the left: the last position is every prompt's last; return ids and mask."""
    import torch

    longest = max(map(len, rows))
    ids = torch.zeros((len(rows), longest), dtype=torch.long)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for row, tokens in enumerate(rows):
        ids[row, longest - len(tokens) :] = torch.tensor(tokens)
        mask[row, longest - len(tokens) :] = 1
    return ids, mask


def answers_direction(
    model: PreTrainedModel,
    answers: tuple[int, int],
) -> tuple[torch.Tensor, torch.Tensor | float]:
    """Return the direction of logit(yes) - logit(no) in a hidden state, and its bias.

    Only the two answers' logits are computed, in float32: half precision ties many pairs.
    """
    head: Any = model.get_output_embeddings()
    yes, no = answers
    direction = head.weight[yes].float() - head.weight[no].float()
    bias = getattr(head, "bias", None)
    if bias is None:
        return direction, 0.0
    return direction, bias[yes].float() - bias[no].float()


class _Prefixes:
    """Score prompts with a common prefix, computing the prefix once.

    The keys and values of the last prefix are cached, for a batch of one.
    """

    def __init__(self, model: PreTrainedModel, answers: tuple[int, int]) -> None:
        self.model: Any = model
        self.direction, self.bias = answers_direction(model, answers)
        self._cached: tuple[list[int], Any] = ([], None)

    def score(self, prefix: list[int], rest: Sequence[Sequence[int]]) -> np.ndarray:
        """Score prompts that continue `prefix` with `rest`; returns [n] float32."""
        import torch

        with torch.inference_mode():
            cache = deepcopy(self._keys(prefix))
            cache.batch_repeat_interleave(len(rest))
            device = self.model.device
            ids, mask = left_padded(rest)
            own_positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
            positions = len(prefix) + own_positions
            read = torch.ones((len(rest), len(prefix)), dtype=torch.long)
            attention = torch.cat([read, mask], dim=1)
            hidden = self.model.base_model(
                input_ids=ids.to(device),
                attention_mask=attention.to(device),
                position_ids=positions.to(device),
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state[:, -1]
            scores = hidden.float() @ self.direction + self.bias
            logits: np.ndarray = scores.cpu().numpy()
            return logits

    def _keys(self, prefix: list[int]) -> Any:
        import torch
        from transformers import DynamicCache

        if self._cached[0] != prefix or self._cached[1] is None:
            cache = DynamicCache()
            if prefix:
                ids = torch.tensor([prefix], device=self.model.device)
                self.model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
            self._cached = (list(prefix), cache)
        return self._cached[1]
