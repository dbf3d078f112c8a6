"""Several processes share the encoding of val and of what is mined from: real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from claim2source.core.report import Report
from claim2source.datasets import carve_val, load
from claim2source.io.store import Store
from claim2source.mining import read_mined
from claim2source.text import Rendering
from claim2source.training.choose import choose_checkpoint
from claim2source.training.data import load_data
from claim2source.training.distributed import World
from claim2source.training.run_folder import RunFolder
from tests.train.test_finetune import TWO, run
from tests.training.small import arguments, small_config, small_setup
from train.finetune import main

COUNTING = """
import json
import os
from pathlib import Path
from claim2source.core.errors import run_program
from claim2source.models import Encoder
from train.finetune import main

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
    """With the base, each epoch's model, scales and means: every text once, by one of them."""
    setup = small_setup(tmp_path / "small")
    script, out = tmp_path / "counting.py", tmp_path / "run"
    script.write_text(COUNTING)
    more: dict[str, object] = {"optimisation__epochs": 2, "optimisation__remine_every": 1}
    more |= {"choose": "last", "store": tmp_path / "store", "scales": "[0.3,0.6]", "soup": True}
    command = [*TWO[:-1], str(script), *arguments(*setup, out, **more)]
    done = run(command, tmp_path, COUNTS=str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    shares: dict[str, list[list[str]]] = {}
    for rank in range(2):
        for line in (tmp_path / str(rank)).read_text().splitlines():
            weights, side, texts = json.loads(line)
            assert weights is not None
            key = json.dumps([weights, side], sort_keys=True)
            shares.setdefault(key, [[], []])[rank] += texts
    # Base, two epochs, two scales and a mean, each with claims and sources; the report's claims are
    # the first's alone.
    assert len(shares) == 12
    train, val = carve_val(load(setup[1], "train"), 0.2, 13)
    sources = Rendering("bilingual", "metadata").source_texts(val.sources)
    for key, (first, second) in shares.items():
        assert not {*first} & {*second} and second
        if "source" in key:
            assert {*first, *second} == {*sources} and abs(len(first) - len(second)) <= 1
    # A process alone scores the same checkpoints alike, and chooses the same.
    more |= {"store": tmp_path / "other", "resume": True}
    config = small_config(*setup, out, **more)
    folder = RunFolder.find(config, lock=False)
    config = folder.settled(config)
    alone = choose_checkpoint(folder, load_data(config), config, Store(config.store), World())
    found = Report.read(out).training
    assert found is not None and found.scales == alone.tried and found.choice == alone.choice
    assert alone.choice.tried[-1].settings == {"mean of epochs": "1+2"} and len(alone.tried) == 3
    main(arguments(*setup, tmp_path / "alone", optimisation__epochs=1))
    mined = [read_mined(path / "mined.jsonl", train) for path in (out, tmp_path / "alone")]
    assert [[n.source for n in row.negatives] for row in mined[0]] == [
        [n.source for n in row.negatives] for row in mined[1]
    ]
