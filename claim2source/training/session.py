"""Join a training's processes, hold its folder and signals, and read the state to resume."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from signal import SIGTERM

from claim2source.core.errors import Stopped, UserError, said_once
from claim2source.core.terminal import say
from claim2source.core.threads import use_cores
from claim2source.io.store import Store
from claim2source.training.config import RunConfig
from claim2source.training.distributed import World, joined_world, launched_world, together
from claim2source.training.loggers import RunLog
from claim2source.training.resume import StopSignals, TrainingState, skipped_steps
from claim2source.training.run_folder import RunFolder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """Hold a training's processes, folder, signals, store and logs, before anything is loaded."""

    world: World
    run: RunFolder
    stop: StopSignals
    store: Store
    logs: RunLog

    def together(self) -> AbstractContextManager[None]:
        """Run the body on every process; a `UserError` of one ends them all."""
        return together(self.world)

    def begin(self, config: RunConfig) -> None:
        """Make the run's folder, once all is known to be right."""
        with self.together():
            if self.world.is_first:
                self.run.begin(config)


@contextmanager
def open_session(config: RunConfig) -> Iterator[Session]:
    """Join the launch's processes and find the run's folder; nothing is written.

    A signal ends the body with `Stopped`, which says how the run goes on.
    """
    with said_once():
        world = launched_world(device=config.device)
        use_cores(world.local_size, config.threads)
    if not world.is_first:
        # What a lenient loading leaves out is said once.
        logging.getLogger("claim2source.datasets").setLevel(logging.ERROR)
    with joined_world(world, config.device), StopSignals().installed() as stop:
        with together(world):
            run = RunFolder.find(config, lock=world.is_first)
        try:
            yield Session(world, run, stop, Store(config.store), RunLog(config, run))
        except (Stopped, RuntimeError) as error:
            # Where one process stops first, the others' exchange with it fails.
            if stop.received is None and not isinstance(error, Stopped):
                raise
            signal = error.signal if isinstance(error, Stopped) else stop.received
            raise Stopped(run.stopped_text if world.is_first else "", signal or SIGTERM) from None
        finally:
            run.release()


def saved_state(run: RunFolder, world: World) -> TrainingState | None:
    """Load the state to resume from; None where nothing was saved, or the run is finished.

    Raises `UserError` for a state that cannot be read, or of another number of processes.
    """
    if run.is_finished:
        if world.is_first:
            say(f"{run.path}: the run is finished: nothing is trained, it is reported again")
        return None
    if not run.has_state:
        if world.is_first:
            log.warning("%s: nothing was saved yet; the run begins again", run.path)
        return None
    state, damage = TrainingState.newest(run.state)
    run.damaged, run.saved_steps = damage is not None, state.steps_done
    run.skipped_steps = skipped_steps(state.losses)
    if damage is not None and world.is_first:
        log.warning("%s; going on from the state before it, step %d", damage, state.steps_done)
    if state.world_size != world.size:
        raise UserError(
            f"the run was begun with {state.world_size} processes, not {world.size}: "
            "batches would differ"
        )
    return state
