"""Fit abstention to an index: claims with and without their papers, and posts of other topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset
from claim2source.core.run import Result, Run
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.core.terminal import say
from claim2source.data.grouping import connected_groups
from claim2source.data.store import Store
from claim2source.find.abstention import (
    DEEPEST,
    DENSE,
    LEXICAL,
    AbstainModel,
    Design,
    Tenth,
    candidate_languages,
    fit,
    foreign_ids,
    index_stages,
    reliability_tenths,
)
from claim2source.find.allowed import require_allowed
from claim2source.mining.near_duplicates import same_papers
from claim2source.search.engine import Engine
from claim2source.search.translator import Translators

# More claims change little.
MAX_CLAIMS = 1_000
# Number of posts of other topics.
FEWEST = 150
MOST_ELSEWHERE = 300
# Probability below which a paper is "not here"; above, it is "uncertain".
NOT_HERE = 0.3
# Penalty of the model of topics.
PENALTY = 1.0
# Settings to try for the model of papers, and the number of folds.
FOLDS = 5
SCORES = (1, 2, 5, 10)
PENALTIES = (0.1, 1.0, 10.0, 100.0)
# Share of common words from which two titles or texts belong to the same paper.
_SIMILARITY = 0.9
# By language, one kind of post per line: a sentence with gaps, and the fillers of each gap.
_POSTS = {
    "en": """
{} again in {} today, I am done with this weather | rain; snow; fog | London; Leeds; the valley
what a match! {} won 3-1 and {} scored twice | Arsenal; our team; Madrid | the captain; a sub
my {} just {}, cannot stop laughing | dog; cat; neighbour | stole a pizza; fell asleep on the phone
recipe of the day: {} with {}, ready in 20 minutes | pasta; rice; salmon | garlic; lemon butter
the {} is late again, {} minutes, thanks for nothing | bus; train; plane | 20; 45; 90
why did the {} cross the road? the {} was closed | chicken; professor; duck | bar; library; bridge
new album of {} is out, track {} on repeat | Adele; my favourite band; Coldplay | three; seven
who else says the {} election debate was {}? | local; presidential; student | boring; a circus
stock tip: {} went up 12% after {} | Tesla; Apple; the bank | earnings; the merger news
happy {} everyone, see you at {} | birthday; new year; Friday | the party; the beach; Sam's place
study time is over, {} with {} tonight | movie; drinks; video games | friends; the kids
new study: {} {}, says research | dinosaurs; black holes | are older than thought; 28% off
good morning {}, {} and ready to go | world; twitter; team | coffee in hand; ran 5k
lol {}, {} | same here; who did this; no way | I am crying; can't even
day {} with this cold, {} and back to bed | two; five | soup; tea with honey
second jab done, {}, {} | sore arm; no side effects yet | off to work; ice cream now
season {} of {} is so much better than the last one | two; four | that show; the crown
looking for a {} near {}, any tips? | plumber; flat; dentist | the station; Oxford
my train of thought at 3 am: {}, {} | do fish sleep; why are we here | send help; goodnight
RT to win a {}! {} | phone; hoodie | ends Sunday; follow us and tag a friend
""",
    "de": """
