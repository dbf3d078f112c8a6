"""Choose the styles of a grid and read their texts, or have them made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from claim2source.core.config import Between, Settings, require, require_one_of
from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Dataset
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.llm import LLMConfig
from claim2source.llm.work import NO_REPLY, NOT_ASKED
from claim2source.pipeline.rewrite import RewriteConfig, rewrite
from claim2source.retrieve import FusionConfig
from claim2source.text import ClaimForm
from claim2source.text.quality import Quality, quality
from claim2source.text.styles import (
    CLAIM_STYLES,
    REWRITTEN,
    RULES,
    SOURCE_STYLES,
    STYLES,
    ClaimText,
    Rewrite,
    originals,
    read_made,
    read_style,
    rewrite_by_rules,
)
from claim2source.text.views import why_same_forms

Combine = Literal["replace", "append", "fuse"]
CLAIM, SOURCE = CLAIM_STYLES[0], SOURCE_STYLES[0]  # the texts as they are


@dataclass(frozen=True, kw_only=True)
class StyleOptions(Settings):
    """Say which styles are compared, where their texts come from and how they are used.

    Args:
        claim_styles: C0 (as posted) to C4; C0 is always among them.
        source_styles: S0 (as published) to S3; S0 is always among them.
        texts: folder of rewritten texts, one file a style; none: they are made by rules, which
            stand in for a language model and say nothing of the papers' styles.
        llm: the model that writes what the folder of texts lacks, where `llm.model` is set.
        versions: rewritings of each text by the model; a claim's score is their mean.
        prompts: style -> name or file of the prompt to use in place of the style's own.
        answers: file of the model's replies, for runs to go on; none: in the user's cache.
        combine: `replace` a text by its rewriting, `append` the rewriting to it, or `fuse` the
            ranking of a cell with that of the texts as they are.
        rewritten: which text of a claim in another language than English is rewritten; `auto`:
            the translation where the claims' form reads it.
        keep_title: rewritten sources keep their title; the papers' examples lost it.
        fusion: how `fuse` fuses; its first run is that of the texts as they are.
    """

    claim_styles: tuple[str, ...] = CLAIM_STYLES
    source_styles: tuple[str, ...] = SOURCE_STYLES
    texts: Path | None = None
    llm: LLMConfig = field(default_factory=LLMConfig)
    versions: Annotated[int, Between(1, 100)] = 1
    prompts: dict[str, str] = field(default_factory=dict)
    answers: Path | None = None
    combine: Combine = "replace"
    rewritten: Literal["auto", "original", "translation"] = "auto"
    keep_title: bool = True
    fusion: FusionConfig = field(default_factory=FusionConfig)

    def check(self) -> None:
        for key, known in (("claim_styles", CLAIM_STYLES), ("source_styles", SOURCE_STYLES)):
            for style in getattr(self, key):
                require_one_of(key, style, known)
        for style in self.prompts:
            require_one_of("prompts", style, REWRITTEN)
        given = self.texts is not None or not self.llm.model
        require(given, "texts", None, "with llm.model, a folder for the rewritten texts")

    @property
    def asked_claims(self) -> tuple[str, ...]:
        """List the claim styles in the papers' order."""
        return tuple(s for s in CLAIM_STYLES if s in self.claim_styles or s == CLAIM)

    @property
    def asked_sources(self) -> tuple[str, ...]:
        """List the source styles in the papers' order."""
        return tuple(s for s in SOURCE_STYLES if s in self.source_styles or s == SOURCE)

    @property
    def made(self) -> tuple[str, ...]:
        """List the styles that need rewritten texts."""
        return (*self.asked_claims[1:], *self.asked_sources[1:])

    def require_texts(self) -> None:
        """Raise `UserError` where the folder of texts lacks a style that no model will write."""
        if self.texts is None or self.llm.model:
            return
        made = read_made(self.texts)
        for name in self.made:
            if name not in made:
                raise InputError.at(self.texts, why=f"holds no texts of style {name}")


@dataclass(frozen=True)
class StyleTexts:
    """Hold one style's texts of a split: its versions, what made them, what they keep."""

    style: str
    rewrites: Sequence[Rewrite]
    by: str
    quality: Quality | None = None

    @property
    def versions(self) -> int:
        """Count the versions of a text."""
        return max((one.version for one in self.rewrites), default=1)

    @property
    def lost(self) -> int:
        """Count the versions without a text: the original stands in for them."""
        return sum(not one.text.strip() for one in self.rewrites)

    @property
    def formless(self) -> int:
        """Count the texts that miss only the style's form: they are used."""
        return sum(one.failure is not None and bool(one.text.strip()) for one in self.rewrites)

    def with_similarity(self, value: float) -> StyleTexts:
        """Add the mean cosine to the originals to what the texts keep."""
        kept = None if self.quality is None else replace(self.quality, similarity=value)
        return replace(self, quality=kept)

    def version(self, number: int) -> dict[str, Rewrite]:
        """Map ids to the texts of one version, counted from 1; failed ones are left out."""
        return {o.id: o for o in self.rewrites if o.version == number and o.text.strip()}


