"""Configs: defaults in dataclasses, differences in YAML and flags, clear refusals."""

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from claim2source.core import config
from claim2source.core.config import (
    as_plain,
    flag,
    list_field,
    read_config,
    read_yaml,
    require,
    to_yaml,
)
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.validate import validated
from claim2source.core.yaml_files import YamlMapping
from tests.refusals import refused


@dataclass(frozen=True)
class Deep:
    """Deep."""

    name: str = "x"


@dataclass(frozen=True)
class Group:
    """Group."""

    rate: float = 0.5
    steps: int = 3
    mode: Literal["fp32", "bf16"] = "fp32"
    drop: float | None = None
    deep: Deep = field(default_factory=Deep)
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.steps >= 1, "group.steps", self.steps, "1 or more")


@dataclass(frozen=True)
class Settings:
    """Settings."""

    group: Group = field(default_factory=Group)
    maybe: Deep | None = None
    out: Path = Path("here")
    run: list[Path] = list_field(help="files that are read")
    langs: list[str] | None = list_field(help="languages that are kept")
    names: list[str] = list_field(["a", "b"], help="names that are said")
    resume: bool = flag("go on from before")


@dataclass(frozen=True)
class Required:
    """Required."""

    out: Path


@pytest.fixture
def read(tmp_path):
    """Read YAML texts (given as `--config` files 0.yaml, 1.yaml, ...) and words after them."""

    def run(*words, kind=Settings):
        argv = []
        for number, word in enumerate(words):
            if word.startswith("--") or not ("\n" in word or word == ""):
                argv.append(word)
            else:
                path = tmp_path / f"{number}.yaml"
                path.write_text(word, encoding="utf-8")
                argv += ["--config", str(path)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return read_config(kind, argv, program="prog", description="What it does.")

    return run


def test_nothing_said_is_the_dataclass_defaults_and_a_required_key_is_named(read, monkeypatch):
    assert read() == Settings(names=["a", "b"])
    assert (read().run, read().out) == (None, Path("here"))
    with refused(ConfigError) as error:
        read(kind=Required)
    assert error.value.key == "out"
    assert read("--out", "x", kind=Required) == Required(Path("x"))
    monkeypatch.setattr("sys.argv", ["prog", "--out", "there"])
    assert read_config(Settings, None, program="p", description="d").out == Path("there")


def test_flags_reach_every_depth_and_are_typed(read):
    words = "--group.rate 5e-5 --group.steps 7 --group.drop null --out a/b --maybe.name y".split()
    config = read(*words, "--group.deep.name", "query: ", "--group.layers", "[q, v]")
    assert config.group == Group(5e-5, 7, drop=None, deep=Deep("query: "), layers=("q", "v"))
    assert isinstance(config.group.rate, float)
    assert config.out == Path("a/b")
    assert config.maybe == Deep("y")


@pytest.mark.parametrize("text", ["5e-5", "5.0e-5", "0.00005", "5E-05", "+5e-5", ".5e-4"])
def test_every_spelling_of_a_float_is_a_number(read, text):
    rate = read(f"group:\n  rate: {text}\n").group.rate
    assert rate == 5e-5
    assert isinstance(rate, float)


def test_whole_numbers_and_texts_are_read_as_yaml_1_2_does(read):
    assert read("group: {steps: 1_000}\n").group.steps == 1000
    assert read("group: {steps: 010}\n").group.steps == 10
    names = "12:30, 0x1F, 1__0, 1.10, 0e12, 5, off, 2026-11-25".split(", ")
    assert read(f"names: [{', '.join(names)}]\n").names == names
    assert read("group: {drop: ~}\nmaybe: Null\n") == read()


def test_flags_stand_over_files_and_what_comes_later_wins(read):
    first, second = "group:\n  steps: 4\n  rate: 0.1\n", "group:\n  steps: 5\n"
    assert read(first, second).group == Group(0.1, 5)
    assert read(first, "--group.steps", "6").group == Group(0.1, 6)
    assert read("--group.steps", "6", first).group == Group(0.1, 6)
    assert read("--resume", "resume: false\n").resume is True
    assert read("langs: [de]\nrun: [r]\n", "--langs", "fr").langs == ["fr"]


def test_files_of_one_option_compose_left_to_right(read, tmp_path):
    for steps in "45":
        (tmp_path / steps).write_text(f"group: {{steps: {steps}}}\n")
    assert read("--config", str(tmp_path / "4"), str(tmp_path / "5")).group.steps == 5


def test_several_values(read):
    assert read("--langs", "de", "fr").langs == ["de", "fr"]
    assert read("--langs", "de").langs == ["de"]
    assert read("--run", "r", "s", "--run=t").run == [Path("r"), Path("s"), Path("t")]
    assert read("--names", "c").names == ["c"]
    assert read("langs: null\n\n").langs is None
    assert read("langs: [no, 01, fr]\n").langs == ["no", "01", "fr"]


def test_null_for_several_values_is_what_the_message_allows(read):
    assert read("langs: [de]\n\n", "--langs", "null").langs is None
    assert read("--langs=null").langs is None
    with pytest.raises(ConfigError) as error:
        read("--langs", "null", "de")
    assert error.value.key == "langs"
    with pytest.raises(ConfigError) as error:
        read("--names", "null")
    assert error.value.key == "names" and "null" not in error.value.allowed


def test_the_home_is_put_for_a_tilde_of_paths_and_of_names(read, monkeypatch):
    monkeypatch.setenv("HOME", "/of/me")
    config = read("out: ~/x\nrun: [~/r, a~/b]\nmaybe: {name: ~/model}\nlangs: [~/l]\n")
    assert (config.out, config.run) == (Path("/of/me/x"), [Path("/of/me/r"), Path("a~/b")])
    assert (config.maybe, config.langs) == (Deep("/of/me/model"), ["/of/me/l"])
    assert read("--out=~/y").out == Path("/of/me/y")
    assert read("out: '~'\n").out == Path("/of/me")
    assert read("--out", "~other").out == Path("~other")

    @dataclass(frozen=True)
    class Files:
        by_language: dict[str, Path] = field(default_factory=dict)
        free: dict[str, Any] = field(default_factory=dict)

    files = read("by_language: {de: ~/d}\nfree: {a: ~/x}\n", kind=Files)
    assert files == Files({"de": Path("/of/me/d")}, {"a": "~/x"})


def test_a_file_of_a_flag_may_lie_in_the_home(read, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "c.yaml").write_text("group: {steps: 9}\n")
    assert read("--config=~/c.yaml").group.steps == 9


def test_reading_twice_shares_nothing():
    """The parser is built once: values of one call are not defaults of the next."""

    @dataclass(frozen=True)
    class Named:
        names: list[str] = list_field(["x"], help="names.")
        rate: float = 0.5

    def read(*words):
        return read_config(Named, words, program="t", description="t")

    assert read("--names", "a", "b", "--rate=2") == Named(["a", "b"], 2.0)
    first = read()
    first.names.append("mine")
    assert read() == Named(["x"], 0.5)


@pytest.mark.parametrize("empty", ["", "\n", "# group:\n#   steps: 4\n"])
def test_flags_are_set_and_unset_and_an_empty_file_changes_nothing(read, empty):
    assert read(empty, "--resume").resume is True
    assert read("resume: true\n", empty, "--no_resume").resume is False


# Of each text: the line of the error, its field, and facts of its reason.
REFUSED = {
    "group:\n  step: 4\n": (
        2,
        "group.step",
        "group.steps",
        "rate, steps, mode, drop, deep, layers",
    ),
    "group.steps: 4\n": (1, "group.steps", "group.steps"),
    "confg: a\n": (1, "confg", "group"),
    "group:\n  deep:\n    nam: x\n": (3, "group.deep.nam", "group.deep.name", "name"),
    "group:\n  steps: 2.5\n": (2, "group.steps", "2.5"),
    "group:\n  mode: fp16\n": (2, "group.mode", "'fp16'", "fp32, bf16"),
    "group:\n  steps: 4\n  steps: 5\n": (3, None, "steps"),
    "- a\n": (1, None, "`key: value`"),
    "group: {\n\n": (3, None, "YAML"),
    "out: \x00\n": (None, None, "YAML"),
    f"out: {'[' * 3000}{']' * 3000}\n": (None, None),
    'out: "a\\0b"\n': (1, None, "'a\\x00b'"),
    "group: {steps: !!int x}\n": (1, None, "'x'"),
    "langs: !mine [de]\n": (1, None, "!mine"),
    "group: !!python/object:os.system {steps: 4}\n": (1, None, "!!python/object"),
    "group: !!set {steps}\n": (1, None, "!!set"),
    "langs: !!python/tuple [de]\n": (1, None, "!!python/tuple"),
    "!!python/name:os.system out: x\n": (1, None, "'out'"),
    "out: !mine:str x\n": (1, None, "'x'"),
    '"a\\0b": x\n': (1, None, "'a\\x00b'"),
    f"group: {{steps: {'9' * 5000}}}\n": (1, "group.steps", f"'{'9' * 40}"),
}


def test_a_bad_file_is_one_line_with_file_line_and_key(read, tmp_path):
    for text, (line, key, *facts) in REFUSED.items():
        with refused(InputError, *facts) as error:
            read(text)
        (problem,) = error.value.problems
        assert (problem.file, problem.field) == (str(tmp_path / "0.yaml"), key)
        assert problem.line == line
        assert len(error.value.lines) == 1 and len(error.value.lines[0]) < 600
    (tmp_path / "a.yaml").write_bytes(b"out: \xff\n")
    with refused(UserError, "a.yaml", "UTF-8"):
        read_config(Settings, [f"--config={tmp_path / 'a.yaml'}"], program="p", description="d")


BOMB = "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(9))


def test_aliases_that_go_round_or_stand_for_billions_are_refused(read):
    for text, fact in (
        ("out: &a [*a]\n", "0.yaml"),
        (f"a0: &a0 [x]\n{BOMB}out: *a9\n", "100000"),
    ):
        with refused(InputError, "0.yaml", fact):
            read(text)


@pytest.mark.parametrize(
    ("words", "key", "facts"),
    [
        (["--group.steps", "x"], "group.steps", ["'x'"]),
        (["--group.steps", "0"], "group.steps", ["0", "1 or more"]),
        (["--group.step", "3"], "group.step", ["group.steps?"]),
        (["--res"], "res", []),  # no abbreviations
        (["stray"], None, ["stray"]),
        (["--no_langs"], "langs", ["false"]),
        (["--no_resume", "true"], "no_resume", ["resume?"]),
        (["--out", "a", "b"], "out", ["['a', 'b']", "a path"]),
        (["--group.steps", "1", "2"], "group.steps", ["['1', '2']"]),
        (["--langs"], "langs", ["true"]),
        (["--config"], "config", ["group"]),
        (["--confg", "x.yaml"], "confg", ["config?"]),
        (["--config", "/dev/null"], None, ["/dev/null"]),
        (["--group.steps", "9" * 5000], "group.steps", []),
        (["--group.steps", "[" * 5000], "group.steps", ["'[["]),
    ],
)
def test_bad_words_are_one_line(read, words, key, facts):
    with refused(UserError, *facts) as error:
        read(*words)
    assert getattr(error.value, "key", None) == key
    assert len(error.value.lines) == 1 and "Traceback" not in error.value.lines[0]


def printed(read, capsys, *words, kind=Settings):
    with pytest.raises(SystemExit) as error:
        read(*words, kind=kind)
    assert error.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("first", [True, False])
def test_print_config_prints_the_whole_config_wherever_it_stands(read, capsys, first):
    words = ["group:\n  steps: 9\n", "--langs", "de", "--resume"]
    words.insert(0 if first else len(words), "--print_config")
    text = printed(read, capsys, *words)
    content = yaml.safe_load(text)
    assert content["group"]["steps"] == 9
    assert content["group"]["rate"] == 0.5
    assert content["out"] == "here"
    assert (content["langs"], content["resume"]) == (["de"], True)
    assert read(text) == read(*(word for word in words if word != "--print_config"))


# Every character that a file can hold, and what other readers take for numbers or constants.
TEXTS = st.text(max_size=8) | st.sampled_from(
    ["1e-1", "08", "1_000", "off", "Null", "true", "5", "a: b", "- a", "#", "\u2028", "~x"]
)
NAMES = TEXTS.filter(lambda text: text.strip() and not config.NO_TEXT.search(text))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def own_names(kind: Any) -> Any:
    """Texts that stay as they are: a tilde in front of a slash would become the home."""
    return kind.filter(lambda text: text != "~" and not text.startswith("~/"))


CONFIGS = st.builds(
    Settings,
    group=st.builds(
        Group,
        rate=FLOATS,
        steps=st.integers(1, 10**12),
        mode=st.sampled_from(["fp32", "bf16"]),
        drop=st.none() | FLOATS,
        deep=st.builds(Deep, own_names(NAMES)),
        layers=st.lists(own_names(NAMES), max_size=3).map(tuple),
    ),
    maybe=st.none() | st.builds(Deep, own_names(NAMES)),
    out=own_names(NAMES).map(Path),
    run=st.none() | st.lists(own_names(NAMES).map(Path), max_size=3),
    langs=st.none() | st.lists(own_names(NAMES), max_size=3),
    names=st.lists(own_names(NAMES), max_size=3),
    resume=st.booleans(),
)


@settings(max_examples=60)
@given(CONFIGS)
def test_a_written_config_reads_back(drawn):
    assert config.make(Settings, read_yaml(to_yaml(drawn))) == drawn
    assert config.make(Settings, as_plain(drawn)) == drawn
    assert list(as_plain(drawn)) == ["group", "maybe", "out", "run", "langs", "names", "resume"]


@given(TEXTS.filter(lambda text: not config.NO_TEXT.search(text)))
@example("")
@example("~")
def test_a_written_text_reads_back_as_text(text):
    found = read_yaml(to_yaml({"a": [text]}))["a"][0]
    assert found == text and type(found) is str


def mappings_of_files(values: Any) -> Any:
    """Mappings as of YAML files: a key is a group in every file, or a value in every file."""
    group = st.dictionaries(st.sampled_from(["a", "b"]), values)
    nested = st.fixed_dictionaries({}, optional={"a": values, "group": group})
    whole = st.fixed_dictionaries(
        {}, optional={"a": values, "b": values, "group": group, "other": nested}
    )
    return st.tuples(whole, st.sampled_from(["x.yaml", "y.yaml"])).map(
        lambda drawn: located(*drawn)
    )


def located(values: dict[str, Any], file: str) -> YamlMapping:
    parts = {
        key: located(value, file) if isinstance(value, dict) else value
        for key, value in values.items()
    }
    return YamlMapping(parts, dict.fromkeys(parts, (file, 1)))


def places(mapping: YamlMapping) -> dict[str, Any]:
    """Values and locations of a mapping and its groups."""
    groups = {key: places(part) for key, part in mapping.items() if isinstance(part, YamlMapping)}
    return {"values": dict(mapping), "locations": mapping.locations, "groups": groups}


def leaves(mapping: YamlMapping, group: str = "") -> dict[str, Any]:
    """Values with their locations, by dotted key."""
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, YamlMapping):
            found |= leaves(value, f"{group}{key}.")
        else:
            found[f"{group}{key}"] = value, mapping.locations[key]
    return found


