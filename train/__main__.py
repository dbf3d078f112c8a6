"""Fine-tune a retriever: `accelerate launch -m claim2source.train`, as `train/finetune.py`."""

from claim2source.core.errors import run_program

from .finetune import main

if __name__ == "__main__":
    run_program(main)
