"""Record the results of every program on small data, and compare those of two versions.

python scripts/snapshot.py --out DIR [--repository PATH] [--data DIR] [--only NAME ...]
python scripts/snapshot.py --compare DIR_BEFORE DIR_AFTER [--only NAME ...]

The cases are in scripts/snapshot.yaml. Programs run as processes in DIR/work. Only the reader of
that file is imported from the package, so that one script serves every version; the repository's
tests/llm_server stands in for language models. Runs are compared by system, claim form and claim,
reports and other JSON by their numbers and words, weights by value, data by rows, a language
model's answers by their requests. Additions do not count as differences; costs, paths, dates,
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

# The repository of this script, not the measured one.
OWN = Path(__file__).resolve().parents[1]
TABLE = read_yaml(Path(__file__).with_suffix(".yaml"))
CASES: dict[str, str] = TABLE["cases"]
KINDS = {".trec", ".tsv", ".jsonl", ".json", ".csv"}  # files that are compared
MODEL = {"manifest.json", "modules.json", "config.json"}  # mark the folder of a model
# Keys of costs and of the origin of a result.
IGNORED = set("cost seconds speed milliseconds batch_milliseconds peak_memory_bytes".split())
IGNORED |= {"provenance", "versions", "version", "key"}
ENGLISH = "sleep coffee masks sugar exercise noise stress smoking vaccines pollution music walking"
MAX_SHOWN = 20  # differences of a case that are printed
Facts = dict[tuple[str, ...], Any]


def main() -> int:
    """Take a snapshot, or compare two; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repository", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--data", type=Path, help="default: the repository's ../shared/data")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=CASES,
        metavar="NAME",
        help=", ".join(CASES),
    )
    parser.add_argument("--overwrite", action="store_true", help="run finished cases again")
    parser.add_argument("--threads", type=int, default=2, help="threads of every program")
    parser.add_argument(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("BEFORE", "AFTER"),
    )
    arguments = parser.parse_args()
    if arguments.compare:
        before, after = arguments.compare
        return compare(before, after, arguments.only)
    if arguments.out is None:
        parser.error("--out or --compare is required")
    return take(arguments)


def take(arguments: argparse.Namespace) -> int:
    """Run the cases that are not done yet, and record their results; return 0."""
    out = arguments.out.resolve()
    repository = arguments.repository.resolve()
    shared_data = repository / ".." / "shared" / "data"
    data = (arguments.data or shared_data).resolve()
    work = out / "work"
    environment = dict(os.environ)
    environment["PYTHONPATH"] = str(repository)
    environment["CLAIM2SOURCE_DATA"] = str(data)
    environment["OMP_NUM_THREADS"] = str(arguments.threads)
    environment["HF_HUB_OFFLINE"] = "1"
    environment["WANDB_MODE"] = "disabled"
    filled: dict[str, Any] = {
        **TABLE["words"],
        "r": repository,
        "own": OWN,
        "data": data,
        "out": out,
        "threads": arguments.threads,
    }
    work.mkdir(parents=True, exist_ok=True)
    if arguments.overwrite and not arguments.only:
        shutil.rmtree(out / "store", ignore_errors=True)
    model = Answering(repository)
    with model.server as server:
        filled["llm"] = server.url
        write_inputs(work, filled)
        for name in arguments.only or CASES:
            is_done = (out / name / "exit_code").is_file()
            if is_done and not arguments.overwrite:
                print(f"{name}: done before", flush=True)
                continue
            words = program_command(name, repository, filled)
            if not words:
                print(f"{name}: left out, no program or data for it", flush=True)
                continue
            take_case(name, words, model, filled, environment)
    return 0


def take_case(
    name: str,
    words: list[str],
    model: Answering,
    filled: Mapping[str, Any],
    environment: dict[str, str],
) -> None:
    """Run one case, and record its output, files and requests to the model."""
    out = filled["out"]
    work = out / "work"
    case = out / name
    for folder in (case, work / name):
        shutil.rmtree(folder, ignore_errors=True)
    case.mkdir()
    model.answers.clear()
    # A case that calls the model has its own store, without stored answers.
    asks = asks_model(words, work, model.server.url)
    store_folder = case if asks else out
    environment["CLAIM2SOURCE_STORE"] = str(store_folder / "store")
    started = time.perf_counter()
    process = subprocess.run(
        [sys.executable, *words],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
    )
    for file, text in (("stdout", process.stdout), ("stderr", process.stderr)):
        for key in ("out", "r", "own", "data", "llm"):
            value = str(filled[key])
            text = text.replace(value, f"@{key}@")
        (case / file).write_text(text, encoding="utf-8")
    answers = "".join(sorted(model.answers))
    (case / "answers.jsonl").write_text(answers, "utf-8")
    copy_results(work / name, case)
    (case / "exit_code").write_text(f"{process.returncode}\n")
    seconds = time.perf_counter() - started
    print(f"{name}: {seconds:.0f} s, exit code {process.returncode}", flush=True)


