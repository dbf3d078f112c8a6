"""Make posts that mean no paper of an index: weather, football, jokes, dinner, small talk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from claim2source.core.records import Claim

# By language, a kind of post a line: a sentence with gaps, and what stands in each of them.
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


def posts_from_elsewhere(
    languages: Sequence[str], count: int, seed: int = 13
) -> tuple[list[Claim], np.ndarray]:
    """Draw posts of other topics in those of the languages that are known, else in English.

    Also return the kind of each, [posts]: posts of one kind differ in a few words.
    """
    posts: list[tuple[str, str, int]] = []
    kind = 0
    for language in [language for language in languages if language in _POSTS] or ["en"]:
        for line in _POSTS[language].strip().splitlines():
            sentence, *lists = line.split(" | ")
            gaps = product(*(entry.split("; ") for entry in lists))
            posts += [(language, sentence.format(*words), kind) for words in gaps]
            kind += 1
    rows = sorted(np.random.default_rng(seed).permutation(len(posts))[:count].tolist())
    claims = [Claim(f"elsewhere {i}", posts[i][1], posts[i][0]) for i in rows]
    return claims, np.array([posts[i][2] for i in rows])
