"""Record the results of every program on the demo set, and compare those of two versions.

python scripts/snapshot.py --out DIR [--repository PATH] [--data DIR] [--only NAME ...]
python scripts/snapshot.py --compare DIR_BEFORE DIR_AFTER

Programs run as processes in DIR/work, and nothing is imported from the package: one script serves
every version. DIR/NAME holds a case's exit code, output, reports, runs, submissions, mined rows
and the hashes of its weights. Scores, tests, runs, submissions and weights must be equal. Texts,
moved files and additions are listed but do not count as differences; costs, paths and dates are
not compared.
"""

from __future__ import annotations

import argparse
import csv
import difflib
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
from pathlib import Path
from typing import Any

# Command lines by name, run in DIR/work; later ones use what earlier ones made.
CASES_TEXT = """
finetune: train/finetune.py --config {r}/configs/finetune/demo.yaml {threads} --out finetune
mine: train/mine.py --dataset demo {minilm} --out mine/mined.jsonl
mine_golds: train/mine.py {minilm} --mining.pool train-golds --out mine_golds/mined.jsonl
interpolate: train/interpolate.py {run} --scales 0 0.5 1 --split test --out interpolate
merge: train/merge.py {run} --out merge
checkpoint_run: eval/checkpoint.py {run} {test} --out checkpoint_run
checkpoint_forms: eval/checkpoint.py {run} {test} --only chosen {forms} --out checkpoint_forms
checkpoint_bare: eval/checkpoint.py {bare} {test} --out checkpoint_bare
encode: eval/encode.py --model.name finetune --dataset demo --splits dev
hybrid: eval/hybrid.py {run} {test} --out hybrid
tune_bm25: eval/tune_bm25.py {test} --out tune_bm25
score: eval/score.py --qrels qrels.tsv --run b.trec a.trec --metrics mrr@5 recall@100
score_json: eval/score.py --qrels qrels.tsv --run b.trec a.trec --json
baselines: eval/baselines.py {offline} --systems {quick} {test} --out baselines
compare: eval/compare.py --reports checkpoint_run hybrid --out compare
paper_tables: eval/paper_tables.py --reports baselines checkpoint_bare
paper_tables_md: eval/paper_tables.py --reports baselines checkpoint_bare --format markdown
paper_tables_csv: eval/paper_tables.py --reports baselines checkpoint_bare --format csv
report: eval/report.py --reports checkpoint_run baselines --out report/report.html
ct25_hybrid: eval/hybrid.py {bare} {ct25} {as_known} --out ct25_hybrid
ct25_checkpoint: eval/checkpoint.py {bare} {ct25} {as_known} --hybrid --out ct25_checkpoint
ct25_tune_bm25: eval/tune_bm25.py {ct25} --out ct25_tune_bm25
"""
CASES = dict(line.split(": ", 1) for line in CASES_TEXT.strip().splitlines())
SHORT = {
    "minilm": "--model.name sentence-transformers/all-MiniLM-L6-v2",
    "bare": "--checkpoint sentence-transformers/all-MiniLM-L6-v2",
    "run": "--checkpoint finetune",
    "test": "--dataset demo --split test",
    "forms": "--claims original translated bilingual --hybrid",
    "offline": "--files {offline_yaml} --offline",
    "quick": "BM25 BM25-okapi BM25-tuned MiniLM MPNet mE5-4bit "
    "H-MiniLM H-mE5-4bit HT-MiniLM HR-MiniLM",
    "ct25": "--dataset ct25 --split dev",
    "as_known": "--model.max_length 256 --rendering.sources title_abstract",
}
COPIED = {".json", ".md", ".trec", ".tsv", ".csv", ".jsonl", ".html"}
COSTS = ("seconds", "items/s", "peak MB", "tokens", "parameters")
CHOICE = "analysis stop_words stemmer metadata title_weight k1 b method scale rrf_k depth alpha"
OTHER = "slices ranks rank_changes anova lost runs paired_test claims missing repeated ignored"
NO_NAMES = {"runs", "files", "submission_2025", "submission_2026", "submissions"}
APART = ("moved", "added", "text")
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
    given = parser.parse_args()
    if given.compare:
        return compare(*given.compare)
    if given.out is None:
        parser.error("--out or --compare is needed")
    take(given)
    return 0