def asks_model(words: list[str], work: Path, url: str) -> bool:
    """Whether a command, or a file that it names, contains the model's address."""
    for word in words:
        if url in word:
            return True
        file = work / word
        if file.is_file() and url in file.read_text():
            return True
    return False


def program_command(
    name: str,
    repository: Path,
    filled: Mapping[str, Any],
) -> list[str]:
    """Return the command of a case; None if the repository lacks its program or its data."""
    program, *words = fill(CASES[name], filled).split()
    # The program runs in `work`, where the slices are.
    data = (str(filled["data"]), "slices/")
    paths = []
    for word in words:
        if word.startswith(data):
            paths.append(filled["out"] / "work" / word)
    program_file = repository / program
    if not program_file.is_file():
        return []
    if not all(path.exists() for path in paths):
        return []
    return [str(program_file), *words]


def fill(text: str, filled: Mapping[str, Any]) -> str:
    filled_text = Template(text).safe_substitute(filled)
    while filled_text != text:
        text = filled_text
        filled_text = Template(text).safe_substitute(filled)
    return text


def write_inputs(work: Path, filled: Mapping[str, Any]) -> None:
    """Write the table's files and its slices of data."""
    for name, text in TABLE["files"].items():
        filled_text = fill(text, filled)
        (work / name).write_text(filled_text, "utf-8")
    for name, part in TABLE["slices"].items():
        data = filled["data"] / part["of"]
        if data.is_dir():
            folder = work / "slices" / name
            write_slice(data, folder, part)


def write_slice(data: Path, folder: Path, part: Mapping[str, Any]) -> None:
    """Write the first claims of a data set, their sources, and others."""
    qrels = folder / "qrels"
    qrels.mkdir(parents=True, exist_ok=True)
    claims: set[str] = set()
    golds: set[str] = set()
    for split in ("train", "dev"):
        file = f"{split}.tsv"
        lines = (data / "qrels" / file).read_text("utf-8").splitlines()
        lines = lines[: 1 + part[split]]
        text = "\n".join(lines)
        (qrels / file).write_text(text + "\n", "utf-8")
        for line in lines[1:]:
            claim, gold, *_ = line.split("\t")
            claims.add(claim)
            golds.add(gold)
    sources = read_jsonl(data / "corpus.jsonl")
    distractors = [row["_id"] for row in sources if row["_id"] not in golds]
    count = part["sources"] - len(golds)
    source_ids = golds | set(distractors[:count])
    papers = [row for row in sources if row["_id"] in source_ids]
    write_jsonl(folder / "corpus.jsonl", papers)
    queries = read_jsonl(data / "queries.jsonl")
    posts = [row for row in queries if row["_id"] in claims]
    write_jsonl(folder / "queries.jsonl", posts)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    path.write_text(text, "utf-8")


def copy_results(folder: Path, case: Path) -> None:
    """Copy the files to compare, without models; list all files, with hashes of weights."""
    listing: dict[str, str | None] = {}
    for path in files_below(folder):
        name = path.relative_to(folder)
        listing[str(name)] = None
        if path.suffix == ".safetensors":
            digest = hashlib.sha256(path.read_bytes())
            listing[str(name)] = digest.hexdigest()
        parent = path.parent
        is_of_model = any((parent / file).exists() for file in MODEL)
        if path.name == "report.json":
            is_of_model = False
        if path.suffix in KINDS and not is_of_model:
            copy = case / "files" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    listing_text = json.dumps(listing, indent=1)
    (case / "listing.json").write_text(listing_text)


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


