"""Fit and apply the stages that follow a first stage; results are kept in the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from claim2source.core.errors import UserError
from claim2source.core.files import content_hash, file_hash
from claim2source.core.imports import code_hash
from claim2source.core.machine import peak_memory, reset_peak_memory
from claim2source.core.records import Claim, Dataset, Source
from claim2source.core.report import Choice, Rule
from claim2source.core.run import Result, Run, Thinking
from claim2source.core.stage import Stage
from claim2source.data.known_posts import KnownPosts
from claim2source.data.store import Store
from claim2source.llm.config import LLMConfig
from claim2source.llm.thinking import sent_text, thinking_parts
from claim2source.llm.work import is_unanswered
from claim2source.search.cache import read_or_search, request_key
from claim2source.search.choose import Preference, choose
from claim2source.stages.learned import Learned
from claim2source.systems.choose import MIXES, WEIGHTS, choose_margin, choose_threshold
from claim2source.systems.conditions import MARGIN, WhenConfig
from claim2source.systems.heldout import NothingToChooseOn, SelectionData
from claim2source.systems.runtime import SystemRuntime
from claim2source.text.prompts import read_prompt

# What a report states about a language model, and what it omits about a server.
_DECODING = ("model", "temperature", "top_p", "seed", "max_tokens")
# Key of the configured setting, until the sent one is known.
WANTED = "wanted"
_OF_SERVERS = ("url", "key_env", "concurrency", "timeout", "retries")
MIX = "mix"
WEIGHT = "weight"
THRESHOLD = "threshold"
# Settings of how a stage runs, which do not change scores.
_RUNTIME = (
    *_OF_SERVERS,
    "retry_failed",
    "batch_tokens",
    "max_tokens_total",
    "allow_remote_code",
)


class StageResult(NamedTuple):
    """One stage's name and result."""

    name: str
    result: Result


@dataclass(frozen=True)
class SystemStage:
    """Stage of a system with its name and its settings to choose on val.

    `entry` is the stage's YAML; `when` selects the claims that it is applied to (None: all);
    `fits` names its settings that are `fit`. A `simulated` stage, and those after it, are not
    tested.
    """

    name: str
    stage: Stage
    entry: Mapping[str, Any] = field(compare=False)
    when: WhenConfig | None = None
    fits: frozenset[str] = frozenset()
    simulated: bool = False

    @property
    def depth(self) -> int:
        return int(getattr(self.stage, "depth", 0))

    @property
    def label(self) -> str:
        label = stage_label(self.name, self.stage)
        if self.when is not None:
            condition = stage_label("", self.when)
            label += f" when {condition}"
        if self.fits:
            label += " fitted"
        return label

    def with_setting(self, name: str, value: float) -> SystemStage:
        fits = self.fits - {name}
        if name == MARGIN:
            disagree = self.when is not None and self.when.disagree
            when = WhenConfig(value, disagree)
            return replace(self, when=when, fits=fits)
        stage = replace(self.stage, **{name: value})  # type: ignore[type-var]
        if name in (MIX, WEIGHT):  # its loaded models do not depend on them
            vars(stage).update({**vars(self.stage), name: value})
        return replace(self, stage=stage, fits=fits)

    def with_runtime(self, runtime: SystemRuntime) -> SystemStage:
        """Return the same stage with a store and a device, so that it keeps its loaded models."""
        stage = with_runtime(
            self.stage,
            runtime.store,
            runtime.device,
            runtime.progress,
        )
        return replace(self, stage=stage)

    @property
    def counts_terms(self) -> bool:
        """Whether its scores depend on all sources, not only on those to rank."""
        return bool(getattr(self.stage, "counts_terms", False))

    @property
    def ranks_together(self) -> bool:
        """Whether the ranking of a claim depends on the other claims."""
        return bool(getattr(self.stage, "ranks_together", False))

    def with_corpus_stats(self, pool: Sequence[Source]) -> SystemStage:
        """Let a stage count terms over a pool, if it has `with_corpus_stats`."""
        own: Callable[..., Stage] | None = getattr(self.stage, "with_corpus_stats", None)
        if own and self.counts_terms:
            return replace(self, stage=own(pool))
        return self

    def apply(
        self,
        claims: Sequence[Claim],
        sources: Sequence[Source],
        before: Sequence[StageResult],
        runtime: SystemRuntime,
    ) -> Result:
        """Apply the stage to the last of several results, for the claims that `when` selects."""

        def apply(claims: Sequence[Claim], run: Run) -> Result:
            ranked = Result(run)
            try:
                return apply_stage(
                    self.stage,
                    claims,
                    sources,
                    ranked,
                    runtime.store,
                    device=runtime.device,
                    progress=runtime.progress,
                )
            except UserError as error:
                # The weights are on a server, not here.
                has_weights = not hasattr(self.stage, "url")
                if has_weights and not error.model:
                    models = stage_models(self.stage)
                    error.model = next(iter(models), None)
                raise

        run = before[-1].result.run
        if self.when is None:
            return apply(claims, run)
        earlier = before[-2].result.run if len(before) > 1 else None
        result = self.when.apply(claims, run, earlier, apply)
        conditions = asdict(self.when)
        when = {key: value for key, value in conditions.items() if value}
        configured = stage_settings(self.stage)
        settings = with_thinking(configured, result.thinking)
        return replace(result, settings={**settings, "when": when})


