"""An index that grows: a folder that stores papers with their terms and vectors."""

from claim2source.engines.engine import Engine as Engine
from claim2source.engines.engine import is_engine as is_engine
from claim2source.engines.engine import open_index as open_index
from claim2source.engines.growing import grow as grow
from claim2source.engines.growing import grow_engine as grow_engine
from claim2source.engines.rows import Rows as Rows
from claim2source.engines.rows import Where as Where
from claim2source.engines.table import SearchResults as SearchResults
