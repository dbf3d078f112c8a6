"""Record the results of every program on small data, and compare those of two versions.

python scripts/snapshot.py --out DIR [--repository PATH] [--data DIR] [--only NAME ...]
python scripts/snapshot.py --compare DIR_BEFORE DIR_AFTER [--only NAME ...]

The cases stand in scripts/snapshot.yaml. Programs run as processes in DIR/work, and but for the
reader of that file nothing is imported from the package: one script serves every version; language
models are played by the repository's tests/llm_server. Runs are compared by system, claim form and
claim, reports and other JSON by their numbers and words, weights by value, data by rows, a language
model's answers by what it was asked. Additions do not count as differences; costs, paths, dates,
sentences and pages are not compared.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import read_yaml

# The repository of this script, whichever is measured.
OWN = Path(__file__).resolve().parents[1]
TABLE = read_yaml(Path(__file__).with_suffix(".yaml"))
CASES: dict[str, str] = TABLE["cases"]
KINDS = {".trec", ".tsv", ".jsonl", ".json", ".csv"}  # of files that are compared
MODEL = {"manifest.json", "modules.json", "config.json"}  # beside such files lie a model's
# Keys of costs and of what made a result.
IGNORED = set("cost seconds speed milliseconds batch_milliseconds peak_memory_bytes".split())
IGNORED |= {"provenance", "versions", "version", "key"}
ENGLISH = "sleep coffee masks sugar exercise noise stress smoking vaccines pollution music walking"
MAX_SHOWN = 20  # differences of a case that are printed
Facts = dict[tuple[str, ...], Any]


def main() -> int:
    """Take a snapshot, or compare two; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repository", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--data", type=Path, help="default: ../shared/data of the repository")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--overwrite", action="store_true", help="do finished cases again")
    parser.add_argument("--threads", type=int, default=2, help="of every program")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    arguments = parser.parse_args()
    if arguments.compare:
        return compare(arguments.compare[0], arguments.compare[1], arguments.only)
    if arguments.out is None:
        parser.error("--out or --compare is needed")
    return take(arguments)


def take(arguments: argparse.Namespace) -> int:
    """Run the cases that are not done yet, and record their results; return 0."""
    out, repository = arguments.out.resolve(), arguments.repository.resolve()
    data, work = (arguments.data or repository / ".." / "shared" / "data").resolve(), out / "work"
    own = {"PYTHONPATH": repository, "CLAIM2SOURCE_DATA": data}
    own |= {"OMP_NUM_THREADS": arguments.threads, "HF_HUB_OFFLINE": 1, "WANDB_MODE": "disabled"}
    environment = {**os.environ, **{key: str(value) for key, value in own.items()}}
    folders = {"r": repository, "own": OWN, "data": data, "out": out}
    folders["threads"] = arguments.threads
    work.mkdir(parents=True, exist_ok=True)
    if arguments.overwrite and not arguments.only:
        shutil.rmtree(out / "store", ignore_errors=True)
    model = Answering(repository)
    with model.server as server:
        filled = {**TABLE["words"], **folders, "llm": server.url}
        write_inputs(work, filled)
        for name in arguments.only or CASES:
            case = out / name
            if (case / "exit_code").is_file() and not arguments.overwrite:
                print(f"{name}: done before", flush=True)
                continue
            words = program_command(name, repository, filled)
            if not words:
                print(f"{name}: left out, no program or data for it", flush=True)
                continue
            for folder in (case, work / name):
                shutil.rmtree(folder, ignore_errors=True)
            case.mkdir()
            model.answers.clear()
            # Who asks the model has a store of its own: there, nothing was answered before.
            inputs = [work / word for word in words if (work / word).is_file()]
            asks = any(server.url in text for text in (*words, *map(Path.read_text, inputs)))
            environment["CLAIM2SOURCE_STORE"] = str((case if asks else out) / "store")
            started = time.perf_counter()
            process = subprocess.run(
                [sys.executable, *words], cwd=work, env=environment, capture_output=True, text=True
            )
            for file, text in (("stdout", process.stdout), ("stderr", process.stderr)):
                for key in ("out", "r", "own", "data", "llm"):
                    text = text.replace(str(filled[key]), f"@{key}@")
                (case / file).write_text(text, encoding="utf-8")
            (case / "answers.jsonl").write_text("".join(sorted(model.answers)), "utf-8")
            copy_results(work / name, case)
            (case / "exit_code").write_text(f"{process.returncode}\n")
            seconds = time.perf_counter() - started
            print(f"{name}: {seconds:.0f} s, exit code {process.returncode}", flush=True)
    return 0