def with_runtime(
    stage: Stage,
    store: Store | None,
    device: str | None,
    progress: bool = False,
) -> Stage:
    """Return a stage with a store and a device, if it has `with_runtime` with such arguments."""
    give: Callable[..., Stage] | None = getattr(stage, "with_runtime", None)
    if give is None:
        return stage
    return give(store, device, progress)


def stage_models(stage: Stage) -> list[str]:
    """List the models of a stage, any of which may have been trained on claims."""
    if isinstance(stage, Learned):
        models: list[str] = []
        for view in stage.fusion.views:
            model_config = view.view.model
            if model_config is not None:
                models.append(stage.models.get(view.name, model_config.name))
        return models
    model = getattr(stage, "model", None)
    if isinstance(model, str):
        return [model]
    return []


def apply_stage(
    stage: Stage,
    claims: Sequence[Claim],
    sources: Sequence[Source],
    before: Result,
    store: Store | None = None,
    *,
    device: str | None = None,
    progress: bool = False,
) -> Result:
    """Apply a stage to a result, or read its stored result.

    The key has the stage's settings, code and model, the claims, the sources and the input
    ranking: a changed stage runs again, and so do all later ones. A stage with `with_runtime` also
    stores scores and computes on `device`. A result is not stored if a server did not answer all
    requests.
    """
    settings = stage_settings(stage)
    stage = with_runtime(stage, store, device, progress)
    key = None
    if store is not None:
        inputs = request_key(
            claims,
            [[claim.text, claim.translation, claim.lang] for claim in claims],
            content_hash([asdict(source) for source in sources]),
            len(before.run),
        )
        kind = type(stage)
        identity = getattr(stage, "identity", None)
        key = {
            "stage": f"{kind.__module__}.{kind.__qualname__}",
            "settings": asdict(stage),  # type: ignore[call-overload]
            "code": code_hash(kind),
            "identity": dict(identity) if identity is not None else None,
            "ranking": content_hash([list(row) for row in before.run]),
            **inputs,
        }

    def apply() -> Result:
        started = time.perf_counter()
        reset_peak_memory()
        result = stage.apply(claims, sources, before.run)
        if result.cost.seconds:
            return result
        seconds = time.perf_counter() - started
        cost = replace(
            result.cost,
            seconds=seconds,
            items=len(claims),
            peak_memory=peak_memory(),
        )
        return replace(result, cost=cost)

    result = read_or_search(store, key, apply, is_answered)
    stated = with_thinking(settings, result.thinking)
    return replace(result, settings=stated)


def stage_settings(stage: Stage) -> dict[str, Any]:
    """Return a stage's settings for a report: numbers, names, decoding, prompts by their files.

    The server's address and credentials are left out.
    """
    settings: dict[str, Any] = {}
    specs: tuple[Field[Any], ...] = fields(stage) if is_dataclass(stage) else ()
    for spec in specs:
        value = getattr(stage, spec.name)
        if isinstance(value, LLMConfig):
            decoding = {key: getattr(value, key) for key in _DECODING}
            decoding["thinking"] = sent_text(thinking_parts(value))
            decoding[WANTED] = value.thinking
            settings[spec.name] = decoding
        elif spec.name.endswith("prompt") and isinstance(value, str):
            prompt = read_prompt(value)
            settings[spec.name] = {
                "name": prompt.name,
                "version": prompt.version,
                "sha256": file_hash(prompt.path),
            }
        elif isinstance(value, KnownPosts):
            settings[spec.name] = asdict(value)
        elif isinstance(value, str | int | float) and spec.name not in _OF_SERVERS:
            settings[spec.name] = value
    return settings


def with_thinking(settings: Mapping[str, Any], counts: Sequence[Thinking]) -> dict[str, Any]:
    """Add what was sent to language models about thinking, and how many replies reasoned.

    It replaces the configured setting, which a server may have refused.
    """
    stated: dict[str, Any] = {}
    for name, value in settings.items():
        if not isinstance(value, Mapping) or WANTED not in value:
            stated[name] = value
            continue
        decoding = {key: item for key, item in value.items() if key != WANTED}
        own = [
            count
            for count in counts
            if (count.model, count.wanted) == (value["model"], value[WANTED])
        ]
        if own:
            decoding["thinking"] = _sent_by_replies(own)
            decoding["replies"] = sum(count.replies for count in own)
            decoding["reasoned"] = sum(count.reasoned for count in own)
        stated[name] = decoding
    return stated


