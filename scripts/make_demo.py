"""Build the demo data set from the hand-written wordings in scripts/demo_material."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from claim2source.core.errors import UserError, run_program
from claim2source.core.files import write_text

ROOT = Path(__file__).resolve().parents[1]
MATERIAL = ROOT / "scripts" / "demo_material"
DEFAULT_OUT = ROOT / "claim2source" / "datasets" / "demo"
SEED = 7
LANGS = ("en", "de", "fr")
SPLITS = ("train", "dev", "test")
CLAIMS_PER_LANG = {"train": 220, "dev": 50, "test": 80}
FAMILY_SIZES = (7, 8, 6, 7, 8, 5, 7, 4)  # cycled over the topics
FAMILY_GROUPS = FAMILY_PLACES = 3  # few, so that dose and effect must distinguish papers too
UNSEEN_FAMILY_EVERY = 5  # every fifth family has no train claim
UNSEEN_PAPERS = 2  # papers without a train claim in each of the other families
VAGUE = 0.2  # probability that a claim names a group, place or effect only vaguely
MAX_SENTENCES = 6
UMLAUTS: Any = {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue"}
SENTENCE = re.compile(r"\S.*?[.!?](?=\s|$)")
# The preposition before people or animals, and before places.
NEAR = {"en": ("among", "in"), "de": ("bei", "in"), "fr": ("chez", "dans")}
YEAR_MONTH_DAY = ((2012, 2025), (1, 13), (1, 29))

Material = dict[str, Any]
T = TypeVar("T")
Slots = dict[str, str]
Details = tuple[str, str, int, str]


@dataclass(frozen=True)
class Paper:
    """An invented study: its text, and the details that distinguish it within its family."""

    pid: str
    family: str
    topic: str
    details: Details
    title: str
    text: str
    authors: list[str]
    venue: str
    date: str


@dataclass(frozen=True)
class Claim:
    """An invented post about one paper."""

    cid: str
    lang: str
    split: str
    template: str
    gold: str
    text: str
    translation: str | None


def load_material(folder: Path = MATERIAL) -> Material:
    """Read the YAML files and merge the topic files into one table."""
    read = {p.stem: yaml.safe_load(p.read_bytes()) for p in sorted(folder.glob("*.yaml"))}
    parts = (part for stem, part in read.items() if stem.startswith("topics_"))
    return {**read, "topics": {name: topic for part in parts for name, topic in part.items()}}


def capital(text: str) -> str:
    """Upper-case the first character only."""
    return text[:1].upper() + text[1:]


def options(wordings: str) -> list[str]:
    """Split a wording into its variants."""
    return [part.strip() for part in wordings.split(" | ")]


def pick(rng: random.Random, wordings: str) -> tuple[list[str], str]:
    """Draw one variant: its grammatical forms and its English translation (or itself)."""
    form, _, translation = rng.choice(options(wordings)).partition(" = ")
    forms = [part.strip() for part in form.split(" / ")]
    return forms, translation.strip() or forms[0]


def fill(template: str, slots: dict[str, str]) -> str:
    """Fill a template's slots; a capitalised slot name capitalises the value."""
    table = {**slots, **{capital(key): capital(value) for key, value in slots.items()}}
    return re.sub(r"\s+", " ", template.format_map(table)).strip()


def build_papers(material: Material, rng: random.Random) -> list[Paper]:
    """Build a family of near-duplicate papers per topic."""
    papers: list[Paper] = []
    for number, name in enumerate(material["topics"]):
        size = FAMILY_SIZES[number % len(FAMILY_SIZES)]
        papers += build_family(material, rng, name, number + 1, size, len(papers))
    return papers


