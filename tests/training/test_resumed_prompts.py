"""A run begun by version 0.1.0 goes on without the prompts that its base declares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from claim2source.core.config import to_yaml
from claim2source.core.errors import UserError
from claim2source.core.files import write_text
from claim2source.models import Manifest, Template, Weights, resolve
from claim2source.text import Rendering
from claim2source.training import finetune as program
from claim2source.training.finetune import Setup, finetune
from tests.models.layout import declare
from tests.training.small import small_config, small_setup

PROMPTS = {"query": "post: ", "document": "paper: "}


@pytest.mark.parametrize("resumed", [False, True])
def test_a_resumed_run_keeps_the_template_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    model, data = small_setup(tmp_path)
    declare(model, whole={"prompts": PROMPTS})
    config = small_config(model, data, tmp_path / "run", resume=resumed)
    if resumed:
        # What 0.1.0 leaves: a config without the key `prompts`, and step 0 without prefixes.
        begun = small_config(model, data, tmp_path / "run", model__prompts="false")
        base = resolve(begun.model, "cpu")
        point = tmp_path / "run" / "checkpoints" / "epoch-0"
        point.mkdir(parents=True)
        Manifest(
            base=base.base, weights=Weights(), encoder=base.encoder.settings, rendering=Rendering()
        ).write(point)
        text = to_yaml(begun).replace("  prompts: false\n", "")
        write_text(tmp_path / "run" / "config.yaml", text)
        write_text(tmp_path / "run" / "run.json", json.dumps({"chosen": None, "history": []}))

    def stop(setup: Setup) -> None:
        raise UserError(repr(setup.base.encoder.settings.template))

    monkeypatch.setattr(program, "mine", stop)
    expected = Template() if resumed else Template("post: ", "paper: ")
    with pytest.raises(UserError) as found:
        finetune(config)
    assert str(found.value) == repr(expected)
