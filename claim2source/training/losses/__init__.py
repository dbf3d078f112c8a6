"""Losses, one file each."""

from claim2source.training.losses.info_nce import info_nce

__all__ = ["info_nce"]
