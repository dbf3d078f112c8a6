"""Define what a program that runs one system of a YAML file has in common with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.config import list_field
from claim2source.core.config_yaml import read_yaml
from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Dataset
from claim2source.io.wandb import require_tracking
from claim2source.pipeline.options import EvaluationOptions
from claim2source.pipeline.submit import load_reported, require_submittable
from claim2source.systems.heldout import ChoosingOn
from claim2source.systems.read import SYSTEMS_FOLDER, read_systems
from claim2source.systems.system import DEPTH, RunSettings, System, SystemRunner
from claim2source.text import ClaimForm


@dataclass(frozen=True, kw_only=True)
class StagedOptions(EvaluationOptions):
    """Say what systems with stages are run on.

    Args:
        out: folder for the report, a run of each stage, and the last one's submissions.
        dataset: folder in BEIR layout, or `demo`.
        split: split to report on.
        claims: claim form of the first stage; none: the system's own.
    """

    out: Path
    dataset: str = "demo"
    split: str = "dev"
    files: list[Path] = list_field(help="YAML files of systems; none: all of configs/systems")
    claims: ClaimForm | None = None

    @property
    def choosing_on(self) -> ChoosingOn:
        """Name the claims that settings of the systems are chosen on."""
        return ChoosingOn(lenient=self.lenient)

    def reported(self, rows: Sequence[str], how: str = "") -> Dataset:
        """Load the split to report on; `rows` and `how` as for `require_submittable`.

        Before anything is run it is known what can be scored and submitted.
        """
        require_tracking(self.wandb)
        dataset = load_reported(self.dataset, self.split, lenient=self.lenient)
        require_submittable(self.submit, dataset, rows, how)
        return dataset

    def runner(self, dataset: Dataset, depth: int = DEPTH) -> SystemRunner:
        """Make what runs systems, keeping `depth` sources of a claim at least."""
        settings = RunSettings(
            self.dataset,
            self.choosing_on,
            models=self.models,
            store=self.open_store(),
            device=self.device,
            depth=depth,
        )
        return SystemRunner(dataset, settings)


def pipeline_words(words: Sequence[str]) -> list[str]:
    """Turn `--config FILE` into `--pipeline FILE`, unless the file is a config that names one."""
    found = list(words)
    for place, word in enumerate(words):
        option, equals, text = word.partition("=")
        file = text if equals else "".join(words[place + 1 : place + 2])
        if option == "--config" and file and not _names_pipeline(Path(file)):
            found[place] = f"--pipeline{equals}{text}"
    return found


def _names_pipeline(file: Path) -> bool:
    """Tell whether a YAML file is a program's config, as `--print_config` writes it."""
    try:
        root = read_yaml(file)
    except InputError:  # found again by who reads it
        return False
    return isinstance(root, dict) and not isinstance(root.get("pipeline", {}), list | dict)


def read_pipeline(
    file: Path, name: str | None = None, beside: Sequence[Path] = (), *, staged: bool = True
) -> System:
    """Read the system of a pipeline's file that is to be run.

    `beside` are files of further systems that it may name, by default all of configs/systems.
    Without `staged` the system needs no stages, and without a name it is the file's last. Raises
    `ConfigError` where it is not clear which one is meant.
    """
    systems = read_systems([file], beside or sorted(SYSTEMS_FOLDER.glob("*.yaml")))
    fitting = [one for one in systems.values() if one.stages or not staged]
    named = fitting if staged else fitting[-1:]
    chosen = named if name is None else [one for one in fitting if one.name == name]
    if len(chosen) != 1:
        listed = ", ".join(one.name for one in fitting)
        raise ConfigError("system", name, f"one of {listed or 'none: it has no stages'}")
    return chosen[0]