def program_command(name: str, repository: Path, filled: Mapping[str, Any]) -> list[str]:
    """Return the words of a case; none if the repository lacks its program, or its data."""
    program, *words = fill(CASES[name], filled).split()
    # The program runs in `work`, where the slices lie.
    data = (str(filled["data"]), "slices/")
    paths = [filled["out"] / "work" / word for word in words if word.startswith(data)]
    exists = (repository / program).is_file() and all(path.exists() for path in paths)
    return [str(repository / program), *words] if exists else []


def fill(text: str, filled: Mapping[str, Any]) -> str:
    while (filled_text := Template(text).safe_substitute(filled)) != text:
        text = filled_text
    return text


def write_inputs(work: Path, filled: Mapping[str, Any]) -> None:
    """Write the table's files and its slices of data."""
    for name, text in TABLE["files"].items():
        (work / name).write_text(fill(text, filled), "utf-8")
    for name, part in TABLE["slices"].items():
        if (filled["data"] / part["of"]).is_dir():
            write_slice(filled["data"] / part["of"], work / "slices" / name, part)


def write_slice(data: Path, folder: Path, part: Mapping[str, Any]) -> None:
    """Write the first claims of a data set, their sources, and others."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    claims, golds = set(), set()
    for split in ("train", "dev"):
        lines = (data / "qrels" / f"{split}.tsv").read_text("utf-8").splitlines()
        lines = lines[: 1 + part[split]]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", "utf-8")
        claims |= {line.split("\t")[0] for line in lines[1:]}
        golds |= {line.split("\t")[1] for line in lines[1:]}
    sources = read_jsonl(data / "corpus.jsonl")
    distractors = [row["_id"] for row in sources if row["_id"] not in golds]
    source_ids = golds | set(distractors[: part["sources"] - len(golds)])
    write_jsonl(folder / "corpus.jsonl", [row for row in sources if row["_id"] in source_ids])
    posts = [row for row in read_jsonl(data / "queries.jsonl") if row["_id"] in claims]
    write_jsonl(folder / "queries.jsonl", posts)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


def copy_results(folder: Path, case: Path) -> None:
    """Copy the files to compare, without models; list all files, with hashes of weights."""
    listing = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        weights = hashlib.sha256(path.read_bytes()) if path.suffix == ".safetensors" else None
        listing[str(path.relative_to(folder))] = weights and weights.hexdigest()
        model = any((path.parent / name).exists() for name in MODEL) and path.name != "report.json"
        if path.suffix in KINDS and not model:
            copy = case / "files" / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    (case / "listing.json").write_text(json.dumps(listing, indent=1))


class Answering:
    """Play a language model whose replies depend on the texts alone that it is asked about.

    `answers` has each text and reply as a line of JSON.
    """

    def __init__(self, repository: Path) -> None:
        sys.path.insert(0, str(repository))
        from tests.llm_server import LLMServer, Reply

        self.answers: set[str] = set()
        self.reply_of = Reply
        self.server = LLMServer(self.reply)
        self.server.keep_bodies = False

    def reply(self, chat: Any) -> Any:
        reply = self.replied(chat)
        row = {"asked": texts_of(chat), "reply": getattr(reply, "text", reply)}
        self.answers.add(json.dumps(row, sort_keys=True) + "\n")
        return reply

    def replied(self, chat: Any) -> Any:
        """Choose, order or score by a hash of post and papers; rewrite other texts."""
        texts = texts_of(chat)
        listed = re.findall(r"^(?:Paper (\S+)\n|\[(\d+)\] )(.*)$", texts.pop("papers", ""), re.M)
        labels = [letter or number for letter, number, _ in listed]
        ranks = [draw(*texts.values(), title.strip()) for *_, title in listed]
        order = sorted(range(len(ranks)), key=lambda position: ranks[position])
        if chat.choices:
            letter = labels[order[0]] if draw(*texts.values()) < 0.9 else chat.choices[-1]
            top = {choice: -1.0 if choice == letter else -3.0 for choice in chat.choices}
            return self.reply_of(letter, logprobs=[(letter, -1.0, top)])
        if chat.schema is None:
            # Tags are drawn for each request; the rest of the prompt says what is to be written.
            prompt = re.sub(r"<[^<>]*>", "", chat.system)
            text = next(iter(texts.values()))
            if "text" in texts:  # to be translated
                words = sorted(ENGLISH.split(), key=lambda word: draw(prompt, text, word))[:2]
                details = " ".join(re.findall(r"[#@]\w+|\d+(?:[.,]\d+)* ?%?", text))
                return f"They say the new study of {words[0]} found more {words[1]} {details}"
            text = " ".join(re.sub(r"[#@]\w+", "", text).split())
            return f"{text} {1000 * draw(prompt, text):.0f}"
        replies: dict[str, Any] = {}
        for name, kind in chat.schema["properties"].items():
            if kind["type"] == "array":
                replies[name] = [position + 1 for position in order]
            elif kind["type"] == "string":
                replies[name] = "It fits."
            elif name == "selected_paper":
                replies[name] = order[0] + 1
            else:
                low, high = kind.get("minimum", 0), kind.get("maximum", 1)
                replies[name] = low + round((high - low) * draw(*texts.values()))
        return json.dumps(replies)


def texts_of(chat: Any) -> dict[str, str]:
    """Return a chat's texts by tag, without the number that keeps tags apart."""
    return {re.sub(r"-\d+$", "", tag): text for tag, text in chat.data.items()}


