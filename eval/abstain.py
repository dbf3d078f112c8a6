"""Measure an index's abstention: `python eval/abstain.py --index DIR --dataset DIR --out DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from claim2source.core.config import flag, read_config
from claim2source.core.errors import UserError, run_program
from claim2source.core.files import write_json
from claim2source.core.folders import require_output
from claim2source.core.tables import render
from claim2source.core.terminal import say
from claim2source.data.lenient import LENIENT
from claim2source.evaluation.evaluate import load_reported
from claim2source.find.abstention import read_abstention
from claim2source.find.calibrate import as_asked, reliability, reliability_parts
from claim2source.models.local import ModelOptions, with_local_models
from claim2source.search.engine import open_index


@dataclass(frozen=True, kw_only=True)
class AbstainConfig(ModelOptions):
    """Settings of `eval/abstain.py`.

    Args:
        index: folder or bucket that has the index.
        out: folder for `reliability.json`.
        dataset: folder in BEIR layout, or its name in CLAIM2SOURCE_DATA, or `demo`; or a file of
            pairs.
        split: split whose claims are queries, each with its papers in the index and without.
        device: none uses a GPU if there is one.
    """

    index: str
    out: Path
    dataset: str = "demo"
    split: str = "dev"
    device: Literal["cpu", "cuda"] | None = None
    lenient: bool = flag(LENIENT)


def main(argv: Sequence[str] | None = None) -> None:
    """Query the index with the split's claims; print how reliable its probabilities are."""
    config = read_config(AbstainConfig, argv, program="eval/abstain.py", description=__doc__ or "")
    say(abstain(config))


@with_local_models
def abstain(config: AbstainConfig) -> str:
    """Measure an index's abstention, write it to `config.out`, and return the tables.

    Raises `UserError` if the index has no fitted abstention.
    """
    require_output(config.out)
    engine = open_index(config.index)
    model = read_abstention(engine)
    if model is None:
        reason = "the index has no fitted verdict; fit one with index --claims DATASET"
        raise UserError(f"{config.index}: {reason}")
    engine.device = config.device
    dataset = load_reported(config.dataset, config.split, lenient=config.lenient)
    dataset = dataset.with_claims(as_asked(engine, dataset.claims))
    tenths = reliability(engine, model, dataset)
    write_json(config.out / "reliability.json", [asdict(tenth) for tenth in tenths])
    title = f"{config.index}: claims of {config.dataset}, {config.split}"
    return render(reliability_parts(title, tenths, model))


if __name__ == "__main__":
    run_program(main)
