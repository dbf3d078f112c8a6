"""Read, write, split and prepare data sets in the native BEIR layout."""

from claim2source.datasets.beir import files_of as files_of
from claim2source.datasets.beir import folder_of as folder_of
from claim2source.datasets.beir import write_beir as write_beir
from claim2source.datasets.lenient import LENIENT as LENIENT
from claim2source.datasets.loading import load as load
from claim2source.datasets.split import carve_val as carve_val
from claim2source.datasets.split import expected_seen_share as expected_seen_share
from claim2source.datasets.split import seen_claims as seen_claims
