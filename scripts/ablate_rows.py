"""Define rows and tables of scripts/ablate.py, and the settings that tables share."""

from __future__ import annotations

from dataclasses import dataclass, field

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
Settings = dict[str, str | int | float | list[str] | list[float]]
# Data set, split and languages that a row is scored on.
Target = tuple[str, str, list[str] | None]


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Args:
        name: of the row.
        what: the change, for the table.
        settings: of train/finetune.py, added to those of the row `on` or of the recipe.
        on: row whose settings this one extends.
        against: row of the paired test.
        trained: whether a run is trained; if not, the row is the base model or a `scale`.
        scale: point between base (0) and the tuned weights (1) of the row `on`.
        data: data set trained on; none: that of the row `on`, or of the table.
    """

    name: str
    what: str
    settings: Settings = field(default_factory=dict)
    on: str | None = None
    against: str | None = None
    trained: bool = True
    scale: float | None = None
    data: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows that share training data, recipe and targets."""

    data: str
    recipe: Settings
    targets: dict[str, Target]
    rows: tuple[Row, ...]

    def below(self, row: Row) -> Row | None:
        """Find the row that a row extends."""
        return next((other for other in self.rows if other.name == row.on), None)

    def settings(self, row: Row) -> Settings:
        """Collect all settings of a row."""
        below = self.below(row)
        return {**(self.settings(below) if below else self.recipe), **row.settings}

    def data_of(self, row: Row) -> str:
        """Name the data set that a row is trained on."""
        below = self.below(row)
        return row.data or (self.data_of(below) if below else self.data)


def settings_of(**settings: str | int | float | list[str] | list[float]) -> Settings:
    """Collect settings of train/finetune.py, with two underscores for a dot."""
    return {key.replace("__", "."): value for key, value in settings.items()}


LIMITED = settings_of(mining__max_share=0.95, mining__max_title_similarity=0.9)
COMMON = settings_of(
    tuning="full",
    optimisation__temperature=0.05,
    optimisation__dropout=0.0,
    optimisation__batch_size=32,
    optimisation__warmup_ratio=0.1,
)

DEMO_RECIPE = {
    **COMMON,
    **settings_of(
        model__name=MINILM,
        model__max_length=128,
        rendering__claims="bilingual",
        optimisation__epochs=1,
        optimisation__learning_rate=5e-5,
        optimisation__negatives=1,
    ),
}