def draw_details(material: Material, rng: random.Random, name: str, size: int) -> list[Details]:
    """Draw (group, place, dose, effect) for a family; any two papers differ in two or more."""
    topic = material["topics"][name]
    groups = rng.sample(topic["pops"], min(FAMILY_GROUPS, len(topic["pops"])))
    places = rng.sample(list(material["places"]), FAMILY_PLACES)
    effects = list(material["effects"])
    middle = effects.index("zero")
    # Both directions and the null, so that the direction of the effect distinguishes papers.
    chosen = [*rng.sample(effects[:middle], 2), "zero", *rng.sample(effects[middle + 1 :], 2)]
    grid = list(itertools.product(groups, places, range(len(topic["doses"])), chosen))
    rng.shuffle(grid)
    drawn: list[Details] = []
    for cell in grid:
        if all(sum(a != b for a, b in zip(cell, other, strict=True)) >= 2 for other in drawn):
            drawn.append(cell)
    return drawn[:size]


def build_family(
    material: Material, rng: random.Random, name: str, number: int, size: int, offset: int
) -> list[Paper]:
    """Write the papers of one topic; wordings are drawn once, so that only details differ."""
    topic, texts, words = material["topics"][name], material["abstracts"], material["words"]
    title, methods, results = (rng.choice(texts[part]) for part in ("titles", "methods", "results"))
    closing, design = rng.choice(texts["closing"]), rng.choice(texts["designs"][topic["kind"]])
    variant = rng.randrange(2)
    papers = []
    for index, details in enumerate(draw_details(material, rng, name, size), start=1):
        group, place, dose, effect = details
        slots = {
            "x": topic["x"],
            "y": topic["y"],
            "design": design,
            "grp": options(material["groups"][group]["sci"])[variant],
            "pl": material["places"][place]["sci"],
            "dose": options(topic["doses"][dose])[0],
            "size": options(material["effects"][effect]["sci"])[variant],
            "n": f"{rng.randrange(120, 9800):,}",
            "months": str(rng.randrange(3, 37)),
            **interval(rng, float(material["effects"][effect]["ratio"])),
        }
        text = fill(" ".join([*topic["bg"].split("|"), methods, results, *closing]), slots)
        names = zip(rng.sample(words["first"], 4), rng.sample(words["last"], 4), strict=True)
        papers.append(
            Paper(
                pid=f"p{offset + index:04d}",
                family=f"f{number:03d}",
                topic=name,
                details=details,
                title=capital(fill(title, slots)),
                text=" ".join(SENTENCE.findall(text)[:MAX_SENTENCES]),
                authors=[f"{first} {last}" for first, last in names][: rng.randrange(2, 5)],
                venue=rng.choice(words["venues"]),
                date="-".join(f"{rng.randrange(*span):02d}" for span in YEAR_MONTH_DAY),
            )
        )
    return papers


def interval(rng: random.Random, ratio: float) -> dict[str, str]:
    """Draw an estimate near the ratio, with a confidence interval that fits its significance."""
    estimate = ratio * rng.uniform(0.97, 1.03)
    # Small effects get narrow intervals, which would otherwise cover 1.
    width = rng.uniform(1.03, 1.05) if 0 < abs(ratio - 1) < 0.2 else rng.uniform(1.09, 1.18)
    numbers = {"est": estimate, "lo": estimate / width, "hi": estimate * width}
    return {name: f"{number:.2f}" for name, number in numbers.items()}


def lay_slots(
    material: Material, rng: random.Random, paper: Paper, lang: str
) -> tuple[Slots, Slots]:
    """Draw lay words for a paper's details, in the language and in English for the translation."""
    group, place, dose, size = paper.details
    topic, effect = material["topics"][paper.topic], material["effects"][size]
    groups, places, words = (material[name] for name in ("groups", "places", "words"))
    x_forms, y = ([part.strip() for part in side.split(" / ")] for side in topic[lang].split(" ~ "))
    sign, kind = direction(effect), groups[group].get("kind", "people")
    news = "none" if sign == "none" else "good" if sign == topic["good"] else "bad"
    eff, eff_en = pick(rng, vague_or_exact(rng, words["vague"][sign], effect)[lang])
    grp, grp_en = pick(rng, vague_or_exact(rng, words["vague"][kind], groups[group])[lang])
    pl, pl_en = pick(rng, vague_or_exact(rng, words["vague"]["place"], places[place])[lang])
    verd, verd_en = pick(rng, words["verdicts"][news][lang])
    doses = options(topic["doses"][dose])
    x_en, y_en = topic["t"].split(" ~ ")
    tags = rng.sample(words["tags"][lang], 2)
    # Half of the hashtags mean nothing; the others name the topic, in English as is common.
    tag = rng.choice([tags[0], rng.choice(topic["tags"])])
    shared = {"at": rng.choice(words["handles"]), "tag": tag, "tag2": tags[1]}
    own = {"x": x_forms[0], "xd": x_forms[-1], "xa": accusative(x_forms), "y": y[0]}
    own |= {"eff": eff[0], "effs": eff[-1], "eff2": inverted(y[0], eff[0]), "verd": verd[0]}
    own |= {"grp": grp[0], "in": f"{NEAR[lang][kind == 'where']} {grp[-1]}", "pl": pl[0]}
    own["dose"] = doses[1 + LANGS.index(lang)]
    english = {"x": x_en, "y": y_en, "eff": eff_en, "grp": grp_en, "pl": pl_en, "verd": verd_en}
    english |= {"in": f"{NEAR['en'][kind == 'where']} {grp_en}", "dose": doses[1]}
    return own | shared, english | shared


