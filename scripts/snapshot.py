"""Record the results of every program on small data, and compare those of two versions.

python scripts/snapshot.py --out DIR [--repository PATH] [--data DIR] [--only NAME ...]
python scripts/snapshot.py --compare DIR_BEFORE DIR_AFTER [--only NAME ...]

The cases stand in scripts/snapshot.yaml. Programs run as processes in DIR/work, and nothing is
imported from the package: one script serves every version; language models are played by the
repository's tests/llm_server. Runs are compared by system, claim form and language, scores by
system, language and metric, weights by value, data by rows, a language model's answers by what it
was asked. Additions are listed but do not count as differences; costs, paths, dates and pages are
not compared.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

import yaml

TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
CASES: dict[str, str] = TABLE["cases"]
# Files that are compared row by row, or as a whole; of other JSON the parts that `facts_of` knows.
ROWS = (".trec", ".tsv", ".jsonl")
FILES_IN_FULL = {"fusion.json", "verification.json", "anova.json"}
MODEL = {"manifest.json", "modules.json", "config.json"}  # beside such files lie a model's
COSTS = {"cost", "seconds", "speed", "milliseconds", "batch_milliseconds", "peak_memory_bytes"}
CHOICE = "analysis stop_words stemmer metadata title_weight k1 b method scale rrf_k depth alpha mix"
OTHER_KEYS = "slices ranks rank_changes anova lost runs paired_test claims missing repeated ignored"
NO_NAMES = {"runs", "files", "submission_2025", "submission_2026", "submissions"}
ENGLISH = "sleep coffee masks sugar exercise noise stress smoking vaccines pollution music walking"
MAX_SHOWN = 12  # differences of a case and kind that are printed
Facts = dict[tuple[str, ...], Any]
Differences = dict[str, list[str]]


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
    folders = {"r": repository, "data": data, "threads": arguments.threads, "out": out}
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
            words = command_of(name, repository, filled)
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
                for key in ("out", "r", "data", "llm"):
                    text = text.replace(str(filled[key]), f"@{key}@")
                (case / file).write_text(text, encoding="utf-8")
            (case / "answers.jsonl").write_text("".join(sorted(model.answers)), "utf-8")
            copy_results(work / name, case)
            (case / "exit_code").write_text(f"{process.returncode}\n")
            seconds = time.perf_counter() - started
            print(f"{name}: {seconds:.0f} s, exit code {process.returncode}", flush=True)
    return 0


def command_of(name: str, repository: Path, filled: Mapping[str, Any]) -> list[str]:
    """Return the words of a case; none where the repository lacks its program, or its data."""
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
        if path.suffix in (*ROWS, ".json", ".csv") and not model:
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


def by_system(folder: Path) -> dict[tuple[str, ...], Path]:
    """Map files by (system, claim form, name), where a report says them, else by their folder's."""
    name_of_target = {}
    for file in sorted(folder.rglob("report.json"), key=lambda path: -len(path.parts)):
        for name, system in systems_of(json.loads(file.read_text("utf-8"))).items():
            if system.get("runs"):
                target = (file.parent / system["runs"]).resolve()
                name_of_target[target] = (name, system.get("claims", ""))
    rows = defaultdict(list)
    for path in sorted(folder.rglob("*")):
        if path.suffix in ROWS or path.name in FILES_IN_FULL:
            parents = [part for part in path.relative_to(folder).parts[:-1] if part not in NO_NAMES]
            own = (parents[-1] if parents else "", "")
            rows[*name_of_target.get(path.parent.resolve(), own), path.name].append(path)
    return {
        key if len(paths) == 1 else (str(path.relative_to(folder)),): path
        for key, paths in rows.items()
        for path in paths
    }


def systems_of(report: Any) -> dict[str, Any]:
    """Return the systems of a report by name; of other JSON none."""
    systems = report.get("systems") if isinstance(report, dict) else None
    return systems if isinstance(systems, dict) else {}


