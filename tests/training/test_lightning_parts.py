"""Lightning's parts by the paths of their classes: nothing else is called or imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl

from claim2source.core.errors import ConfigError
from claim2source.training.lightning_parts import instances, lightning_class
from claim2source.training.trainer import trainer_arguments
from tests.refusals import refused

CALLED: list[str] = []


def note(*words: str) -> str:
    CALLED.extend(words or ["called"])
    return "a value"


class Plain:
    """A class that is not a part of a trainer."""

    def __init__(self) -> None:
        CALLED.append("made")


class Mine(pl.Callback):
    def __init__(self, given: Any = None) -> None:
        self.given = given


def named(path: str, **init: Any) -> dict[str, Any]:
    return {"class_path": path, "init_args": init}


@pytest.mark.parametrize("key", ["callbacks", "plugins", "strategy", "profiler"])
@pytest.mark.parametrize(
    "part",
    [
        named(f"{__name__}.note"),
        named(f"{__name__}.Plain"),
        named(f"{__name__}.CALLED"),
        named("os.getcwd"),
        named("subprocess.Popen", args=["touch", "made"]),
        named("builtins.eval", source="1"),
        named("torch.nn.Linear", in_features=1, out_features=1),
    ],
    ids=lambda part: part["class_path"],
)
def test_only_classes_of_lightnings_are_called(
    key: str, part: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    CALLED.clear()
    settings: Any = [part] if key in ("callbacks", "plugins") else part
    with pytest.raises(ConfigError) as error:
        trainer_arguments({key: settings})
    assert error.value.key == f"trainer.{key}" and len(error.value.lines) == 1
    assert CALLED == [] and not (tmp_path / "made").exists()


def test_arguments_within_a_class_are_no_way_around(tmp_path: Path) -> None:
    """Nor is anything made for a class that is refused itself."""
    CALLED.clear()
    inner = named(f"{__name__}.note")
    for part in (named(f"{__name__}.Mine", given=inner), named(f"{__name__}.Plain", given=inner)):
        with refused(ValueError, f"{__name__}."):
            instances(part)
    assert CALLED == []
    outer = instances([named(f"{__name__}.Mine", given=named("EarlyStopping", monitor="loss"))])
    assert isinstance(outer[0].given, pl.callbacks.EarlyStopping)


@pytest.mark.parametrize(
    ("content", "is_imported"),
    [
        ("def Part(): ...\n", False),
        ("class Part: ...\n", False),
        ("from os import system as Part\n", True),  # seen once it is there
        ("import pytorch_lightning as pl\nclass Part(pl.Callback): ...\n", True),
    ],
)
def test_a_module_is_not_run_whose_file_shows_that_it_has_no_such_class(
    content: str, is_imported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "own_parts"
    package.mkdir()
    mark = tmp_path / "imported"
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text(f"open({str(mark)!r}, 'w').close()\n{content}")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        if "Callback" in content:
            assert issubclass(lightning_class("own_parts.parts.Part"), pl.Callback)
        else:
            with refused(ValueError, "own_parts.parts.Part"):
                lightning_class("own_parts.parts.Part")
        assert mark.exists() is is_imported
        assert ("own_parts" in sys.modules) is is_imported
    finally:
        for module in ("own_parts.parts", "own_parts"):
            sys.modules.pop(module, None)


@pytest.mark.parametrize(
    "content",
    ["raise RuntimeError('no')\n", "class Part(\n", "{}['x']\n", "class Other: ...\n"],
)
def test_a_module_that_fails_is_one_line(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_part.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError) as error:
        trainer_arguments({"callbacks": [named("failing_part.Part")]})
    assert error.value.key == "trainer.callbacks" and len(error.value.lines) == 1
    sys.modules.pop("failing_part", None)


@pytest.mark.parametrize(
    "part",
    [
        named("EarlyStopping", monitor="loss", mode="up"),
        {"class_path": "EarlyStopping", "init_args": ["loss"]},
        {"class_path": "EarlyStopping", "arguments": {"monitor": "loss"}},
        {"class_path": ""},
        {"class_path": None},
        {"class_path": "EarlyStoping"},
    ],
)
def test_what_cannot_be_made_is_one_line(part: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        trainer_arguments({"callbacks": [part]})
    assert error.value.key == "trainer.callbacks" and len(error.value.lines) == 1