def draw(*texts: str) -> float:
    """Return a number from 0 to 1 that depends on the texts alone."""
    return int(hashlib.sha256("\n".join(texts).encode()).hexdigest()[:8], 16) / 16**8


def facts_in(case: Path) -> Facts:
    """Flatten all that a case recorded into values, by file or system, and by key."""
    listing = json.loads((case / "listing.json").read_text())
    facts: Facts = {("exit code",): (case / "exit_code").read_text().strip()}
    facts |= {("weights", file): sha256 for file, sha256 in listing.items() if sha256}
    if case.name == "merge":
        facts |= {("files", file): "there" for file in listing}
    answers = (case / "answers.jsonl").read_text("utf-8").splitlines()
    facts |= {("answers", answer): "there" for answer in answers}
    paths = sorted(path for path in (case / "files").rglob("*") if path.is_file())
    times, system_of = Counter(path.name for path in paths), systems_by_folder(paths)
    for path in paths:
        name = path.name if times[path.name] == 1 else str(path.relative_to(case / "files"))
        system = system_of.get(path.parent.resolve())
        name = name if system is None else f"{system} / {path.name}"
        facts |= facts_of(name, path.suffix, path.read_text("utf-8"))
    printed = (case / "stdout").read_text("utf-8")
    if printed.startswith('{"post"'):
        printed = f"[{','.join(printed.splitlines())}]"
    try:
        return facts | facts_of("stdout", ".json", printed)
    except ValueError:  # text, or nothing
        return facts


def systems_by_folder(paths: list[Path]) -> dict[Path, str]:
    """Name the systems of folders of runs by the reports, which say where they lie."""
    systems = {}
    for path in (path for path in paths if path.name == "report.json"):
        for name, system in json.loads(path.read_text("utf-8"))["systems"].items():
            if runs := system.get("runs"):
                systems[(path.parent / runs).resolve()] = f"{name} {system.get('claims', '')}"
    return systems


