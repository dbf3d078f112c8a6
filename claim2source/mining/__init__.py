"""Hard negatives."""

from claim2source.mining.files import read_mined, write_mined
from claim2source.mining.mine import MinedRow, Miner, MiningConfig, MiningCounts, Negative
from claim2source.mining.ranking import RankingMiner, check_ranked

__all__ = [
    "MinedRow",
    "Miner",
    "MiningConfig",
    "MiningCounts",
    "Negative",
    "RankingMiner",
    "check_ranked",
    "read_mined",
    "write_mined",
]
