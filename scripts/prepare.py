"""Convert a task's files to a data set: prepare.py TASK --input DIR --output DIR."""

from claim2source.core.errors import run_program
from claim2source.data.prepare import main, read_options

__all__ = ["main", "read_options"]

if __name__ == "__main__":
    run_program(main)
