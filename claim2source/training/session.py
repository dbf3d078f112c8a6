"""Open a training run: processes, locked folder, logs, signals and saved state."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from signal import SIGTERM
from typing import Any

from pytorch_lightning.loggers import CSVLogger

from claim2source.core.config import as_plain
from claim2source.core.errors import Stopped, UserError
from claim2source.core.machine import use_cores
from claim2source.core.report import MACRO, MAIN_METRIC, Epoch
from claim2source.core.tables import TextTable
from claim2source.core.terminal import say
from claim2source.data.store import Store
from claim2source.data.wandb import Tracker, Tracking, TrainingPage, as_wandb
from claim2source.training.distributed import joined_world, synchronised
from claim2source.training.early import RerankerInputs, RetrieverInputs
from claim2source.training.launcher import World
from claim2source.training.monitors import part_score_name, score_name
from claim2source.training.resume import StopSignals, TrainingState, skipped_steps
from claim2source.training.run_folder import RunFolder

log = logging.getLogger(__name__)

# The step's name in Lightning's own logger, so that a resumed run's curves continue.
_STEP = "trainer/global_step"


class RunLog(CSVLogger):
    """Log a run's numbers to a CSV file, and numbers and tables to a W&B run.

    A resumed run gets a CSV file named by its first step and continues its W&B run. Errors of W&B
    never stop training.
    """

    def __init__(self, run: RunFolder, page: Tracker | None) -> None:
        step = f"step-{run.file.steps or 0:06d}"
        super().__init__(run.path, name="logs", version=step, flush_logs_every_n_steps=1)
        self.page = page

    @classmethod
    def open(cls, run: RunFolder, mode: Tracking) -> RunLog:
        """Open the W&B run, if W&B is on; the CSV file is made when first written to."""
        config = run.config.wandb
        if mode == "off":
            return cls(run, None)
        page = TrainingPage.begin(run.path, config.project, config.name)
        begin = {"id": page.id, "resume": "allow", "job_type": "train"}
        tracker = Tracker(mode, run.path, **begin, config=as_plain(run.config))
        tracker.define_steps(_STEP)
        return cls(run, tracker)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:  # type: ignore[override]
        super().log_metrics(metrics, step)
        if self.page is not None:
            self.page.log(metrics if step is None else {**metrics, _STEP: step})

    def scores(self, entry: Epoch, step: int) -> None:
        """Log a point of the learning curves: an epoch's MRR@5 on val, by language and part."""
        values = {
            score_name(lang, MAIN_METRIC): row[MAIN_METRIC] for lang, row in entry.val.items()
        }
        for part, table in entry.parts.items():
            values[part_score_name(part)] = table[MACRO][MAIN_METRIC]
        self.log_metrics({"epoch": entry.epoch, **values}, step)

    def table(self, key: str, table: TextTable) -> None:
        if self.page is not None:
            self.page.log({key: as_wandb(table)})

    def close(self) -> None:
        """Close the W&B run; later evaluations are separate W&B runs."""
        if self.page is not None:
            self.page.close()


@dataclass
class Session:
    """Processes, folder, signals and store of a run, before anything is loaded.

    `state` is the state that a stopped run resumes from, once it is read; `device` is the
    config's. With `has_own_callbacks` the callbacks' monitors are checked once they are made.
    """

    world: World
    run: RunFolder
    stop: StopSignals
    store: Store
    tracking: Tracking
    device: str | None = None
    has_own_callbacks: bool = False
    state: TrainingState | None = None

    @cached_property
    def logs(self) -> RunLog:
        """Open the run's logs, only in the first process and after its state is read."""
        return RunLog.open(self.run, self.tracking)

    def on_all_ranks(self) -> AbstractContextManager[None]:
        """Run the body on every process; a `UserError` of one ends them all."""
        return synchronised(self.world)

    def begin(self) -> None:
        """Make the run's folder, once all inputs are checked."""
        with self.on_all_ranks():
            if self.world.is_first:
                self.run.begin()

    def read_state(self) -> None:
        """Read the state to resume from; a new or finished run has none.

        Raises `UserError` for a state that cannot be read, or has another number of processes.
        """
        run, first = self.run, self.world.is_first
        if not run.config.resume:
            return
        if run.is_finished:
            if first:
                say(f"{run.path}: the run is finished; only its report is written again")
            return
        if not run.has_state:
            if first:
                log.warning("%s: no state was saved yet; the run starts again", run.path)
            return
        state, damage = TrainingState.newest(run.state)
        run.damaged, run.file.steps = damage is not None, state.steps_done
        run.file.skipped_steps = skipped_steps(state.losses)
        if damage is not None and first:
            log.warning("%s; using the previous state, step %d", damage, state.steps_done)
        if state.world_size != self.world.size:
            raise UserError(
                f"the run began with {state.world_size} processes, not {self.world.size}: "
                "batches would differ"
            )
        self.state = state


@contextmanager
def open_session(inputs: RetrieverInputs | RerankerInputs) -> Iterator[Session]:
    """Join the launch's processes, and free the run's folder at the end; nothing is written.

    A signal ends the body with `Stopped`, which tells how to continue the run.
    """
    place = inputs.place
    config, world, run = place.config, place.world, place.run
    try:
        with joined_world(world, config.device), StopSignals().installed() as stop:
            use_cores(world.local_size, config.threads)
            session = Session(
                world,
                run,
                stop,
                place.store,
                place.tracking,
                device=config.device,
                has_own_callbacks=inputs.has_own_callbacks,
            )
            with _stopping(session):
                yield session
    finally:
        run.release()


@contextmanager
def _stopping(session: Session) -> Iterator[None]:
    """Replace a signal's `Stopped` by one that tells how to continue the run."""
    stop = session.stop
    try:
        yield
    except (Stopped, RuntimeError) as error:
        # If one process stops first, the others' communication with it fails.
        if stop.received is None and not isinstance(error, Stopped):
            raise
        signal = error.signal if isinstance(error, Stopped) else stop.received
        text = session.run.stopped_text if session.world.is_first else ""
        raise Stopped(text, signal or SIGTERM) from None
