"""Check a training's settings for failures that can be seen before torch is imported."""

from __future__ import annotations

from claim2source.core.errors import report_once
from claim2source.core.files import require_writable
from claim2source.data.loading import require_golds
from claim2source.data.store import Store
from claim2source.data.wandb import require_tracking, wandb_mode
from claim2source.models.config import ModelConfig
from claim2source.models.hub import require_model
from claim2source.models.local import require_device
from claim2source.training.config import FinetuneConfig
from claim2source.training.reranker_config import RerankerConfig
from claim2source.training.run_folder import RunFolder


def check_early(config: FinetuneConfig | RerankerConfig) -> None:
    """Raise `UserError` for a device, folder, file, data set or model that a run cannot have.

    Every process looks: none goes on to load what another refuses. No run begins before all have
    joined.
    """
    with report_once():
        require_device(config.device)
        require_tracking(wandb_mode(config.wandb.mode), "--wandb.mode")
        require_writable(Store(config.store).root, "folder")
        RunFolder.find(config, lock=False)
        data = config.data
        for split in (data.train_split, data.report_split):
            require_golds(data.dataset, split, lenient=data.lenient)
        require_model(ModelConfig(name=config.model.name, revision=config.model.revision))
        if isinstance(config, RerankerConfig):
            config.require_mined()
    if isinstance(config, FinetuneConfig) and config.after is not None:
        # Here: only then is all that evaluates imported.
        from claim2source.training.after import read_after

        read_after(config)
