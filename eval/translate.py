"""Translate a data set's claims to English: `python eval/translate.py --dataset DIR`.

The translations stand in `metadata.translation` of queries.jsonl. What has one is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from claim2source.core.config import flag, list_field, read_config
from claim2source.core.errors import ConfigError, UserError, run_program
from claim2source.core.files import require_writable, write_json
from claim2source.core.records import sorted_languages
from claim2source.core.terminal import say
from claim2source.datasets import folder_of, load
from claim2source.datasets.beir import DEMO, QUERIES, check_folders
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
from claim2source.models.seq2seq import Seq2SeqConfig
from claim2source.text.language import language_name
from claim2source.text.prompts import Prompt, read_prompt
from claim2source.text.translate import (
    CLAIM,
    ForeignText,
    foreign_claims,
    foreign_sources,
    whole_sources,
    write_translations,
)

AUTO, SCIENTIFIC, GERMAN = "auto", "translate_scientific", "translate_german"
SHOWN = 10


@dataclass(frozen=True)
class TranslateConfig(ModelOptions):
    """Settings of `eval/translate.py`.

    Args:
        dataset: folder in BEIR layout.
        out: folder for a translated copy; none: the data set itself gets the translations.
        split: translate the claims of this split only; none: all.
        prompt: a prompt's name (translate_generic, translate_scientific, translate_german) or a
            YAML file; auto: German by its own prompt, other languages by the scientific one.
        llm: the language model and how it is asked.
        seq2seq: a translation model that runs here, in place of a language model.
        answers: file of stored answers, from which a run goes on; none: in the user's store.
        report: JSON file that gets what failed or is doubtful, all of it.
    """

    dataset: str
    out: Path | None = None
    split: str | None = None
    prompt: str = AUTO
    llm: LLMConfig = field(default_factory=LLMConfig)
    seq2seq: Seq2SeqConfig = field(default_factory=Seq2SeqConfig)
    answers: Path | None = None
    report: Path | None = None
    languages: list[str] | None = list_field(help="translate only these languages")
    sources: bool = flag("translate sources that are not English, too; their language is detected")
    strict: bool = flag("leave out translations that lost a number, percentage, @name or #name")
    overwrite: bool = flag("replace existing translations too")
    dry_run: bool = flag("count requests and estimate tokens; nothing is asked or written")

    def check(self) -> None:
        for language in self.languages or ():
            if language.partition("-")[0] == "en":
                raise ConfigError("languages", language, "languages other than English")


@dataclass(frozen=True)
class TranslatedText:
    """Hold the outcome of one text: English, and the reason why it is doubtful or missing."""

    text: ForeignText
    english: str = ""
    kind: Literal["", "failed", "doubtful", "not asked"] = ""
    why: str = ""


def main(argv: Sequence[str] | None = None) -> None:
    """Translate; print the counts of translations and failures."""
    translate(read_config(TranslateConfig, argv, program="eval/translate.py", description=__doc__))


@with_local_models
def translate(config: TranslateConfig) -> None:
    """Translate and write; raise `UserError` last where texts were left over."""
    folder = _checked_folder(config)
    ids = None
    if config.split is not None:
        ids = {claim.id for claim in load(folder, config.split, lenient=True).claims}
    texts = foreign_claims(folder, config.languages, ids, overwrite=config.overwrite)
    if config.sources:
        texts += foreign_sources(folder, config.languages, overwrite=config.overwrite)
    if not texts:
        say(f"{folder}: nothing to translate: all texts in other languages have a translation")
        if config.out is not None and not config.dry_run:
            _write(config, folder, [])
        return
    for line in _count_lines(texts):
        say(line)
    if config.seq2seq.name is not None:
        if config.dry_run:
            return
        results, answers = _by_seq2seq(texts, config.seq2seq), []
    else:
        with AnswerStore(config.answers or default_answers()) as store:
            llm = LLM(config.llm, store)
            requests = _requests(texts, config.prompt)
            if config.dry_run:
                say(str(llm.plan(requests)))
                return
            answers = _ask(llm, texts, requests)
            results = [_classify(*pair) for pair in zip(texts, answers, strict=True)]
    _write(config, folder, results)
    require_answers(answers, "texts")


def _checked_folder(config: TranslateConfig) -> Path:
    if config.out is not None:
        require_writable(config.out, "folder")
    folder = folder_of(config.dataset)
    if config.out is None:
        if folder.resolve() == DEMO.resolve():
            raise ConfigError("out", None, "a folder: the packaged demo set is not changed")
        require_writable(folder / QUERIES, "file")
    else:
        check_folders(folder, config.out)
    if config.report is not None:
        require_writable(config.report, "file")
        if config.report.resolve().is_relative_to((config.out or folder).resolve()):
            raise UserError(f"{config.report}: lies in the data set; choose another --report")
    return folder


def _requests(texts: Sequence[ForeignText], prompt: str) -> list[Request]:
    names = (GERMAN, SCIENTIFIC) if prompt == AUTO else (prompt, prompt)
    german, other = map(read_prompt, names)

    def request(text: ForeignText) -> Request:
        chosen: Prompt = german if text.language.partition("-")[0] == "de" else other
        values = {"text": text.text, "language": language_name(text.language)}
        return Request(text.name, chosen.messages(values), f"{chosen.name} {chosen.version}")

    return [request(text) for text in texts]


def _ask(llm: LLM, texts: Sequence[ForeignText], requests: Sequence[Request]) -> list[Answer]:
    by_name = {text.name: text for text in texts}

    def check(request: Request, answer: Answer) -> str | None:
        text = by_name[request.id]
        return text.why_bad(answer.text) or text.why_doubtful(answer.text)

    return llm.answer(requests, check, "translations")


def _classify(text: ForeignText, answer: Answer) -> TranslatedText:
    if answer.failure is None:
        return TranslatedText(text, answer.text)
    if not answer.is_asked:
        return TranslatedText(text, kind="not asked", why=answer.failure)
    # The check found nothing but lost facts: it is a translation still.
    if answer.text and text.why_bad(answer.text) is None:
        if answer.failure == text.why_doubtful(answer.text):
            return TranslatedText(text, answer.text, "doubtful", answer.failure)
    return TranslatedText(text, kind="failed", why=answer.failure)


def _by_seq2seq(texts: Sequence[ForeignText], config: Seq2SeqConfig) -> list[TranslatedText]:
    from claim2source.models.seq2seq import translations

    results = []
    for text, reply in zip(texts, translations(config, texts), strict=True):
        bad = reply.why or text.why_bad(reply.text)
        doubt = None if bad else text.why_doubtful(reply.text)
        kind: Literal["", "failed", "doubtful"] = "failed" if bad else "doubtful" if doubt else ""
        results.append(TranslatedText(text, "" if bad else reply.text, kind, bad or doubt or ""))
    return results


def _write(config: TranslateConfig, folder: Path, results: Sequence[TranslatedText]) -> None:
    texts = [result.text for result in results]
    english = {
        (result.text.id, result.text.part): result.english
        for result in results
        if result.english and not (config.strict and result.kind == "doubtful")
    }
    english = whole_sources(texts, english)
    languages = {text.id: text.language for text in texts if text.part != CLAIM}
    if english or config.out is not None:
        write_translations(folder, english, languages, config.out)
    target = config.out or folder
    say(f"{target}: {len(english)} of {len(texts)} texts have a new translation")
    for kind in ("doubtful", "failed", "not asked"):
        some = [result for result in results if result.kind == kind]
        if some:
            left = ", left out" if kind == "doubtful" and config.strict else ""
            say(f"{len(some)} {kind}{left}:")
        for result in some[:SHOWN]:
            say(f"  {result.text.name}: {result.why}")
        if len(some) > SHOWN:
            say(f"  and {len(some) - SHOWN} more{'' if config.report else '; see --report FILE'}")
    if config.report is not None:
        write_json(config.report, _report(results))


def _report(results: Sequence[TranslatedText]) -> Mapping[str, object]:
    kinds = Counter(result.kind or "good" for result in results)
    problems = [
        {
            "_id": result.text.id,
            "part": result.text.part,
            "kind": result.kind,
            "why": result.why,
            "text": result.text.text,
            "translation": result.english,
        }
        for result in results
        if result.kind
    ]
    return {"texts": len(results), "counts": dict(kinds), "problems": problems}


def _count_lines(texts: Sequence[ForeignText]) -> list[str]:
    lines = []
    for what, chosen in (
        ("claims", [text for text in texts if text.part == CLAIM]),
        ("titles and abstracts of sources", [text for text in texts if text.part != CLAIM]),
    ):
        counts = Counter(text.language for text in chosen)
        parts = ", ".join(f"{lang} {counts[lang]}" for lang in sorted_languages(counts))
        lines += [f"{len(chosen)} {what} to translate ({parts})"] if chosen else []
    return lines


if __name__ == "__main__":
    run_program(main)
