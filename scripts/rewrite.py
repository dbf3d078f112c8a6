"""Rewrite claims and sources in the papers' styles: rewrite.py --out DIR --llm.model NAME."""

from claim2source.core.errors import run_program
from claim2source.pipeline.rewrite import RewriteConfig, main

__all__ = ["RewriteConfig", "main"]

if __name__ == "__main__":
    run_program(main)