def take(given: argparse.Namespace) -> None:
    """Run the cases that are not done yet, and record their results."""
    out, repository = given.out.resolve(), given.repository.resolve()
    data, work = (given.data or repository / ".." / "shared" / "data").resolve(), out / "work"
    own = {"PYTHONPATH": repository, "CLAIM2SOURCE_DATA": data, "CLAIM2SOURCE_STORE": out / "store"}
    own |= {"OMP_NUM_THREADS": given.threads, "HF_HUB_OFFLINE": 1, "WANDB_MODE": "disabled"}
    environment = {**os.environ, **{key: str(value) for key, value in own.items()}}
    files = (repository / "configs" / name / "offline.yaml" for name in ("systems", "baselines"))
    filled = {**SHORT, "r": repository, "threads": f"--threads {given.threads}"}
    filled["offline_yaml"] = next((str(path) for path in files if path.is_file()), "offline.yaml")
    work.mkdir(parents=True, exist_ok=True)
    if given.overwrite and not given.only:
        shutil.rmtree(out / "store", ignore_errors=True)
    for name in given.only or CASES:
        case = out / name
        if (case / "exit_code").is_file() and not given.overwrite:
            print(f"{name}: done before", flush=True)
            continue
        if name.startswith("ct25") and not (data / "ct25").is_dir():
            print(f"{name}: left out, no {data / 'ct25'}", flush=True)
            continue
        for folder in (case, work / name):
            shutil.rmtree(folder, ignore_errors=True)
        case.mkdir()
        if name.startswith("score"):
            prepare_scoring(repository, work)
        # Twice: an abbreviation's text may name the repository.
        program, *words = CASES[name].format(**filled).format(**filled).split()
        started = time.perf_counter()
        command = [sys.executable, str(repository / program), *words]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
        for file, text in (("stdout", done.stdout), ("stderr", done.stderr)):
            for place, word in ((out, "@OUT@"), (repository, "@REPOSITORY@"), (data, "@DATA@")):
                text = text.replace(str(place), word)
            (case / file).write_text(text, encoding="utf-8")
        copy_results(work / name, case)
        (case / "exit_code").write_text(f"{done.returncode}\n")
        seconds = time.perf_counter() - started
        print(f"{name}: {seconds:.1f} s, exit code {done.returncode}", flush=True)


def prepare_scoring(repository: Path, work: Path) -> None:
    """Copy the demo's qrels and two English runs to the paths that `eval/score.py` gets."""
    qrels = next((repository / "claim2source").rglob("demo/qrels/test.tsv"))
    shutil.copyfile(qrels, work / "qrels.tsv")
    found = by_system(work / "checkpoint_run", ".trec")
    for name, epoch in (("a", 0), ("b", 1)):
        shutil.copyfile(found[f"epoch-{epoch}/en.trec"], work / f"{name}.trec")


def copy_results(made: Path, case: Path) -> None:
    """Copy the files to compare, without models; list all files, with hashes of weights."""
    listing = {}
    for path in sorted(path for path in made.rglob("*") if path.is_file()):
        weights = hashlib.sha256(path.read_bytes()) if path.suffix == ".safetensors" else None
        listing[str(path.relative_to(made))] = weights and weights.hexdigest()
        model = any((path.parent / name).exists() for name in ("manifest.json", "modules.json"))
        if path.suffix in COPIED and not model:
            copy = case / "files" / path.relative_to(made)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    (case / "listing.json").write_text(json.dumps(listing, indent=1))


def by_system(folder: Path, suffix: str) -> dict[str, Path]:
    """Map files by "SYSTEM/NAME" in any folder; by path where that is ambiguous."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.rglob(f"*{suffix}")):
        parents = [part for part in path.relative_to(folder).parts[:-1] if part not in NO_NAMES]
        found[f"{parents[-1] if parents else only_system(folder)}/{path.name}"].append(path)
    return {
        key if len(paths) == 1 else str(path.relative_to(folder)): path
        for key, paths in found.items()
        for path in paths
    }


def only_system(folder: Path) -> str:
    """Return the system of files outside any system's folder: the top report's."""
    if not (folder / "report.json").is_file():
        return ""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    names = [name for name, _ in systems_of(report, "")]
    return names[0] if len(names) == 1 or {"checkpoint", "macro"} <= report.keys() else ""


def systems_of(report: Mapping[str, Any], folder: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and entry of every system of a report of any version, or of a nested report."""
    if "systems" in report:
        yield from report["systems"].items()
    elif {"before", "after", "seen_unseen"} <= report.keys():
        for key, name in (("before", "step 0"), ("after", "chosen")):
            slices = {part: tables[key] for part, tables in report["seen_unseen"].items()}
            yield name, {"languages": report[key], "slices": slices}
    elif {"step_0", "as_trained", "after"} <= report.keys():
        for key, name in (("step_0", "step 0"), ("as_trained", "scale 1"), ("after", "picked")):
            yield name, {"languages": report[key]}
    else:
        if {"checkpoint", "macro"} <= report.keys():
            yield folder or Path(report["checkpoint"]).name, report
        yield from report.get("checkpoints", {}).items()


