"""Translate a data set's claims to English: `python eval/translate.py --dataset DIR`.

Translations are written to `metadata.translation` of queries.jsonl. Existing ones are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from claim2source.core.config import flag, list_field, read_config, require
from claim2source.core.errors import ConfigError, run_program
from claim2source.core.files import write_json
from claim2source.core.languages import is_in_language, primary_language
from claim2source.core.records import sorted_languages
from claim2source.core.run import Thinking
from claim2source.core.terminal import say
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.llm import LLM, AnswerStore, LLMConfig, default_answers, require_answers
from claim2source.llm.texts import AUTO, translation_tasks, write_texts
from claim2source.llm.work import count_thinking
from claim2source.models.local import ModelOptions, with_local_models
from claim2source.models.seq2seq import Seq2SeqConfig, translations
from claim2source.search.translator import TranslatorConfig, Translators
from claim2source.text.quality import first_lines
from claim2source.text.translate import (
    ForeignText,
    Translated,
    count_lines,
    foreign_claims,
    foreign_sources,
    put_translations,
    require_translatable,
    translation_report,
)

MAX_LINES = 10


# The keys that people need first.
COMMON = (
    "dataset",
    "out",
    "split",
    "llm.model",
    "llm.url",
    "seq2seq.name",
    "translator",
    "languages",
    "sources",
    "dry_run",
)


@dataclass(frozen=True)
class TranslateConfig(ModelOptions):
    """Settings of `eval/translate.py`.

    Args:
        dataset: folder in BEIR layout.
        out: folder for a translated copy; none: the data set itself gets the translations.
        split: translate only the claims of this split; none: all.
        prompt: a prompt's name (translate_generic, translate_scientific, translate_german) or a
            YAML file; auto: German by its own prompt, other languages by the scientific one.
        llm: the language model and its requests.
        seq2seq: a local translation model, instead of a language model.
        translator: word lists, local programs or a model, as in `find`, instead of llm.
        answers: file of stored answers, from which a run resumes; none: in the user's store.
        report: JSON file for the full list of failed and doubtful translations.
    """

    dataset: str
    out: Path | None = None
    split: str | None = None
    prompt: str = AUTO
    llm: LLMConfig = field(default_factory=LLMConfig)
    seq2seq: Seq2SeqConfig = field(default_factory=Seq2SeqConfig)
    translator: TranslatorConfig | None = None
    answers: Path | None = None
    report: Path | None = None
    languages: list[str] | None = list_field(help="translate only these languages")
    sources: bool = flag("also translate sources that are not English, by detected language")
    strict: bool = flag("skip translations that lost a number, percentage, @name or #name")
    overwrite: bool = flag("also replace existing translations")
    dry_run: bool = flag("count requests and estimate tokens; send and write nothing")

    def check(self) -> None:
        is_one = self.translator is None or not (self.llm.model or self.seq2seq.name)
        require(is_one, "translator", "", "none with llm.model or seq2seq.name")
        for language in self.languages or ():
            if primary_language(language) == "en":
                raise ConfigError("languages", language, "languages other than English")


def main(argv: Sequence[str] | None = None) -> None:
    """Translate the texts; print the counts of translations and failures."""
    config = read_config(
        TranslateConfig, argv, program="eval/translate.py", description=__doc__, common=COMMON
    )
    translate(config)


@with_local_models
def translate(config: TranslateConfig) -> None:
    """Translate the texts and write them; raise `UserError` at the end if some failed."""
    folder = require_translatable(config.dataset, config.out, config.report)
    ids = None
    if config.split is not None:
        ids = {claim.id for claim in load(folder, config.split, lenient=True).claims}
    if config.languages and not config.sources:
        _require_languages(config.languages, folder)
    texts = foreign_claims(folder, config.languages, ids, overwrite=config.overwrite)
    if config.sources:
        texts += foreign_sources(folder, config.languages, overwrite=config.overwrite)
    for line in count_lines(texts):
        say(line)
    if not texts:
        say(f"{folder}: nothing to translate: the texts are English or have a translation")
        if config.out is not None and not config.dry_run:
            write(config, folder, [])
    elif config.translator is not None:
        translators = Translators.open(config.translator, Store())
        if not config.dry_run:
            results = translators.translate(texts)
            write(config, folder, list(zip(texts, results, strict=True)))
    elif config.seq2seq.name is None:
        _ask(config, folder, texts)
    elif not config.dry_run:
        judged = []
        for text, reply in zip(texts, translations(config.seq2seq, texts), strict=True):
            judged.append((text, reply if reply.kind else text.judge(reply.text)))
        write(config, folder, judged)


def _require_languages(languages: Sequence[str], folder: Path) -> None:
    """Raise `ConfigError` for a language that no claim has, if there are foreign claims."""
    present = {text.language for text in foreign_claims(folder, overwrite=True)}
    if not present:
        return
    for language in languages:
        is_there = any(is_in_language(tag, language) for tag in present)
        require(is_there, "languages", language, sorted_languages(present))


def _ask(config: TranslateConfig, folder: Path, texts: Sequence[ForeignText]) -> None:
    """Translate by a language model and write; `UserError` at the end if texts have no answer."""
    tasks = translation_tasks(texts, config.prompt)
    with AnswerStore(config.answers or default_answers()) as store:
        llm = LLM(config.llm, store)
        if config.dry_run:
            say(str(llm.plan([task.request for task in tasks])))
            return
        results, answers = write_texts(llm, tasks, "translations")
    thinking = count_thinking(answers)
    write(config, folder, list(zip(texts, results, strict=True)), thinking)
    require_answers(answers, "texts")


def write(
    config: TranslateConfig,
    folder: Path,
    results: Sequence[Translated],
    thinking: Sequence[Thinking] = (),
) -> None:
    """Write translations; print the outcome, and report it to a file.

    `thinking` describes the thinking settings that were sent, and how many replies reasoned.
    """
    results = put_translations(folder, results, config.out, strict=config.strict)
    kinds = Counter(reply.kind for _, reply in results)
    count = kinds[""] + (0 if config.strict else kinds["doubtful"])
    say(f"{config.out or folder}: {count} of {len(results)} texts have a new translation")
    for kind in ("doubtful", "failed", "not asked", "left out"):
        lines = [f"{text.name}: {reply.reason}" for text, reply in results if reply.kind == kind]
        if lines:
            left = ", left out" if kind == "doubtful" and config.strict else ""
            say(f"{len(lines)} {kind}{left}:")
        for line in first_lines(lines, MAX_LINES, "" if config.report else "; see --report FILE"):
            say(line)
    if config.report is not None:
        report = translation_report(results)
        report["thinking"] = [asdict(count) for count in thinking]
        write_json(config.report, report)


if __name__ == "__main__":
    run_program(main)
