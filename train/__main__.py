"""Fine-tune a retriever like `train/finetune.py`: `accelerate launch -m claim2source.train`."""

from claim2source.core.errors import run_program

from .finetune import main

if __name__ == "__main__":
    run_program(main)
