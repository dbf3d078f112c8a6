"""Join a training's processes, lock its folder, logs and signals, and read its saved state."""

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

# The name that Lightning's own logger gives it: a resumed run's curves go on.
_STEP = "trainer/global_step"


class RunLog(CSVLogger):
    """Log a run's numbers to a CSV file, and these with tables to a page in W&B.

    A resumed run gets a CSV file named by its first step; its page goes on. W&B never stops the
    training.
    """

    def __init__(self, run: RunFolder, page: Tracker | None) -> None:
        step = f"step-{run.file.steps or 0:06d}"
        super().__init__(run.path, name="logs", version=step, flush_logs_every_n_steps=1)
        self.page = page

    @classmethod
    def open(cls, run: RunFolder, mode: Tracking) -> RunLog:
        """Open the run's page, if W&B is on; the CSV file is made when first written to."""
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
        """Close the page; later evaluations are W&B runs of their own."""
        if self.page is not None:
            self.page.close()


@dataclass
class Session:
    """Training's processes, folder, signals and store, before anything is loaded.

    `state` is what a stopped run is resumed from, once it is read; `device` is the config's.
    With `has_own_callbacks` their monitors are checked once they are made.
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
        """Open the run's logs, in the first process and once its state is read."""
        return RunLog.open(self.run, self.tracking)

    def on_all_ranks(self) -> AbstractContextManager[None]:
        """Run the body on every process; a `UserError` of one ends them all."""
        return synchronised(self.world)

    def begin(self) -> None:
        """Make the run's folder, once all is known to be right."""
        with self.on_all_ranks():
            if self.world.is_first:
                self.run.begin()

    def read_state(self) -> None:
        """Read the state to resume from, if any: none if the run is new, or finished.

        Raises `UserError` for a state that cannot be read, or of another number of processes.
        """
        run, first = self.run, self.world.is_first
        if not run.config.resume:
            return
        if run.is_finished:
            if first:
                say(f"{run.path}: the run is finished: nothing is trained, it is reported again")
            return
        if not run.has_state:
            if first:
                log.warning("%s: nothing was saved yet; the run begins again", run.path)
            return
        state, damage = TrainingState.newest(run.state)
        run.damaged, run.file.steps = damage is not None, state.steps_done
        run.file.skipped_steps = skipped_steps(state.losses)
        if damage is not None and first:
            log.warning("%s; going on from the state before it, step %d", damage, state.steps_done)
        if state.world_size != self.world.size:
            raise UserError(
                f"the run was begun with {state.world_size} processes, not {self.world.size}: "
                "batches would differ"
            )
        self.state = state


@contextmanager
def open_session(inputs: RetrieverInputs | RerankerInputs) -> Iterator[Session]:
    """Join the launch's processes, and free the run's folder at the end; nothing is written.

    A signal ends the body with `Stopped`, which says how the run goes on.
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
    """End the body with how the run goes on, if a signal stops it."""
    stop = session.stop
    try:
        yield
    except (Stopped, RuntimeError) as error:
        # Where one process stops first, the others' exchange with it fails.
        if stop.received is None and not isinstance(error, Stopped):
            raise
        signal = error.signal if isinstance(error, Stopped) else stop.received
        text = session.run.stopped_text if session.world.is_first else ""
        raise Stopped(text, signal or SIGTERM) from None
