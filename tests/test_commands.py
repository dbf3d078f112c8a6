"""Check that programs accept every command in pages and in comments of configs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claim2source.cli import PROGRAMS
from claim2source.core.positionals import with_positionals
from claim2source.evaluation import table
from claim2source.evaluation.plan import vary_words
from claim2source.find.index import index_words
from claim2source.llm.config import LLMConfig
from claim2source.systems.read import SystemEntry, Systems, read_entries, read_systems
from scripts.bench import read_options as read_bench
from scripts.demo import NEXT, demo_steps
from tests.shared_data import REPOSITORY
from tests.test_configs import commands, load_program, parsed, read_prepare

GUIDES = ["quick_start", "find", "data", "train", "evaluate", "rerank", "llm", "reproduce"]
PAGES = [
    "README.md",
    "SKILL.md",
    "configs/checkthat2026/README.md",
    "BENCHMARKS.md",
    *(
        f"docs/results/{page.name}"
        for page in sorted((REPOSITORY / "docs" / "results").glob("*.md"))
    ),
    "docs/log.md",
    *(f"docs/{name}.md" for name in GUIDES),
]
# Skip the launcher's own options.
LAUNCHED = (
    'accelerate() { while [[ "$1" != *.py && "$1" != -m ]]; do shift; done; '
    'if [[ "$1" == -m ]]; then shift; fi; python "$@"; }; make() { :; }\n'
    "sbatch() { :; }; source() { :; }; llama-server() { :; }; scripts/serve_llm.sh() { :; }\n"
    'claim2source() { python "claim2source $1" "${@:2}"; }\n'
)


def blocks_of(page: str) -> list[str]:
    """Shell blocks, and commands within sentences."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"^```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    starts = r"python (?:train|eval|scripts)/|accelerate launch |eval/\w+\.py --|for \w+ in "
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for inline in re.findall(rf"`((?:{starts})[^`]*)`", rest):
        blocks.append(f"python {inline}\n" if inline.startswith("eval/") else f"{inline}\n")
    return blocks


def file_of(program: str) -> str:
    """The file of a program that is named as a subcommand or as a module."""
    if program == "claim2source.train":
        return "train/finetune.py"
    command, _, subcommand = program.partition(" ")
    if command != "claim2source" or subcommand == "--help":
        return program
    module, _ = PROGRAMS[subcommand]
    folder, _, name = module.partition(".")
    return f"{'scripts' if folder == 'data' else folder}/{name}.py"


def read(program: str, words: Sequence[str]) -> Any:
    """The words as the program parses them."""
    if program == "scripts/prepare.py":
        return read_prepare(words)
    if program == "scripts/bench.py":
        return read_bench(words)
    if program == "scripts/plan.py" and "--systems" in words:
        program = "scripts/plan_stages.py"
    source = (REPOSITORY / program).read_text(encoding="utf-8")
    if result := re.search(r"from (claim2source\.evaluation\.\w+) import", source):
        source += (REPOSITORY / f"{result[1].replace('.', '/')}.py").read_text(encoding="utf-8")
    # The last parsed config is the program's own; scripts/ablate.py parses its rows' configs first.
    *_, name = re.findall(r"read_config\(\s*(\w+),", source)
    if program == "eval/index.py":
        words = index_words(words)
    kind = getattr(load_program(program), name)
    if program == "eval/find.py":
        words = with_positionals(kind, words, ("post",))
    if program == "scripts/unpack_nomic.py":
        words = with_positionals(kind, words, ("source",))
    if program == "eval/evaluate.py":
        words = vary_words(words)
    # This config replaces the user's own one, and the one that a local server writes.
    ours = []
    for word in words:
        if word == "my.yaml":
            word = "configs/finetune/minilm.yaml"
        elif word.startswith(".venv-llama/"):
            word = "tests/data/llama/settings.yaml"
        ours.append(word)
    return parsed(kind, ours)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_shown_is_one_its_program_takes(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    seen = set()
    for block in blocks_of(page):
        for program, words in commands(LAUNCHED + block, tmp_path):
            program = file_of(program)
            if "--help" not in (*words, program.partition(" ")[2]):
                config = read(program, words)
                if program == "eval/evaluate.py" and config.only and not config.systems:
                    # A system of the package: the rows that it would run exist.
                    assert config.checkpoint or config.plans()
            seen.add(program)
    assert seen


CONFIGS = sorted((REPOSITORY / "configs").rglob("*.yaml"))


def remarked(path: Path, folder: Path) -> list[tuple[str, list[str]]]:
    """The commands in a config's comments, each as the shell parses it."""
    text = path.read_text(encoding="utf-8")
    starts = r"(?:python|accelerate launch|bash scripts/\S+) "
    lines = re.findall(rf"^ *# ({starts}(?:.*\\\n *# )*.*\n)", text, re.MULTILINE)
    # A line that begins with an option continues a line that ends in a backslash.
    assert not re.search(r"[^\\]\n *#  +--", text), path.name
    found = []
    for line in lines:
        found += commands(LAUNCHED + re.sub(r"\\\n *# ", " ", line), folder)
    return [(program, words) for program, words in found if program]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_command_in_a_configs_remarks_is_one_its_program_takes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    found = [(program, read(program, words)) for program, words in remarked(path, tmp_path)]
    assert found
    if path.parent.name != "systems":
        return
    # What the file is for runs by a command in it: each of its systems takes the named one's place.
    systems_of: dict[tuple[Path, ...], Systems] = {}

    def read_once(
        files: Sequence[Path], beside: Sequence[Path] = (), llm: LLMConfig | None = None
    ) -> Systems:
        assert llm is None or not llm.model
        key = (*files, Path(), *beside)
        if key not in systems_of:
            systems_of[key] = read_systems(files, beside)
        return dict(systems_of[key])

    monkeypatch.setattr(table, "read_systems", read_once)
    names = list(read_entries(SystemEntry, path))
    own, runs = str(path.relative_to(REPOSITORY)), 0
    for program, config in found:
        extra = [getattr(config, key, None) or () for key in ("systems", "files")]
        paths = [*extra[0], *extra[1], getattr(config, "stages", None)]
        if own not in map(str, paths):
            continue
        if program == "eval/evaluate.py":
            config = replace(config, only=[], checkpoint=config.checkpoint or ["C"])
            planned = {plan.system.name.split("+")[-1] for plan in config.plans()}
            assert planned >= {*names}
        runs += program.startswith("eval/")
    assert runs


def test_the_demos_commands_are_what_their_programs_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    programs = []
    for step in demo_steps():
        for position, word in enumerate(step.command):
            if word.endswith(".py"):
                programs.append(word)
                read(word, step.command[position + 1 :])
    for _, subcommand, *words in NEXT:
        read(file_of(f"claim2source {subcommand}"), words)
    assert programs[0] == "train/finetune.py" and programs[-1] == "eval/find.py"
