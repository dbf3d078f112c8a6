"""Files of systems of 0.2 are printed in today's grammar, or refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from claim2source.systems.read import read_systems
from scripts.upgrade_systems import main, upgrade

PARTS = "P: {retrieve: {bm25: {k1: 1.0}}}\nM: {retrieve: {dense: org/m}}\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("A: {bm25: {k1: 2.0}, label: 'a, b'}", "{retrieve: {bm25: {k1: 2.0}}, label: 'a, b'}"),
        ("A:\n  bm25:\n    k1: 2.0 # k1\n    b: 1.0", "{retrieve: {bm25: {k1: 2.0, b: 1.0}}}"),
        ("A:\n  bm25: {k1: 2.0,\n    b: 1}\n  tune: yes", "{retrieve: {bm25: {b: 1, k1: fit}}}"),
        ("A:\n  model: {name: org/x} # x", "{retrieve: {dense: org/x}}"),
        (
            "A:\n  advice: go\n  model:\n    name: org/x\n    # how\n    pooling: cls\n"
            "  sources: title # less\n  index: {dimensions: 64}\n",
            "{retrieve: {dense: {name: org/x, pooling: cls}, sources: title}, advice: go}",
        ),
        (
            "A:\n  hybrid:\n    sparse: P # words\n    dense: M\n"
            "    fusion: {method: rrf, depth: 9} # ranks\n  label: l",
            "{retrieve: {hybrid: [P, M], method: rrf, depth: 9}, label: l}",
        ),
        (
            "A:\n  routes: {de: M, fr: [M, P], default: P} # by language\n  claims: bilingual",
            "{retrieve: P, routes: {de: M, fr: [M, P]}, claims: bilingual}",
        ),
        (
            "A:\n  depth: 9\n  stages:\n    - retrieve: bm25 # first\n      bm25: {k1: 2}\n"
            "      depth: 7\n    # then\n    - rerank: max_sim\n      depth: 3 # few\n",
            "{retrieve: {bm25: {k1: 2}}, depth: 7, stages: [{rerank: max_sim, depth: 3}]}",
        ),
        (
            "A:\n  stages:\n    - {retrieve: hybrid, checkpoint: m, fusion: {alpha: 0.2}}\n"
            "  routes:\n    de: {retrieve: {checkpoint: g}}\n"
            "    fr: [{retrieve: P}, {retrieve: {retrieve: dense, checkpoint: f}}]\n",
            "{retrieve: {hybrid: [{bm25: {}}, {dense: m}], alpha: 0.2}, routes: {de: {hybrid: "
            "[{bm25: {}}, {dense: g}], alpha: 0.2}, fr: [P, {dense: f}]}}",
        ),
        (
            "# top\nclaims: bilingual # both\nstages:\n  - {retrieve: bm25, bm25: {b: 0.5}}\n"
            "  - {rerank: max_sim}\n# end\n",
            "{retrieve: {bm25: {b: 0.5}}, claims: bilingual, stages: [{rerank: max_sim}]}",
        ),
        (
            "name: A\nkeep: 3\nrerank: {by: llm, rewrites: 2}\nstance: {by: llm}\n"
            "verdict: {weights: min_max}\nchoose: [bm25, threshold]\nllm: {model: m}\n"
            "grid: {boost: [0, 2]}\nbm25: {boost: 1}",
            "{retrieve: {fielded: {boost: [1, 0, 2], k1: fit}}, stages: [{rerank: relevance, "
            "rewrites: 2, llm: {model: m}}, {verify: stance, by: llm, depth: 3, weights: min_max, "
            "threshold: fit, llm: {model: m}}]}",
        ),
    ],
)
def test_a_system_is_what_it_was_and_keeps_its_comments(tmp_path: Path, old: str, new: str) -> None:
    files = {name: tmp_path / f"{name}.yaml" for name in ("parts", "A", "new")}
    upgraded = upgrade(old)
    files["parts"].write_text(PARTS)
    files["A"].write_text(upgraded)
    for comment in re.findall(r"# .*", old):
        assert comment in upgraded
    assert ("# index: is gone" in upgraded) == ("index:" in old)
    systems = read_systems([files["A"]], [files["parts"]])
    files["new"].write_text(f"A: {new}\n")
    new_systems = read_systems([files["new"]], [files["parts"]])
    # What is said though it is the default changes nothing.
    assert [(s.first, [(s.name, s.stage) for s in s.stages]) for s in systems.values()] == [
        (new_system.first, [(s.name, s.stage) for s in new_system.stages])
        for new_system in new_systems.values()
    ]
    assert [(s.claims, s.depth, s.label, s.advice, s.is_fit) for s in systems.values()] == [
        (s.claims, s.depth, s.label, s.advice, s.is_fit) for s in new_systems.values()
    ]


@pytest.mark.parametrize(
    "text",
    [
        "A:\n  tune: true\n",
        "A:\n  stages:\n    - {retrieve: B, checkpoint: c}\n",
        "name: A\nindex: shared\n",
        "\xff",
    ],
)
def test_what_it_cannot_read_is_refused(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text, encoding="latin-1")
    monkeypatch.setattr(sys, "argv", ["upgrade_systems.py", str(file)])
    assert main() == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith(f"{file}: ")
    assert printed.err.count("\n") == 1 and file.read_text("latin-1") == text