def facts_of(report: Any, file: str, folder: str = "") -> Facts:
    """Flatten a report of any version into scores, intervals, tests, choices by key."""
    facts: Facts = {}
    systems = dict(systems_of(report, folder)) if isinstance(report, dict) else {}
    for name, part in systems.items():
        macro = {"macro": part["macro"]} if part.get("macro") else {}
        facts |= scores_in(name, {**part.get("languages", {}), **macro})
        for cut, table in (part.get("slices") or {}).items():
            facts |= scores_in(f"{name}, {cut} golds", table)
        intervals = part.get("intervals") or {}
        for metric, bounds in intervals.get("values", intervals).items():
            for language, ends in bounds.items() if isinstance(bounds, dict) else ():
                facts[name, language, f"{metric} interval"] = ends
        for reason, claims in (part.get("failures") or {}).items():
            facts[name, "failures", reason] = claims
    for part in walk(report):
        facts |= facts_anywhere(part)
    if isinstance(report, dict):
        for row in report.get("not_run") or ():
            facts["not run", row["system"], row["claims"]] = "not run"
        if isinstance(report.get("chosen"), str):
            facts["chosen", file] = report["chosen"]
        rest = {key: report[key] for key in OTHER.split() if key in report}
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
        facts |= {(test, key): value for key, value in part.items() if key != "comparisons"}
        for one in part["comparisons"]:
            pair = f"{one['system']} against {one['baseline']}"
            facts |= {(test, pair, key): value for key, value in one.items()}
    if "split" in part and isinstance(part.get("claims"), int):
        facts["chosen on", part["split"], f"{part['claims']} claims"] = "there"
    if {"table", "row", "column", "ours"} <= part.keys():
        cell = (part["table"], part["row"], part["column"], str(part.get("system", "")))
        for key in ("published", "ours", "difference", "low", "high", "inside"):
            facts["published", *cell, key] = part[key]
    # A setting that was tried or chosen: flat with its score in 0.1.0, apart from it since.
    settings = part.get("settings", part)
    score = part.get("score", part.get("mrr@5"))
    if isinstance(score, float) and ("k1" in settings or "method" in settings):
        facts["choice", setting_words(settings), f"val mrr@5 {score:.9f}"] = "there"
    chosen = {what: part[what] for what in ("bm25", "fusion") if isinstance(part.get(what), dict)}
    if part.get("what") in ("bm25", "fusion"):
        chosen = {part["what"]: {**settings, "mrr@5": score}}
    for what, settings_chosen in chosen.items():
        if "mrr@5" in settings_chosen:
            facts["chosen", what, setting_words(settings_chosen)] = "there"
    if isinstance(score, float) and part.get("scores") and "scale" in settings:
        facts |= scores_in(f"val, scale {settings['scale']:g}", part["scores"])
    if isinstance(part.get("scales"), dict) and "default" in part:
        facts |= {("picked", language, "scale"): v for language, v in part["scales"].items()}
    chosen_keys = ("chosen_epoch", "chosen_scale")
    return facts | {("training", key): part[key] for key in chosen_keys if key in part}


def setting_words(settings: Mapping[str, Any]) -> str:
    """Write the settings of a choice in one line."""
    return ", ".join(f"{key} {settings[key]}" for key in CHOICE.split() if key in settings)


def scores_in(system: str, table: Mapping[str, Mapping[str, Any]]) -> Facts:
    """Flatten a table by language."""
    return {(system, lang, name): v for lang, row in table.items() for name, v in row.items()}


