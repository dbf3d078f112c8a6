"""Every shipped config is one its program takes, states only what differs, and names real things."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from claim2source.core.config import as_plain, read_config
from claim2source.core.files import file_hash
from claim2source.datasets import checkthat2026
from claim2source.pipeline.baselines import BaselinesConfig
from claim2source.pipeline.checkpoints import CheckpointConfig
from claim2source.pipeline.staged import pipeline_words
from claim2source.pipeline.translate import TranslateConfig
from claim2source.training.config import FinetuneConfig
from claim2source.training.reranker.config import RerankerConfig
from claim2source.training.reranker.first_stage import FirstStage
from eval.hybrid import HybridConfig
from tests.shared_data import REPOSITORY
from train.merge import MergeConfig
from train.mine import MineConfig

KINDS: dict[str, type[Any]] = {
    "finetune": FinetuneConfig,
    "reranker": RerankerConfig,
}
# What has no default.
NEEDED = {
    FinetuneConfig: [],
    RerankerConfig: [],
}
FINETUNE = REPOSITORY / "configs" / "finetune"
PAPER = FINETUNE / "gritlm_f_paper.yaml"
README_2026 = REPOSITORY / "configs" / "checkthat2026" / "README.md"
# Read by tests of their own: systems in tests/evaluation/test_baseline_systems.py, verify, news
# and rumors in tests/eval, fusion in tests/train, the others in
# tests/pipeline.
ELSEWHERE = ("systems", "translate", "rewrite", "style_grid", "verify", "news", "rumors", "fusion")
FILES = sorted(
    path for path in (REPOSITORY / "configs").rglob("*.yaml") if path.parent.name not in ELSEWHERE
)


def test_there_are_configs_and_each_has_a_program() -> None:
    assert {"demo.yaml", "ct25_minilm.yaml"} <= {path.name for path in FILES}
    assert {path.parent.name for path in FILES} <= set(KINDS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_config_is_read_and_states_only_what_differs(path: Path) -> None:
    kind = KINDS[path.parent.name]
    read = read_config(kind, ["--config", str(path)], program="t", description="t")
    defaults = as_plain(read_config(kind, NEEDED[kind], program="t", description="t"))

    def same(said: Any, default: Any, key: str) -> None:
        if isinstance(said, dict):
            for name, value in said.items():
                # Keys of a free mapping (languages), or of a group that may be absent, have none.
                same(value, default[name] if default else None, f"{key}.{name}")
        else:
            # A few keys are named though they equal the default, since the file is the manual.
            named = {
                ".data.dataset",
                ".model.name",
                ".wandb.mode",
                ".rendering.claims",
                ".rendering.sources",
                ".tuning",
                ".out",
                ".data.val_share",
                ".choose",
                ".batches.order",
            }
            optimisation = key.removeprefix(".reranker").startswith(
                (".optimisation", ".mining", ".candidates", ".lora", ".data.report")
            )
            # The paper's config says what it does where the paper is silent.
            named_all = optimisation or path == PAPER
            assert said != default or key in named or named_all, f"{path.name} repeats {key}"

    said = yaml.safe_load(path.read_text(encoding="utf-8"))
    same(said, defaults, "")
    assert as_plain(read)["out"] == said["out"]


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name == "reranker"])
def test_a_rerankers_first_stage_is_a_system_that_ships(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    read = read_config(RerankerConfig, ["--config", str(path)], program="t", description="t")
    first = FirstStage(read)
    assert first.first.system is not None and first.name in first.systems and first.hash()
    text = path.read_text(encoding="utf-8")
    assert "# Known" in text and re.search(r"[Oo]urs", text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_key_has_a_comment(path: Path) -> None:
    silent = [key for key, remark in remarks(path).items() if len(remark.strip(" #")) < 3]
    assert silent == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_misspelt_key_is_refused(path: Path, tmp_path: Path) -> None:
    said = yaml.safe_load(path.read_text(encoding="utf-8"))
    said.get("reranker", said)["optimisation"]["learning_rat"] = 1.0
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump(said), encoding="utf-8")
    with pytest.raises(Exception, match="learning_rat"):
        read_config(KINDS[path.parent.name], ["--config", str(wrong)], program="t", description="t")


def leaves(value: Any, key: str = "") -> dict[str, Any]:
    """A nested config as dotted keys."""
    if not isinstance(value, dict) or not value:
        return {key: value}
    return {k: v for name, part in value.items() for k, v in leaves(part, f"{key}.{name}").items()}


@cache
def resolved(path: Path) -> dict[str, Any]:
    """Every setting that a finetune config comes to, stated or by default."""
    read = read_config(FinetuneConfig, ["--config", str(path)], program="t", description="t")
    return {key.removeprefix("."): value for key, value in leaves(as_plain(read)).items()}


def remarks(path: Path) -> dict[str, str]:
    """Setting -> the remark beside it and the ones right above it, of every setting stated."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = {}

    def visit(node: yaml.MappingNode, prefix: str) -> None:
        for key, value in node.value:
            if isinstance(value, yaml.MappingNode) and value.value:
                visit(value, f"{prefix}{key.value}.")
                continue
            at = key.start_mark.line
            above = at
            while lines[above - 1].lstrip().startswith("#"):
                above -= 1
            # No value of ours has a space before a "#".
            beside = lines[at].partition(" #")[2]
            found[f"{prefix}{key.value}"] = "\n".join([*lines[above:at], beside])

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    visit(root, "")
    return found


