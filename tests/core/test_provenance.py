"""The commit and the versions that run."""

from claim2source.core.provenance import git_state, versions


def test_versions_and_git_say_what_runs(monkeypatch, tmp_path):
    import torch

    found = versions()
    assert (
        found["torch"] == torch.__version__.partition("+")[0] or found["torch"] == torch.__version__
    )
    assert {"python", "transformers", "tokenizers", "numpy"} <= found.keys()
    monkeypatch.setattr("claim2source.core.provenance._CHECKOUT", tmp_path)
    assert git_state() is None


def test_git_state_tells_a_clean_checkout_from_a_changed_one(monkeypatch, tmp_path):
    (tmp_path / ".git").mkdir()
    answers = {"rev-parse": "abc", "status": ""}
    monkeypatch.setattr("claim2source.core.provenance._CHECKOUT", tmp_path)
    monkeypatch.setattr("claim2source.core.provenance._git", lambda *args: answers[args[0]])
    assert git_state() == "abc"
    answers["status"] = " M file"
    assert git_state() == "abc+changes"
