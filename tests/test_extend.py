"""The guide docs/extend.md: every section runs as written, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from claim2source.core.report import Report
from claim2source.data.loading import load
from tests.llm_server import Chat, LLMServer
from tests.shared_data import REPOSITORY

GUIDE = REPOSITORY / "docs" / "extend.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|yaml))\n")


PREPARE = ("claim2source", "prepare", "my_task.Forum")
RERANKS_TWICE = """
from dataclasses import replace

import claim2source as c2s
from claim2source.data.store import Store
from my_reranker import CharacterNgrams

dev = c2s.load("demo", "dev").in_languages(["en"])
found = c2s.BM25().index(dev.sources).search(dev.claims[:5], 20).run
rankings = {claim.id: list(found.scored(claim.id).items()) for claim in dev.claims[:5]}
rankings["short"] = [(dev.sources[0].id, 3.0), (dev.sources[1].id, 2.0), (dev.sources[2].id, 1.0)]
run = c2s.Run.from_lists(rankings)
claims = [*dev.claims[:5], c2s.Claim("short", "hm")]

stage = CharacterNgrams(depth=10).with_runtime(Store("store"), "cpu")
first = stage.apply(claims, dev.sources, run)
deeper = replace(stage, depth=12).with_runtime(Store("store"), "cpu")
again = deeper.apply(claims, dev.sources, run)
print([failure.claim_id for failure in first.failures])
print(first.run.sources("short") == run.sources("short"))
print(first.cost.reused, again.cost.reused)
"""


def section(heading: str) -> list[tuple[str, str]]:
    """Language and code of every block after a heading, up to the next heading."""
    text = GUIDE.read_text(encoding="utf-8")
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, heading
    # A line of code may begin with # too, so headings are searched outside the blocks.
    outside = FENCE.sub(lambda block: " " * len(block[0]), rest)
    following = re.search(r"^#+ ", outside, re.MULTILINE)
    end = following.start() if following else len(rest)
    return FENCE.findall(rest[:end])


def run(code: str, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run code as a user does in this folder: with the installed programs, from stdin."""
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": ".",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        command,
        input=code,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def follow(heading: str, folder: Path) -> str:
    """Write a section's files, then run its commands and its Python in order; return the output."""
    blocks = section(heading)
    for _, code in blocks:
        if (named := FILE.match(code)) is not None:
            (folder / named[1]).write_text(code, encoding="utf-8")
    output = ""
    for language, code in blocks:
        if FILE.match(code) is not None:
            continue
        command = ("bash", "-e") if language == "bash" else (sys.executable, "-")
        ran = run(code, folder, *command)
        assert ran.returncode == 0, f"{code}\n{ran.stderr}"
        output += ran.stdout
    return output


@pytest.mark.slow
def test_a_stage_of_ones_own_is_a_row(tmp_path: Path) -> None:
    output = follow("## A stage", tmp_path)
    assert "BM25-numbers.original" in output
    report = Report.read(tmp_path / "out" / "report.json")
    before = report.systems["BM25-numbers.original: first stage"].macro["mrr@5"]
    after = report.systems["BM25-numbers.original"].macro["mrr@5"]
    assert before == report.systems["BM25.original"].macro["mrr@5"] != after


@pytest.mark.slow
def test_a_reranker_of_ones_own_is_a_row(tmp_path: Path) -> None:
    follow("### A re-ranker", tmp_path)
    report = Report.read(tmp_path / "out" / "report.json")
    system = report.systems["BM25-characters.original"]
    first_stage = report.systems["BM25-characters.original: first stage"]
    assert system.macro["mrr@5"] > first_stage.macro["mrr@5"]

    (command,) = (code for language, code in section("### A re-ranker") if language == "bash")
    settings = tmp_path / "my_rerankers.yaml"
    settings.write_text(settings.read_text().replace("n: 5", "n: 21"))
    refused = run(command, tmp_path, "bash", "-e")
    assert refused.returncode == 2
    assert "n: 21" in refused.stderr and refused.stderr.count("\n") == 1


