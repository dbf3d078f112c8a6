"""Rewrite claims and sources in the papers' styles: `python eval/rewrite.py --out DIR`.

The folder gets one file per style, and a record of its author. `eval/style_grid.py --styles.texts
DIR` scores them.
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
        out: folder of the texts; styles that are already there are kept.
        dataset: folder in BEIR layout, or its name in CLAIM2SOURCE_DATA, or `demo`.
        split: split whose claims are rewritten; sources are always those of the whole pool.
        versions: how often each text is rewritten; scores are averaged over the versions.
        claims: the text of a foreign claim that is rewritten, in its own language: the translation
            (as in the 2026 companion paper) or the original.
        prompt: a YAML file that replaces the style's prompt; for one style at a time.
        llm: the language model and its requests.
        answers: file of stored answers, from which a run resumes; none: in the user's store.
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
    languages: list[str] | None = list_field(help="rewrite only claims in these languages")
    rules: bool = flag("rewrite by rules without a model; not comparable with the papers' styles")
    lenient: bool = flag(LENIENT)
    overwrite: bool = flag("replace styles that were made in another way")
    dry_run: bool = flag("count requests and estimate tokens; send and write nothing")

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
        """List the distinct styles in the papers' order."""
        return [STYLES[name] for name in REWRITTEN if name in self.styles]


def main(argv: Sequence[str] | None = None) -> None:
    """Rewrite the texts; print each style's measures of quality."""
    config = read_config(
        RewriteConfig, argv, program="eval/rewrite.py", description=__doc__, common=COMMON
    )
    rewrite(config)


@with_local_models
def rewrite(config: RewriteConfig) -> None:
    """Rewrite the texts of every style; raise `UserError` at the end if some failed.

    Each style is written as soon as it is complete.
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
    """Write a style's texts, and print their number and measures of quality."""
    write_style(out, style, rewrites, origin)
    first, *details = style_lines(style, texts, rewrites)
    say("\n".join([f"{out}: {first}", *details]))


if __name__ == "__main__":
    run_program(main)
