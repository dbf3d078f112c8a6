"""Translate posts at search time: by a word list, a local program or a model.

Each translator translates texts of some languages to English. If it fails for a text, the original
is searched.
"""

from __future__ import annotations

import json
import os
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, Protocol

from claim2source.core.config import Between, Settings, as_plain, list_field, require
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.files import content_hash, file_error, file_hash, write_json
from claim2source.core.languages import is_language_tag, primary_language
from claim2source.core.pipes import (
    Command,
    ProgramError,
    TimedOut,
    find_program,
    read_pipe,
    run_pipe,
)
from claim2source.core.records import Claim
from claim2source.data.store import Store, default_root
from claim2source.llm import LLM, AnswerStore, LLMConfig
from claim2source.llm.answers import ANSWERS
from claim2source.llm.texts import AUTO, translation_tasks, write_texts
from claim2source.models.seq2seq import Seq2SeqConfig, Seq2SeqTranslator
from claim2source.search.bm25 import BM25, get_stop_words, make_language_stemmer
from claim2source.text.dictd import dictd_files, is_dictd
from claim2source.text.prompts import read_prompt
from claim2source.text.quality import WrittenText
from claim2source.text.translate import CLAIM, ForeignText
from claim2source.text.word_list import FORMAT, WordList, read_senses

# Translations that are cached.
_HELD = 10_000
# Programs that run at a time, and time-outs in a row after which no more are started for a call.
_AT_A_TIME, _MOST_TIMEOUTS = min(8, os.cpu_count() or 1), 3
NOT_KNOWN = "no word is in the word list"


@dataclass(frozen=True)
class TranslatorConfig(Settings):
    """Set the translators of posts in other languages than English.

    A language's word list or program is preferred to the model, which translates all other
    languages. Posts that have a translation keep it.

    Args:
        prompt: the language model's prompt: a name or a YAML file; auto: that of `translate`.
        timeout: maximal seconds of a program or request for a post.
        llm: a language model on a server.
        seq2seq: a local translation model.
    """

    words: list[str] = list_field(
        [],
        help="word lists in Ding's or FreeDict's format: LANGUAGE=FILE, such as "
        "de=/usr/share/trans/de-en or fr=/usr/share/dictd/freedict-fra-eng.index",
    )
    program: list[str] = list_field(
        [],
        help="local programs with text on stdin and English on stdout, run without a shell: "
        "LANGUAGE=COMMAND, such as 'fr=apertium -u fra-cat | apertium -u cat-eng'",
    )
    prompt: str = AUTO
    timeout: Annotated[float, Between(0.1, 3_600)] = 20.0
    llm: LLMConfig = field(default_factory=LLMConfig)
    seq2seq: Seq2SeqConfig = field(default_factory=Seq2SeqConfig)

    def check(self) -> None:
        lists, programs = self.files, self.commands
        several = sorted(lists.keys() & programs.keys())
        require(not several, "program", several, "none for a language that has a word list")
        models = bool(self.llm.model) + (self.seq2seq.name is not None)
        require(models < 2, "seq2seq.name", self.seq2seq.name, "none with llm.model")
        is_any = bool(lists or programs or models)
        require(is_any, "words", self.words, "one of words, program, llm.model and seq2seq.name")

    @property
    def files(self) -> dict[str, Path]:
        """Map languages to the files of their word lists."""
        files: dict[str, Path] = {}
        for language, name in _by_language("words", self.words, "FILE").items():
            files[language] = Path(os.path.expanduser(name))
        return files

    @property
    def commands(self) -> dict[str, tuple[Command, ...]]:
        """Map languages to the programs that translate them; each pipes to the next one."""
        commands: dict[str, tuple[Command, ...]] = {}
        for language, text in _by_language("program", self.program, "COMMAND").items():
            try:
                commands[language] = read_pipe(text)
            except ValueError:
                allowed = "LANGUAGE=COMMAND, or programs with | between them"
                raise ConfigError("program", text, allowed) from None
        return commands

    @property
    def only_reads_words(self) -> bool:
        """Whether it needs no program, no model and no server."""
        return not (self.program or self.llm.model or self.seq2seq.name)

    def absolute(self) -> TranslatorConfig:
        """Make paths of files and folders absolute."""
        words = [f"{language}={path.resolve()}" for language, path in self.files.items()]
        seq2seq = self.seq2seq
        if seq2seq.name is not None and Path(seq2seq.name).is_dir():
            seq2seq = replace(seq2seq, name=str(Path(seq2seq.name).resolve()))
        return replace(self, words=words, seq2seq=seq2seq)


