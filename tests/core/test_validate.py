"""JSON files: unreadable content and numbers are reported in one line with the file."""

from claim2source.core.errors import InputError
from claim2source.core.validate import read_json
from tests.refusals import refused

DAMAGED = {"": 1, '{"a": 1,\n}': 2, "[" * 100_000: None}  # text -> line
NO_NUMBERS = {"9" * 5000: "9" * 40, '{"a": NaN}': "NaN", "[-Infinity]": "-Infinity"}
NO_NUMBERS["1e400"] = "1e400"


def refusal(path, *facts, **how):
    """Check a refusal of one line with its file; return the line of the file."""
    with refused(InputError, *facts) as error:
        read_json(path, **how)
    (problem,) = error.value.problems
    assert problem.file == str(path) and len(error.value.lines) == 1
    return problem.line


def test_damaged_json_and_numbers_that_cannot_be_computed_with_are_one_line(tmp_path):
    path = tmp_path / "f.json"
    for text, line in DAMAGED.items():
        path.write_text(text)
        assert refusal(path, "JSON") == refusal(path, "JSON", ours=False) == line
    for text, number in NO_NUMBERS.items():
        path.write_text(text)
        assert refusal(path, "JSON", number) is None


def test_what_transformers_writes_is_read(tmp_path):
    path = tmp_path / "f.json"
    path.write_text(
        '{"model_max_length": 1000000000000000019884624838656, "limits": [0, Infinity]}'
    )
    assert read_json(path, ours=False)["limits"] == [0, float("inf")]
    path.write_text('{"a": [9223372036854775807, 1.5, "\\u00e9"]}')
    assert read_json(path) == {"a": [2**63 - 1, 1.5, "é"]}


def test_what_is_no_text_file_is_said(tmp_path):
    (tmp_path / "latin").write_bytes(b'"\xe9"')
    for name, fact in (("latin", "UTF-8"), (".", "folder"), ("absent", "no such file")):
        assert refusal(tmp_path / name, fact) is None
