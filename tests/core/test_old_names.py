"""Names that are gone are refused with one line that says what to do now."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from claim2source.core.config import as_plain, read_config
from claim2source.core.errors import UserError
from claim2source.core.old_names import ALWAYS, OLD_KEYS
from claim2source.training.config import FinetuneConfig, RunConfig
from claim2source.training.reranker_config import RerankerConfig
from claim2source.training.run_folder import refuse_changes

# Programs whose keys the tables name by a folder.
_ONE_OF = {"eval/": "eval/encode.py", "train/": "train/finetune.py", "": "train/finetune.py"}
_OF_RERANKERS = ("loss.", "first.", "candidates.")


@pytest.mark.parametrize("owner", sorted({owner for owner, _ in OLD_KEYS}))
def test_the_programs_refuse_every_key_of_the_tables(owner: str, tmp_path: Path) -> None:
    program = _ONE_OF.get(owner, owner)
    main = importlib.import_module(program.removesuffix(".py").replace("/", ".")).main
    file = tmp_path / "old.yaml"
    always = [key for key in ALWAYS if not key.startswith(_OF_RERANKERS)]
    for key in [name for of, name in OLD_KEYS if of == owner] + always * (not owner):
        name = f"{key}other" if key.endswith(".") else key
        content: object = "zzz"
        for part in reversed(name.split(".")):
            content = {part: content}
        file.write_text(yaml.safe_dump(content))
        for words in ([f"--{name}", "zzz"], [f"--{name}"], ["--config", str(file)]):
            with pytest.raises(UserError, match=": is gone; ") as caught:
                main([*words, "--print_config"])
            (line,) = caught.value.lines
            assert line.startswith(f"{file}:" if "--config" in words else "config: ")


@pytest.mark.parametrize(
    ("config", "gone", "used"),
    [
        (
            FinetuneConfig(),
            {"after": {"stages": [], "styles": {"texts": None, "llm": {"model": ""}}}},
            {"after": {"stages": ["styles"]}},
        ),
        (
            RerankerConfig(),
            {"model": {"prefixes": {"claim": "", "pool_prefix": True}}},
            {"model": {"prefixes": {"claim": "query: "}}},
        ),
    ],
)
def test_the_config_of_an_older_run_is_read_and_goes_on_unless_it_used_what_is_gone(
    config: RunConfig, gone: dict[str, Any], used: dict[str, Any], tmp_path: Path
) -> None:
    file, reranks = tmp_path / "config.yaml", isinstance(config, RerankerConfig)
    program = f"train/finetune{'_reranker' * reranks}.py"
    for more, fits in ((gone, True), (used, False)):
        plain = as_plain(config)
        for group, keys in more.items():
            plain[group] = {**(plain[group] or {}), **keys}
        file.write_text(yaml.safe_dump(plain))
        words = ["--config", str(file)]
        if fits:
            refuse_changes(file, config)
            assert read_config(type(config), words, program=program, description="") == config
        else:
            with pytest.raises(UserError, match="is gone"):
                read_config(type(config), words, program=program, description="")