# Section 3.6 of the 2026 paper's specification (table 6), and nothing else.
PRINTED = {
    "model.name": "GritLM/GritLM-7B",
    "model.max_length": 256,
    "tuning": "lora",
    "lora.r": 16,
    "lora.alpha": 64,
    "lora.dropout": 0.1,
    "mining.hard": 6,
    "mining.random": 2,
    "optimisation.epochs": 3,
    "optimisation.learning_rate": 2e-4,
    "optimisation.batch_size": 8,
    "optimisation.accumulation": 4,
    "optimisation.warmup_ratio": 0.05,
    "optimisation.weight_decay": 0.01,
    "optimisation.negatives": 8,
}
# Where things lie, what is logged, how a run is started: none of it changes what is learnt.
LAUNCH = {
    "data.dataset",
    "data.lenient",
    "mined",
    "out",
    "store",
    "device",
    "threads",
    "resume",
    "overwrite",
    "model.allow_remote_code",
    "model.allow_bin",
    "optimisation.save_every",
    "after",
}
LAUNCH_GROUPS = ("wandb.",)
# Unset, all claims are trained on, once an epoch. Where the last epoch is taken, no claims of seen
# papers are held out to choose by.
UNSET = {
    "data.limit": None,
    "data.repeat": 1,
    "data.val_seen_share": None,
    "data.seen_share_expected": None,
    "optimisation.chunk_tokens": None,
    "losses.alignment.weight": 0.0,
    "teacher": None,
    "soup": False,
    "rule": "one_se",
    "trainer": {},
}


def idle(config: dict[str, Any]) -> set[str]:
    """Settings of what the config has switched off: details of a loss, of BM25's terms."""
    found = set()
    for loss in ("distillation", "keep_base", "consistency", "alignment"):
        if config[f"losses.{loss}.weight"] == 0:
            found |= {key for key in config if key.startswith(f"losses.{loss}.")}
            found -= {f"losses.{loss}.weight"}
    if config["model.template.claim"] or config["model.template.source"]:
        found |= {"model.prompts"}
    if config["mining.max_share"] is None:
        found |= {"mining.share_of"}
    if config["tuning"] != "full":
        found |= {"optimisation.train_embeddings", "optimisation.train_layers"}
    return found


def test_gritlm_f_is_what_the_paper_prints() -> None:
    config = resolved(PAPER)
    assert {key: config[key] for key in PRINTED} == PRINTED
    assert config["optimisation.negatives"] == config["mining.hard"] + config["mining.random"]
    # Nothing of section 3.6 is left to a default, and nothing of it is called another's.
    found = remarks(PAPER)
    for key in PRINTED:
        assert key in found, f"{key} is silent"
        assert "[" not in found[key].rpartition("\n")[2], f"{key} is the paper's"


