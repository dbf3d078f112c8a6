"""Show how the score on val grows with the number of training pairs, as a table and a plot.

python scripts/learning_curve.py --datasets pairs.csv [--sizes 50 150 500] [--out DIR]

Each size is one run of train/finetune.py on the first pairs; another one uses all. All sizes of a
data set have the same val, so dev is not needed. Finished runs are not run again, and a stopped one
resumes. OUT/curve.json has the points, OUT/curve.svg the plot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import CONFIGS, Between, Settings, read_config, require
from claim2source.core.errors import run_program
from claim2source.core.files import write_text
from claim2source.core.report import FILE, Report
from claim2source.core.tables import Cell, TextTable, render
from claim2source.core.terminal import say
from claim2source.systems.heldout import carve
from claim2source.training.config import FinetuneConfig
from claim2source.training.splits import load_judged
from scripts.ablate import METRIC, resumable, train

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = (50, 150, 500, 1500)
# Data set -> number of training pairs -> MRR@5 on val; 0 pairs is the model before training.
Curves = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class Config(Settings):
    """Settings of the curve.

    Args:
        datasets: data sets, or files of pairs, one curve each.
        training: configs of the training; a later file overrides an earlier one.
        sizes: numbers of training pairs; sizes that a data set does not have are left out, and
            all of its pairs are always one of the sizes.
        out: folder for the runs, the table and the plot.
    """

    datasets: tuple[str, ...]
    training: tuple[Path, ...] = (CONFIGS / "finetune" / "pairs.yaml",)
    sizes: tuple[Annotated[int, Between(2, 10**7)], ...] = SIZES
    out: Path = Path("checkpoints/curve")

    def check(self) -> None:
        # A run's folder and a curve have the data set's name.
        names = {Path(dataset).stem for dataset in self.datasets}
        allowed = "data sets whose names differ without folder and ending"
        require(len(names) == len(self.datasets), "datasets", list(self.datasets), allowed)


@dataclass(frozen=True)
class Curve:
    """Trainings on growing parts of one data set."""

    config: Config
    dataset: str

    @property
    def name(self) -> str:
        return Path(self.dataset).stem

    def arguments(self, size: int | None) -> list[str]:
        """Return the arguments of a training on the first pairs; None: on all."""
        words = ["--config", *map(str, self.config.training)]
        words += ["--data.dataset", self.dataset]
        words += ["--out", str(self.config.out / f"{self.name}-{size or 'all'}")]
        if size is not None:
            words += ["--data.limit", str(size)]
        return words

    def settings(self, size: int | None) -> FinetuneConfig:
        words = self.arguments(size)
        return read_config(
            FinetuneConfig, words, program="scripts/learning_curve.py", description=""
        )

    def available(self) -> int:
        """Count the claims that a training on all would use: without val, up to `data.limit`."""
        config = self.settings(None)
        data = config.data
        full = load_judged(data.dataset, data.train_split, config.languages, lenient=data.lenient)
        shares = data.val_share, data.val_seed, config.held_out_seen, data.seen_share_expected
        claims = carve(full, *shares).train.claims
        return len(claims[: data.limit])

    def train(self, size: int | None) -> Report:
        """Train, unless this run is finished, and return the run's report."""
        settings = self.settings(size)
        begun = resumable(settings)
        if not (begun and (settings.out / FILE).is_file()):
            how = ["--resume"] if begun else []
            train([*self.arguments(size), *how], settings.out)
        return Report.read(settings.out)

    def points(self) -> dict[int, float]:
        """Train on every size; return MRR@5 on val by the number of pairs, 0 for none."""
        available = self.available()
        sizes: dict[int, int | None] = {
            size: size for size in self.config.sizes if size < available
        }
        sizes[available] = None
        points: dict[int, float] = {}
        for count, size in sorted(sizes.items()):
            say(f"{self.name}: {count} pairs of {available}")
            training = self.train(size).training
            assert training is not None
            scores = {epoch.epoch: epoch.val["macro"][METRIC] for epoch in training.history}
            points.setdefault(0, scores[0])
            points[count] = scores[training.chosen_epoch]
        return points


def table(curves: Curves) -> TextTable:
    rows: list[list[Cell]] = []
    for name, points in curves.items():
        for count, score in points.items():
            rows.append([name, count, score, score - points[0] if count else None])
    return TextTable(["data set", "pairs", f"{METRIC} on val", "gain"], rows)


def draw(curves: Curves, file: Path) -> None:
    """Draw the curves over the number of pairs, on a logarithmic scale, as an SVG file."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Without the salt and the date, the same curves give the same file.
    with rc_context({"svg.hashsalt": "claim2source", "font.size": 9}):
        figure = Figure(figsize=(6, 3.4), layout="constrained")
        axes: Axes = figure.add_subplot()
        counts = sorted({count for points in curves.values() for count in points})
        # A logarithmic scale has no 0: the untrained model is drawn left of the first size.
        zero = counts[1] / 3
        for points in curves.values():
            axes.plot([count or zero for count in points], [*points.values()], marker="o")
        axes.legend([*curves], frameon=False)
        axes.set_xscale("log")
        ticks = [0, *(size for size in SIZES if size <= counts[-1])]
        axes.set_xticks([tick or zero for tick in ticks], [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("training pairs")
        axes.set_ylabel("MRR@5 on val")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        part = file.with_name(file.name + ".part")
        figure.savefig(part, format="svg", metadata={"Date": None})
        part.replace(file)


def main(argv: Sequence[str] | None = None) -> None:
    config = read_config(
        Config,
        argv,
        program="scripts/learning_curve.py",
        description=__doc__ or "",
    )
    curves = {}
    for dataset in config.datasets:
        curve = Curve(config, dataset)
        curves[curve.name] = curve.points()
    write_text(config.out / "curve.json", json.dumps(curves, indent=1) + "\n")
    draw(curves, config.out / "curve.svg")
    print(render([table(curves)]))


if __name__ == "__main__":
    run_program(main)
