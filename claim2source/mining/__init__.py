"""Hard negatives."""

from claim2source.mining.files import read_mined, write_mined
from claim2source.mining.mine import MinedRow, Miner, MiningConfig, MiningCounts, Negative

__all__ = [
    "MinedRow",
    "Miner",
    "MiningConfig",
    "MiningCounts",
    "Negative",
    "read_mined",
    "write_mined",
]