def test_gritlm_f_stays_as_it_prints_byte_for_byte() -> None:
    """What was published does not move with what is learnt since."""
    assert file_hash(PAPER) == "22016d04f3922dce06a67244893bafa8e5aa210275bb264b09db6bb8a02fb5c2"


# Training claims of the 2026 set, and the share that the paper's config trains on.
CLAIMS_2026 = 14_977 + 1_460 + 2_807


def steps_of(path: Path) -> tuple[float, int, int]:
    """Claims that are trained on, batches of an epoch, and optimizer steps; val has two parts."""
    read = read_config(FinetuneConfig, ["--config", str(path)], program="t", description="t")
    optimisation = read.optimisation
    claims = CLAIMS_2026 * (1 - read.data.val_share - read.held_out_seen)
    batches = math.ceil(claims / (optimisation.batch_size * optimisation.accumulation))
    return claims, batches, batches * optimisation.epochs


def path_length(path: Path) -> float:
    """Steps x rate x alpha / r: how far training can take the weights."""
    config = resolved(path)
    scale = config["lora.alpha"] / config["lora.r"] if config["tuning"] == "lora" else 1.0
    return float(steps_of(path)[2] * config["optimisation.learning_rate"] * scale)


@pytest.mark.parametrize("name", ["gritlm_7b", "qwen3_embedding_8b", "multilingual_e5_large"])
def test_remarks_count_the_steps_that_a_config_takes(name: str) -> None:
    path = FINETUNE / f"{name}.yaml"
    text, (claims, batches, steps) = path.read_text(encoding="utf-8"), steps_of(path)
    # The published run's steps stand beside ours.
    said = {int(found.replace(",", "")) for found in re.findall(r"([\d,]+) steps", text)}
    assert said - {1768} == {steps}
    lengths = re.findall(rf"{steps} steps x \S+(?: x 64 / 16)? = ([\d.]+\d)", text)
    assert lengths and all(float(n) == pytest.approx(path_length(path), rel=0.04) for n in lengths)
    if name == "gritlm_7b":
        share = 100 * claims / CLAIMS_2026
        assert f"{claims:,.0f} ({share:.0f} %) / 64 = {batches} batches" in text


def test_gritlm_7b_goes_as_far_as_its_remarks_say_and_scales_take_it_back() -> None:
    ours = FINETUNE / "gritlm_7b.yaml"
    config, text, length = resolved(ours), ours.read_text(encoding="utf-8"), path_length(ours)
    assert round(path_length(PAPER), 2) == 1.42  # 1.41 without rounding steps up
    assert "= 1.41" in text and f"= {length:.2f}\n" in text
    assert f"0.1 of {length:.2f} is {length / 10:.3f}, 1 is all" in text
    # Within the published order, on no fewer sources a step; shrunk by what val prefers.
    assert 0.3 < length < path_length(PAPER)
    sources = config["optimisation.batch_size"] * (1 + config["optimisation.negatives"])
    assert config["optimisation.negatives"] == 7 and f"{sources} sources" in text
    assert min(config["scales"]) <= 0.1 and max(config["scales"]) == 1.0


def test_gritlm_f_marks_every_value_that_the_paper_does_not_print() -> None:
    """Defaults included: a default that changed would change what "as published" means."""
    config, found = resolved(PAPER), remarks(PAPER)
    silent = idle(config)
    assert "losses.keep_base.temperature" in silent
    assert {key: config[key] for key in UNSET} == UNSET
    for key in config.keys() - PRINTED.keys() - LAUNCH - UNSET.keys() - silent:
        if not key.startswith(LAUNCH_GROUPS):
            assert key in found, f"{key} is silent"
            assert re.search(r"\[(code|ours)\]", found[key]), f"{key}: nobody's"
    assert set(found) <= set(config)
    # What a reader would take for the paper's and is not, said where it is no key of its own.
    text = PAPER.read_text(encoding="utf-8")
    assert "[code]: eager at evaluation" in text and "[code] drops an epoch's last batch" in text
    assert "[code] encodes at 512 tokens at test" in found["model.max_length"]