def vague_or_exact(rng: random.Random, vague: Slots, exact: Slots) -> Slots:
    """Choose the vague wording of a detail with probability `VAGUE`."""
    return vague if rng.random() < VAGUE else exact


def direction(effect: Slots) -> str:
    """Name the direction in which the outcome changes."""
    ratio = float(effect["ratio"])
    return "none" if ratio == 1 else "down" if ratio < 1 else "up"


def accusative(forms: Sequence[str]) -> str:
    """Form the German accusative, which differs in the masculine singular only."""
    # All indefinite nouns of the material are masculine.
    for nominative, dative, result in (("der ", "dem ", "den "), ("ein ", "einem ", "einen ")):
        if forms[0].startswith(nominative):
            return forms[-1].replace(dative, result, 1)
    return forms[0]


def inverted(subject: str, predicate: str) -> str:
    """Put the subject after the verb and its reflexive, as German verb-second order asks."""
    return re.sub(r"^\S+(?: sich)?", lambda verb: f"{verb[0]} {subject}", predicate)


def roughen(rng: random.Random, text: str, lang: str) -> str:
    """Make a text look typed on a phone: lower case, a typo, missing accents or full stop."""
    if rng.random() < 0.25:
        text = " ".join(word if word[0] in "#@" else word.lower() for word in text.split())
    if lang == "de" and rng.random() < 0.1:
        text = text.translate(str.maketrans(UMLAUTS))
    if lang == "fr" and rng.random() < 0.15:
        text = text.translate(str.maketrans("éèêàâîïôûùçÉ", "eeeaaiiouucE"))
    if rng.random() < 0.15:
        text = typo(rng, text)
    if rng.random() < 0.3:
        text = text.rstrip(".")
    return text


def typo(rng: random.Random, text: str) -> str:
    """Swap two inner letters of one long word."""
    words = text.split(" ")
    long = [index for index, word in enumerate(words) if len(word) >= 6 and word.isalpha()]
    if long:
        word = words[index := rng.choice(long)]
        cut = rng.randrange(2, len(word) - 2)
        words[index] = word[:cut] + word[cut + 1] + word[cut] + word[cut + 2 :]
    return " ".join(words)


def split_golds(papers: Sequence[Paper], rng: random.Random) -> dict[str, list[Paper]]:
    """Divide papers into golds of train (and half of test), of dev, and of test alone."""
    pools: dict[str, list[Paper]] = {"train": [], "dev": [], "test": []}
    families = itertools.groupby(papers, key=lambda paper: paper.family)
    for number, (_, members) in enumerate(families):
        family = list(members)
        rng.shuffle(family)
        unseen = len(family) if number % UNSEEN_FAMILY_EVERY == 2 else UNSEEN_PAPERS
        for index, paper in enumerate(family[:unseen]):
            pools["dev" if index % 2 else "test"].append(paper)
        pools["train"] += family[unseen:]
    return pools


