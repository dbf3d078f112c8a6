"""Rewrite claims and sources in the papers' styles: `python eval/rewrite.py --out DIR`.

The folder holds one file a style, and what made it; `eval/style_grid.py --styles.texts DIR` scores
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from claim2source.core.config import (
    Between,
    flag,
    list_field,
    read_config,
    require,
    require_one_of,
)
from claim2source.core.errors import ConfigError, UserError, run_program
from claim2source.core.files import require_writable
from claim2source.core.records import Dataset
from claim2source.core.terminal import say
from claim2source.datasets import LENIENT, load
from claim2source.llm import (
    LLM,
    Answer,
    AnswerStore,
    LLMConfig,
    Request,
    default_answers,
    require_answers,
)
from claim2source.models.local import ModelOptions, with_local_models
from claim2source.text.language import detect, language_name
from claim2source.text.prompts import Prompt, read_prompt
from claim2source.text.quality import Quality
from claim2source.text.styles import (
    REWRITTEN,
    RULES,
    STYLES,
    ClaimText,
    Original,
    Rewrite,
    Style,
    StyleOrigin,
    originals,
    read_origin,
    refuse_other_folder,
    rewrite_by_rules,
    write_style,
)

MOST_VERSIONS = 100
SHOWN = 5


@dataclass(frozen=True)
class RewriteConfig(ModelOptions):
    """Settings of `eval/rewrite.py`.

    Args:
        out: folder of the texts; styles that are there already stay.
        dataset: folder in BEIR layout, or `demo`.
        split: split whose claims are rewritten; of sources always the whole pool is.
        versions: how often each text is rewritten; scores are averaged over them.
        claims: which text of a claim in another language than English is rewritten, in that
            text's language: the translation (the 2026 companion paper) or the original.
        prompt: a YAML file in place of the style's prompt; for one style at a time.
        llm: the language model and how it is asked.
        answers: file of stored answers, from which a run goes on; none: in the user's store.
    """

    out: Path
    dataset: str = "demo"
    split: str = "dev"
    versions: Annotated[int, Between(1, MOST_VERSIONS)] = 1
    claims: ClaimText = "translation"
    prompt: str | None = None
    llm: LLMConfig = field(default_factory=LLMConfig)
    answers: Path | None = None
    styles: list[str] = list_field(REWRITTEN, help="C1 to C4 of claims, S1 to S3 of sources")
    languages: list[str] | None = list_field(help="rewrite claims in these languages only")
    rules: bool = flag("rewrite by fixed rules: no model; says nothing of the papers' styles")
    lenient: bool = flag(LENIENT)
    overwrite: bool = flag("replace styles that were made in another way")
    dry_run: bool = flag("count requests and estimate tokens; nothing is asked or written")

    def check(self) -> None:
        require(bool(self.styles), "styles", self.styles, f"some of {', '.join(REWRITTEN)}")
        for style in self.styles:
            require_one_of("styles", style, REWRITTEN)
        if self.versions > 1 and (self.rules or not self.llm.temperature):
            why = "rules make" if self.rules else "llm.temperature 0 makes"
            raise ConfigError("versions", self.versions, f"1: {why} the same text every time")
        if self.prompt is not None and (self.rules or len(set(self.styles)) > 1):
            raise ConfigError("prompt", self.prompt, "none, or one style and no rules")

    @property
    def chosen(self) -> list[Style]:
        """List the styles once each, in the papers' order."""
        return [STYLES[name] for name in REWRITTEN if name in self.styles]


def main(argv: Sequence[str] | None = None) -> None:
    """Rewrite; print each style's measures of quality."""
    rewrite(read_config(RewriteConfig, argv, program="eval/rewrite.py", description=__doc__))