schon wieder {} in {}, ich habe dieses Wetter satt | Regen; Schnee; Nebel | Berlin; Wien; den Bergen
was für ein Spiel! {} gewinnt 3:1, {} trifft doppelt | Bayern; unser Team | der Kapitän; Müller
{} hat gerade {}, ich lache Tränen | mein Hund; Oma | die Pizza gefressen; am Telefon geschlafen
Rezept des Tages: {} mit {}, in 20 Minuten fertig | Nudeln; Reis | Knoblauch; Zitronenbutter; Pilzen
{} hat wieder {} Minuten Verspätung, danke für nichts | der Bus; die Bahn; der Flieger | 20; 45; 90
treffen sich zwei {}. Sagt der eine: {} | Jäger; Fische; Beamte | lange nicht gesehen; hast du Feuer
das neue Album von {} ist da, Lied {} läuft | Grönemeyer; meiner Lieblingsband | drei; sieben
alles Gute zum {}, wir sehen uns {} | Geburtstag; neuen Jahr; Feiertag | auf der Feier; am Strand
neue Studie: {} {}, sagen Forscher | Dinosaurier; schwarze Löcher | sind älter als gedacht; wachsen
guten Morgen {}, {} und los | zusammen; Twitter | Kaffee ist fertig; 5 km gelaufen
{}, ich kann nicht mehr {} | oh Mann; haha | vor Lachen; mit diesen Leuten
Tag {} mit der Erkältung, {} und wieder ins Bett | zwei; fünf | Suppe; Tee mit Honig
zweite Impfung geschafft, {}, {} | Arm tut weh; nichts gemerkt | jetzt ein Eis; ab zur Arbeit
die Debatte gestern war {}, {} | langweilig; ein Zirkus | Umfrage hin oder her; ich wähle wen anders
suche {} in der Nähe {}, Tipps? | eine Wohnung; einen Zahnarzt | vom Bahnhof; der Uni
Gewinnspiel! {} zu gewinnen, {} | ein Handy; zwei Karten | bis Sonntag teilen; folgt uns
""",
    "fr": """
encore {} à {}, j'en ai marre de ce temps | la pluie; la neige; du brouillard | Paris; Lyon; Brest
quel match ! {} gagne 3-1, doublé {} | le PSG; Marseille; notre équipe | du capitaine; du nouveau
{} vient de {}, je pleure de rire | mon chien; mamie | manger la pizza; s'endormir au téléphone
recette du jour : {} à {}, prête en 20 minutes | pâtes; riz | l'ail; la crème; l'oignon
{} a encore {} minutes de retard, merci bien | le bus; le train; l'avion | 20; 45; 90
c'est l'histoire de {} qui entre dans {} | deux poissons; un fou; Toto | un bar; une boulangerie
le nouvel album de {} est sorti, titre {} en boucle | Stromae; mon groupe préféré | trois; sept
joyeux {} à tous, on se voit {} | anniversaire; Noël; vendredi | à la fête; à la plage
nouvelle étude : {} {} | les dinosaures; les trous noirs | sont plus vieux que prévu; grandissent
bonjour {}, {} et c'est parti | tout le monde; Twitter | café à la main; 5 km courus
mdr {}, {} | pareil; qui a fait ça | je suis mort; j'en peux plus
jour {} avec ce rhume, {} et au lit | deux; cinq | soupe; tisane au miel
deuxième dose faite, {}, {} | mal au bras; rien senti | une glace maintenant; retour au boulot
le débat d'hier était {}, {} | nul; un cirque | sondage ou pas; je vote pour un autre
cherche {} près {}, des idées ? | un appart; un dentiste | de la gare; de la fac
concours ! {} à gagner, {} | un téléphone; deux places | jusqu'à dimanche; suivez-nous
""",
}


@dataclass(frozen=True, eq=False)
class Questions:
    """Index's answers to claims with and without their papers, and to other posts.

    `parts` are the ids and the results by stage of each of the three; the last may be absent. The
    second part also has the claims whose papers are not in the index. The arrays cover all parts:
    `right` is whether the last stage's first source is a gold; `groups` number the groups of gold
    papers, and the kinds of other posts. `foreign` claims are in another language than the index.
    """

    parts: tuple[tuple[Sequence[str], Mapping[str, Result]], ...]
    right: np.ndarray
    groups: np.ndarray
    foreign: frozenset[str] = frozenset()

    @property
    def claims(self) -> int:
        """Count the claims; those with their papers in the index count twice."""
        with_papers, _ = self.parts[0]
        without_papers, _ = self.parts[1]
        return len(with_papers) + len(without_papers)

    @property
    def present(self) -> np.ndarray:
        """Return whether each one's paper is in the index."""
        places = np.arange(len(self.right))
        with_papers, _ = self.parts[0]
        return places < len(with_papers)

    def features(self, design: Design) -> np.ndarray:
        """Compute the features of all, [claims + posts, features]."""
        features: list[np.ndarray] = []
        for ids, stages in self.parts:
            own = design.features(ids, stages, self.foreign)
            features.append(own)
        return np.concatenate(features)

    def shares(self, model: AbstainModel) -> np.ndarray:
        """Return the probability that each one's paper is here, [claims + posts]."""
        features = self.features(model.design)
        probabilities = model.probabilities(features)
        if model.topic is None:
            return probabilities
        return probabilities * self.shares(model.topic)


