"""Configs: defaults in dataclasses, differences in YAML and flags, clear refusals."""

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import yaml

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
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.validate import validated


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
    with pytest.raises(UserError, match="out: is required"):
        read(kind=Required)
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
    """The parser is built once: no value of one reading is the default of the next."""

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


# Where the line starts with a number it is the line of the file; else "config".
REFUSED = {
    "group:\n  step: 4\n": "2: group.step: no such key; did you mean group.steps? allowed: rate, steps, mode, drop, deep, layers",
    "group.steps: 4\n": "1: group.steps: no such key; did you mean group.steps?",
    "confg: a\n": "1: confg: no such key; allowed: group",
    "group:\n  deep:\n    nam: x\n": "3: group.deep.nam: no such key; did you mean group.deep.name? allowed: name",
    "group:\n  steps: 2.5\n": "2: group.steps: 2.5 is not allowed; allowed: a whole number",
    "group:\n  mode: fp16\n": "2: group.mode: 'fp16' is not allowed; did you mean bf16? allowed: fp32, bf16",
    "group:\n  steps: 4\n  steps: 5\n": "3: steps: is set twice",
    "- a\n": "1: must be `key: value` lines",
    "group: {\n\n": "3: not YAML: ",
    "out: \x00\n": "not YAML",
    f"out: {'[' * 3000}{']' * 3000}\n": "nested too deeply",
    'out: "a\\0b"\n': "1: 'a\\x00b' holds a NUL character",
    "group: {steps: !!int x}\n": "1: 'x' cannot be read as a value",
    "langs: !mine [de]\n": "1: what has the tag !mine cannot be read",
    "group: !!python/object:os.system {steps: 4}\n": "1: what has the tag !!python/object",
    "group: !!set {steps}\n": "1: what has the tag !!set",
    "langs: !!python/tuple [de]\n": "1: what has the tag !!python/tuple",
    "!!python/name:os.system out: x\n": "1: 'out' cannot be read as a value",
    "out: !mine:str x\n": "1: 'x' cannot be read as a value",
    '"a\\0b": x\n': "1: 'a\\x00b' holds a NUL character",
    f"group: {{steps: {'9' * 5000}}}\n": f"1: group.steps: '{'9' * 40}",
}


def test_a_bad_file_is_one_line_with_file_line_and_key(read, tmp_path):
    for text, message in REFUSED.items():
        with pytest.raises(UserError) as error:
            read(text)
        (line,) = str(error.value).splitlines()
        prefix = f"{tmp_path / '0.yaml'}:"
        if message[0].isdigit():
            assert line.startswith(f"{prefix}{message}")
        else:
            assert line.startswith(f"{prefix} ") and message in line
        assert len(line) < 600
    (tmp_path / "a.yaml").write_bytes(b"out: \xff\n")
    with pytest.raises(UserError, match=r"a\.yaml: not UTF-8"):
        read_config(Settings, [f"--config={tmp_path / 'a.yaml'}"], program="p", description="d")


BOMB = "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(9))


def test_aliases_that_go_round_or_stand_for_billions_are_refused(read):
    for text, message in (
        ("out: &a [*a]\n", r"0\.yaml: nested too deeply, or within itself"),
        (f"a0: &a0 [x]\n{BOMB}out: *a9\n", r"0\.yaml: holds more than 100000 values"),
    ):
        with pytest.raises(UserError, match=message):
            read(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--group.steps", "x"],
            "config: group.steps: 'x' is not allowed; allowed: a whole number",
        ),
        (["--group.steps", "0"], "config: group.steps: 0 is not allowed; allowed: 1 or more"),
        (["--group.step", "3"], "config: group.step: no such key; did you mean group.steps?"),
        (["--res"], "config: res: no such key"),  # no abbreviations
        (["stray"], "stray"),
        (["--no_langs"], "config: langs: false is not allowed; allowed: a list"),
        (["--no_resume", "true"], "config: no_resume: no such key; did you mean resume?"),
        (["--out", "a", "b"], "config: out: ['a', 'b'] is not allowed; allowed: a path, in quotes"),
        (["--group.steps", "1", "2"], "allowed: a whole number; other words come first"),
        (["--langs"], "config: langs: true is not allowed; allowed: a list"),
        (["--config"], "config: config: no such key; allowed: group"),
        (["--confg", "x.yaml"], "config: confg: no such key; did you mean config?"),
        (["--config", "/dev/null"], "/dev/null: is not a regular file"),
        (["--group.steps", "9" * 5000], "config: group.steps: "),
        (["--group.steps", "[" * 5000], "config: group.steps: '[["),
    ],
)
def test_bad_words_are_one_line(read, words, message):
    with pytest.raises(UserError) as error:
        read(*words)
    (line,) = str(error.value).splitlines()
    assert message in line
    assert "Traceback" not in line


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