def _by_language(key: str, pairs: Sequence[str], value: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in pairs:
        language, equals, text = pair.partition("=")
        good = bool(equals and text.strip()) and is_language_tag(language)
        require(good, key, pair, f"LANGUAGE={value}, such as de={value}")
        code = primary_language(language)
        require(code != "en" and code not in values, key, pair, "one for each language, not en")
        values[code] = text.strip()
    return values


class Translator(Protocol):
    """Translate texts of supported languages to English."""

    @property
    def made_by(self) -> Mapping[str, object]:
        """Return all that a translation depends on besides its text, as JSON values."""
        ...

    def translate(self, texts: Sequence[ForeignText]) -> list[WrittenText]:
        """Translate texts, in their order; a failed one has the reason."""
        ...


class Words:
    """Translate by a word list of one language, in Ding's or FreeDict's format.

    The parsed file is stored in the user's cache, because parsing takes seconds.
    """

    def __init__(self, path: Path, language: str) -> None:
        files = dictd_files(path) if is_dictd(path) else (path,)
        hashes = []
        for file in files:
            if reason := file_error(file):
                raise InputError(file, reason=reason)
            hashes.append(file_hash(file))
        self._hash = hashes[0] if len(hashes) == 1 else content_hash(hashes)
        cached = default_root() / "words" / f"{self._hash[:32]}-{FORMAT}.json"
        senses = _read_cached(cached)
        if senses is None:
            senses = read_senses(path)
            # Users without permission to write there parse the file each time.
            with suppress(OSError):
                write_json(cached, senses)
        # FreeDict's lists have no inflected forms.
        stemmer = make_language_stemmer(language) if is_dictd(path) else None
        stem = None if stemmer is None else stemmer.stemWord
        self._words = WordList(senses, get_stop_words(BM25(), language), stem)

    @property
    def made_by(self) -> Mapping[str, object]:
        return {"words": self._hash, "format": FORMAT}

    def translate(self, texts: Sequence[ForeignText]) -> list[WrittenText]:
        """Translate word by word; a text without a known word fails."""
        results: list[WrittenText] = []
        for text in texts:
            english = self._words.translate(text.text)
            if english:
                results.append(WrittenText(english))
            else:
                results.append(WrittenText(kind="failed", reason=NOT_KNOWN))
        return results


def _read_cached(path: Path) -> dict[str, str] | None:
    with suppress(OSError, ValueError):
        senses = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(senses, dict) and all(map(_is_text, senses.values())):
            return senses
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


class Program:
    """Translate by programs of this machine, with a separate run for each text.

    Line breaks within a text become spaces: to many programs they end a sentence.
    """

    def __init__(self, commands: Sequence[Command], seconds: float) -> None:
        self.commands, self.seconds = tuple(commands), seconds
        self._stamps: list[object] = []
        for command in commands:
            path = find_program(command[0])
            allowed = "installed programs"
            require(path is not None, "translator.program", command[0], allowed)
            assert path is not None
            status = path.stat()
            self._stamps.append([str(path), status.st_size, status.st_mtime_ns])
        self._timeouts = 0

    @property
    def made_by(self) -> Mapping[str, object]:
        return {"program": [list(command) for command in self.commands], "files": self._stamps}

    def translate(self, texts: Sequence[ForeignText]) -> list[WrittenText]:
        """Translate a few texts at a time; stop after several time-outs in a row."""
        self._timeouts = 0
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            return list(pool.map(self._translate, texts))

    def _translate(self, text: ForeignText) -> WrittenText:
        if self._timeouts >= _MOST_TIMEOUTS:
            reason = f"not asked: no answer within {self.seconds:g} s, several times"
            return WrittenText(kind="not asked", reason=reason)
        try:
            output = run_pipe(self.commands, " ".join(text.text.split()), self.seconds)
        except ProgramError as error:
            self._timeouts = self._timeouts + 1 if isinstance(error, TimedOut) else 0
            return WrittenText(kind="failed", reason=str(error))
        self._timeouts = 0
        return text.judge(" ".join(output.split()))


class ServerModel:
    """Translate by a language model on a server, which must answer in time."""

    def __init__(self, config: TranslatorConfig, answers: AnswerStore | None) -> None:
        # No retries, because a user waits for the answer.
        asked = replace(config.llm, timeout=min(config.llm.timeout, config.timeout), retries=0)
        self.config, self.prompt = config, config.prompt
        read_prompt_names(config.prompt)
        self._llm = LLM(asked, answers)

    @property
    def made_by(self) -> Mapping[str, object]:
        llm = self._llm.config
        settings = as_plain(replace(llm, key_env=LLMConfig.key_env, url=LLMConfig.url))
        return {"llm": settings, "prompt": self.prompt}

    def translate(self, texts: Sequence[ForeignText]) -> list[WrittenText]:
        """Request translations; all of them fail if there is no server."""
        tasks = translation_tasks(texts, self.prompt)
        try:
            results, _ = write_texts(self._llm, tasks, "translations")
        except UserError as error:
            return [WrittenText(kind="failed", reason=str(error)) for _ in texts]
        return results


def read_prompt_names(prompt: str) -> None:
    """Raise `UserError` if a prompt cannot be read, before any post is read."""
    if prompt != AUTO:
        read_prompt(prompt)


class Judged:
    """Translate by a local model, and check its output."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        self._model = Seq2SeqTranslator(config)

    @property
    def made_by(self) -> Mapping[str, object]:
        return self._model.made_by

    def translate(self, texts: Sequence[ForeignText]) -> list[WrittenText]:
        """Translate texts. Raises `UserError` if a language's model cannot be loaded."""
        results: list[WrittenText] = []
        replies = self._model.translate(texts, progress=False)
        for text, reply in zip(texts, replies, strict=True):
            results.append(reply if reply.kind else text.judge(reply.text))
        return results


class Remembered:
    """Cache translations by content, also in a folder if one is given; failures are not cached."""

    def __init__(self, translator: Translator, folder: Path | None = None) -> None:
        self.translator = translator
        self._folder = folder
        self._made_by = content_hash(translator.made_by)
        self._held: OrderedDict[str, WrittenText] = OrderedDict()

    @property
    def made_by(self) -> Mapping[str, object]:
        return self.translator.made_by

    def translate(self, texts: Sequence[ForeignText]) -> list[WrittenText]:
        """Translate the distinct texts that are not in the cache."""
        keys = [content_hash([self._made_by, text.language, text.text]) for text in texts]
        results: dict[str, WrittenText] = {}
        missing: dict[str, ForeignText] = {}
        for key, text in zip(keys, texts, strict=True):
            known = self._recall(key)
            if known is None:
                missing[key] = text
            else:
                results[key] = known
        if missing:
            new = self.translator.translate(list(missing.values()))
            for key, result in zip(missing, new, strict=True):
                results[key] = result
                if result.text:
                    self._keep(key, result)
        return [results[key] for key in keys]

    def _recall(self, key: str) -> WrittenText | None:
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        if self._folder is None:
            return None
        with suppress(OSError, ValueError, TypeError, KeyError):
            stored = json.loads((self._folder / f"{key}.json").read_text(encoding="utf-8"))
            kind: Literal["", "doubtful"] = "doubtful" if stored["kind"] else ""
            result = WrittenText(str(stored["text"]), kind, stored["reason"])
            self._hold(key, result)
            return result
        return None

    def _keep(self, key: str, result: WrittenText) -> None:
        self._hold(key, result)
        if self._folder is not None:
            values = {"text": result.text, "kind": result.kind, "reason": result.reason}
            with suppress(OSError):
                write_json(self._folder / f"{key}.json", values)

    def _hold(self, key: str, result: WrittenText) -> None:
        self._held[key] = result
        if len(self._held) > _HELD:
            self._held.popitem(last=False)


@dataclass
class Translators:
    """Translate claims by the translators of their languages; `failures` counts reasons.

    `other` has the languages that are not in `by_language`. The reasons may quote a program.
    """

    by_language: Mapping[str, Translator]
    other: Translator | None = None
    failures: Counter[str] = field(default_factory=Counter)
    asked: int = 0

    @classmethod
    def open(cls, config: TranslatorConfig, store: Store | None = None) -> Translators:
        """Read word lists, and find programs and prompts; models are loaded on use.

        Translations are stored if there is a store. Raises `UserError`.
        """
        folder = None if store is None else store.root / "translations"
        by_language: dict[str, Translator] = {}
        for language, path in config.files.items():
            by_language[language] = Remembered(Words(path, language))
        for language, commands in config.commands.items():
            by_language[language] = Remembered(Program(commands, config.timeout), folder)
        other: Translator | None = None
        if config.llm.model:
            answers = None if store is None else AnswerStore(store.root / ANSWERS)
            other = ServerModel(config, answers)
        elif config.seq2seq.name is not None:
            other = Remembered(Judged(config.seq2seq), folder)
        return cls(by_language, other)

    @property
    def name(self) -> str:
        """Identify the translators by a hash of all that translations depend on."""
        made_by = {language: own.made_by for language, own in self.by_language.items()}
        return content_hash([made_by, self.other and self.other.made_by])[:12]

    def for_language(self, language: str) -> Translator | None:
        """Return the translator of a language; None if there is none or English needs none."""
        code = primary_language(language)
        return None if code == "en" else self.by_language.get(code, self.other)

    def translate(self, texts: Sequence[ForeignText]) -> list[WrittenText]:
        """Translate texts, in their order; texts of a language without a translator fail."""
        by_translator: dict[int, list[int]] = {}
        translators: dict[int, Translator] = {}
        results: dict[int, WrittenText] = {}
        for position, text in enumerate(texts):
            own = self.for_language(text.language)
            if own is None:
                reason = f"no translator for {text.language}"
                results[position] = WrittenText(kind="failed", reason=reason)
                continue
            translators[id(own)] = own
            by_translator.setdefault(id(own), []).append(position)
        for key, positions in by_translator.items():
            own_texts = [texts[position] for position in positions]
            results |= zip(positions, translators[key].translate(own_texts), strict=True)
        self.asked += len(texts)
        for result in results.values():
            if not result.text:
                self.failures[result.reason or "empty"] += 1
        return [results[position] for position in range(len(texts))]

    def translate_claims(
        self, claims: Sequence[Claim], *, overwrite: bool = False
    ) -> tuple[list[Claim], set[str]]:
        """Add translations to claims of supported languages; return the ids of failed ones.

        A claim that has a translation keeps it unless `overwrite`. Failed claims have none.
        """
        texts: dict[str, ForeignText] = {}
        for claim in claims:
            if self.for_language(claim.lang) is not None and (overwrite or not claim.translation):
                texts[claim.id] = ForeignText(claim.id, CLAIM, claim.text, claim.lang)
        results = dict(zip(texts, self.translate(list(texts.values())), strict=True))
        translated: list[Claim] = []
        failed: set[str] = set()
        for claim in claims:
            if claim.id in results:
                text = results[claim.id].text
                claim = replace(claim, translation=text or None)
                if not text:
                    failed.add(claim.id)
            translated.append(claim)
        return translated, failed

    def summary(self, *, quotes: bool = True) -> str:
        """Count the posts that were not translated, with the reasons; "" if there are none.

        Without `quotes` it has no output of programs, which may contain a post.
        """
        failed = self.failures.total()
        if not failed:
            return ""
        reasons: list[str] = []
        for reason, count in self.failures.most_common(3):
            if not quotes:
                reason = reason.partition(": ")[0]
            reasons.append(f"{reason} ({count})")
        return (
            f"{failed} of {self.asked} posts were not translated, so the originals are used: "
            f"{'; '.join(reasons)}"
        )