def walk(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every mapping of a JSON value."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from walk(inner)


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield paths and numbers of a JSON value; a list's row is named by its strings."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from () if key in ("cost", "seconds") else leaves(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            row = inner.values() if isinstance(inner, dict) else ()
            words = "|".join(word for word in row if isinstance(word, str))
            yield from leaves(inner, (*path, words or str(place)))
    elif isinstance(value, int | float):
        yield path, value


def facts_in(case: Path) -> Facts:
    """Flatten all reports of a case, top one first, its losses, and its output if it is data."""
    facts: Facts = {}
    files = (case / "files").rglob("*.json")
    for path in sorted(files, key=lambda path: (len(path.parts), path)):
        inside = path.relative_to(case / "files").parts[:-1]
        found = facts_of(json.loads(path.read_text("utf-8")), path.name, "/".join(inside[-1:]))
        for key, value in found.items():
            # Where two files of one version disagree, both values are compared.
            known = facts.setdefault(key, value)
            facts[key] = known if equal(known, value) else [known, value]
    for path in (case / "files").rglob("metrics.csv"):
        for row in csv.DictReader(io.StringIO(path.read_text("utf-8"))):
            facts |= {("step", row["step"], k): v for k, v in row.items() if k[:4] == "loss" and v}
    text = (case / "stdout").read_text("utf-8")
    if text.startswith("{"):
        facts |= facts_of(json.loads(text), "stdout")
    elif text.startswith("table,row,column"):
        for row in csv.DictReader(io.StringIO(text)):
            facts |= facts_anywhere({**row, "system": ""})
    return facts


def equal(one: Any, other: Any) -> bool:
    """Tell whether two values are equal, numbers to 1e-9."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or abs(one - other) <= 1e-9 or (one != one and other != other)
    return bool(one == other)


def compare(before: Path, after: Path) -> int:
    """Compare two snapshots and print what differs; return 1 if anything that counts differs."""
    differences: Differences = defaultdict(list)
    both = (before, after)
    names = [name for name in CASES if any((f / name / "exit_code").is_file() for f in both)]
    compared = 0
    for name in names:
        one, other = cases = [folder / name for folder in both]
        if absent := [case for case in cases if not (case / "exit_code").is_file()]:
            differences["cases"].append(f"{name}: not in {absent[0].parent}")
            continue
        codes = [(case / "exit_code").read_text().strip() for case in cases]
        if codes[0] != codes[1]:
            differences["exit codes"].append(f"{name}: {codes[0]} before, {codes[1]} after")
        compared += compare_facts(name, one, other, differences)
        for suffix in (".trec", ".tsv", ".jsonl"):
            compared += compare_files(name, one, other, differences, suffix)
        compared += compare_weights(name, one, other, differences)
        compare_texts(name, one, other, differences)
    differences = {section: lines for section, lines in differences.items() if lines}
    for section in sorted(differences, key=lambda section: (section in APART, section)):
        counts = ", not counted" if section in APART else ""
        print(
            f"\n== {section} ({len(differences[section])}{counts})", *differences[section], sep="\n"
        )
    wrong = sum(len(lines) for section, lines in differences.items() if section not in APART)
    result = f"{wrong} differ" if wrong else "equal"
    print(f"\n{len(names)} cases, {compared} values and files compared: {result}")
    return int(wrong > 0 or not names)


def compare_facts(name: str, one: Path, other: Path, differences: Differences) -> int:
    """Compare the scores, intervals, tests and published numbers of a case."""
    old, new = facts_in(one), facts_in(other)
    for key, value in old.items():
        found = new.get(key, "absent")
        if not equal(value, found):
            differences["scores"].append(f"{name}: {' / '.join(key)}: {value} -> {found}")
    added = Counter(key[0] for key in new.keys() - old.keys())
    differences["added"] += [
        f"{name}: {what}: {count} values" for what, count in sorted(added.items())
    ]
    return len(old)


def compare_files(name: str, one: Path, other: Path, differences: Differences, suffix: str) -> int:
    """Compare files by system and name; those without a partner by their content."""
    old, new = (by_system(folder / "files", suffix) for folder in (one, other))
    spare = {key: path for key, path in new.items() if key not in old}
    for key, path in old.items():
        partner = new.get(key)
        if partner is None:
            partner = next((p for p in spare.values() if not file_difference(path, p)), None)
            spare = {key: p for key, p in spare.items() if p != partner}
        if partner is None:
            differences[f"{suffix} files"].append(f"{name}: {key}: absent after, under any name")
            continue
        if why := file_difference(path, partner):
            differences[f"{suffix} files"].append(f"{name}: {key}: {why}")
        at = path.relative_to(one / "files"), partner.relative_to(other / "files")
        if at[0] != at[1]:
            differences["moved"].append(f"{name}: {at[0]} -> {at[1]}")
    differences["added"] += [
        f"{name}: {path.relative_to(other / 'files')}" for path in spare.values()
    ]
    return len(old)


def file_difference(one: Path, other: Path) -> str:
    """Describe how two files differ, tags of runs aside; empty where they are equal."""
    if one.suffix != ".trec" or one.read_bytes() == other.read_bytes():
        return "" if one.read_bytes() == other.read_bytes() else "other bytes"
    old, new = ([line.split()[:5] for line in path.open(encoding="utf-8")] for path in (one, other))
    changed = sum(a[:4] != b[:4] for a, b in zip(old, new, strict=False))
    if changed or len(old) != len(new):
        return f"{changed} rows rank otherwise; {len(old)} rows before, {len(new)} after"
    most = max((abs(float(a[4]) - float(b[4])) for a, b in zip(old, new, strict=True)), default=0)
    return f"ranks are equal, scores differ by up to {most:.2g}" if most else ""


def compare_weights(name: str, one: Path, other: Path, differences: Differences) -> int:
    """Compare the weights by hash and, of an exported model, the names of its files."""
    old, new = (json.loads((folder / "listing.json").read_text()) for folder in (one, other))
    known = {file: sha256 for file, sha256 in old.items() if sha256 or name == "merge"}
    for file, sha256 in known.items():
        same = [path for path, found in new.items() if found == sha256 and sha256]
        if new.get(file, "") != sha256 and same:
            differences["moved"].append(f"{name}: {file} -> {same[0]}")
        elif new.get(file, "") != sha256:
            why = "other weights" if file in new else "absent after"
            differences["weights"].append(f"{name}: {file}: {why}")
    return len(known)


def compare_texts(name: str, one: Path, other: Path, differences: Differences) -> None:
    """Show how terminal, Markdown and HTML tables differ, columns of cost aside."""
    pages = [p.relative_to(one) for p in sorted(one.rglob("*")) if p.suffix in (".md", ".html")]
    for file in [Path("stdout"), *pages]:
        if not (other / file).is_file():
            differences["text"].append(f"{name}: {file}: absent after")
            continue
        lines = [without_costs((folder / file).read_text("utf-8")) for folder in (one, other)]
        found = list(
            difflib.unified_diff(lines[0], lines[1], f"{name}/{file}", "after", lineterm="", n=0)
        )
        more = [f"... {len(found) - 24} lines more"] if len(found) > 24 else []
        if found:
            differences["text"].append("\n".join(line[:200] for line in [*found[:24], *more]))


def without_costs(text: str) -> list[str]:
    """Return the lines of a text without costs, progress bars, alignment and seconds."""
    if text.startswith("<!"):
        text = re.sub(r"<(svg|style|script).*?</\1>", "", text, flags=re.DOTALL)
        text = re.sub(r"<[^>]+>", "", re.sub(r"</t[dh]>\s*<t[dh][^>]*>", "  ", text))
    if text.startswith("table,row,column"):
        rows = csv.DictReader(io.StringIO(text))
        return [", ".join(row[key] for key in row if key not in COSTS) for row in rows]
    lines, costly = [], False
    for line in text.splitlines():
        if re.search(r"\d%.*\d/\d+ \[", line):
            continue  # a progress bar
        cells = re.split(r"\s*\|\s*|\s{2,}", line.strip().strip("|").strip())
        # The columns of cost are a table's last; an empty line ends it.
        costly = tuple(cells[-len(COSTS) :]) == COSTS or (costly and bool(line.strip()))
        cells = cells[: -len(COSTS)] if costly and len(cells) > len(COSTS) else cells
        lines.append(re.sub(r"\d+(\.\d+)? s\b", "@ s", "  ".join(cells)))
    return lines


if __name__ == "__main__":
    sys.exit(main())
