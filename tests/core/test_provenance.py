"""The commit and the versions that run."""

import platform
import subprocess

from claim2source.core.provenance import git_state, hardware, versions


def test_versions_and_git_say_what_runs(monkeypatch, tmp_path):
    import torch

    version_of = versions()
    assert version_of["torch"] in (torch.__version__, torch.__version__.partition("+")[0])
    assert {"python", "transformers", "tokenizers", "numpy"} <= version_of.keys()
    monkeypatch.setattr("claim2source.core.provenance._CHECKOUT", tmp_path)
    assert git_state() is None
    version_of = hardware()
    assert version_of.cpu and version_of.cores >= 1 and version_of.memory > 2**28
    assert platform.node() not in (version_of.cpu, *version_of.gpus)

    def git(*words):
        own = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
        process = subprocess.run([*own, *words], check=True, capture_output=True, text=True)
        return process.stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    commit = git("rev-parse", "HEAD")
    assert git_state() == commit
    (tmp_path / "new").touch()
    assert git_state() == f"{commit}+changes"
