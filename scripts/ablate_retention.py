"""Rows of scripts/ablate.py on retention: tuned in some languages, scored in all of them."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from claim2source.core.files import atomic_folder
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.datasets import load, write_beir
from scripts.ablate_rows import DEMO_RECIPE, LIMITED, Row, Settings, Table, settings_of
from scripts.data_folder import data_folder

RETENTION = Table(
    "demo",
    {**DEMO_RECIPE, **LIMITED, **settings_of(languages=["de", "fr"])},
    {
        "demo test": ("demo", "test", ["de", "fr"]),
        "ct25 dev": ("ct25", "dev", None),
        "fact-checks dev": ("tweets-factchecks", "dev", None),
    },
    (
        Row("base", "the base model", trained=False),
        Row("tuned", "tuned on German and French alone", against="base"),
        Row(
            "kl",
            "tuned, and KL to the base model at weight 1",
            settings_of(losses__keep_base__weight=1.0),
            on="tuned",
            against="tuned",
        ),
        Row(
            "half",
            "tuned, at half the way from the base",
            on="tuned",
            against="tuned",
            trained=False,
            scale=0.5,
        ),
        Row(
            "claims-only",
            "tuned, the claims' side alone",
            settings_of(optimisation__train="query_only"),
            on="tuned",
            against="tuned",
        ),
        Row(
            "slow",
            "tuned, at a quarter of the learning rate",
            settings_of(optimisation__learning_rate=1.25e-5),
            on="tuned",
            against="tuned",
        ),
        Row(
            "replay",
            "tuned with the English claims replayed",
            settings_of(languages=["en", "de", "fr"]),
            on="tuned",
            against="tuned",
        ),
        Row(
            "lora",
            "tuned by LoRA (rank 16, learning rate 5e-4)",
            settings_of(tuning="lora", lora__r=16, optimisation__learning_rate=5e-4),
            on="tuned",
            against="base",
        ),
        Row(
            "lora-half",
            "lora, at half its scale",
            on="lora",
            against="lora",
            trained=False,
            scale=0.5,
        ),
    ),
)

# Small sets, made once, so that a row takes a few minutes: the demo and ct25 with a sample of
# their training claims, both together, and the dev claims of ct25 and of the fact-checks with
# some of the sources.
DE_FR, EN, BOTH, FACTS = "small-de-fr", "small-en", "small-both", "small-fact-checks"
SMALL = (DE_FR, EN, BOTH, FACTS)
_CLAIMS, _PAPERS, _FACT_CHECKS = 320, 400, 1000
_SCORED = {DE_FR: "test", EN: "dev", BOTH: "dev"}


def _tuned(name: str, what: str, data: str) -> tuple[Row, ...]:
    """List the rows that are tuned on a set of claims."""
    return (
        Row(name, f"tuned on {what}", _report(data), against="base", data=data),
        Row(
            f"{name}-kl",
            "the same, and KL to the base model at weight 1",
            settings_of(losses__keep_base__weight=1.0),
            on=name,
            against=name,
        ),
        Row(
            f"{name}-half",
            "tuned, at half the way from the base",
            on=name,
            against=name,
            trained=False,
            scale=0.5,
        ),
        Row(
            f"{name}-claims",
            "tuned, the claims' side alone",
            settings_of(optimisation__train="query_only"),
            on=name,
            against=name,
        ),
        Row(
            f"{name}-lora",
            "tuned by LoRA (rank 16, learning rate 5e-4)",
            settings_of(tuning="lora", lora__r=16, optimisation__learning_rate=5e-4),
            on=name,
            against=name,
        ),
    )


def _report(data: str) -> Settings:
    return {"data.report_split": _SCORED[data]}


# Multilingual E5 has something to lose in all three languages. The last epoch is taken as it is:
# what is lost is the question, not what val would choose.
RETENTION_ME5 = Table(
    DE_FR,
    {
        **DEMO_RECIPE,
        **settings_of(
            model__name="multilingual-e5-small-4bit",
            model__max_length=96,
            rendering__sources="title_abstract",
            mining__pool="train-golds",
            optimisation__temperature=0.01,
            optimisation__learning_rate=1e-4,
            optimisation__train_embeddings="false",
            choose="last",
        ),
    },
    {
        "demo test": (DE_FR, "test", None),
        "ct25 dev": (EN, "dev", None),
        "fact-checks dev": (FACTS, "dev", None),
    },
    (
        Row("base", "the base model", trained=False),
        *_tuned("de-fr", "the demo's German and French", DE_FR),
        *_tuned("en", "ct25's English", EN),
        *_tuned("both", "German and French of the demo, English of ct25", BOTH),
    ),
)


def make_small(table: Table, root: Path) -> None:
    """Make the small sets of a table in `root` that are not there."""
    named = {table.data_of(row) for row in table.rows} | {
        data for data, *_ in table.targets.values()
    }
    for name in sorted(named.intersection(SMALL)):
        if not (root / name).is_dir():
            with atomic_folder(root / name) as temporary:
                write_beir(_small(name), temporary)


def _small(name: str) -> list[Dataset]:
    """Collect the splits of a small set; claims and sources are drawn by a fixed seed."""
    if name == FACTS:
        dev = load(data_folder("tweets-factchecks"), "dev")
        return [replace(dev, sources=_pool(dev.sources, dev.golds, _FACT_CHECKS))]
    demo = [load("demo", "train", ["de", "fr"]), load("demo", "test")]
    demo[0] = demo[0].with_claims(_sample(demo[0].claims))
    if name == DE_FR:
        return demo
    ct25 = [load(data_folder("ct25"), split) for split in ("train", "dev")]
    ct25[0] = ct25[0].with_claims(_sample(ct25[0].claims))
    pool = _pool(ct25[0].sources, ct25[0].golds | ct25[1].golds, _PAPERS)
    ct25 = [replace(part, sources=pool) for part in ct25]
    if name == EN:
        return ct25
    return [
        replace(
            part,
            claims=(*part.claims, *other.claims),
            sources=(*part.sources, *other.sources),
            qrels=Qrels({**part.qrels.grades, **other.qrels.grades}),
            split=part.split,
        )
        for part, other in zip(ct25, demo, strict=True)
    ]


def _sample(claims: Sequence[Claim]) -> list[Claim]:
    return random.Random(0).sample(list(claims), _CLAIMS)


def _pool(sources: Sequence[Source], golds: Collection[str], size: int) -> tuple[Source, ...]:
    """Keep the golds and as many others, in their order, as make up `size` sources."""
    others = [source.id for source in sources if source.id not in golds]
    kept = random.Random(0).sample(others, max(0, size - len(golds)))
    wanted = {*golds, *kept}
    return tuple(source for source in sources if source.id in wanted)
