"""Log a run's numbers: to CSV always, to Weights & Biases as the config says."""

from __future__ import annotations

from typing import Any

from pytorch_lightning.loggers import CSVLogger

from claim2source.core.config import as_plain
from claim2source.core.report import MACRO, Epoch
from claim2source.core.tables import TextTable
from claim2source.io.wandb import Tracker, TrainingPage, as_wandb, wandb_mode
from claim2source.training.run_folder import RunFolder

# The name that Lightning's own logger gives it: a resumed run's curves go on.
_STEP = "trainer/global_step"


class RunLog(CSVLogger):
    """Log a run's numbers to a CSV file, and these with tables to a page in W&B.

    A resumed run gets a CSV file named by its first step; its page goes on. W&B never stops the
    training.
    """

    def __init__(self, run: RunFolder) -> None:
        step = f"step-{run.file.steps or 0:06d}"
        super().__init__(run.path, name="logs", version=step, flush_logs_every_n_steps=1)
        config, mode = run.config.wandb, wandb_mode(run.config.wandb.mode)
        self.page: Tracker | None = None
        if mode != "off":
            page = TrainingPage.begin(run.path, config.project, config.name)
            settings = as_plain(run.config)
            self.page = Tracker(
                mode, run.path, id=page.id, resume="allow", job_type="train", config=settings
            )
            self.page.define_steps(_STEP)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:  # type: ignore[override]
        super().log_metrics(metrics, step)
        if self.page is not None:
            self.page.log(metrics if step is None else {**metrics, _STEP: step})

    def scores(self, entry: Epoch, step: int) -> None:
        """Log a point of the learning curves: an epoch's MRR@5 on val, by language and part."""
        values = {f"val/{lang}/mrr@5": row["mrr@5"] for lang, row in entry.val.items()}
        for part, table in entry.parts.items():
            values[f"val/{part} papers/mrr@5"] = table[MACRO]["mrr@5"]
        self.log_metrics({"epoch": entry.epoch, **values}, step)

    def table(self, key: str, table: TextTable) -> None:
        if self.page is not None:
            self.page.log({key: as_wandb(table)})

    def close(self) -> None:
        """Close the page; later evaluations are W&B runs of their own."""
        if self.page is not None:
            self.page.close()