def draw(rng: random.Random, pool: Sequence[T], count: int) -> list[T]:
    """Draw items without repeats until the pool is used up, then start again."""
    rounds = range(-(-count // len(pool)))
    return [item for _ in rounds for item in rng.sample(pool, len(pool))][:count]


def build_claims(material: Material, papers: Sequence[Paper], rng: random.Random) -> list[Claim]:
    """Write the claims of every split; half of test's golds are golds of train too."""
    pools = split_golds(papers, rng)
    claims: list[Claim] = []
    used: set[str] = set()
    for split, lang in itertools.product(SPLITS, LANGS):
        count = CLAIMS_PER_LANG[split]
        if split == "test":
            seen_ids = {claim.gold for claim in claims if claim.split == "train"}
            seen = [paper for paper in papers if paper.pid in seen_ids]
            golds = draw(rng, seen, count // 2) + draw(rng, pools["test"], count // 2)
        else:
            golds = draw(rng, pools[split], count)
        rng.shuffle(golds)
        templates = material[f"claims_{lang}"][split]
        order = draw(rng, range(len(templates)), count)
        for number, (gold, index) in enumerate(zip(golds, order, strict=True), start=1):
            text, translation = write_claim(material, rng, gold, lang, templates[index])
            while text.casefold() in used:  # no text occurs twice
                text, translation = write_claim(material, rng, gold, lang, templates[index])
            used.add(text.casefold())
            name = f"{lang}-{split}-{index + 1:02d}"
            cid = f"{split}-{lang}-{number:04d}"
            claims.append(Claim(cid, lang, split, name, gold.pid, text, translation))
    return claims


def write_claim(
    material: Material, rng: random.Random, gold: Paper, lang: str, template: Slots
) -> tuple[str, str | None]:
    """Write a post and, for German and French, its translation."""
    own, english = lay_slots(material, rng, gold, lang)
    text = roughen(rng, fill(template["t"], own), lang)
    return text, fill(template["e"], english) if "e" in template else None


def build() -> tuple[list[Paper], list[Claim]]:
    """Build papers and claims; tests check what the data set promises."""
    material, rng = load_material(), random.Random(SEED)
    papers = build_papers(material, rng)
    return papers, build_claims(material, papers, rng)


def write(papers: Sequence[Paper], claims: Sequence[Claim], out: Path) -> None:
    """Write a BEIR folder, each file by a temporary name."""
    files: dict[str, Iterable[str]] = {
        "corpus.jsonl": map(paper_row, papers),
        "queries.jsonl": map(claim_row, claims),
    }
    for split in SPLITS:
        rows = [f"{c.cid}\t{c.gold}\t1" for c in claims if c.split == split]
        files[f"qrels/{split}.tsv"] = ["query-id\tcorpus-id\tscore", *rows]
    for name, lines in files.items():
        write_text(out / name, "".join(f"{line}\n" for line in lines))


def paper_row(paper: Paper) -> str:
    """Format a line of BEIR's corpus.jsonl."""
    metadata = {name: getattr(paper, name) for name in ("authors", "venue", "date", "family")}
    row = {"_id": paper.pid, "title": paper.title, "text": paper.text, "metadata": metadata}
    return json.dumps(row, ensure_ascii=False)


def claim_row(claim: Claim) -> str:
    """Format a line of BEIR's queries.jsonl."""
    translation = {} if claim.translation is None else {"translation": claim.translation}
    metadata = {"lang": claim.lang, **translation, "template": claim.template}
    row = {"_id": claim.cid, "text": claim.text, "metadata": metadata}
    return json.dumps(row, ensure_ascii=False)


def main(argv: Sequence[str] | None = None) -> None:
    """Build, check and write the data set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace a data set in --out")
    arguments = parser.parse_args(argv)
    names = ("corpus.jsonl", "queries.jsonl", "qrels")
    held = [name for name in names if (arguments.out / name).exists()]
    if held and not arguments.overwrite:
        why = f"holds {held[0]}; add --overwrite or choose another --out"
        raise UserError(f"{arguments.out}: {why}")
    papers, claims = build()
    write(papers, claims, arguments.out)
    print(f"{len(papers)} papers, {len(claims)} claims -> {arguments.out}")


if __name__ == "__main__":
    run_program(main)