# The model itself: what it is called, how it is read, what it is told.
OF_THE_MODEL = {
    "out",
    "model.name",
    "model.revision",
    "model.pooling",
    "model.normalize",
    "model.bidirectional",
    "model.template.claim",
    "model.template.source",
    "model.template.append_token",
    "model.template.pool_prefix",
}


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("qwen3_embedding_8b.yaml", set()),
        # Small enough to move every weight, in float32: no adapters, gentler steps.
        (
            "multilingual_e5_large.yaml",
            {
                "tuning",
                "model.dtype",
                "lora.targets",
                "lora.dropout",
                "optimisation.gradient_checkpointing",
                "optimisation.learning_rate",
                "optimisation.temperature",
                "optimisation.warmup_ratio",
            },
        ),
    ],
)
def test_other_models_have_the_recipe_of_gritlm_7b(name: str, more: set[str]) -> None:
    """What they say they do; a value changed in one file alone is seen here."""
    ours, other = resolved(FINETUNE / "gritlm_7b.yaml"), resolved(FINETUNE / name)
    # A free mapping (languages) has keys of its own.
    keys = ours.keys() | other.keys()
    different = {key for key in keys if ours.get(key, "none") != other.get(key, "none")}
    assert different <= OF_THE_MODEL | more, different - OF_THE_MODEL - more
    assert {"out", "model.name", "model.revision", *more} <= different


def load_program(path: str) -> Any:
    """A program of `scripts` or `eval` as a module, not run."""
    name = f"{Path(path).stem}_of_test_configs"
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their own module up.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def parsed(kind: type[Any], words: Sequence[str]) -> Any:
    return read_config(kind, words, program="t", description="t")


def read_score(words: Sequence[str]) -> Any:
    return parsed(load_program("eval/score.py").Config, words)


def read_prepare(words: Sequence[str]) -> Any:
    return load_program("scripts/prepare.py").parser().parse_args(words)


READERS: dict[str, Callable[[Sequence[str]], Any]] = {
    "scripts/prepare.py": read_prepare,
    "train/mine.py": partial(parsed, MineConfig),
    "train/finetune.py": partial(parsed, FinetuneConfig),
    "train/merge.py": partial(parsed, MergeConfig),
    "eval/baselines.py": partial(parsed, BaselinesConfig),
    "eval/checkpoint.py": partial(parsed, CheckpointConfig),
    "eval/hybrid.py": partial(parsed, HybridConfig),
    "eval/score.py": read_score,
    "eval/pipeline.py": lambda words: parsed(
        load_program("eval/pipeline.py").PipelineConfig, pipeline_words(words)
    ),
    "eval/report.py": lambda words: parsed(load_program("eval/report.py").Config, words),
    "scripts/translate.py": partial(parsed, TranslateConfig),
}
# Each prints its words as the shell gives them to it; what is no program of ours does nothing.
STUBS = """
python() { printf '%s\\0' "$@"; printf '\\036'; }
accelerate() { shift; python "$@"; }
pip() { :; }; hf() { :; }; cat() { :; }; bash() { :; }
"""


