"""The package has layers: a file imports from lower layers, without cycles."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
TOP = ("train", "eval", "scripts")
# From the lowest layer to the highest; the last ones start the programs.
ROOMS = (
    *(
        "core",
        "data",
        "text",
        "metrics",
        "llm",
        "models",
        "search",
        "mining",
    ),
    *("stages", "systems", "evaluation", "training", "find", "serve"),
)
FLOORS = (*((room,) for room in ROOMS), TOP, ("cli", "__main__"))
PACKAGE = "claim2source"
FLOOR = {name: number for number, floor in enumerate(FLOORS) for name in floor}
FILES = sorted(
    path for folder in ("claim2source", *TOP) for path in (REPOSITORY / folder).rglob("*.py")
)
HEAVY = (
    *("faiss", "wandb", "datasets", "sentence_transformers", "pandas", "bitsandbytes", "vllm"),
    *("matplotlib", "scipy", "statsmodels", "peft", "accelerate", "huggingface_hub", "jinja2"),
    *("openai", "jsonschema", "lancedb"),
)
# The server's layer is imported only after a program's arguments are parsed.
SERVING = ("fastapi", "starlette", "uvicorn", "mcp")
PROGRAMS = [
    f"claim2source.{path.parent.name}.{path.stem}"
    for path in (*REPOSITORY.glob("train/[a-z]*.py"), *REPOSITORY.glob("eval/[a-z]*.py"))
] + ["scripts.prepare"]
# Calls that end before the work begins.
PARSE = """
import contextlib, importlib, io, sys
from claim2source.core.errors import UserError
programs, heavy, config = sys.argv[1].split(), sys.argv[2].split(), sys.argv[3]
for name in programs:
    main = importlib.import_module(name).main
    for words in (["--help"], ["--config", config]):
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                main(words)
        except (SystemExit, UserError):
            pass
        else:
            print(name, words, "was taken")
    print(*(f"{name} loads {module}" for module in heavy if module in sys.modules), end="")
"""


def module_of(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def part_of(module: str) -> str:
    first, *rest = module.split(".")
    return (rest[0] if rest else "") if first == "claim2source" else first


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST, package: str) -> list[tuple[int, str]]:
    """(line, module or module.name) of every import under `tree`."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, base] if base else up)
            names += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return names


def resolved(name: str) -> str | None:
    """Our module from which a name is imported: the longest match."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


@cache
def graph() -> dict[str, set[str]]:
    """Map a module to our modules that it imports, at the top or within functions."""
    edges = {}
    for name, path in MODULES.items():
        tree = parsed(path)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        imported = imports(tree, package)
        edges[name] = {target for _, n in imported if (target := resolved(n))} - {name}
    # Public names are imported at first use, which creates no dependency between our files.
    edges[PACKAGE] = set()
    return edges


def cycle_in(edges: dict[str, set[str]]) -> list[str]:
    visited, path = set(), []

    def visit(node: str) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in visited:
            return []
        path.append(node)
        for following in sorted(edges.get(node, ())):
            if cycle := visit(following):
                return cycle
        path.pop()
        visited.add(node)
        return []

    return next((cycle for node in sorted(edges) if (cycle := visit(node))), [])


def test_the_tools_of_this_test_see_what_they_should():
    tree = ast.parse(
        "import a\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import b\n"
        "try:\n    import c\nexcept ImportError:\n    from .d import e\ndef f():\n    import g\n"
        "class H:\n    import i\n    def j(self):\n        import k\n"
    )
    names = {name for _, name in imports(tree, "p.q")}
    assert names == {"a", "typing.TYPE_CHECKING", "b", "c", "p.q.d.e", "g", "i", "k"}
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert resolved("claim2source.models.Encoder") == "claim2source.models"
    assert resolved("claim2source.models.encoder.Encoder") == "claim2source.models.encoder"
    assert resolved("numpy.random") is None


def test_every_module_has_a_floor():
    assert {part_of(name) for name in MODULES} - {""} <= FLOOR.keys()


def test_a_file_imports_from_its_floor_or_below():
    wrong = []
    for name, imported in graph().items():
        for target in imported:
            mine, theirs = FLOOR.get(part_of(name), -1), FLOOR.get(part_of(target), -1)
            # A program is not a library, not even for another program.
            if theirs > mine or (part_of(target) in TOP and part_of(name) != part_of(target)):
                wrong.append(f"{name} imports {target}")
    assert wrong == []


def test_no_cycle_of_imports_within_functions_and_type_checking_included():
    assert cycle_in(graph()) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_file_is_short_and_keeps_its_hands_off(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 600
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            # One place may run a model's own code: where `model.allow_remote_code` was checked.
            allowed = {"False"} | ({"settings.own_code"} if path.name == "load.py" else set())
            assert ast.unparse(node.value) in allowed, node.lineno
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            assert function not in ("pickle.load", "pickle.loads", "pickle.Unpickler"), node.lineno
            assert function not in ("eval", "exec", "np.load", "numpy.load"), node.lineno
            if function == "torch.load":
                safe = [k.value for k in node.keywords if k.arg == "weights_only"]
                assert safe, node.lineno
                assert ast.unparse(safe[0]) == "True", node.lineno
            if function.endswith("AutoModel.from_pretrained"):
                assert "trust_remote_code" in {k.arg for k in node.keywords}, node.lineno


def test_arguments_are_read_before_torch_is_imported(tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("no_such: 1\n")
    modules = "torch transformers pytorch_lightning bm25s pyarrow.compute".split()
    heavy = (*HEAVY, *SERVING, *modules)
    command = [sys.executable, "-c", PARSE, " ".join(PROGRAMS), " ".join(heavy), str(wrong)]
    process = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert len(PROGRAMS) >= 14
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


def test_a_program_is_imported_by_one_name() -> None:
    """Use claim2source.train and claim2source.eval: another name would load a second module."""
    files = [*FILES, *REPOSITORY.glob("tests/**/*.py"), *REPOSITORY.glob("docs/**/*.py")]
    wrong = []
    may_import = re.compile(r"\b(?:import|from)\b.*\b(?:train|eval)\b")
    for path in files:
        text = path.read_text(encoding="utf-8")
        found = imports(parsed(path), "claim2source") if may_import.search(text) else []
        for line, name in found:
            if name.partition(".")[0] in ("train", "eval"):
                wrong.append(f"{path.relative_to(REPOSITORY)}:{line} imports {name}")
    assert wrong == []


def test_yaml_is_read_in_one_place() -> None:
    importing = {
        name
        for name, path in MODULES.items()
        for _, imported in imports(parsed(path), name)
        if imported.partition(".")[0] == "yaml"
    }
    assert importing == {"claim2source.core.yaml_files"}
