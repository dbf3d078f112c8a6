"""Check a training's settings for failures that can be seen before torch is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from claim2source.core.errors import ConfigError
from claim2source.datasets.loading import require_golds
from claim2source.models.config import ModelConfig
from claim2source.models.hub import require_model
from claim2source.training.config import FinetuneConfig
from claim2source.training.reranker_config import RerankerConfig
from claim2source.training.run_folder import RunFolder

# What Nvidia's, AMD's and WSL's drivers make.
_GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def check_early(config: FinetuneConfig | RerankerConfig) -> None:
    """Raise `UserError` for a device, folder, data set or model that the run cannot have.

    The first process alone looks: others may come when the folder is in use.
    """
    if int(os.environ.get("RANK", "0")):
        return
    wants_gpu = config.device is not None and config.device.startswith("cuda")
    if wants_gpu and sys.platform == "linux" and not any(Path(gpu).exists() for gpu in _GPUS):
        raise ConfigError("device", config.device, "cpu: there is no GPU here")
    RunFolder.find(config, lock=False)
    data = config.data
    for split in (data.train_split, data.report_split):
        require_golds(data.dataset, split, lenient=data.lenient)
    require_model(ModelConfig(name=config.model.name, revision=config.model.revision))
