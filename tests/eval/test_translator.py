"""A translator at question time, of each kind: `find`, `serve`, `evaluate` and `translate`."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from claim2source.eval import evaluate, translate

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim
from claim2source.data.folders import DEMO
from claim2source.find.finder import FinderOptions
from claim2source.find.index import IndexProgramConfig, change
from claim2source.llm import LLMConfig
from claim2source.search.engine import open_index
from claim2source.search.translator import Remembered, TranslatorConfig, Translators
from claim2source.text.quality import WrittenText
from claim2source.text.translate import ForeignText
from tests.llm_server import LLMServer
from tests.serve.servers import serving

DING = """\
# of this test
Maske {f} | Masken {pl} :: mask | masks
senken {vt} :: to cut
Ausbruch {m} | Ausbrüche {pl} :: outbreak | outbreaks
Grundschule {f} | Grundschulen {pl} :: primary school | primary schools
"""
GERMAN = "Neu: Masken senken Ausbrüche in Grundschulen"
ENGLISH = "Neu: masks cut outbreaks primary schools"


@pytest.fixture
def ding(tmp_path: Path) -> str:
    path = tmp_path / "de-en"
    path.write_text(DING, encoding="utf-8")
    return f"de={path}"


def texts(*lines: str) -> list[ForeignText]:
    return [ForeignText(str(number), "claim", line, "de") for number, line in enumerate(lines)]


def test_find_shows_the_text_that_was_searched(ask: Callable[..., str], ding: str) -> None:
    options = (GERMAN, "--lang", "de", "--translator.words", ding)
    assert f'"{ENGLISH}"' in ask(*options)
    first = json.loads(ask(*options, "--json"))[0]
    assert (first["searched"], first["untranslated"]) == (ENGLISH, False)
    assert "Masks" in first["words"]["paper"]
    (row, *_) = csv.DictReader(io.StringIO(ask(*options, "--csv")))
    assert (row["searched"], row["untranslated"]) == (ENGLISH, "false")
    plain = json.loads(ask(GERMAN, "--lang", "de", "--json"))[0]
    assert plain["searched"] == ""
    assert first["parts"]["lexical"] > plain["parts"].get("lexical", 0)


@pytest.mark.parametrize("command", ["sh -c 'exit 3'", "sleep 60", "cat", "printf '\\377'"])
def test_a_program_that_fails_leaves_the_post_and_is_counted(
    ask: Callable[..., str], command: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = ("--translator.program", f"de={command}", "--translator.timeout", "0.5")
    found = json.loads(ask(GERMAN, "--lang", "de", "--json", *options))
    plain = json.loads(ask(GERMAN, "--lang", "de", "--json"))
    assert [paper["id"] for paper in found] == [paper["id"] for paper in plain]
    assert (found[0]["searched"], found[0]["untranslated"]) == ("", True)
    assert "1 of 1" in caplog.text


def test_after_several_time_outs_no_more_programs_are_begun() -> None:
    translators = Translators.open(TranslatorConfig(program=["de=sleep 60"], timeout=0.2))
    results = translators.translate(texts(*(f"Text {number}" for number in range(40))))
    kinds = {result.kind for result in results}
    assert kinds == {"failed", "not asked"}
    assert translators.failures.total() == 40


def test_a_server_translates_and_what_it_is_gone_for_is_read_as_it_is(
    llm_server: Callable[..., LLMServer],
) -> None:
    server = llm_server(lambda chat: ENGLISH)
    llm = LLMConfig(model="m", url=server.url)
    translators = Translators.open(TranslatorConfig(llm=llm, timeout=5))
    (result,) = translators.translate(texts(GERMAN))
    assert result.text == ENGLISH
    gone = LLMConfig(model="m", url="http://127.0.0.1:9")
    translators = Translators.open(TranslatorConfig(llm=gone, timeout=1))
    claims, failed = translators.translate_claims([Claim("0", GERMAN, "de")])
    assert (claims[0].translation, failed) == (None, {"0"})
    assert translators.failures.total() == 1


def test_translations_are_remembered_by_content(tmp_path: Path) -> None:
    asked: list[str] = []

    class Fake:
        made_by = {"fake": 1}

        def translate(self, foreign: list[ForeignText]) -> list[WrittenText]:
            asked.extend(text.text for text in foreign)
            return [WrittenText(text.text.upper()) for text in foreign]

    for _ in range(2):
        remembered = Remembered(Fake(), tmp_path)
        results = remembered.translate(texts("a", "b", "a"))
        assert [result.text for result in results] == ["A", "B", "A"]
    assert asked == ["a", "b"]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"words": ["x"]},
        {"words": ["en=x"]},
        {"words": ["de=x", "ger=y"]},
        {"words": ["de=x"], "program": ["de=cat"]},
        {"program": ["de=cat |"]},
    ],
)
def test_settings_that_mean_nothing_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TranslatorConfig(**keys)


def test_what_is_not_there_is_refused_before_the_work(tmp_path: Path) -> None:
    for config in (
        TranslatorConfig(words=[f"de={tmp_path}/none"]),
        TranslatorConfig(program=["de=no-such-program"]),
    ):
        with pytest.raises(UserError):
            Translators.open(config)


def test_an_index_names_a_translator_and_its_programs_are_allowed_by_the_user(
    index: str, ding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "mine"))
    copy = str(tmp_path / "index")
    shutil.copytree(index, copy)
    named = TranslatorConfig(words=[ding], program=["fr=cat"])
    change(IndexProgramConfig(copy, translator=named), [], None)
    engine = open_index(copy)
    options = FinderOptions(index=[copy])
    assert options.open_translators(engine, None) is not None
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another's"))
    with pytest.raises(UserError):
        options.open_translators(engine, None)
    assert FinderOptions(index=[copy], translate=False).open_translators(engine, None) is None
    assert FinderOptions(index=[copy], translator=named).open_translators(engine, None) is not None
    # A word list runs nothing.
    change(IndexProgramConfig(copy, translator=TranslatorConfig(words=[ding])), [], None)
    assert options.open_translators(open_index(copy), None) is not None
    change(IndexProgramConfig(copy, drop_translator=True), [], None)
    assert options.open_translators(open_index(copy), None) is None


def test_the_server_shows_what_it_searched_and_takes_no_translator_of_a_request(
    index: str, ding: str
) -> None:
    config = TranslatorConfig(words=[ding], program=["fr=sh -c 'exit 3'"])
    options = FinderOptions(index=[index], translator=config)
    finder = options.open_finder(open_index(index), None)
    with serving(finder) as address, httpx.Client(base_url=address) as client:
        question = {"post": GERMAN, "lang": "de"}
        answer = client.post("/api/v1/find", json=question).json()
        assert answer["searched"] == answer["papers"][0]["searched"] == ENGLISH
        page = client.get("/", params=question).text
        assert ENGLISH in page
        failed = client.post("/api/v1/find", json={"post": GERMAN, "lang": "fr"}).json()
        assert failed["untranslated"]
        assert client.get("/health").json()["untranslated"] == 1
        refused = client.post("/api/v1/find", json={**question, "translator": "de=cat"})
        assert refused.status_code == 422


def test_evaluate_reads_the_translators_english(tmp_path: Path, ding: str) -> None:
    systems = tmp_path / "bm25.yaml"
    systems.write_text("BM25: {retrieve: {bm25: {}}}\n", encoding="utf-8")
    words = ["--systems", str(systems), "--claims", "translated", "--no_tests"]
    words += ["--translator.words", ding, "--store", str(tmp_path / "store")]
    evaluate.main([*words, "--out", str(tmp_path / "out")])
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert any(note.startswith("Translator") for note in report["notes"])


def test_translate_writes_the_word_lists_english(tmp_path: Path, ding: str) -> None:
    out = tmp_path / "out"
    words = ["--dataset", str(DEMO), "--out", str(out), "--overwrite", "--languages", "de"]
    translate.main([*words, "--translator.words", ding])
    changed = 0
    before = (DEMO / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    after = (out / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    for old, new in zip(before, after, strict=True):
        changed += json.loads(old) != json.loads(new)
    assert changed