def facts_of(report: Any, file: str) -> Facts:
    """Flatten a report into scores, intervals, tests and choices by key."""
    facts: Facts = {}
    for name, part in systems_of(report).items():
        macro = {"macro": part["macro"]} if part.get("macro") else {}
        facts |= scores_in(name, {**part.get("languages", {}), **macro})
        for cell in part.get("published") or ():
            cell["system"] = name  # as version 2 of the report has it
        for slice_name, table in (part.get("slices") or {}).items():
            facts |= scores_in(f"{name}, {slice_name} golds", table)
        for metric, bounds in ((part.get("intervals") or {}).get("values") or {}).items():
            for language, ends in bounds.items():
                facts[name, language, f"{metric} interval"] = ends
        stages = [stage.get("failures") or {} for stage in part.get("stages") or ()]
        for failures in (part.get("failures") or {}, *stages):
            for reason, claims in failures.items():
                facts[name, "failures", reason] = claims
    for part in walk(report):
        facts |= facts_anywhere(part)
    if isinstance(report, dict):
        for row in report.get("not_run") or ():
            facts["not run", row["system"], row["claims"]] = "not run"
        if isinstance(report.get("chosen"), str):
            facts["chosen", file] = report["chosen"]
        rest = {key: report[key] for key in OTHER_KEYS.split() if key in report}
        facts |= dict(leaves(rest)) if "comparisons" not in rest.get("paired_test", ()) else {}
    return facts


def facts_anywhere(part: Mapping[str, Any]) -> Facts:
    """Flatten a mapping that its keys identify: a test, a choice, an epoch, a published cell."""
    facts: Facts = {}
    if isinstance(part.get("val"), dict) and ("epoch" in part or "scale" in part):
        at = f"epoch {part['epoch']}" if "epoch" in part else f"scale {part['scale']:g}"
        facts |= scores_in(f"val, {at}", part["val"])
        if part.get("loss") is not None:
            facts["training", at, "loss"] = part["loss"]
    if {"family", "comparisons"} <= part.keys():
        test = f"test {part['family']} ({part['average']})"
        own = part.keys() - {"comparisons", "family"}
        facts |= {(test, key): part[key] for key in own}
        for comparison in part["comparisons"]:
            pair = f"{comparison.pop('system')} against {comparison.pop('baseline')}"
            facts |= {(test, pair, key): value for key, value in comparison.items()}
    if {"table", "row", "column", "ours"} <= part.keys():
        cell = (part["table"], part["row"], part["column"], str(part.get("system", "")))
        for key in ("published", "ours", "difference", "low", "high", "inside"):
            facts["published", *cell, key] = part[key]
    settings, score = part.get("settings"), part.get("score")
    if isinstance(settings, dict) and isinstance(score, float):
        words = ", ".join(f"{key} {settings[key]}" for key in CHOICE.split() if key in settings)
        words = words or json.dumps(settings, sort_keys=True)
        choice = ("chosen", part["what"]) if "what" in part else ("tried",)
        facts[*choice, words, f"score {score:.6f}"] = "there"
    return facts | {("training", k): v for k, v in part.items() if k == "chosen_epoch"}


def scores_in(system: str, table: Mapping[str, Mapping[str, Any]]) -> Facts:
    return {(system, lang, name): v for lang, row in table.items() for name, v in row.items()}


