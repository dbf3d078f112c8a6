"""A JSON file that is too large to be read at once is refused by its size."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from claim2source.core.errors import InputError, UserError
from claim2source.core.report import Report
from claim2source.core.validate import MOST_BYTES, read_json
from claim2source.models import ModelConfig, resolve
from claim2source.search.engine import open_index
from tests.models.layout import declare

SIZE = 3 * 2**30


def enlarge(file: Path) -> Path:
    """Make a sparse file of 3 GB, which uses no disk space."""
    with open(file, "ab") as opened:
        opened.truncate(SIZE)
    return file


def refused(call: Callable[[], object], file: Path) -> None:
    with pytest.raises(UserError) as error:
        call()
    (line,) = error.value.lines
    assert str(file) in line and str(SIZE) in line, line


def test_the_size_is_asked_first(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    refused(lambda: read_json(enlarge(file)), file)
    with open(file, "wb") as opened:
        opened.write(b" " * 10 + b"[]")
    assert read_json(file) == [] and MOST_BYTES > 10**8
    with pytest.raises(InputError, match=r"none\.json"):
        read_json(tmp_path / "none.json")


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "config.json",
        "modules.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "config_sentence_transformers.json",
        "1_Pooling/config.json",
        "claim2source.json",
    ],
)
def test_a_models_files(name: str, tiny_folder: Path, tmp_path: Path) -> None:
    folder = declare(Path(shutil.copytree(tiny_folder, tmp_path / "model")))
    file = enlarge(folder / name)
    refused(lambda: resolve(ModelConfig(str(folder)), "cpu"), file)


def test_the_files_of_an_index_and_a_report(tmp_path: Path) -> None:
    file = enlarge(tmp_path / "manifest.json")
    refused(lambda: open_index(str(tmp_path)), file)
    refused(lambda: Report.read(tmp_path), enlarge(tmp_path / "report.json"))