def paired(
    claims: Sequence[Claim],
    stages: Mapping[str, Result],
    absent: Mapping[str, Result],
    missing: Sequence[Claim] = (),
) -> Questions:
    """Compare the first sources of claims, with and without their papers, with their golds.

    `absent` also has the results of the claims in `missing`, whose papers are not in the index.
    """
    *_, last = stages.values()
    ids = [claim.id for claim in claims]
    without = ids + [claim.id for claim in missing]

    # Without a claim's papers no answer is right.
    right = np.zeros(len(ids) + len(without), bool)
    for row, claim in enumerate(claims):
        first = last.run.sources(claim.id, 1)
        right[row] = not set(first).isdisjoint(claim.golds)

    numbers = connected_groups(claim.golds for claim in claims)
    papers = np.array(numbers, int)
    next_number = papers.max(initial=-1) + 1
    own_groups = next_number + np.arange(len(missing))
    groups = np.concatenate([papers, papers, own_groups])

    parts = ((ids, stages), (without, absent))
    return Questions(parts, right, groups)


def gold_papers(dataset: Dataset) -> dict[str, frozenset[str]]:
    """Map every claim with a gold to its golds and all near-duplicates of them."""
    pairs = same_papers(dataset.sources, _SIMILARITY, _SIMILARITY)
    ids = [source.id for source in dataset.sources]
    keys = [[key] for key in ids]
    keys += [[first, second] for first, second in pairs]
    numbers = connected_groups(keys)

    members: dict[int, set[str]] = {}
    copies: dict[str, set[str]] = {}
    for source, number in zip(ids, numbers, strict=False):  # the rest belongs to the pairs
        group = members.setdefault(number, set())
        group.add(source)
        copies[source] = group

    papers: dict[str, frozenset[str]] = {}
    for claim in dataset.claims:
        if not claim.golds:
            continue
        groups = [copies.get(gold, {gold}) for gold in claim.golds]
        papers[claim.id] = frozenset[str]().union(*groups)
    return papers


def as_asked(
    engine: Engine,
    claims: Sequence[Claim],
    store: Store | None = None,
) -> list[Claim]:
    """Return claims with translations as posts have them: by the index's translator, or none.

    A data set's own translations would be too optimistic for posts without one.
    """
    config = engine.manifest.translator
    if config is None:
        return [replace(claim, translation=None) for claim in claims]

    location = str(engine.location)
    require_allowed(config, location)
    translators = Translators.open(config, store)
    translated, _ = translators.translate_claims(claims, overwrite=True)
    summary = translators.summary()
    if summary:
        say(summary)
    return translated