def test_a_written_config_reads_back(read):
    config = read("--group.rate", "1e-7", "--langs", "no", "--run", "é/r", "--group.layers", "[q]")
    assert read(to_yaml(config)) == config
    assert as_plain(config)["run"] == ["é/r"]
    assert as_plain(config)["group"]["layers"] == ["q"]
    assert list(as_plain(config)) == ["group", "maybe", "out", "run", "langs", "names", "resume"]


@pytest.mark.parametrize(
    "text", ["1e-1", "08", "1_000", "off", "~", "Null", "true", "5", "", "a: b"]
)
def test_a_written_text_reads_back_as_text(text):
    assert read_yaml(to_yaml({"a": [text]})) == {"a": [text]}
    assert type(read_yaml(to_yaml({"a": [text]}))["a"][0]) is str


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What several programs take."""

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
    """A server, whose settings stand in a file."""

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
    # Flags win over the file, and the file over a config, key by key.
    assert read("server:\n  name: x\n  depth: 1\n", *words, kind=Asking).server == Server(
        "m", 5, "x"
    )
    assert read(*words, "--server.model=k", kind=Asking).server == Server("k", 5)
    assert read("--server.model", "k", *words, kind=Asking).server == Server("k", 5)
    printed = to_yaml(read(*words, kind=Asking))
    assert read(printed, kind=Asking).server == Server("m", 5)
    for text, message in (
        ("depth: -1\n", "server.yaml:1: server.depth: -1 is not allowed"),
        (
            "model: m\ndeepth: 1\n",
            "server.yaml:2: server.deepth: no such key; did you mean server.depth?",
        ),
    ):
        file.write_text(text)
        with pytest.raises(UserError) as error:
            read(*words, kind=Asking)
        assert message in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UserError, match="--server.depth: is not a flag; write it in a YAML file"):
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
        (["one:\n  low: 0.95\n"], f"{file}:2: one.low: 0.95 is not allowed; allowed: below"),
        (["two:\n  low: 0.95\n"], f"{file}:2: two.low: 0.95 "),
        (["one: {high: 0.05}\n"], "config: one.low: 0.1 "),  # which no file set
        (["one: {low: 0.5}\n", "--one.low=0.95"], "config: one.low: 0.95 "),
        (["--two", "{low: 0.95}"], "config: two.low: 0.95 "),
        (
            ["one: {low: 1.5}\n"],
            f"{file}:1: one.low: 1.5 is not allowed; allowed: a number, 0 to 1",
        ),
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
    with pytest.raises(UserError, match=r"config: free: \{'a': 'x'\} is not allowed"):
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
    for values, message in (
        ({"one": {"low": 0.95}}, r"config: stages\.0\.one\.low: 0\.95 "),
        ({"lots": {"a": 1, "b": 2}}, r"config: stages\.0\.lots.*: no such key; .*one, two, free"),
        ({"one": 3}, r"config: stages\.0\.one: must be `key: value` lines"),
        ({"name": " "}, r"config: stages\.0\.name: ' ' is not allowed; allowed: text, not empty"),
    ):
        with pytest.raises(ConfigError, match=message):
            config.make(Mixed, values, "stages.0.")
    with pytest.raises(ConfigError, match=r"config: s\.out: is required"):
        config.make(Required, {}, "s.")