FILES = mappings_of_files(st.none() | st.integers(0, 2) | st.lists(st.integers(0, 1), max_size=2))


@given(FILES, FILES, FILES)
def test_files_compose_associatively_and_what_is_later_wins(first, second, third):
    before = places(first), places(second)
    both = first.overlaid(second)
    assert places(both.overlaid(third)) == places(first.overlaid(second.overlaid(third)))
    assert places(first.overlaid(first)) == places(first)
    assert places(first.overlaid(YamlMapping())) == places(first)
    assert places(YamlMapping().overlaid(first)) == places(first)
    assert places(both.overlaid(second)) == places(both)
    assert leaves(both) == leaves(first) | leaves(second)
    # No file's own values change.
    assert (places(first), places(second)) == before


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Keys that several programs share."""

    seed: int = 0
    scales: list[float] | None = list_field(help="scales that are tried")
    tests: bool = flag("tests at the end", default=True)


@dataclass(frozen=True)
class Program(Shared):
    """A program's own settings.

    Args:
        out: where it goes.
    """

    out: Path
    run: list[Path] = list_field(help="files that are read")


def test_a_program_takes_the_settings_of_the_dataclass_it_inherits_from(read, capsys):
    config = read("scales: [0, 1]\ntests: false\n", "--out=o", "--run", "a b", "c", kind=Program)
    assert config == Program(
        Path("o"), run=[Path("a b"), Path("c")], scales=[0.0, 1.0], tests=False
    )
    assert [type(scale) for scale in config.scales] == [float, float]
    assert read("--out=o", "--scales", "-1", "0.5", "--seed=3", kind=Program).scales == [-1, 0.5]
    text = printed(read, capsys, "--help", kind=Program)
    assert "where it goes." in text and "scales that are tried" in text and "--no_tests" in text


@dataclass(frozen=True)
class Server(config.Settings):
    """A server, whose settings are in a file."""

    FLAGS: ClassVar = ("model",)

    model: str = ""
    depth: config.Count = 3
    name: str = "n"


@dataclass(frozen=True)
class Asking:
    """Asking."""

    server: Server = field(default_factory=Server)


def test_a_group_of_few_flags_takes_a_file_of_its_keys(read, tmp_path):
    file = tmp_path / "server.yaml"
    file.write_text("depth: 5\nmodel: m\n")
    words = ["--server", str(file)]
    assert read(*words, kind=Asking).server == Server("m", 5)
    # Flags override the file, and the file overrides a config, key by key.
    assert read("server:\n  name: x\n  depth: 1\n", *words, kind=Asking).server == Server(
        "m", 5, "x"
    )
    assert read(*words, "--server.model=k", kind=Asking).server == Server("k", 5)
    assert read("--server.model", "k", *words, kind=Asking).server == Server("k", 5)
    printed = to_yaml(read(*words, kind=Asking))
    assert read(printed, kind=Asking).server == Server("m", 5)
    for text, *facts in (
        ("depth: -1\n", "server.yaml:1: server.depth: -1"),
        ("model: m\ndeepth: 1\n", "server.yaml:2: server.deepth: ", "server.depth?"),
    ):
        file.write_text(text)
        with refused(UserError, *facts) as error:
            read(*words, kind=Asking)
        assert "\n" not in str(error.value)
    with refused(UserError, "--server.depth", "YAML"):
        read("--server.depth", "4", kind=Asking)


@dataclass(frozen=True)
class Ruled(config.Settings):
    low: config.Share = 0.1
    high: config.Share = 0.9

    def check(self) -> None:
        require(self.low < self.high, "low", self.low, f"below high, {self.high}")


@dataclass(frozen=True)
class Mixed:
    one: Ruled = field(default_factory=Ruled)
    two: Ruled | None = field(default_factory=Ruled)
    free: dict[str, int] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    name: str = "n"


def test_a_rule_is_refused_by_the_key_of_its_group_at_the_line_that_set_it(read, tmp_path):
    file = tmp_path / "0.yaml"
    for words, message in (
        (["one:\n  low: 0.95\n"], f"{file}:2: one.low: 0.95 "),
        (["two:\n  low: 0.95\n"], f"{file}:2: two.low: 0.95 "),
        (["one: {high: 0.05}\n"], "config: one.low: 0.1 "),  # not set by a file
        (["one: {low: 0.5}\n", "--one.low=0.95"], "config: one.low: 0.95 "),
        (["--two", "{low: 0.95}"], "config: two.low: 0.95 "),
        (["one: {low: 1.5}\n"], f"{file}:1: one.low: 1.5 "),
    ):
        with pytest.raises(UserError) as error:
            read(*words, kind=Mixed)
        assert str(error.value).startswith(message)


def test_settings_among_other_values_take_no_unknown_key(tmp_path):
    path = tmp_path / "x.json"
    assert validated(dict[str, Ruled], {"a": {"low": 0.2}}, path) == {"a": Ruled(0.2)}
    for values in ({"lo": 0.2}, {"low": float("nan")}, {"low": 2}):
        with pytest.raises(UserError, match=r"x\.json: a\.low?"):
            validated(dict[str, Ruled], {"a": values}, path)


def test_mappings_are_merged_key_by_key(read):
    first, second = "free: {a: 1, b: 2}\n", "free: {c: 3}\n"
    assert read(first, second, kind=Mixed).free == {"a": 1, "b": 2, "c": 3}
    assert read(first, "--free.b", "4", kind=Mixed).free == {"a": 1, "b": 4}
    assert read(first, "--free", "{b: 4}", kind=Mixed).free == {"a": 1, "b": 4}
    with refused(ConfigError, "free: {'a': 'x'}"):
        read("--free", "{a: x}", kind=Mixed)


def test_an_alias_is_a_copy_and_null_is_not_the_default(read):
    text = "one: &group {low: 0.2}\ntwo: *group\n"
    found = read(text, "--one.low", "0.3", kind=Mixed)
    assert (found.one.low, found.two.low) == (0.3, 0.2)
    assert read("two: null\n", kind=Mixed).two is None
    assert read(text, "--two", "null", kind=Mixed).two is None
    assert read("two: null\n", "--two.low=0.3", kind=Mixed).two == Ruled(0.3)


def test_a_text_that_no_file_can_hold_is_refused(read):
    for words in (["--name", "\udcff"], ['name: "\\ud800"\n'], ['tags: {a: "\\0"}\n']):
        with pytest.raises(UserError) as error:
            read(*words, kind=Mixed)
        assert len(error.value.lines) == 1
    assert read("name: 007\n", kind=Mixed).name == "007"


def test_plain_values_are_made_with_a_prefix_before_the_keys():
    assert config.make(Mixed, {"two": Ruled(0.3), "free": {"a": 1}}).two == Ruled(0.3)
    for values, key, fact in (
        ({"one": {"low": 0.95}}, "stages.0.one.low", "0.95"),
        ({"lots": {"a": 1, "b": 2}}, "stages.0.lots", "one, two, free"),
        ({"one": 3}, "stages.0.one", "low, high"),
        ({"name": " "}, "stages.0.name", "' '"),
    ):
        with refused(ConfigError, f"config: {key}", fact) as error:
            config.make(Mixed, values, "stages.0.")
        assert error.value.key == key
    with refused(ConfigError) as error:
        config.make(Required, {}, "s.")
    assert error.value.key == "s.out"
