"""Several processes share the encoding of val and of what is mined from: real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from claim2source.train.finetune import main

from claim2source.data.loading import load
from claim2source.data.split import carve_val
from claim2source.mining import read_mined
from claim2source.text import Rendering
from tests.processes import BY_TWO, run
from tests.training.small import arguments, small_setup

COUNTING = """
import json
import os
from pathlib import Path
from claim2source.core.errors import run_program
from claim2source.models import Encoder
from claim2source.train.finetune import main

real, said = Encoder._encode_chunk, Path(os.environ["COUNTS"]) / os.environ["RANK"]

def encode_chunk(self, texts, side, *more):
    with open(said, "a") as file:
        file.write(json.dumps([self.weights, side, texts]) + "\\n")
    return real(self, texts, side, *more)

Encoder._encode_chunk = encode_chunk
run_program(main)
"""


@pytest.mark.slow
def test_two_processes_encode_half_of_val_and_of_what_is_mined(tmp_path: Path) -> None:
    """With the base and each epoch's model: every text once, by one of them."""
    setup = small_setup(tmp_path / "small")
    script, out = tmp_path / "counting.py", tmp_path / "run"
    script.write_text(COUNTING)
    extra: dict[str, object] = {"optimisation__epochs": 2, "optimisation__remine_every": 1}
    extra |= {"choose": "last", "store": tmp_path / "store"}
    command = [*BY_TWO, str(script), *arguments(*setup, out, **extra)]
    proc = run(command, tmp_path, COUNTS=str(tmp_path))
    assert proc.returncode == 0, proc.stderr[-3000:]
    shares: dict[str, list[list[str]]] = {}
    for rank in range(2):
        for line in (tmp_path / str(rank)).read_text().splitlines():
            weights, side, texts = json.loads(line)
            assert weights is not None
            key = json.dumps([weights, side], sort_keys=True)
            shares.setdefault(key, [[], []])[rank] += texts
    # Base and two epochs, each with claims and sources; the report's claims are the first's alone.
    assert len(shares) == 6
    train, val = carve_val(load(setup[1], "train"), 0.2, 13)
    sources = Rendering("bilingual", "metadata").source_texts(val.sources)
    for key, (first, second) in shares.items():
        assert not {*first} & {*second} and second
        if "source" in key:
            assert {*first, *second} == {*sources} and abs(len(first) - len(second)) <= 1
    # A process alone mines the same.
    main(arguments(*setup, tmp_path / "alone", optimisation__epochs=1))
    mined = [read_mined(path / "mined.jsonl", train) for path in (out, tmp_path / "alone")]
    assert [[n.source for n in row.negatives] for row in mined[0]] == [
        [n.source for n in row.negatives] for row in mined[1]
    ]
