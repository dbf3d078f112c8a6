"""A user's callback that logs, in its own file."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl


class Own(pl.Callback):
    """Log a user's own value."""

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        module.log("mine", 1.0, logger=False)
