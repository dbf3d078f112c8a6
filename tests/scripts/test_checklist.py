"""`scripts/checklist.py`: what reports record about their making, and what they lack."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import claim2source as c2s
from claim2source.core.costs import SystemCost
from claim2source.core.errors import run_program
from claim2source.core.report import Report, SystemReport, TrainingReport
from claim2source.data.store import Store
from claim2source.systems.system import RunSettings
from claim2source.text.prompts import PROMPTS, read_prompt
from scripts.checklist import NOT_RECORDED, checklist, main
from tests.llm_server import Chat, LLMServer
from tests.llm_server import verifiers as play


def sections(text: str) -> dict[str, list[list[str]]]:
    """The cells of every section's table, without its header."""
    tables = {}
    for part in text.split("\n## ")[1:]:
        title, *lines = part.splitlines()
        rows = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in lines if line[:1] == "|"]
        tables[title] = rows[2:]
    return tables


def answers(text: str) -> dict[str, str]:
    """The answer to every item."""
    return dict(re.findall(r"^\| (.+?) \| (.+?) \|$", text.partition("\n## ")[0], re.MULTILINE))


@pytest.fixture
def evaluation(llm_server: Callable[..., LLMServer], tmp_path: Path) -> tuple[Path, LLMServer]:
    """The report of a verifier with a stand-in server, made once and read from the store once."""
    server = llm_server(play.Verifier(lambda question: 1))
    files = tmp_path / "systems.yaml"
    llm = f"{{model: m, url: '{server.url}', temperature: 0.25, seed: 11}}"
    files.write_text(
        "Plain: {retrieve: {bm25: {}}}\n"
        "Checked:\n  retrieve: {bm25: {}}\n  stages:\n"
        f"    - {{verify: select, depth: 3, votes: 2, seed: 5, when: {{margin_below: 0.9}}, llm: {llm}}}\n"
    )
    dev = c2s.load("demo", "dev").in_languages(["en"])
    dev = dev.with_claims(dev.claims[:4])
    for _ in range(2):
        settings = RunSettings(store=Store(tmp_path / "store"), progress=False)
        report = c2s.evaluate_systems(files, dev, settings=settings, repeats=50, seed=3)
    report.write(tmp_path / "out")
    return tmp_path / "out", server


def test_prompts_decoding_seeds_and_hardware_are_those_of_the_run(
    evaluation: tuple[Path, LLMServer], tmp_path: Path
) -> None:
    folder, server = evaluation
    file = tmp_path / "checklist.md"
    main([f"--reports={folder}", f"--out={file}"])
    text = file.read_text(encoding="utf-8")
    tables, answer = sections(text), answers(text)
    prompt = read_prompt("verify_structured")
    sha256 = hashlib.sha256((PROMPTS / "verify_structured.yaml").read_bytes()).hexdigest()
    assert tables["Prompts"] == [
        ["Checked.original", "verify select: prompt", prompt.name, prompt.version, sha256]
    ]
    decoding = ["m", "0.25", "1.0", "1024", "11", "enable_thinking=false"]
    (row,) = tables["Decoding of language models"]
    assert row[:-2] == ["Checked.original", "verify select", *decoding]
    assert int(row[-2]) > 0 and row[-1] == "0"
    seeds = dict(tables["Seeds"])  # type: ignore[arg-type]
    assert seeds == {"bootstrap of intervals": "3", "Checked.original, verify select": "5"}
    report = Report.read(folder)
    data = report.provenance
    assert (
        tables["Data"][0][-1] == f"dev {data.data['dev']}" and "torch" in tables["Software"][0][-1]
    )
    assert data.hardware is not None and data.hardware.cores >= 1 < data.hardware.memory
    assert tables["Hardware"][0][0] == data.hardware.cpu
    assert [row[:2] for row in tables["Cost"]][-1] == ["Checked.original", "verify select"]
    for item in ("Data", "Prompts", "Decoding of language models", "Seeds", "Hardware"):
        assert answer[item] == "recorded", item
    assert answer["Training"] == "does not apply"
    assert answer["price in money"] == NOT_RECORDED
    # Neither the machine nor the server is named.
    saved = (folder / "report.json").read_text(encoding="utf-8") + text
    assert server.url not in saved and "OPENAI_API_KEY" not in saved
    assert platform.node() not in saved
    stage = report.systems["Checked.original"].stages[-1]
    assert stage.settings["when"] == {"margin_below": 0.9} and stage.settings["votes"] == 2


def test_what_a_report_does_not_say_is_not_invented(
    evaluation: tuple[Path, LLMServer], tmp_path: Path
) -> None:
    """A report from before these fields can be read, and they are marked as not recorded."""
    folder, _ = evaluation
    old = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    del old["provenance"]["hardware"]
    old["provenance"]["versions"] = {}
    old["provenance"] |= {"git": None, "program": ""}
    for system in old["systems"].values():
        system.pop("intervals")
        for stage in system.get("stages", ()):
            del stage["settings"]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "report.json").write_text(json.dumps(old), encoding="utf-8")
    text = checklist({"old": Report.read(tmp_path / "old")})
    answer = answers(text)
    silent = ["Prompts", "Decoding of language models", "Seeds", "Statistics", "Hardware"]
    for item in [*silent, "Software"]:
        assert answer[item] == NOT_RECORDED, item
    assert sections(text)["Prompts"] == [["Checked.original", "verify select", *[NOT_RECORDED] * 3]]
    entries = checklist({"new": Report.read(folder), "old": Report.read(tmp_path / "old")})
    assert answers(entries)["Prompts"].endswith(" old")
    assert [row[0] for row in sections(entries)["Data"]] == ["new", "old"]