def test_scores_of_a_reranker_of_ones_own_are_stored(tmp_path: Path) -> None:
    blocks = section("### A re-ranker")
    (code,) = (code for language, code in blocks if language == "python")
    (tmp_path / "my_reranker.py").write_text(code, encoding="utf-8")
    ran = run(RERANKS_TWICE, tmp_path, sys.executable, "-")
    assert ran.returncode == 0, ran.stderr
    # The claim of two letters has no scores.
    assert ran.stdout.splitlines() == ["['short', 'short', 'short']", "True", "0 50"]


def shared_words(chat: Chat) -> str:
    """A score by the words that a paper shares with the post."""
    post = set(re.findall(r"\w{4,}", chat.data["post"].lower()))
    paper = set(re.findall(r"\w{4,}", chat.data["paper"].lower()))
    return json.dumps({"score": min(len(post & paper), 10)})


@pytest.mark.slow
def test_a_stage_with_a_language_model_is_a_row(
    tmp_path: Path, llm_server: Callable[..., LLMServer]
) -> None:
    heading = "### A stage that calls a language model"
    (command,) = (code for language, code in section(heading) if language == "bash")
    (named,) = re.findall(r"^MODEL=(\S+)$", command, re.MULTILINE)
    server = llm_server(shared_words)
    (tmp_path / named).parent.mkdir()
    llm = {"model": server.model, "url": server.url}
    (tmp_path / named).write_text(json.dumps(llm), encoding="utf-8")
    follow(heading, tmp_path)
    report = Report.read(tmp_path / "out" / "report.json")
    (stage,) = report.systems["BM25-judged.original"].stages[1:]
    assert server.requests > 0 and not stage.failures and stage.cost.tokens > 0
    assert stage.settings["llm"]["replies"] == server.requests


@pytest.mark.slow
def test_a_prepare_task_of_ones_own_makes_a_data_set(tmp_path: Path) -> None:
    output = follow("## A `prepare` task", tmp_path)
    assert "data/forum: 2 sources\n" in output
    assert "data/forum: dev: 2 claims (en 1, de 1)\n" in output
    dev = load(tmp_path / "data" / "forum", "dev")
    assert [(claim.lang, claim.golds) for claim in dev.claims] == [
        ("en", ("10.1/masks",)),
        ("de", ("10.1/masks",)),
    ]
    assert Report.read(tmp_path / "out" / "report.json").systems["BM25.original"].macro

    # The guide's statements about settings, a wrong row, and an existing folder.
    command = [*PREPARE, "--input", "forum", "--output"]
    assert run("", tmp_path, *command, "data/forum").returncode == 2
    for name in ("papers.csv", "posts.csv"):
        (tmp_path / "semicolons").mkdir(exist_ok=True)
        text = (tmp_path / "forum" / name).read_text(encoding="utf-8")
        (tmp_path / "semicolons" / name).write_text(text.replace(",", ";"), encoding="utf-8")
    semicolons = [*PREPARE, "--input", "semicolons", "--settings.delimiter", ";"]
    only_dev = run("", tmp_path, *semicolons, "--splits", "dev", "--output", "dev")
    assert only_dev.returncode == 0, only_dev.stderr
    assert [file.name for file in (tmp_path / "dev" / "qrels").iterdir()] == ["dev.tsv"]

    posts = tmp_path / "forum" / "posts.csv"
    posts.write_text(posts.read_text().replace("!,10.1/masks", "!,10.1/mask"))
    spoilt = run("", tmp_path, *command, "other")
    assert spoilt.returncode == 2 and not (tmp_path / "other").exists()
    (message,) = spoilt.stderr.splitlines()
    assert message.endswith(": '10.1/mask' is not in papers.csv")
    assert message.removeprefix("error: ").startswith("forum/posts.csv:3: doi: ")
    assert message.removeprefix("error: ") in GUIDE.read_text(encoding="utf-8")
