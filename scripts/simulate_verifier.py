"""Run a pipeline whose verifier is simulated: a server that knows the golds and picks them.

python scripts/simulate_verifier.py --dataset ct25 --split dev --out out/pipeline

The stages are those of configs/systems/ct25.yaml, the hybrid and MaxSim; the third one can be no
better than this. Its rows are marked as simulated, and are in no comparison. Needs the extra `dev`.
"""

from __future__ import annotations

import inspect
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.core.files import content_hash
from claim2source.core.records import Dataset
from claim2source.core.terminal import say
from claim2source.datasets import load
from claim2source.pipeline.staged import StagedOptions, evaluate_staged, read_pipeline
from claim2source.pipeline.systems import SYSTEMS_FOLDER
from scripts.data_folder import data_folder
from tests.llm_server import LLMServer
from tests.llm_server.verifiers import Choose, Question, Verifier

STAGES = """
stages:
  - {{retrieve: ct25-Hybrid, depth: 100}}
  - {{rerank: max_sim, depth: 50}}
  - {{verify: select, depth: {depth}, simulated: true, llm: {{model: {model}, url: "{url}"}}}}
"""
_LABEL = re.compile(r"^\s*(?:Title|Abstract):")


@dataclass(frozen=True)
class Config:
    """Settings of `scripts/simulate_verifier.py`; `depth` is the verifier's."""

    dataset: str = "ct25"
    split: str = "dev"
    depth: int = 10
    out: Path = Path("out/pipeline")
    store: Path | None = None


def knowing(dataset: Dataset) -> Choose:
    """Choose a paper with the title or the abstract of a gold; none where no such one is shown."""
    # Some papers have no title.
    texts = {one.id: {_words(one.title), _words(one.abstract)} - {""} for one in dataset.sources}
    golds: dict[str, set[str]] = {}
    for claim in dataset.claims:
        known = golds.setdefault(_words(claim.text), set())
        known.update(text for gold in claim.golds for text in texts.get(gold, ()))

    def choose(asked: Question) -> int | None:
        wanted = golds[_words(asked.post)]
        for place, (_, text) in enumerate(asked.papers):
            if not wanted.isdisjoint(_words(_LABEL.sub("", line)) for line in text.splitlines()):
                return place
        return None

    return choose


def _words(text: str) -> str:
    """Leave what a prompt does not change: letters and digits."""
    return " ".join(re.findall(r"\w+", text.lower()))


def main(argv: Sequence[str] | None = None) -> None:
    """Start the server, run the pipeline, stop the server."""
    program = "scripts/simulate_verifier.py"
    config = read_config(Config, argv, program=program, description=__doc__ or "")
    folder = str(data_folder(config.dataset))
    reply = Verifier(knowing(load(folder, config.split)))
    # Answers are stored by the model's name: another rule is another model.
    model = f"simulated-{content_hash([inspect.getsource(knowing)])[:8]}"
    server = LLMServer(reply, model=model).start()
    try:
        with tempfile.TemporaryDirectory() as made:
            file = Path(made) / "simulated.yaml"
            file.write_text(
                STAGES.format(depth=config.depth, model=model, url=server.url), encoding="utf-8"
            )
            systems, name = read_pipeline(file, beside=[SYSTEMS_FOLDER / "ct25.yaml"])
            options = StagedOptions(
                out=config.out, dataset=folder, split=config.split, store=config.store
            )
            dataset = options.reported([name])
            say(evaluate_staged(options, dataset, systems, name, program=program, heading=name))
    finally:
        server.stop()


if __name__ == "__main__":
    run_program(main)
