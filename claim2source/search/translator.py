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
_AT_A_TIME = min(8, os.cpu_count() or 1)
_MOST_TIMEOUTS = 3
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
        lists = self.files
        programs = self.commands
        in_both = lists.keys() & programs.keys()
        several = sorted(in_both)
        require(not several, "program", several, "none for a language that has a word list")
        has_llm = bool(self.llm.model)
        has_seq2seq = self.seq2seq.name is not None
        has_both = has_llm and has_seq2seq
        require(not has_both, "seq2seq.name", self.seq2seq.name, "none with llm.model")
        is_any = bool(lists or programs or has_llm or has_seq2seq)
        require(is_any, "words", self.words, "one of words, program, llm.model and seq2seq.name")

    @property
    def files(self) -> dict[str, Path]:
        """Map languages to the files of their word lists."""
        names = _by_language("words", self.words, "FILE")
        files: dict[str, Path] = {}
        for language, name in names.items():
            full_name = os.path.expanduser(name)
            files[language] = Path(full_name)
        return files

    @property
    def commands(self) -> dict[str, tuple[Command, ...]]:
        """Map languages to the programs that translate them; each pipes to the next one."""
        texts = _by_language("program", self.program, "COMMAND")
        commands: dict[str, tuple[Command, ...]] = {}
        for language, text in texts.items():
            try:
                commands[language] = read_pipe(text)
            except ValueError:
                allowed = "LANGUAGE=COMMAND, or programs with | between them"
                raise ConfigError("program", text, allowed) from None
        return commands

    @property
    def only_reads_words(self) -> bool:
        """Whether it needs no program, no model and no server."""
        needs_more = self.program or self.llm.model or self.seq2seq.name
        return not needs_more

    def absolute(self) -> TranslatorConfig:
        """Make paths of files and folders absolute."""
        files = self.files
        words = [f"{language}={path.resolve()}" for language, path in files.items()]
        seq2seq = self.seq2seq
        if seq2seq.name is not None:
            folder = Path(seq2seq.name)
            if folder.is_dir():
                full_name = str(folder.resolve())
                seq2seq = replace(seq2seq, name=full_name)
        return replace(self, words=words, seq2seq=seq2seq)


def _by_language(
    key: str,
    pairs: Sequence[str],
    value: str,
) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in pairs:
        language, equals, text = pair.partition("=")
        text = text.strip()
        has_both = bool(equals and text)
        is_valid = has_both and is_language_tag(language)
        require(is_valid, key, pair, f"LANGUAGE={value}, such as de={value}")
        code = primary_language(language)
        is_new = code != "en" and code not in values
        require(is_new, key, pair, "one for each language, not en")
        values[code] = text
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
            reason = file_error(file)
            if reason:
                raise InputError(file, reason=reason)
            hashes.append(file_hash(file))
        self._hash = hashes[0]
        if len(hashes) != 1:
            self._hash = content_hash(hashes)
        folder = default_root() / "words"
        cached = folder / f"{self._hash[:32]}-{FORMAT}.json"
        senses = _read_cached(cached)
        if senses is None:
            senses = read_senses(path)
            # Users without permission to write there parse the file each time.
            with suppress(OSError):
                write_json(cached, senses)
        # FreeDict's lists have no inflected forms.
        stemmer = make_language_stemmer(language) if is_dictd(path) else None
        stem = None if stemmer is None else stemmer.stemWord
        stop_words = get_stop_words(BM25(), language)
        self._words = WordList(senses, stop_words, stem)

    @property
    def made_by(self) -> Mapping[str, object]:
        return {"words": self._hash, "format": FORMAT}

    def translate(self, texts: Sequence[ForeignText]) -> list[WrittenText]:
        """Translate word by word; a text without a known word fails."""
        results: list[WrittenText] = []
        for text in texts:
            english = self._words.translate(text.text)
            if english:
                result = WrittenText(english)
            else:
                result = WrittenText(kind="failed", reason=NOT_KNOWN)
            results.append(result)
        return results