def test_energy_is_recorded_only_where_a_cost_has_it() -> None:
    costs = SystemCost(seconds=2.0, joules=2_500.0), SystemCost(seconds=1.0)
    for cost, cell in zip(costs, ("2.50", NOT_RECORDED), strict=True):
        text = checklist({"r": Report("d", "dev", {"a": SystemReport("a", "m", "a", cost=cost)})})
        assert [row[-1] for row in sections(text)["Energy"]] == [cell]
        assert (answers(text)["Energy"] == NOT_RECORDED) == (cell == NOT_RECORDED)


def test_trainings_and_made_texts_are_asked_for_too() -> None:
    training = TrainingReport((), "best", 2, "checkpoints/epoch-2")
    settings = {"optimisation": {"learning_rate": 2e-5, "seed": 42}, "data": {"val_seed": 13}}
    systems = {"a|b": SystemReport("a|b", "m", "a|b", claims="bilingual")}
    unknown = checklist({"r": Report("d", "dev", systems, training=training)})
    assert ["training", NOT_RECORDED] in sections(unknown)["Seeds"]
    assert sections(unknown)["Prompts"][0][:2] == ["a\\|b", "translations of claims"]
    assert answers(unknown)["Training"] == "recorded in part"
    training_report = TrainingReport((), "best", 2, "checkpoints/epoch-2", settings=settings)
    parts = sections(checklist({"r": Report("d", "dev", {}, training=training_report)}))
    assert ["training: optimisation.seed", "42"] in parts["Seeds"]
    assert ["optimisation.learning_rate", "2e-05"] in parts["Training"]


def test_the_checklist_is_written_alone_and_replaces_nothing_of_others(
    evaluation: tuple[Path, LLMServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = evaluation
    notes = tmp_path / "notes.md"
    notes.write_text("my own", encoding="utf-8")
    for words, message in (
        ([f"--reports={folder}", f"--out={notes}"], "no program of ours wrote it"),
        ([f"--out={tmp_path / 'c.md'}"], "reports"),
        (["--reports=nowhere", f"--out={tmp_path / 'c.md'}"], "nowhere/report.json"),
    ):
        with pytest.raises(SystemExit) as ended:
            run_program(main, words)
        assert ended.value.code == 2 and message in capsys.readouterr().err
    assert notes.read_text(encoding="utf-8") == "my own" and not (tmp_path / "c.md").exists()
    for _ in range(2):  # its own file is replaced
        main([f"--reports={folder}", f"--out={tmp_path / 'c.md'}"])


def test_thinking_is_reported_as_it_was_sent(
    llm_server: Callable[..., LLMServer], tmp_path: Path
) -> None:
    """Kimi's key is another one, a server refuses it, and a model reasons although it is off."""
    play_verifier = play.Verifier(lambda question: 1)

    def reasons(chat: Chat) -> str:
        return f"<think>The first?</think>{play_verifier(chat)}"

    kimi = "moonshotai/Kimi-K2.6"
    servers = {
        "Refused": llm_server(play_verifier, model=kimi, refuses=("chat_template_kwargs",)),
        "Reasons": llm_server(reasons, model=kimi),
    }
    files = tmp_path / "systems.yaml"
    files.write_text(
        "".join(
            f"{name}:\n  retrieve: {{bm25: {{}}}}\n  stages:\n"
            "    - verify: select\n      depth: 3\n"
            f"      llm: {{model: {kimi}, url: '{server.url}', seed: {len(name)}{number}}}\n"
            for number, (name, server) in enumerate(servers.items())
        )
    )
    dev = c2s.load("demo", "dev").in_languages(["en"])
    dev = dev.with_claims(dev.claims[:4])
    for _ in range(2):
        settings = RunSettings(store=Store(tmp_path / "store"), progress=False)
        report = c2s.evaluate_systems(files, dev, settings=settings, repeats=50)
        stages = {s.system: s.stages[-1] for s in report.systems.values() if not s.stage}
        stated = {
            name: [stage.settings["llm"][key] for key in ("thinking", "replies", "reasoned")]
            for name, stage in stages.items()
        }
        assert stated == {"Refused": ["nothing", 4, 0], "Reasons": ["thinking=false", 4, 4]}
    noted = [note for note in report.notes if "4 of 4" in note and "thinking=false" in note]
    assert len(noted) == 1
    rows = sections(checklist({"r": report}))["Decoding of language models"]
    assert [row[-3:] for row in rows] == [["nothing", "4", "0"], ["thinking=false", "4", "4"]]