def walk(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from walk(inner)


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield paths and numbers of a JSON value; a list's row is named by its strings."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from () if key in COSTS else leaves(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            row = inner.values() if isinstance(inner, dict) else ()
            words = "|".join(word for word in row if isinstance(word, str))
            yield from leaves(inner, (*path, words or str(number)))
    elif isinstance(value, int | float):
        yield path, value


def facts_in(case: Path) -> Facts:
    """Flatten all reports of a case, top one first, its losses, and its output if it is data."""
    facts: Facts = {}
    files = (path for path in (case / "files").rglob("*.json") if path.name not in FILES_IN_FULL)
    for path in sorted(files, key=lambda path: (len(path.parts), path)):
        for key, value in facts_of(json.loads(path.read_text("utf-8")), path.name).items():
            # Where two files of one version disagree, both values are compared.
            earlier = facts.setdefault(key, value)
            facts[key] = earlier if equal(earlier, value) else [earlier, value]
    for path in (case / "files").rglob("metrics.csv"):
        for row in csv.DictReader(io.StringIO(path.read_text("utf-8"))):
            losses = {k: float(v) for k, v in row.items() if k.startswith("loss") and v}
            facts |= {("step", row["step"], k): v for k, v in losses.items()}
    text = (case / "stdout").read_text("utf-8")
    if text.startswith('{"post"'):
        for answer in map(json.loads, text.splitlines()):
            for paper in answer["papers"]:
                key = ("find", answer["post"], f"rank {paper['rank']}")
                facts[*key, "id"] = paper["id"]
                facts |= {(*key, *path): value for path, value in leaves(paper)}
    elif text.startswith("{"):
        facts |= facts_of(json.loads(text), "stdout")
    elif text.startswith("table,row,column"):
        for row in csv.DictReader(io.StringIO(text)):
            facts |= facts_anywhere({**row, "system": ""})
    return facts


def content_of(path: Path) -> Any:
    """Read a run as (claim, source, score) in order, other files as rows or JSON without costs."""
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        return lean(json.loads(text))
    if path.suffix == ".jsonl":
        return [lean(json.loads(line)) for line in text.splitlines()]
    if path.suffix == ".tsv":
        return [line.split("\t") for line in text.splitlines()]
    rows = sorted(map(str.split, text.splitlines()), key=lambda row: row[0])
    return [[row[0], row[2], float(row[4])] for row in rows]


def lean(value: Any) -> Any:
    """Return a JSON value without costs and empty texts: a field that said nothing may go."""
    if isinstance(value, dict):
        return {k: lean(item) for k, item in value.items() if k not in COSTS and item != ""}
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
    differences: Differences = defaultdict(list)
    folders, compared = (before, after), 0
    names = [n for n in only or CASES if any((f / n / "exit_code").is_file() for f in folders)]
    for name in names:
        old, new = cases = [folder / name for folder in folders]
        absent = [case for case in cases if not (case / "exit_code").is_file()]
        if absent:
            differences["cases"].append(f"{name}: not in {absent[0].parent}")
            continue
        codes = [(case / "exit_code").read_text().strip() for case in cases]
        if codes[0] != codes[1]:
            differences["exit codes"].append(f"{name}: {codes[0]} before, {codes[1]} after")
        compared += compare_facts(name, old, new, differences)
        compared += compare_files(name, old, new, differences)
        compared += compare_weights(name, old, new, differences)
        compared += compare_answers(name, old, new, differences)
    for section in sorted(differences, key=lambda section: (section == "added", section)):
        lines = differences[section]
        print(f"\n== {section} ({len(lines)}{', not counted' if section == 'added' else ''})")
        for name, group in groupby(lines, key=lambda line: line.partition(":")[0]):
            first, rest = (listed := list(group))[:MAX_SHOWN], len(listed) - MAX_SHOWN
            print(*first, *([f"{name}: {rest} more"] if rest > 0 else []), sep="\n")
    wrong = sum(len(lines) for section, lines in differences.items() if section != "added")
    result = f"{wrong} differ" if wrong else "equal"
    print(f"\n{len(names)} cases, {compared} values and files compared: {result}")
    return int(wrong > 0 or not names)


def compare_facts(name: str, before: Path, after: Path, differences: Differences) -> int:
    """Compare the scores, intervals, tests, choices and published numbers of a case."""
    old, new = facts_in(before), facts_in(after)
    for key, value in old.items():
        if not equal(value, value_after := new.get(key, "absent")):
            differences["scores"].append(f"{name}: {' / '.join(key)}: {value} -> {value_after}")
    for kind, count in sorted(Counter(key[0] for key in new.keys() - old.keys()).items()):
        differences["added"].append(f"{name}: {kind}: {count} values")
    return len(old)


def compare_files(name: str, before: Path, after: Path, differences: Differences) -> int:
    """Compare files by system and name; those without a partner by their content."""
    old, new = (by_system(folder / "files") for folder in (before, after))
    spare = {key: path for key, path in new.items() if key not in old}
    for key, path in old.items():
        label, partner = f"{name}: {' / '.join(key)}", new.get(key)
        if partner is None:
            candidates = (p for p in spare.values() if p.suffix == path.suffix)
            partner = next((p for p in candidates if not file_difference(path, p)), None)
            spare = {key: p for key, p in spare.items() if p != partner}
        if partner is None:
            differences[f"{path.suffix} files"].append(f"{label}: absent after, under any name")
            continue
        if why := file_difference(path, partner):
            differences[f"{path.suffix} files"].append(f"{label}: {why}")
    for path in spare.values():
        differences["added"].append(f"{name}: {path.relative_to(after / 'files')}")
    return len(old)


def file_difference(before: Path, after: Path) -> str:
    """Describe how two files differ, tags of runs and costs aside; empty where they are equal."""
    old, new = content_of(before), content_of(after)
    if equal(old, new):
        return ""
    if not isinstance(old, list):
        changed = [key for key in old if not equal(old[key], new.get(key))]
        return f"{', '.join(changed) or 'keys'} differ"
    rows = f"{len(old)} rows before, {len(new)} after"
    pairs = list(zip(old, new, strict=False))
    if before.suffix != ".trec" or len(old) != len(new):
        return f"{sum(not equal(*pair) for pair in pairs)} rows differ; {rows}"
    reordered, difference = (
        sum(a[:2] != b[:2] for a, b in pairs),
        max(abs(a[2] - b[2]) for a, b in pairs),
    )
    return f"{reordered} rows rank otherwise; {rows}; scores differ by up to {difference:.2g}"


def compare_weights(name: str, before: Path, after: Path, differences: Differences) -> int:
    """Compare the weights by hash or value and, of an exported model, the names of its files."""
    old, new = (json.loads((folder / "listing.json").read_text()) for folder in (before, after))
    works = [folder.parent / "work" / name for folder in (before, after)]
    files = {file: sha256 for file, sha256 in old.items() if sha256 or name == "merge"}
    for file, sha256 in files.items():
        if file in new and new[file] == sha256:
            continue
        # The file of the same name first.
        candidates = sorted((path for path in new if new[path]), key=lambda path: path != file)
        matches = [path for path in candidates if new[path] == sha256] or (
            path for path in candidates if same_weights(works[0] / file, works[1] / path)
        )
        partner = next(iter(matches), None) if sha256 else None
        if partner is None:
            why = "other weights" if file in new else "absent after"
            differences["weights"].append(f"{name}: {file}: {why}")
    return len(files)


def same_weights(before: Path, after: Path) -> bool:
    """Tell whether two files hold the same tensors to 1e-6; not where one is no longer there."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not (before.is_file() and after.is_file()):
        return False
    try:
        old, new = load_file(before), load_file(after)
    except (SafetensorError, TypeError, KeyError):  # a type that numpy lacks: by hash alone
        return False
    return old.keys() == new.keys() and all(
        old[key].shape == new[key].shape and np.allclose(old[key], new[key], rtol=0, atol=1e-6)
        for key in old
    )


def compare_answers(name: str, before: Path, after: Path, differences: Differences) -> int:
    old, new = (set((f / "answers.jsonl").read_text("utf-8").splitlines()) for f in (before, after))
    for line in sorted(old - new):
        differences["answers"].append(f"{name}: absent after: {line[:150]}")
    if new - old:
        differences["added"].append(f"{name}: {len(new - old)} answers")
    return len(old)


if __name__ == "__main__":
    sys.exit(main())