def _sent_by_replies(counts: Sequence[Thinking]) -> str:
    if len(counts) == 1:
        return counts[0].sent
    parts = [f"{count.sent} ({count.replies} replies)" for count in counts]
    return "; ".join(parts)


def apply_stages(
    stages: Sequence[SystemStage],
    before: Sequence[tuple[str, Result]],
    claims: Sequence[Claim],
    sources: Sequence[Source],
    runtime: SystemRuntime,
    on_stage: Callable[[str], None] = lambda name: None,
) -> list[StageResult]:
    """Apply stages one after another to the last result of `before`; return each with its name.

    `on_stage` is called with each name before the stage is applied.
    """
    results = [StageResult(*result) for result in before]
    for stage in stages:
        on_stage(stage.name)
        result = stage.apply(claims, sources, results, runtime)
        results.append(StageResult(stage.name, result))
    return results[len(before) :]


def is_answered(result: Result) -> bool:
    """Whether servers have answered all of a stage's requests, well or not."""
    lacks_answers = any(is_unanswered(failure.reason) for failure in result.failures)
    return not lacks_answers


def stage_label(name: str, stage: Any) -> str:
    """Return a stage's label: its name, its models, and the settings that are not defaults."""

    def changed(config: Any, front: str = "") -> Iterator[str]:
        for spec in fields(config):
            value = getattr(config, spec.name)
            factory = spec.default_factory
            default = spec.default if factory is MISSING else factory()
            if spec.name == "model" and value:
                yield f"{front}model={Path(value).name}"
            elif is_dataclass(value):
                yield from changed(value, f"{front}{spec.name}.")
            elif spec.name not in _RUNTIME and value != default:
                yield f"{front}{spec.name}={value}"

    settings = ", ".join(changed(stage))
    return f"{name}({settings})"


def fit_stages(
    stages: Sequence[SystemStage],
    before: Sequence[tuple[str, Result]],
    data: Dataset,
    selection: SelectionData,
    runtime: SystemRuntime,
    rule: Rule = "one_se",
) -> tuple[tuple[SystemStage, ...], list[Choice]]:
    """Choose on val the `mix`, `weight`, `threshold` and `when.margin_below` that are `fit`.

    `before` are the named results of the first stage for `data`, the claims of val with a gold.
    Pairs are scored once: their scores are in the store.
    """
    results = [StageResult(*result) for result in before]
    fitted: list[SystemStage] = []
    choices: list[Choice] = []
    last = max((number for number, stage in enumerate(stages) if stage.fits), default=-1)

    def run(stage: SystemStage) -> StageResult:
        return apply_stages([stage], results, data.claims, data.sources, runtime)[0]

    for number, stage in enumerate(stages):
        for name, values in ((MIX, MIXES), (WEIGHT, WEIGHTS)):
            if name in stage.fits:
                stage = stage.with_runtime(runtime)
                weighing = selection.weighing(data)
                tried = {}
                for value in values:
                    stage = stage.with_setting(name, value)
                    tried[value] = weighing.of(run(stage).result.run)
                value, choice = choose(
                    name,
                    tried,
                    weighing,
                    settings=lambda value, name=name: {name: value},  # type: ignore[misc]
                    by=Preference(rule, float),
                    trials=True,
                    note=selection.note,
                )
                stage = stage.with_setting(name, value)
                choices.append(choice)
        if THRESHOLD in stage.fits:
            _require_verdicts(data, selection)
            verdicts = run(stage).result
            threshold, choice = choose_threshold(verdicts, data, selection.labels)
            stage = stage.with_setting(THRESHOLD, threshold)
            choices.append(choice)
        if MARGIN in stage.fits:
            earlier = results[-2].result.run if len(results) > 1 else None
            now = results[-1].result.run
            after = run(replace(stage, when=None)).result.run
            margin, choice = choose_margin(now, after, data, stage.when, earlier, rule=rule)
            stage = stage.with_setting(MARGIN, margin)
            choices.append(choice)
        fitted.append(stage)
        if number < last:
            results.append(run(stage))
    return tuple(fitted), choices


def _require_verdicts(data: Dataset, selection: SelectionData) -> None:
    """Raise `NothingToChooseOn` unless all claims to choose on have verdicts."""
    labels = selection.labels
    if not data.claims or not all(claim.id in labels for claim in data.claims):
        reason = f"{THRESHOLD}: fit: no verdicts on the claims to choose on"
        raise NothingToChooseOn(reason)