def commands(shell: str, folder: Path) -> list[tuple[str, list[str]]]:
    """(program, its words) of every command of ours in lines of shell, as bash reads them.

    Nothing is run, and nothing is found on the PATH: an unknown command fails.
    """
    (folder / "out").mkdir(exist_ok=True)  # where the lines redirect to
    done = subprocess.run(
        ["/bin/bash", "-euc", STUBS + shell],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    found = [entry.split("\0")[:-1] for entry in done.stdout.split("\036")[:-1]]
    return [(program, words) for program, *words in found]


def blocks(kind: str) -> list[str]:
    """Code blocks of the 2026 experiment's page."""
    text = README_2026.read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_every_command_of_the_2026_experiment_is_one_its_program_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    text = README_2026.read_text(encoding="utf-8")
    assert text.count("```") == 2 * (len(blocks("bash")) + len(blocks("json")))
    seen = []
    for block in blocks("bash"):
        for program, words in commands(block, tmp_path):
            READERS[program](words)
            seen.append(program)
    assert set(seen) == set(READERS)
    assert len(seen) == len(re.findall(r"^(?:python|accelerate launch) ", text, re.MULTILINE))
    # Options that the text around them names.
    ours = ["--config", str(FINETUNE / "gritlm_7b.yaml")]
    named = re.findall(r"`(--[a-z_]+\.?[^`]* [^`]+)`", text)
    assert "--losses.consistency.weight 0" in named
    for option in named:
        parsed(FinetuneConfig, [*ours, *option.split()])
    # mining.max_share is a setting, gritlm_7b.yaml a file.
    settings = re.findall(r"`([a-z_]+\.(?!yaml`|jsonl?`)[a-z_]+)`", text)
    assert settings and set(settings) <= resolved(FINETUNE / "gritlm_7b.yaml").keys()


def test_a_flag_that_is_renamed_is_seen(tmp_path: Path) -> None:
    """The reading above is no empty one: quoting, line ends and comments are the shell's."""
    line = "python train/merge.py --checkpoints 'a b' \\\n  --scal 0.5 --out c # for now\n"
    ((program, words),) = commands(line, tmp_path)
    assert words == ["--checkpoints", "a b", "--scal", "0.5", "--out", "c"]
    with pytest.raises(Exception, match="scal"):
        READERS[program](words)
    with pytest.raises(AssertionError, match="no_such_program"):
        commands("no_such_program --x\n", tmp_path)


def test_the_translations_that_the_2026_experiment_shows_are_ones_it_takes(tmp_path: Path) -> None:
    (shown,) = blocks("json")
    task, file = tmp_path / "task", tmp_path / "translations.jsonl"
    task.mkdir()
    papers = [{"pubkey": 1, "title": "t", "abstract": "a", "venue": "v", "authors": "Doe, Jane"}]
    (task / checkthat2026.COLLECTION).write_text(json.dumps(papers))
    for lang, index in (("de", 7), ("fr", 12)):
        claims = [{"index": index, "text": "x", "pubkey": 1}]
        (task / f"{lang}_dev.json").write_text(json.dumps(claims))
    file.write_text(shown, encoding="utf-8")
    (dev,) = checkthat2026.prepare(task, tmp_path / "out", file).splits
    found = {claim.id: claim.translation for claim in dev.claims}
    assert sorted(found) == ["dev-de-7", "dev-fr-12"] and all(found.values())


def test_the_mining_command_of_the_2026_experiment_is_what_gritlm_7b_mines(tmp_path: Path) -> None:
    """As the shell reads it: a file mined apart must hold what the run would mine."""
    (block,) = (block for block in blocks("bash") if "python train/mine.py" in block)
    ((_, words),) = commands(block, tmp_path)
    apart = parsed(MineConfig, words)
    run = parsed(FinetuneConfig, ["--config", str(FINETUNE / "gritlm_7b.yaml")])
    assert apart.mining == run.mining and apart.model == run.model
    assert apart.rendering == run.rendering and apart.dataset == run.data.dataset
    assert (apart.val_share, apart.val_seed) == (run.data.val_share, run.data.val_seed)


def test_gritlm_7b_states_and_explains_every_value_that_is_not_the_papers() -> None:
    """None is silent by being a default."""
    paper, ours = resolved(PAPER), resolved(FINETUNE / "gritlm_7b.yaml")
    text = (FINETUNE / "gritlm_7b.yaml").read_text(encoding="utf-8")
    said, lines = remarks(FINETUNE / "gritlm_7b.yaml"), text.splitlines()
    different = [key for key in ours if ours[key] != paper.get(key) and key != "out"]
    assert {"data.val_share", "mining.bm25.k1", "optimisation.negatives"} <= set(different)
    for key in different:
        assert key in said, f"{key} is silent"
        explained = False
        # The reason stands beside the key, above it, or beside its group.
        for part in key.split(".")[-2:]:
            explained |= any(
                "#" in line or lines[i - 1].lstrip().startswith("#")
                for i, line in enumerate(lines)
                if line.strip().startswith(f"{part}:")
            )
        assert explained, f"{key} has no reason"
