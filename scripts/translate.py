"""Translate a data set's claims to English: translate.py --dataset DIR --llm.model NAME."""

from claim2source.core.errors import run_program
from claim2source.pipeline.translate import TranslateConfig, main

__all__ = ["TranslateConfig", "main"]

if __name__ == "__main__":
    run_program(main)
