"""Hard negatives."""

from claim2source.mining.mine import MinedRow, Miner, MiningConfig, MiningCounts, Negative
from claim2source.mining.mined_files import read_mined, write_mined

__all__ = [
    "MinedRow",
    "Miner",
    "MiningConfig",
    "MiningCounts",
    "Negative",
    "read_mined",
    "write_mined",
]
