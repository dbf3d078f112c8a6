"""Remove the user's settings from the environment, and set those of tests, at import."""

from __future__ import annotations

import os
import sys

# The user's environment must not affect a test; tests set what they need. Only the folders of real
# data and weights are kept.
_OTHERS = "WANDB_ HF_ HUGGINGFACE TRANSFORMERS_ ACCELERATE_ CLAIM2SOURCE_ SLURM_ LC_ MPL XDG_"
_NAMES = "TZ LANG LANGUAGE COLUMNS LINES NO_COLOR FORCE_COLOR NETRC RANK WORLD_SIZE LOCAL_RANK"
for _name in [*os.environ]:
    _foreign = _name.startswith(tuple(_OTHERS.split())) or _name in _NAMES.split()
    _ours = _name in ("CLAIM2SOURCE_DATA", "CLAIM2SOURCE_WEIGHTS")
    if not _ours and (_foreign or _name.lower().endswith("_proxy")):
        del os.environ[_name]
os.umask(0o022)
# Tests read the output of subprocesses, even if the user's locale is not UTF-8.
os.environ["PYTHONUTF8"] = "1"

# An environment that forbids bytecode makes each worker rewrite all tests, and each process of a
# test compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Set before any test imports torch or tokenizers, which read these once.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