def facts_of(name: str, kind: str, text: str) -> Facts:
    """Flatten a file: a run by claim, other rows by number, JSON and CSV by key."""
    if kind == ".trec":
        ranked: Facts = defaultdict(list)
        for claim, _, source, _, score, _ in map(str.split, text.splitlines()):
            ranked[name, claim].append([source, float(score)])
        return ranked
    if kind == ".csv":
        table = enumerate(csv.DictReader(text.splitlines()))
        keeps = "loss" if name.endswith("metrics.csv") else ""
        cells = ((i, key, value) for i, row in table for key, value in row.items())
        return {
            (name, str(i), key): number_or_text(value)
            for i, key, value in cells
            if key not in IGNORED and key.startswith(keeps)
        }
    if kind == ".json":
        return dict(leaves(json.loads(text), (name,)))
    lines: list[Any] = text.splitlines()
    rows = [lean(json.loads(line)) for line in lines] if kind == ".jsonl" else lines
    return {(name, "rows"): len(rows), **{(name, f"row {i}"): row for i, row in enumerate(rows)}}


def number_or_text(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


def leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield paths, and numbers or single words, of a JSON value: sentences may be reworded."""
    if isinstance(value, dict):
        # What was chosen is a result; other settings are what was asked for.
        chosen = {"choice", "choices"} & {*path}
        for key, inner in value.items():
            if key not in IGNORED and (key != "settings" or chosen):
                yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, str(number)))
    elif isinstance(value, int | float) or isinstance(value, str) and not {*" /:"} & {*value}:
        yield path, value


def lean(value: Any) -> Any:
    """Return a JSON value without what is ignored and empty texts: such a field may go."""
    if isinstance(value, dict):
        return {k: lean(item) for k, item in value.items() if k not in IGNORED and item != ""}
    return [lean(inner) for inner in value] if isinstance(value, list) else value


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b or abs(a - b) <= 1e-6 or (a != a and b != b)
    return bool(a == b)


def compare(before: Path, after: Path, only: list[str] | None = None) -> int:
    """Compare two snapshots and print the differences; return 1 if any counts."""
    folders, wrong, compared = (before, after), 0, 0
    names = [n for n in only or CASES if any((f / n / "exit_code").is_file() for f in folders)]
    for name in names:
        cases = [folder / name for folder in folders]
        if absent := [case for case in cases if not (case / "exit_code").is_file()]:
            wrong += 1
            print(f"{name}: not in {absent[0].parent}")
            continue
        old, new = map(facts_in, cases)
        lines = [
            f"{name}: {' / '.join(key)}: {str(value)[:100]} -> {str(new.get(key, 'absent'))[:100]}"
            for key, value in old.items()
            if not equal(value, new.get(key, "absent"))
            and not (key[0] == "weights" and same_weights(*folders, Path("work", name, key[1])))
        ]
        rest, added = len(lines[MAX_SHOWN:]), len(new.keys() - old.keys())
        lines_shown = [*lines[:MAX_SHOWN], *([f"{name}: {rest} more"] if rest else [])]
        lines_shown += [f"{name}: {added} values added, not counted"] if added else []
        print(*lines_shown, sep="\n", end="\n" if lines_shown else "")
        wrong, compared = wrong + len(lines), compared + len(old)
    result = f"{wrong} differ" if wrong else "equal"
    print(f"\n{len(names)} cases, {compared} values compared: {result}")
    return int(wrong > 0 or not names)


def same_weights(before: Path, after: Path, file: Path) -> bool:
    """Whether two files hold the same tensors to 1e-6; not if one is no longer there."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not (before / file).is_file() or not (after / file).is_file():
        return False
    try:
        old, new = load_file(before / file), load_file(after / file)
    except (SafetensorError, TypeError, KeyError):  # a type that numpy lacks: by hash alone
        return False
    return old.keys() == new.keys() and all(
        old[key].shape == new[key].shape and np.allclose(old[key], new[key], rtol=0, atol=1e-6)
        for key in old
    )


if __name__ == "__main__":
    sys.exit(main())
