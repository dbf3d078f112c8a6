"""Hunt failing cases with Hypothesis: count, shrink, keep, and go on after each."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzzing.cases import Case, cases
from tests.fuzzing.judge import Fuzzer, Outcome

RUNNING = "running.json"
DIED = "the process died"


class Found(AssertionError):
    """Carry a failing case out of Hypothesis."""


@dataclass
class Failure:
    """Hold a failing case and what is wrong with how it ended."""

    case: Case
    outcome: Outcome

    def __str__(self) -> str:
        wrong = "\n".join(f"  {line}" for line in self.outcome.wrong[:8])
        case = self.case
        words = [word if len(word) < 80 else f"{word[:60]}.. ({len(word)})" for word in case.argv]
        return (
            f"{case.program}: exit {self.outcome.code}\n{wrong}\n  {shlex.join(words)!a}\n"
            f"  {', '.join(map(str, case.edits))}\n  {case.written!a}"
        )


@dataclass
class Hunt:
    """Run many cases; each defect is shrunk once, and later cases of it are only counted.

    With `kept`, failing cases are written to that folder, and the running one, so that a case
    that ends the process is known at the next start.
    """

    fuzzer: Fuzzer
    kept: Path | None = None
    shrinking: float = 30.0
    known: dict[str, Failure | None] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    failures: list[Failure] = field(default_factory=list)

    def run(self, examples: int, start: int, names: Sequence[str] = ()) -> None:
        """Run so many cases of these programs, or of all."""
        left = examples
        while left > 0:
            done = sum(self.counts.values())
            self._until_found(left, start + 10_000 * done, names)
            left -= sum(self.counts.values()) - done

    def again(self) -> list[str]:
        """Run the kept cases again; those that no longer fail are removed. Returns sentences."""
        said = []
        for path in sorted(self.kept.glob("*.json")) if self.kept else ():
            case = Case.from_json(json.dumps(json.loads(path.read_text("utf-8"))["case"]))
            if path.name == RUNNING:
                path.rename(path.with_name(f"died-{_name(case)}"))
                self.failures.append(Failure(case, Outcome(DIED, "", "", 0, (DIED,))))
                said.append(f"{path.name}: {DIED} in it; kept, not run again")
                continue
            if path.name.startswith("died-"):
                continue
            outcome = self._one(case)
            if outcome.wrong:
                self._keep(Failure(case, outcome))
                said.append(f"{path.name}: still fails: {outcome.wrong[0]}")
            else:
                path.unlink()
                said.append(f"{path.name}: no longer fails; removed")
        return said

    def _until_found(self, examples: int, number: int, names: Sequence[str]) -> None:
        """Run cases until one fails in a way that is not known, and shrink that."""
        best: Failure | None = None
        failing: dict[Case, Outcome] = {}
        end = 0.0

        # The database and the health checks are for tests; a hunt has its own folder and time.
        @seed(number)
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            derandomize=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            report_multiple_bugs=False,
        )
        @given(cases(names))
        def one(case: Case) -> None:
            nonlocal best, end
            late = best is not None and time.monotonic() > end
            # Hypothesis runs what it found once more: no new case fails after the time.
            if late and case not in failing:
                return
            outcome = failing[case] if late else self._one(case)
            if best is None:
                self.counts[case.program, _end(outcome)] += 1
                self.seconds[case.program] += outcome.seconds
            signature = f"{case.program}: {outcome.signature}"
            if not outcome.wrong or best is None and signature in self.known:
                return
            if best is None:
                end = time.monotonic() + self.shrinking
                self.known[signature] = None
            elif signature != f"{best.case.program}: {best.outcome.signature}":
                return
            best, failing[case] = Failure(case, outcome), outcome
            raise Found

        try:
            one()
        except Found:
            assert best is not None
            best = self._lean(best)
            self._keep(best)
            print(best, flush=True)

    def _lean(self, failure: Failure) -> Failure:
        """Leave out the edits that the failure does not need."""
        for edit in failure.case.edits:
            edits = tuple(other for other in failure.case.edits if other is not edit)
            case = replace(failure.case, edits=edits)
            outcome = self._one(case)
            if outcome.signature == failure.outcome.signature:
                failure = Failure(case, outcome)
        return failure

    def _one(self, case: Case) -> Outcome:
        if self.kept is None:
            return self.fuzzer.run(case)
        running = self.kept / RUNNING
        running.write_text(json.dumps({"case": json.loads(case.to_json())}))
        outcome = self.fuzzer.run(case)
        running.unlink()
        return outcome

    def _keep(self, failure: Failure) -> None:
        self.known[f"{failure.case.program}: {failure.outcome.signature}"] = failure
        self.failures.append(failure)
        if self.kept is not None:
            content = {
                "wrong": failure.outcome.wrong,
                "case": json.loads(failure.case.to_json()),
                "printed": failure.outcome.printed[-2000:],
                "errors": failure.outcome.errors[-4000:],
            }
            (self.kept / _name(failure.case)).write_text(json.dumps(content, indent=1))


def _end(outcome: Outcome) -> str:
    return "wrong" if outcome.wrong else f"exit {outcome.code}"


def _name(case: Case) -> str:
    return f"{case.program}-{hashlib.sha256(case.to_json().encode()).hexdigest()[:10]}.json"
