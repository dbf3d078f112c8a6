"""All programs that write report bad input in one line, before the work."""

import importlib
import shutil
from pathlib import Path

import pytest

from claim2source.cli import PROGRAMS
from claim2source.core.errors import UserError
from claim2source.systems.read import SYSTEMS_FOLDER
from tests.shared_data import FIXTURES

CT25 = SYSTEMS_FOLDER / "ct25.yaml"
# The words that each program needs; those that write have missing inputs.
WORDS = {
    "eval.abstain": "--index absent --out OUT",
    "eval.evaluate": f"--systems {CT25} --dataset absent --out OUT",
    "eval.encode": "--dataset d",
    "eval.find": "--post p --index i",
    "eval.index": "demo --out i",
    "eval.report": "--reports absent --out OUT",
    "eval.rumors": "--systems absent --dataset absent --out OUT",
    "eval.score": "--qrels q --run r s",
    "eval.serve": "--index i",
    "eval.style_grid": "--dataset absent --out OUT",
    "train.fusion": "--system S --views v --out o",
    "train.merge": "--checkpoints absent --out OUT",
    "train.mine": "--dataset absent --out OUT",
    "data.prepare": "checkthat2025 --input absent --output OUT",
    "eval.translate": "--dataset absent --out OUT",
    "eval.rewrite": "--dataset absent --out OUT",
}
WRITING = {name: words for name, words in WORDS.items() if words.endswith("OUT")}


def run(program: str, words: str, out: Path) -> str:
    argv = [str(out) if word == "OUT" else word for word in words.split()]
    with pytest.raises(UserError) as error:
        load_main(program)(argv)
    assert len(error.value.lines) == 1
    return str(error.value)


@pytest.mark.parametrize("program", WRITING)
def test_an_output_that_cannot_be_written_is_said_before_anything_is_read(program, tmp_path):
    (tmp_path / "file").touch()
    error = run(program, WRITING[program], tmp_path / "file" / "out")
    assert error == f"{tmp_path / 'file'}: is a file, not a folder"
    # With a good output the error is about the inputs; nothing was created for it.
    assert "absent" in run(program, WRITING[program], tmp_path / "new" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("program", "words", "out"),
    [
        ("eval.report", "--reports R --dataset DATA --html OUT", "DATA/qrels/dev.tsv"),
        ("eval.report", "--reports R --html OUT", "R/runs/en.trec"),
        ("eval.report", "--reports R --dataset DATA --html OUT", "LINK"),
        ("train.mine", "--dataset DATA --out OUT", "DATA/queries.jsonl"),
    ],
)
def test_an_input_is_not_replaced_by_the_output(program, words, out, tmp_path):
    shutil.copytree(FIXTURES / "data", tmp_path / "DATA")
    (tmp_path / "R" / "runs").mkdir(parents=True)
    for path in (tmp_path / "R" / "report.json", tmp_path / "R" / "runs" / "en.trec"):
        path.write_text("{}")
    (tmp_path / "LINK").symlink_to("DATA/qrels/dev.tsv")
    words = words.replace("DATA", f"{tmp_path}/DATA").replace(" R ", f" {tmp_path}/R ")
    before = (tmp_path / out).read_bytes()
    error = run(program, words, tmp_path / out)
    option = "--html" if "--html" in words else "--out"
    assert error == f"{tmp_path / out}: is an input of this command; choose another {option}"
    assert (tmp_path / out).read_bytes() == before


@pytest.mark.parametrize("module", [m for m, _ in PROGRAMS.values()])
def test_a_printed_config_is_read_again_as_it_was(module, tmp_path, capsys):
    file, main = tmp_path / "printed.yaml", load_main(module)
    printed = []
    for words in (WORDS.get(module, "").split(), ["--config", str(file)]):
        with pytest.raises(SystemExit) as error:
            main([*words, "--print_config"])
        assert error.value.code == 0
        printed.append(capsys.readouterr().out)
        file.write_text(printed[0])
    assert printed[0] == printed[1] and printed[0].count("\n") > 2


def load_main(module):
    return importlib.import_module(f"claim2source.{module}").main