@with_local_models
def rewrite(config: RewriteConfig) -> None:
    """Rewrite the texts of every style and write them; raise `UserError` last where some are left.

    A style is written as soon as it is there.
    """
    if not config.dry_run:
        require_writable(config.out, "folder")
    refuse_other_folder(config.out)
    data = load(config.dataset, config.split, config.languages, lenient=config.lenient)
    prompts = {} if config.rules else _prompts(config)
    _refuse_others(config, data, prompts)
    if config.rules:
        for style in config.chosen:
            texts = originals(data, style.side, config.claims)
            rewrites = [] if config.dry_run else rewrite_by_rules(style, texts)
            _write_texts(config, data, style, texts, rewrites, None)
        return
    every: list[Answer] = []
    with AnswerStore(config.answers or default_answers()) as store:
        llm = LLM(config.llm, store)
        for style in config.chosen:
            texts = originals(data, style.side, config.claims)
            prompt = prompts[style.name]
            requests = _requests(style, texts, prompt, config.versions)
            if config.dry_run:
                say(f"{style.name}: {llm.plan(requests)}")
                continue
            answers = _ask(llm, style, texts, requests)
            rewrites = [
                _record_of(style, texts[number // config.versions], request, answer)
                for number, (request, answer) in enumerate(zip(requests, answers, strict=True))
            ]
            _write_texts(config, data, style, texts, rewrites, prompt)
            every += answers
    require_answers(every, "texts")


def _prompts(config: RewriteConfig) -> dict[str, Prompt]:
    prompts = {}
    for style in config.chosen:
        prompt = read_prompt(config.prompt or str(style.prompt))
        prompt.check_variables(_variable_values(style, Original("", "")))
        prompts[style.name] = prompt
    return prompts


def _variable_values(style: Style, text: Original) -> dict[str, str]:
    language = language_name(text.language or detect(text.text) or "en")
    return {"post" if style.side == "claims" else "abstract": text.text, "language": language}


def _requests(
    style: Style, texts: Sequence[Original], prompt: Prompt, versions: int
) -> list[Request]:
    requests = []
    for text in texts:
        messages = prompt.messages(_variable_values(style, text))
        made = f"{prompt.name} {prompt.version}"
        requests += [Request(text.id, messages, made, sample=n) for n in range(versions)]
    return requests


def _ask(
    llm: LLM, style: Style, texts: Sequence[Original], requests: Sequence[Request]
) -> list[Answer]:
    by_id = {text.id: text for text in texts}

    def check(request: Request, answer: Answer) -> str | None:
        return style.why_bad(answer.text, by_id[request.id]) or style.form(answer.text)

    return llm.answer(requests, check, f"{style.name} ({style.what})")


def _record_of(style: Style, text: Original, request: Request, answer: Answer) -> Rewrite:
    """Make an answer's record: a text that only misses the style's form stays, with the reason."""
    reply = answer.text
    if answer.failure is not None:
        formless = bool(reply) and answer.failure == style.form(reply)
        reply = reply if formless and style.why_bad(reply, text) is None else ""
    return text.rewritten(reply, request.sample + 1, answer.failure)


def _made_by(
    config: RewriteConfig, data: Dataset, style: Style, prompt: Prompt | None
) -> StyleOrigin:
    claims = style.side == "claims"
    return StyleOrigin(
        by=RULES if prompt is None else config.llm.model,
        dataset=data.name,
        split=config.split if claims else None,
        versions=config.versions,
        prompt=None if prompt is None else f"{prompt.name} {prompt.version}",
        claims=config.claims if claims else None,
    )


def _refuse_others(config: RewriteConfig, data: Dataset, prompts: dict[str, Prompt]) -> None:
    there = read_origin(config.out)
    for style in config.chosen:
        new, old = _made_by(config, data, style, prompts.get(style.name)), there.get(style.name)
        if old is None or config.overwrite:
            continue
        for key in ("by", "dataset", "split", "versions", "prompt", "claims"):
            before, now = getattr(old, key), getattr(new, key)
            if before != now:
                raise UserError(
                    f"{config.out}: {style.name} is there, made with {key} {before}, not {now}; "
                    "add --overwrite or choose another --out"
                )


def _write_texts(
    config: RewriteConfig,
    data: Dataset,
    style: Style,
    texts: Sequence[Original],
    rewrites: Sequence[Rewrite],
    prompt: Prompt | None,
) -> None:
    if config.dry_run:
        say(f"{style.name}: {len(texts)} texts to rewrite by rules")
        return
    write_style(config.out, style, rewrites, _made_by(config, data, style, prompt))
    by_id = {text.id: text.text for text in texts}
    good = [rewrite for rewrite in rewrites if rewrite.text]
    quality = Quality.of([(by_id[rewrite.id], rewrite.text) for rewrite in good])
    ending = f"; {quality.sentence()}" if quality is not None else ""
    say(f"{config.out}: {style.name} ({style.what}): {len(good)} of {len(rewrites)} texts{ending}")
    failed = [rewrite for rewrite in rewrites if rewrite.failure is not None]
    if failed:
        unused = len(rewrites) - len(good)
        say(f"  {len(failed)} failed, of which {unused} have no text:")
    for rewrite in failed[:SHOWN]:
        say(f"  {rewrite.id} version {rewrite.version}: {rewrite.failure}")
    if len(failed) > SHOWN:
        say(f"  and {len(failed) - SHOWN} more, in {style.name}.jsonl")


if __name__ == "__main__":
    run_program(main)