class Answering:
    """Stand in for a language model whose replies depend only on the texts in the request.

    `answers` has each text and its reply as a line of JSON.
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
        row = {
            "asked": chat_texts(chat),
            "reply": getattr(reply, "text", reply),
        }
        line = json.dumps(row, sort_keys=True)
        self.answers.add(line + "\n")
        return reply

    def replied(self, chat: Any) -> Any:
        """Choose, order or score by a hash of post and papers; rewrite other texts."""
        texts = chat_texts(chat)
        papers = texts.pop("papers", "")
        listed = re.findall(r"^(?:Paper (\S+)\n|\[(\d+)\] )(.*)$", papers, re.M)
        labels = [letter or number for letter, number, _ in listed]
        ranks = []
        for *_, title in listed:
            ranks.append(draw(*texts.values(), title.strip()))
        positions = range(len(ranks))
        order = sorted(positions, key=lambda position: ranks[position])
        if chat.choices:
            is_first_chosen = draw(*texts.values()) < 0.9
            letter = labels[order[0]] if is_first_chosen else chat.choices[-1]
            top: dict[Any, float] = {}
            for choice in chat.choices:
                top[choice] = -1.0 if choice == letter else -3.0
            return self.reply_of(letter, logprobs=[(letter, -1.0, top)])
        if chat.schema is None:
            return rewritten(chat.system, texts)
        replies: dict[str, Any] = {}
        for name, kind in chat.schema["properties"].items():
            if kind["type"] == "array":
                replies[name] = [position + 1 for position in order]
            elif kind["type"] == "string":
                replies[name] = "It fits."
            elif name == "selected_paper":
                replies[name] = order[0] + 1
            else:
                low = kind.get("minimum", 0)
                high = kind.get("maximum", 1)
                share = draw(*texts.values())
                replies[name] = low + round((high - low) * share)
        return json.dumps(replies)


def rewritten(system: str, texts: Mapping[str, str]) -> str:
    """Write a text that depends on the prompt and on the text to translate or rewrite."""
    # Tags are drawn for each request; the rest of the prompt says what to write.
    prompt = re.sub(r"<[^<>]*>", "", system)
    text = next(iter(texts.values()))
    if "text" in texts:  # to be translated
        english = ENGLISH.split()
        words = sorted(english, key=lambda word: draw(prompt, text, word))
        kept = re.findall(r"[#@]\w+|\d+(?:[.,]\d+)* ?%?", text)
        details = " ".join(kept)
        return f"They say the new study of {words[0]} found more {words[1]} {details}"
    untagged = re.sub(r"[#@]\w+", "", text)
    text = " ".join(untagged.split())
    number = 1000 * draw(prompt, text)
    return f"{text} {number:.0f}"


def chat_texts(chat: Any) -> dict[str, str]:
    """Return a chat's texts by tag, without the number that makes tags unique."""
    return {re.sub(r"-\d+$", "", tag): text for tag, text in chat.data.items()}


def draw(*texts: str) -> float:
    """Return a number from 0 to 1 that depends only on the texts."""
    joined = "\n".join(texts).encode()
    digits = hashlib.sha256(joined).hexdigest()[:8]
    return int(digits, 16) / 16**8


def facts_in(case: Path) -> Facts:
    """Flatten everything that a case recorded into values, by file or system, and by key."""
    listing = json.loads((case / "listing.json").read_text())
    exit_code = (case / "exit_code").read_text()
    facts: Facts = {("exit code",): exit_code.strip()}
    for file, sha256 in listing.items():
        if sha256:
            facts["weights", file] = sha256
        if case.name == "merge":
            facts["files", file] = "there"
    answers = (case / "answers.jsonl").read_text("utf-8")
    for answer in answers.splitlines():
        facts["answers", answer] = "there"
    folder = case / "files"
    paths = files_below(folder)
    times = Counter(path.name for path in paths)
    systems = systems_by_folder(paths)
    for path in paths:
        name = path.name
        place = path.parent.resolve()
        if place in systems:
            name = f"{systems[place]} / {name}"
        elif times[name] > 1:
            name = str(path.relative_to(folder))
        text = path.read_text("utf-8")
        facts |= facts_in_file(name, path.suffix, text)
    printed = (case / "stdout").read_text("utf-8")
    if printed.startswith('{"post"'):
        answered = ",".join(printed.splitlines())
        printed = f"[{answered}]"
    try:
        return facts | facts_in_file("stdout", ".json", printed)
    except ValueError:  # text, or nothing
        return facts


def systems_by_folder(paths: list[Path]) -> dict[Path, str]:
    """Map folders of runs to their systems, by the reports that name the folders."""
    systems: dict[Path, str] = {}
    for path in paths:
        if path.name != "report.json":
            continue
        report = json.loads(path.read_text("utf-8"))
        for name, system in report["systems"].items():
            runs = system.get("runs")
            if runs:
                folder = (path.parent / runs).resolve()
                claims = system.get("claims", "")
                systems[folder] = f"{name} {claims}"
    return systems