def ask_index(
    engine: Engine,
    dataset: Dataset,
    seed: int = 13,
    missing: Sequence[Claim] = (),
) -> Questions:
    """Query an index with claims, with and without their papers, and with posts of other topics.

    `missing` are claims whose papers are not in the index. Raises `UserError` if the index has no
    claim's papers.
    """
    claims = _indexed_claims(engine, dataset, seed)
    removed = gold_papers(dataset.with_claims(claims))
    most_removed = max(map(len, removed.values()))
    missing = _sampled(missing, seed)

    results = engine.find([*claims, *missing], DEEPEST + most_removed)
    lexical = _without_sources(results.lexical, removed)
    dense = _without_sources(results.dense, removed)
    absent = replace(results, lexical=lexical, dense=dense)

    wanted = max(FEWEST, len(claims) // 2)
    count = min(MOST_ELSEWHERE, wanted)
    languages = candidate_languages(engine)
    posts, kinds = posts_from_elsewhere(languages, count, seed)
    elsewhere = index_stages(engine.find(posts, DEEPEST))

    with_papers = index_stages(results)
    without_papers = index_stages(absent)
    questions = paired(claims, with_papers, without_papers, missing)
    post_ids = [post.id for post in posts]
    no_post = np.zeros(len(posts), bool)
    return Questions(
        parts=(*questions.parts, (post_ids, elsewhere)),
        right=np.append(questions.right, no_post),
        groups=np.append(questions.groups, kinds),
        foreign=foreign_ids([*claims, *missing, *posts], engine),
    )


def _indexed_claims(
    engine: Engine,
    dataset: Dataset,
    seed: int,
) -> list[Claim]:
    """List claims whose papers are all in the index, at most `MAX_CLAIMS`.

    Raises `UserError` if there are none.
    """
    golds = sorted(dataset.golds)
    indexed = set(engine.stamps(golds))
    claims: list[Claim] = []
    for claim in dataset.claims:
        if claim.golds and indexed.issuperset(claim.golds):
            claims.append(claim)

    if not claims:
        name = dataset.name or "the data set"
        raise UserError(f"{name}: no claim of {dataset.split!r} has its papers in the index")
    return _sampled(claims, seed)


def _sampled(claims: Sequence[Claim], seed: int) -> list[Claim]:
    """Draw `MAX_CLAIMS` claims if there are more."""
    if len(claims) <= MAX_CLAIMS:
        return list(claims)
    rng = np.random.default_rng(seed)
    sample = rng.choice(len(claims), MAX_CLAIMS, replace=False)
    return [claims[row] for row in sorted(sample)]


def posts_from_elsewhere(
    languages: Sequence[str],
    count: int,
    seed: int = 13,
) -> tuple[list[Claim], np.ndarray]:
    """Draw posts of other topics in the supported ones of the languages, else in English.

    Also return the kind of each, [posts]: posts of one kind differ only in a few words.
    """
    known = [language for language in languages if language in _POSTS]
    posts: list[Claim] = []
    kinds: list[int] = []
    kind = 0
    for language in known or ["en"]:
        lines = _POSTS[language].strip()
        for line in lines.splitlines():
            sentence, *lists = line.split(" | ")
            gaps = [entry.split("; ") for entry in lists]
            for words in product(*gaps):
                name = f"elsewhere {len(posts)}"
                text = sentence.format(*words)
                posts.append(Claim(name, text, language))
                kinds.append(kind)
            kind += 1

    rng = np.random.default_rng(seed)
    drawn = rng.permutation(len(posts))[:count]
    rows = np.sort(drawn)
    drawn_posts = [posts[row] for row in rows]
    drawn_kinds = np.array(kinds)[rows]
    return drawn_posts, drawn_kinds


def choose_design(
    questions: Questions,
    seed: int = 13,
) -> tuple[Design, float]:
    """Choose the number of scores and the penalty on the claims of held-out papers.

    The papers are split into five folds; the setting with the smallest log loss on held-out folds
    is chosen. Raises `UserError` if there are fewer papers than folds.
    """
    claims = questions.claims
    _, results = questions.parts[0]
    stages = tuple(results)
    present = questions.present[:claims]
    groups = questions.groups[:claims]
    papers = len(np.unique(groups))
    if papers < FOLDS:
        raise UserError(f"the verdict needs claims of at least {FOLDS} papers; there are {papers}")

    rng = np.random.default_rng(seed)
    fold = _deal_folds(groups, rng)
    losses: dict[tuple[Design, float], float] = {}
    for scores in SCORES:
        design = Design(stages, scores)
        features = questions.features(design)[:claims]
        for penalty in PENALTIES:
            shares = np.empty(claims)
            for number in range(FOLDS):
                rest = fold != number
                model = fit(design, features[rest], present[rest], penalty)
                shares[~rest] = model.probabilities(features[~rest])

            of_truth = np.where(present, shares, 1 - shares)
            bounded = np.clip(of_truth, 1e-12, None)
            log_losses = -np.log(bounded)
            mean = float(log_losses.mean())
            losses[design, penalty] = round(mean, 12)
    return min(losses, key=lambda setting: losses[setting])


def calibrate(
    engine: Engine,
    dataset: Dataset,
    seed: int = 13,
    missing: Sequence[Claim] = (),
) -> AbstainModel:
    """Fit abstention on the claims of a data set whose papers are in the index, and measure it.

    `missing` are claims whose papers are not in the index. It is measured on papers, and on kinds
    of other posts, that it was not fitted on. Raises `UserError` if there are too few papers.
    """
    questions = ask_index(engine, dataset, seed, missing)
    papers = engine.stats().papers
    design, penalty = choose_design(questions, seed)
    fitted = _fitting_data(questions, dataset, papers)

    of_claims, of_posts = np.split(questions.groups, [questions.claims])
    rng = np.random.default_rng(seed)
    claim_folds = _deal_folds(of_claims, rng)
    post_folds = _deal_folds(of_posts, rng)
    fold = np.concatenate([claim_folds, post_folds])

    shares = np.empty(len(fold))
    for number in range(FOLDS):
        held_out = fold == number
        model = _fit_model(questions, design, penalty, ~held_out)
        shares[held_out] = questions.shares(model)[held_out]

    all_rows = np.ones(len(fold), bool)
    model = _fit_model(questions, design, penalty, all_rows)
    tenths = reliability_tenths(shares, questions.present, questions.right)
    return replace(
        model,
        threshold=NOT_HERE,
        fitted=fitted,
        papers=papers,
        tenths=tenths,
    )


def _fitting_data(questions: Questions, dataset: Dataset, papers: int) -> str:
    """Describe the claims and posts that a model was fitted on."""
    of_claims, of_posts = np.split(questions.groups, [questions.claims])
    with_papers, _ = questions.parts[0]
    asked = len(with_papers)
    claim_papers = len(np.unique(of_claims[:asked]))

    others = questions.claims - 2 * asked
    other_posts = ""
    if others:
        other_posts = f"{others} posts whose papers are not there, "
    return (
        f"{asked} claims of {claim_papers} papers of "
        f"{dataset.name}, {dataset.split}, each with its papers in the index and without, "
        f"{other_posts}and "
        f"{len(of_posts)} posts of other topics; the index has {papers} papers"
    )


def reliability(
    engine: Engine,
    model: AbstainModel,
    dataset: Dataset,
) -> tuple[Tenth, ...]:
    """Measure an index's abstention on a data set's claims, with and without their papers."""
    questions = ask_index(engine, dataset)
    claims = questions.claims
    shares = questions.shares(model)[:claims]
    judged = np.isfinite(shares)
    present = questions.present[:claims]
    right = questions.right[:claims]
    return reliability_tenths(shares[judged], present[judged], right[judged])


def reliability_parts(
    title: str,
    tenths: Sequence[Tenth],
    model: AbstainModel,
) -> list[Part]:
    """Tabulate the reliability on the claims of `title`, and on held-out parts of the fitting."""
    parts: list[Part] = [
        f"{title}, each once with its papers in the index and once without them, by the "
        "probability that the paper is there:",
        reliability_table(tenths),
    ]
    if model.tenths:
        head = "On papers and kinds of other posts that it was not fitted on"
        held_out = reliability_table(model.tenths)
        parts += [f"{head} ({model.fitted}):", held_out]
    return parts


def reliability_table(tenths: Sequence[Tenth]) -> TextTable:
    """Tabulate how often the paper was in the index, by tenths of the probability."""
    from scipy import stats

    rows: list[list[Cell]] = []
    for number, row in enumerate(tenths):
        if not row.answers:
            continue
        missing = row.answers - row.here
        low = 0.0
        high = 1.0
        if row.here:
            low = stats.beta.ppf(0.025, row.here, missing + 1)
        if missing:
            high = stats.beta.ppf(0.975, row.here + 1, missing)

        share = row.here / row.answers
        rows.append(
            [
                f"{number / 10} to {(number + 1) / 10}",
                row.answers,
                row.share,
                share,
                share - row.share,
                f"{low:.2f} to {high:.2f}",
                row.first / row.answers,
            ]
        )

    columns = [
        "probability",
        "posts",
        "mean",
        "paper there",
        "gap",
        "95 %",
        "paper first",
    ]
    numeric = [False, *[True] * 6]
    return TextTable(columns, rows, numeric=numeric)


def reliability_line(model: AbstainModel) -> str:
    """Describe how often the paper was in the index by verdict, over held-out claims."""
    verdicts = {
        "not here": (0.0, model.threshold),
        "uncertain": (model.threshold, model.sure),
        "found": (model.sure, 1.1),
    }
    parts: list[str] = []
    for name, (low, high) in verdicts.items():
        tenth = model.measured(low, high)
        if tenth.answers:
            parts.append(f'{tenth.here} of {tenth.answers} that are "{name}"')
    counts = ", ".join(parts)
    return f"held out, the paper was there for {counts}"


def _fit_model(
    questions: Questions,
    design: Design,
    penalty: float,
    rows: np.ndarray,
) -> AbstainModel:
    """Fit a model of the paper and a model of the topic to the selected rows (bool)."""
    claims = questions.claims
    claim_rows = rows[:claims]
    post_rows = rows[claims:]
    features = questions.features(design)[:claims]
    present = questions.present[:claims]
    model = fit(design, features[claim_rows], present[claim_rows], penalty)

    post_ids, elsewhere = questions.parts[2]
    run = elsewhere[DENSE].run
    usual: tuple[float, ...] = ()
    for post_id, is_fitted in zip(post_ids, post_rows, strict=True):
        if is_fitted:
            # An index without vectors may return nothing.
            own_scores = run.scores[run.rows(post_id)]
            best = float(own_scores[:1].sum())
            usual += (round(best, 6),)

    topic = Design((LEXICAL, DENSE), 1, of_usual=DENSE, usual=usual)
    topic_features = questions.features(topic)
    places = np.arange(len(rows))
    is_claim = places < claims
    with_papers, _ = questions.parts[0]
    # A post without its paper in the index may have any topic.
    is_indexed = places < 2 * len(with_papers)
    known = rows & (is_indexed | ~is_claim)
    topic_model = fit(topic, topic_features[known], is_claim[known], PENALTY)
    return replace(model, topic=topic_model)


def _deal_folds(groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    names, numbers = np.unique(groups, return_inverse=True)
    fold_of = rng.permutation(len(names)) % FOLDS
    folds: np.ndarray = fold_of[numbers]
    return folds


def _without_sources(
    result: Result,
    removed: Mapping[str, frozenset[str]],
) -> Result:
    claims: list[str] = []
    sources: list[str] = []
    scores: list[float] = []
    for claim, source, score in result.run:
        if source not in removed.get(claim, ()):
            claims.append(claim)
            sources.append(source)
            scores.append(score)
    run = Run.from_rows(
        claims,
        sources,
        scores,
        claim_ids=result.run.claim_ids,
        pool=result.run.pool,
    )
    return replace(result, run=run)
