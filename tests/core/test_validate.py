"""JSON files: what cannot be read, or computed with, is one line with the file."""

import pytest

from claim2source.core.errors import InputError
from claim2source.core.validate import read_json

DAMAGED = {
    "": "F:1: not JSON: Expecting value",
    '{"a": 1,\n}': "F:2: not JSON: Expecting property name enclosed in double quotes",
    "[" * 100_000: "F: not JSON that can be read: nested too deeply",
}
NO_NUMBERS = {
    "9" * 5000: f"the number {'9' * 40} is too long",
    '{"a": NaN}': "the number NaN is not finite",
    "[-Infinity]": "the number -Infinity is not finite",
    "1e400": "the number 1e400 is not finite",
}


def refusal(path, **how):
    with pytest.raises(InputError) as error:
        read_json(path, **how)
    (line,) = error.value.lines
    return line.replace(str(path), "F")


def test_damaged_json_and_numbers_that_cannot_be_computed_with_are_one_line(tmp_path):
    path = tmp_path / "f.json"
    for text, reason in DAMAGED.items():
        path.write_text(text)
        assert refusal(path) == refusal(path, ours=False) == reason
    for text, reason in NO_NUMBERS.items():
        path.write_text(text)
        assert refusal(path) == f"F: not JSON that can be read: {reason}"


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
    assert refusal(tmp_path / "latin") == "F: not JSON: not UTF-8"
    assert refusal(tmp_path) == "F: is a folder, not a file"
    assert refusal(tmp_path / "absent") == "F: no such file"