def _read_cached(path: Path) -> dict[str, str] | None:
    with suppress(OSError, ValueError):
        content = path.read_text(encoding="utf-8")
        senses = json.loads(content)
        if not isinstance(senses, dict):
            return None
        if all(map(_is_text, senses.values())):
            return senses
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


class Program:
    """Translate by programs of this machine, with a separate run for each text.

    Line breaks within a text become spaces: to many programs they end a sentence.
    """

    def __init__(self, commands: Sequence[Command], seconds: float) -> None:
        self.commands = tuple(commands)
        self.seconds = seconds
        self._stamps: list[object] = []
        for command in commands:
            name = command[0]
            path = find_program(name)
            allowed = "installed programs"
            require(path is not None, "translator.program", name, allowed)
            assert path is not None
            status = path.stat()
            stamp = [str(path), status.st_size, status.st_mtime_ns]
            self._stamps.append(stamp)
        self._timeouts = 0

    @property
    def made_by(self) -> Mapping[str, object]:
        commands = [list(command) for command in self.commands]
        return {"program": commands, "files": self._stamps}

    def translate(self, texts: Sequence[ForeignText]) -> list[WrittenText]:
        """Translate a few texts at a time; stop after several time-outs in a row."""
        self._timeouts = 0
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            results = pool.map(self._translate, texts)
            return list(results)

    def _translate(self, text: ForeignText) -> WrittenText:
        if self._timeouts >= _MOST_TIMEOUTS:
            reason = f"not asked: no answer within {self.seconds:g} s, several times"
            return WrittenText(kind="not asked", reason=reason)
        line = " ".join(text.text.split())
        try:
            output = run_pipe(self.commands, line, self.seconds)
        except ProgramError as error:
            if isinstance(error, TimedOut):
                self._timeouts = self._timeouts + 1
            else:
                self._timeouts = 0
            return WrittenText(kind="failed", reason=str(error))
        self._timeouts = 0
        english = " ".join(output.split())
        return text.judge(english)


class ServerModel:
    """Translate by a language model on a server, which must answer in time."""

    def __init__(
        self,
        config: TranslatorConfig,
        answers: AnswerStore | None,
    ) -> None:
        # No retries, because a user waits for the answer.
        timeout = min(config.llm.timeout, config.timeout)
        asked = replace(config.llm, timeout=timeout, retries=0)
        self.config = config
        self.prompt = config.prompt
        read_prompt_names(config.prompt)
        self._llm = LLM(asked, answers)

    @property
    def made_by(self) -> Mapping[str, object]:
        without_server = replace(
            self._llm.config,
            key_env=LLMConfig.key_env,
            url=LLMConfig.url,
        )
        settings = as_plain(without_server)
        return {"llm": settings, "prompt": self.prompt}

    def translate(self, texts: Sequence[ForeignText]) -> list[WrittenText]:
        """Request translations; all of them fail if there is no server."""
        tasks = translation_tasks(texts, self.prompt)
        try:
            results, _ = write_texts(self._llm, tasks, "translations")
        except UserError as error:
            reason = str(error)
            return [WrittenText(kind="failed", reason=reason) for _ in texts]
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
            if not reply.kind:
                reply = text.judge(reply.text)
            results.append(reply)
        return results


