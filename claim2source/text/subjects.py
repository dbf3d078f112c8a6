"""Extract places and populations from a text in English, German or French.

Places are countries, by name, adjective and inhabitants; populations are groups that a study is
about, such as children or mice. A word matches if it begins with a stem in the lists below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from claim2source.core.records import nfkc
from claim2source.text.clean import without_unseen

# ISO 3166 codes and stems of English, German and French words; "=" marks complete words.
PLACES: Mapping[str, str] = {
    "ar": "argentin",
    "at": "austria österreich autrich",
    "au": "australi",
    "bd": "banglades",
    "be": "belgi =belge =belges =belg",
    "bg": "bulgar",
    "bo": "bolivi",
    "br": "brazil brasil brésil",
    "ca": "canad kanad",
    "ch": "switzerland =swiss schweiz suisse helvétique",
    "cl": "=chile chilean chilen =chili chilien",
    "cm": "cameroon kamerun cameroun",
    "cn": "=china chines chine =chine chinois",
    "co": "colombia kolumbi colombi",
    "cr": "costa-ric",
    "cu": "=cuba cuban kuba kubani cubain",
    "cz": "czech tschech tchèque tchéqu",
    "de": "german deutsch =allemagne allemand",
    "dk": "denmark danish =dane =danes däne dänisch dänemark danemark =danois danoise",
    "ee": "eston estland",
    "eg": "egypt ägypt égypt",
    "es": "=spain spanish spaniard spanie spanisch espagn",
    "et": "ethiopia äthiopi éthiopi",
    "fi": "finland finnish =finn =finns finnl finnisch =finnen finlande finlandais",
    "fr": "=france =french frankreich franzos französ français",
    "gb": "britain british =uk united-kingdom vereinigtes-königreich =england =english scotland "
    "scottish =wales =welsh großbritann britisch =briten engländ schottl schottisch walis "
    "royaume-uni britanni écoss =anglais",
    "gh": "=ghana ghana",
    "gr": "greece =greek =greeks griech =grèce =grec =grecs grecque",
    "hr": "croat kroat croatie",
    "hu": "hungar ungar =ungarn hongr",
    "id": "indones",
    "ie": "ireland =irish irland irisch irlandais",
    "il": "israel israël",
    "in": "=india =indian =indians =indien indisch =inde =indiens =indienne =indiennes",
    "iq": "=iraq =irak iraqi iraki irakien",
    "ir": "=iran iranian iranisch iranien",
    "is": "iceland =island isländ islande",
    "it": "=italy italian italien =italie",
    "jp": "japan japon",
    "ke": "kenya kenia kenian",
    "kr": "korea korean corée coréen",
    "lb": "lebano lebanese libanon libanes liban",
    "lt": "lithuani litau lituan",
    "lv": "latvia lettland lettisch letton",
    "ma": "morocc marokk maroc",
    "mg": "madagas malagas malgach",
    "mw": "malawi",
    "mx": "mexic mexik =mexique mexicain",
    "my": "malaysia",
    "mz": "mozambi mosambi",
    "ng": "nigeria =nigéria nigérian",
    "nl": "netherland =dutch holland niederl holländ pays-bas néerland",
    "no": "=norway norweg norvèg norvég",
    "np": "nepal népal",
    "nz": "zealand neuseel néo-zéland nouvelle-zélande",
    "pe": "=peru peruvian peruan pérou péruv",
    "ph": "philippin filipin",
    "pk": "pakistan",
    "pl": "poland =polish polnisch =polen pologne polonais",
    "pt": "portug",
    "ro": "romania rumän roumain roumanie",
    "rs": "serbia =serbian serbien serbisch serbie =serbe",
    "ru": "russia russland russisch russie =russe =russes",
    "rw": "rwanda ruanda",
    "sa": "saudi arabie",
    "se": "sweden =swedish =swede schwed suède suédois",
    "sg": "singap",
    "si": "slovenia sloweni slovèn slovén",
    "sk": "slovak slowak slovaquie",
    "sn": "senegal sénégal",
    "th": "thailand =thai thaïland thailänd",
    "tr": "=turkey turkish türk turqu =turc =turcs",
    "tw": "taiwan taïwan",
    "tz": "tanzan tansan",
    "ua": "ukrain",
    "ug": "uganda ugand ouganda",
    "us": "=usa united-states vereinigte-staaten vereinigten-staaten america amerika américain "
    "etats-unis états-unis",
    "uy": "urugua",
    "vn": "vietnam viêtnam",
    "za": "south-africa südafrika sud-afric",
    "zm": "zambia sambia zambi",
}
# Groups that studies are about.
POPULATIONS: Mapping[str, str] = {
    "infants": "infant newborn neonat baby babies säugling neugebor nourrisson nouveau-né bébé",
    "children": "child =kid =kids preschool kindergart =kinder =kindern kindes =kita =kitas "
    "grundschul schulkind kleinkind enfant écolier =primary elementary =maternelle toddler",
    "adolescents": "adolesc teen jugendlich =teenie =ado =ados lycéen collégien youth",
    "pupils": "pupil schüler élève",
    "students": "student undergrad studier studi =étudiant étudiante étudiants",
    "women": "=women =woman female frau weiblich femme féminin",
    "girls": "=girl =girls mädchen =fille =filles",
    "boys": "=boy =boys =jungen =jungs garçon",
    "men": "=men =male =males =mann männer männlich =homme =hommes masculin",
    "pregnant": "pregnan schwanger enceinte grossesse",
    "mothers": "mother maternal mütter mutter =mère =mères maternel",
    "elderly": "elder older-adult senior geriatr aîné =âgées =âgés pensioner rentner retraité",
    "residents": "nursing-home care-home nursinghome pflegeheim altenheim altersheim ehpad",
    "patients": "patient",
    "nurses": "nurse nursing pfleger pflegekr krankenschwest infirmi",
    "doctors": "doctor physician surgeon ärzt =arzt chirurg médecin",
    "teachers": "teacher lehrer lehrkr lehrkräfte enseignant professeur instituteur institutrice",
    "parents": "parent eltern",
    "athletes": "athlet footballer fußball footballeu sportler sportif soccer",
    "runners": "runner läufer coureu marathon",
    "workers": "worker employee arbeiter angestellt beschäftigt salarié employé ouvrier",
    "prisoners": "prison inmate detainee gefängn häftling détenu",
    "veterans": "veteran vétéran",
    "smokers": "smoker raucher fumeu",
    "mice": "=mice =mouse =maus mäuse souris murine",
    "rats": "=rat =rats ratte =ratten",
    "dogs": "=dog =dogs hund =hunde chien",
    "cats": "=cat =cats katze =chats",
    "monkeys": "monkey macaque makak affen =singe =singes primate",
    "pigs": "=pig =pigs swine schwein porc =cochon",
    "cows": "=cow =cows cattle =kuh kühe rinder vache bovin",
    "chickens": "chicken poultry =hens huhn hühner =poule =poules volaille",
    "fish": "=fish fisch poisson zebrafish",
    "birds": "=bird =birds vogel vögel oiseau",
    "bats": "=bat =bats fledermaus fledermäus chauve-souris",
    "bees": "=bee =bees biene bienen abeille honeybee",
}
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_US = re.compile(r"\bU\.?S\.?(?:A\.?)?(?!\w)")
# Names of two words, joined by a hyphen.
_NAMES = re.compile(
    r"\b(south|costa|nursing|care|older|royaume|pays|[ée]tats|united|vereinigte[ns]?)\s"
    r"(africa\w*|rica\w*|homes?|adults?|uni|bas|unis|kingdom|states|staaten|königreich)\b"
)
_SHORTEST_STEM, _LONGEST_STEM = 3, 22
# Longer words are not cached.
_LONGEST_WORD = 80


class Subjects(NamedTuple):
    """Places and populations that a text names."""

    places: frozenset[str]
    populations: frozenset[str]


def subjects(text: str) -> Subjects:
    """Return the places (ISO codes) and the populations in a text.

    Example:
        >>> subjects("Belgian pupils") == subjects("belgische Schüler")
        True
    """
    plain = _NAMES.sub(r"\1-\2", _US.sub("usa", without_unseen(nfkc(text))).lower())
    found: set[str] = set()
    for word in set(_WORD.findall(plain)):
        if len(word) <= _LONGEST_WORD:
            found.update(_groups(word))
    return Subjects(frozenset(found & PLACES.keys()), frozenset(found & POPULATIONS.keys()))


def _stems() -> tuple[Mapping[str, str], Mapping[str, str]]:
    words: dict[str, str] = {}
    stems: dict[str, str] = {}
    for groups in (PLACES, POPULATIONS):
        for name, listed in groups.items():
            for stem in listed.split():
                kind = words if stem.startswith("=") else stems
                kind[stem.removeprefix("=")] = name
    return words, stems


_WORDS, _STEMS = _stems()


@lru_cache(maxsize=50_000)
def _groups(word: str) -> tuple[str, ...]:
    """Return the places or populations of a word; with hyphens, also those of its parts."""
    groups: list[str] = []
    parts = word.split("-")
    for form in dict.fromkeys([word, *parts]):
        name = _WORDS.get(form)
        for length in range(min(len(form), _LONGEST_STEM), _SHORTEST_STEM - 1, -1):
            name = name or _STEMS.get(form[:length])
        if name:
            groups.append(name)
    return tuple(groups)