Texts = Mapping[str, StyleTexts]


def read_texts(options: StyleOptions, dataset: Dataset, folder: str, claims: ClaimText) -> Texts:
    """Read the texts of every style, or have them made: by the model, else by rules.

    `folder` is the data set's.

    Raises `UserError` where the folder lacks some, or holds rewritings of other texts.
    """
    options.require_texts()
    if options.llm.model:
        write_texts(options, dataset, folder, claims)
    made = {} if options.texts is None else read_made(options.texts)
    found = {}
    for name in options.made:
        style, by = STYLES[name], RULES
        before = originals(dataset, style.side, claims)
        if options.texts is None:
            rewrites = rewrite_by_rules(style, before)
        else:
            rewrites = read_style(options.texts, style, before)
            by = made[name].by
        pairs = {original.id: original.text for original in before}
        good = [one for one in rewrites if one.text.strip()]
        kept = quality([pairs[one.id] for one in good], [one.text for one in good])
        found[name] = StyleTexts(name, rewrites, by, kept)
    return found


def write_texts(
    options: StyleOptions, dataset: Dataset, folder: str, claims: ClaimText, dry_run: bool = False
) -> None:
    """Have the model write the styles that the folder lacks, as `eval/rewrite.py` does.

    Raises `UserError` where replies are missing (the same command goes on there), or where the
    folder's texts were made in another way.
    """
    assert options.texts is not None
    made = read_made(options.texts)
    for name in options.made:
        if name in made:
            wanted = {"by": options.llm.model, "versions": options.versions}
            if STYLES[name].side == "claims":
                wanted["claims"] = claims
            for key, asked in wanted.items():
                if (there := getattr(made[name], key)) != asked:
                    why = f"its {key} is {there!r}, not {asked!r}; choose another folder of texts"
                    raise InputError.at(options.texts, field=name, why=why)
            rewrites = read_style(options.texts, STYLES[name])
            if not any(str(one.failure).startswith((NOT_ASKED, NO_REPLY)) for one in rewrites):
                continue
        config = RewriteConfig(
            out=options.texts,
            dataset=folder,
            split=dataset.split,
            versions=options.versions,
            claims=claims,
            prompt=options.prompts.get(name),
            llm=options.llm,
            answers=options.answers,
            styles=[name],
            languages=list(dataset.languages),
            lenient=True,  # the same texts: the data set is loaded already
            dry_run=dry_run,
        )
        rewrite(config)


def rewritten_text(asked: str, form: ClaimForm, dataset: Dataset) -> ClaimText:
    """Return which text of foreign claims is rewritten for claims of this form.

    Raises `ConfigError` where that form does not read the text asked for.
    """
    if asked == "auto" or why_same_forms(dataset.claims):
        return "original" if form == "original" else "translation"
    unread = {"original": "translated", "translation": "original"}[asked]
    if form == unread:
        allowed = f"another text, or another form of claims: {form} claims do not read it"
        raise ConfigError("rewritten", asked, allowed)
    return "original" if asked == "original" else "translation"


def plan_texts(
    options: StyleOptions, dataset: Dataset, folder: str, claims: ClaimText
) -> tuple[dict[str, int], list[Part]]:
    """Count the versions of each style's texts, and say which texts are there or made how."""
    options.require_texts()
    if options.llm.model:
        write_texts(options, dataset, folder, claims, dry_run=True)
    made = {} if options.texts is None else read_made(options.texts)
    versions = {CLAIM: 1, SOURCE: 1}
    rows: list[list[Cell]] = []
    for name in options.made:
        before, how = originals(dataset, STYLES[name].side, claims), "by rules"
        versions[name] = 1
        if name in made:
            versions[name], how = made[name].versions, f"there, by {made[name].by}"
        elif options.llm.model:
            versions[name], how = options.versions, f"by {options.llm.model}"
        texts = len(before)
        rows.append([name, STYLES[name].what, texts, versions[name], how])
    return versions, [TextTable(["style", "", "texts", "versions", "made"], rows)]


def quality_table(found: Mapping[ClaimText, Texts]) -> TextTable:
    """Tabulate how the texts of each style differ from their originals."""
    columns = ["style", "", "versions", "texts", "not rewritten", "form missed", "words"]
    columns += ["length", "numbers kept", "new numbers", "names kept", "similarity"]
    rows: list[list[Cell]] = []
    for claims, texts in found.items():
        several = f" of the {claims}" if len(found) > 1 else ""
        for name, one in texts.items():
            row: list[Cell] = [f"{name}{several}", STYLES[name].what, one.versions]
            row += [len(one.rewrites), one.lost, one.formless]
            kept = one.quality
            if kept is None:
                row += [None] * 6
            else:
                row += [kept.words, kept.length, kept.numbers, kept.new_numbers, kept.entities]
                row.append(kept.similarity)
            rows.append(row)
    return TextTable(columns, rows, digits=3)