class Remembered:
    """Cache translations by content, also in a folder if one is given; failures are not cached."""

    def __init__(
        self,
        translator: Translator,
        folder: Path | None = None,
    ) -> None:
        self.translator = translator
        self._folder = folder
        self._made_by = content_hash(translator.made_by)
        self._held: OrderedDict[str, WrittenText] = OrderedDict()

    @property
    def made_by(self) -> Mapping[str, object]:
        return self.translator.made_by

    def translate(self, texts: Sequence[ForeignText]) -> list[WrittenText]:
        """Translate the distinct texts that are not in the cache."""
        keys: list[str] = []
        for text in texts:
            key = content_hash([self._made_by, text.language, text.text])
            keys.append(key)
        results: dict[str, WrittenText] = {}
        missing: dict[str, ForeignText] = {}
        for key, text in zip(keys, texts, strict=True):
            known = self._recall(key)
            if known is None:
                missing[key] = text
            else:
                results[key] = known
        if missing:
            new_texts = list(missing.values())
            new = self.translator.translate(new_texts)
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
        path = self._folder / f"{key}.json"
        with suppress(OSError, ValueError, TypeError, KeyError):
            content = path.read_text(encoding="utf-8")
            stored = json.loads(content)
            kind: Literal["", "doubtful"] = "doubtful" if stored["kind"] else ""
            english = str(stored["text"])
            result = WrittenText(english, kind, stored["reason"])
            self._hold(key, result)
            return result
        return None

    def _keep(self, key: str, result: WrittenText) -> None:
        self._hold(key, result)
        if self._folder is None:
            return
        values = {
            "text": result.text,
            "kind": result.kind,
            "reason": result.reason,
        }
        path = self._folder / f"{key}.json"
        with suppress(OSError):
            write_json(path, values)

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
    def open(
        cls,
        config: TranslatorConfig,
        store: Store | None = None,
    ) -> Translators:
        """Read word lists, and find programs and prompts; models are loaded on use.

        Translations are stored if there is a store. Raises `UserError`.
        """
        folder = None if store is None else store.root / "translations"
        by_language: dict[str, Translator] = {}
        for language, path in config.files.items():
            words = Words(path, language)
            by_language[language] = Remembered(words)
        for language, commands in config.commands.items():
            program = Program(commands, config.timeout)
            by_language[language] = Remembered(program, folder)

        other: Translator | None = None
        if config.llm.model:
            answers: AnswerStore | None = None
            if store is not None:
                answers = AnswerStore(store.root / ANSWERS)
            other = ServerModel(config, answers)
        elif config.seq2seq.name is not None:
            model = Judged(config.seq2seq)
            other = Remembered(model, folder)
        return cls(by_language, other)

    @property
    def name(self) -> str:
        """Identify the translators by a hash of all that translations depend on."""
        own = self.by_language.items()
        made_by = {language: translator.made_by for language, translator in own}
        other_made_by = self.other and self.other.made_by
        digest = content_hash([made_by, other_made_by])
        return digest[:12]

    def for_language(self, language: str) -> Translator | None:
        """Return the translator of a language; None if there is none or English needs none."""
        code = primary_language(language)
        if code == "en":
            return None
        return self.by_language.get(code, self.other)

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
            key = id(own)
            translators[key] = own
            own_positions = by_translator.setdefault(key, [])
            own_positions.append(position)

        for key, positions in by_translator.items():
            own_texts = [texts[position] for position in positions]
            own_results = translators[key].translate(own_texts)
            results |= zip(positions, own_results, strict=True)

        self.asked += len(texts)
        for result in results.values():
            if not result.text:
                self.failures[result.reason or "empty"] += 1
        return [results[position] for position in range(len(texts))]

    def translate_claims(
        self,
        claims: Sequence[Claim],
        *,
        overwrite: bool = False,
    ) -> tuple[list[Claim], set[str]]:
        """Add translations to claims of supported languages; return the ids of failed ones.

        A claim that has a translation keeps it unless `overwrite`. Failed claims have none.
        """
        texts: dict[str, ForeignText] = {}
        for claim in claims:
            if self.for_language(claim.lang) is None:
                continue
            if overwrite or not claim.translation:
                texts[claim.id] = ForeignText(claim.id, CLAIM, claim.text, claim.lang)
        foreign_texts = list(texts.values())
        translations = self.translate(foreign_texts)
        results = dict(zip(texts, translations, strict=True))

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
