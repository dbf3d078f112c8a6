"""Start every program with one command: `python -m claim2source SUBCOMMAND ...`."""

from claim2source.cli import run

if __name__ == "__main__":
    run()
