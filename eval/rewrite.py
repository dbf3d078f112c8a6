"""Rewrite claims and sources in the papers' styles: `python eval/rewrite.py --out DIR`.

The folder has one file a style, and what made it; `eval/style_grid.py --styles.texts DIR` scores
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
from claim2source.core.errors import ConfigError, run_program
from claim2source.core.files import require_writable
from claim2source.core.terminal import say
from claim2source.data.lenient import LENIENT
from claim2source.data.loading import load
from claim2source.llm import LLM, Answer, AnswerStore, LLMConfig, default_answers, require_answers
from claim2source.llm.texts import style_prompt, style_tasks, write_texts
from claim2source.llm.work import count_thinking
from claim2source.models.local import ModelOptions, with_local_models
from claim2source.text.styles import (
    REWRITTEN,
    STYLES,
    ClaimText,
    Original,
    Rewrite,
    Style,
    StyleOrigin,
    originals,
    refuse_other_folder,
    refuse_other_origins,
    rewrite_by_rules,
    style_lines,
    write_style,
)

MOST_VERSIONS = 100


# The keys that people need first.
COMMON = (
    "dataset",
    "out",
    "split",
    "styles",
    "versions",
    "claims",
    "llm.model",
    "llm.url",
    "languages",
    "dry_run",
)


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
            reason = "rules make" if self.rules else "llm.temperature 0 makes"
            raise ConfigError("versions", self.versions, f"1: {reason} the same text every time")
        if self.prompt is not None and (self.rules or len(set(self.styles)) > 1):
            raise ConfigError("prompt", self.prompt, "none, or one style and no rules")

    @property
    def style_list(self) -> list[Style]:
        """List the styles once each, in the papers' order."""
        return [STYLES[name] for name in REWRITTEN if name in self.styles]


def main(argv: Sequence[str] | None = None) -> None:
    """Rewrite; print each style's measures of quality."""
    config = read_config(
        RewriteConfig, argv, program="eval/rewrite.py", description=__doc__, common=COMMON
    )
    rewrite(config)


@with_local_models
def rewrite(config: RewriteConfig) -> None:
    """Rewrite the texts of every style and write them; raise `UserError` last if some are left.

    A style is written as soon as it is there.
    """
    if not config.dry_run:
        require_writable(config.out, "folder")
    refuse_other_folder(config.out)
    data = load(config.dataset, config.split, config.languages, lenient=config.lenient)
    styles = [] if config.rules else config.style_list
    prompts = {style.name: style_prompt(style, config.prompt) for style in styles}
    claims, versions, model = config.claims, config.versions, config.llm.model
    origins = {
        style.name: StyleOrigin.of(style, data, claims, versions, model, prompts.get(style.name))
        for style in config.style_list
    }
    if not config.overwrite:
        refuse_other_origins(config.out, origins)
    if config.rules:
        for style in config.style_list:
            texts = originals(data, style.side, config.claims)
            if config.dry_run:
                say(f"{style.name}: {len(texts)} texts to rewrite by rules")
            else:
                rewrites = rewrite_by_rules(style, texts)
                write(config.out, style, origins[style.name], texts, rewrites)
        return
    all_answers: list[Answer] = []
    with AnswerStore(config.answers or default_answers()) as store:
        llm = LLM(config.llm, store)
        for style in config.style_list:
            texts = originals(data, style.side, config.claims)
            tasks = style_tasks(style, texts, prompts[style.name], versions)
            if config.dry_run:
                say(f"{style.name}: {llm.plan([task.request for task in tasks])}")
                continue
            results, answers = write_texts(llm, tasks, f"{style.name} ({style.what})")
            rewrites = [
                texts[number // versions].rewritten(text.text, number % versions + 1, text.reason)
                for number, text in enumerate(results)
            ]
            origin = replace(origins[style.name], thinking=count_thinking(answers))
            write(config.out, style, origin, texts, rewrites)
            all_answers += answers
    require_answers(all_answers, "texts")


def write(
    out: Path,
    style: Style,
    origin: StyleOrigin,
    texts: Sequence[Original],
    rewrites: Sequence[Rewrite],
) -> None:
    """Write a style's texts, and say how many there are, and how good."""
    write_style(out, style, rewrites, origin)
    first, *details = style_lines(style, texts, rewrites)
    say("\n".join([f"{out}: {first}", *details]))


if __name__ == "__main__":
    run_program(main)