def facts_in_file(name: str, kind: str, text: str) -> Facts:
    """Flatten a file: a run by claim, other rows by number, JSON and CSV by key."""
    if kind == ".trec":
        ranked: Facts = defaultdict(list)
        ranked_lines = map(str.split, text.splitlines())
        for claim, _, source, _, score, _ in ranked_lines:
            ranked[name, claim].append([source, float(score)])
        return ranked
    if kind == ".csv":
        return facts_in_csv(name, text)
    if kind == ".json":
        value = json.loads(text)
        return dict(leaves(value, (name,)))
    rows: list[Any] = text.splitlines()
    if kind == ".jsonl":
        rows = [lean(json.loads(line)) for line in rows]
    facts: Facts = {(name, "rows"): len(rows)}
    for number, row in enumerate(rows):
        facts[name, f"row {number}"] = row
    return facts


def facts_in_csv(name: str, text: str) -> Facts:
    """Flatten a table by row and column; of a training run's metrics only the losses."""
    prefix = "loss" if name.endswith("metrics.csv") else ""
    facts: Facts = {}
    rows = csv.DictReader(text.splitlines())
    for number, row in enumerate(rows):
        for key, value in row.items():
            if key not in IGNORED and key.startswith(prefix):
                facts[name, str(number), key] = number_or_text(value)
    return facts


def number_or_text(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


def leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield paths, and numbers or single words, of a JSON value: sentences may be reworded."""
    if isinstance(value, dict):
        # Chosen settings are a result; other settings are part of the command.
        chosen = {"choice", "choices"} & {*path}
        for key, inner in value.items():
            if key not in IGNORED and (key != "settings" or chosen):
                yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, str(number)))
    elif isinstance(value, int | float):
        yield path, value
    elif isinstance(value, str):
        is_word = not {*" /:"} & {*value}
        if is_word:
            yield path, value


def lean(value: Any) -> Any:
    """Return a JSON value without ignored keys and empty texts, which a version may drop."""
    if isinstance(value, dict):
        kept: dict[Any, Any] = {}
        for key, item in value.items():
            if key not in IGNORED and item != "":
                kept[key] = lean(item)
        return kept
    if isinstance(value, list):
        return [lean(inner) for inner in value]
    return value


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return False
        return all(equal(a[key], b[key]) for key in a)
    if isinstance(a, int | float) and isinstance(b, int | float):
        if a == b or abs(a - b) <= 1e-6:
            return True
        are_both_nan = a != a and b != b
        return are_both_nan
    return bool(a == b)


def compare(before: Path, after: Path, only: list[str] | None = None) -> int:
    """Compare two snapshots and print the differences; return 1 if any counts."""
    folders = (before, after)
    wrong = 0
    compared = 0
    names: list[str] = []
    for name in only or CASES:
        if any((folder / name / "exit_code").is_file() for folder in folders):
            names.append(name)
    for name in names:
        cases = [folder / name for folder in folders]
        absent = [case for case in cases if not (case / "exit_code").is_file()]
        if absent:
            wrong += 1
            print(f"{name}: missing in {absent[0].parent}")
            continue
        old, new = map(facts_in, cases)
        lines = differences(name, old, new, before, after)
        shown = lines[:MAX_SHOWN]
        hidden = len(lines) - MAX_SHOWN
        if hidden > 0:
            shown.append(f"{name}: {hidden} more")
        added = len(new.keys() - old.keys())
        if added:
            shown.append(f"{name}: {added} values added, not counted")
        for line in shown:
            print(line)
        wrong += len(lines)
        compared += len(old)
    result = f"{wrong} differ" if wrong else "equal"
    print(f"\n{len(names)} cases, {compared} values compared: {result}")
    return int(wrong > 0 or not names)


def differences(
    name: str,
    old: Facts,
    new: Facts,
    before: Path,
    after: Path,
) -> list[str]:
    """List the values of a case that differ, a line each."""
    lines: list[str] = []
    for key, value in old.items():
        now = new.get(key, "absent")
        if equal(value, now):
            continue
        if key[0] == "weights":
            file = Path("work", name, key[1])
            if same_weights(before, after, file):
                continue
        place = " / ".join(key)
        then_text = str(value)[:100]
        now_text = str(now)[:100]
        lines.append(f"{name}: {place}: {then_text} -> {now_text}")
    return lines


def same_weights(before: Path, after: Path, file: Path) -> bool:
    """Whether two files have the same tensors to 1e-6; False if one is missing."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    old_file = before / file
    new_file = after / file
    if not old_file.is_file() or not new_file.is_file():
        return False
    try:
        old = load_file(old_file)
        new = load_file(new_file)
    except (SafetensorError, TypeError, KeyError):  # a type that numpy lacks: compare hashes
        return False
    if old.keys() != new.keys():
        return False
    for key, old_tensor in old.items():
        new_tensor = new[key]
        if old_tensor.shape != new_tensor.shape:
            return False
        if not np.allclose(old_tensor, new_tensor, rtol=0, atol=1e-6):
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
