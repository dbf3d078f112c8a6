"""Make posts that mean no paper of an index: weather, football, jokes, dinner."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from claim2source.core.records import Claim

# By language: a sentence with two gaps, and what stands in the first and in the second.
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
""",
}


def posts_from_elsewhere(languages: Sequence[str], count: int, seed: int = 13) -> list[Claim]:
    """Draw posts of other topics in these languages, of those that are known; else in English."""
    every: list[tuple[str, str]] = []
    for language in [one for one in languages if one in _POSTS] or ["en"]:
        for line in _POSTS[language].strip().splitlines():
            sentence, *lists = line.split(" | ")
            gaps = product(*(one.split("; ") for one in lists))
            every += [(language, sentence.format(*words)) for words in gaps]
    places = np.random.default_rng(seed).permutation(len(every))[:count]
    return [Claim(f"elsewhere {i}", every[i][1], every[i][0]) for i in sorted(places.tolist())]
