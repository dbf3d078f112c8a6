"""Train the recipe that val chose again, on train and val, and let the run stand for that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from claim2source.core.files import atomic_folder, same_file
from claim2source.core.folders import CHECKPOINTS, is_run
from claim2source.core.terminal import say
from claim2source.models import Manifest
from claim2source.models.manifest import FILE
from claim2source.training.choose import ChosenCheckpoint
from claim2source.training.config import FinetuneConfig
from claim2source.training.distributed import World, barrier, gather_values, together
from claim2source.training.export.scaling import ScaledCheckpoint
from claim2source.training.export.soup import read_ingredients, save_soup
from claim2source.training.run_folder import RunFolder
from claim2source.training.splits import TrainingData, with_val


@dataclass(frozen=True)
class Again:
    """Say what is trained again: the checkpoint `of`, which val chose, and up to which epoch.

    The learning rate falls as if all epochs of the recipe followed, so that every step is as long
    as it was. `soup` has the epochs whose mean was chosen.
    """

    of: str
    epochs: int
    soup: tuple[int, ...] = ()


class Training(Protocol):
    """Train and return; a `Finetuning`."""

    def go(self) -> object:
        """Run all steps in order."""
        ...


Make = Callable[[FinetuneConfig, TrainingData, RunFolder, Again], Training]


def refit(
    main: FinetuneConfig,
    world: World,
    data: TrainingData,
    run: RunFolder,
    chosen: ChosenCheckpoint | None,
    make: Make,
) -> Path | None:
    """Train what val chose in a run again on train and val; return the checkpoint's folder.

    `chosen` is known to the first process only; `make` gives a training. None where the model
    before training was chosen. A refit that was stopped goes on, a finished one is taken as it is.
    """
    first = world.is_first
    known = None
    if chosen is not None:
        known = chosen.epoch, chosen.scale, chosen.folder.name, chosen.soup
    found = gather_values(known, world)[0]
    assert found is not None
    epoch, scale, of, soup = found
    if epoch == 0:
        if first:
            say("refit: the model before training was chosen, so that nothing is trained again")
        return None
    target = run.refit_checkpoint(of)
    if gather_values((target / FILE).is_file(), world)[0]:
        return target
    # That of an epoch keeps no other epochs.
    folder = run.path / (f"refit-{of}" if soup else f"refit-epoch-{epoch}")
    name = main.wandb.name or run.path.name
    config = replace(
        main,
        refit=False,
        choose="last",
        scales=None,
        soup=False,
        keep="all",
        after=None,
        wandb=replace(main.wandb, name=f"{name}-refit"),
        out=folder,
        resume=is_run(folder),
        overwrite=False,
    )
    if first:
        counts = f"{len(data.train.claims)} claims of train and {len(data.val.claims)}"
        say(f"refit: {epoch} epochs as {of} was trained, on {counts} of val")
    again = together(world, lambda: RunFolder.find(config, lock=first))
    try:
        whole, what = with_val(data, main), Again(of, epoch, soup)
        training = together(world, lambda: make(config, whole, again, what))
        together(world, lambda: again.begin(config) if first else None)
        training.go()
    finally:
        again.release()
    if first:
        trained = folder / CHECKPOINTS / f"epoch-{epoch}"
        if not (trained / FILE).is_file():
            # An earlier version moved it.
            trained = run.refit_checkpoint(f"epoch-{epoch}")
        if soup:
            parts = [folder / CHECKPOINTS / f"epoch-{one}" for one in soup]
            save_soup(read_ingredients(parts), target)
        else:
            with atomic_folder(target) as temporary:
                if scale == 1:
                    # It stays where it was trained: another scale may be chosen of it.
                    shutil.copytree(trained, temporary, dirs_exist_ok=True, copy_function=_link)
                else:
                    model = config.model.for_checkpoint(trained)
                    scaled = ScaledCheckpoint(trained, config.device, model=model)
                    scaled.save_checkpoint(temporary, scale, {})
                replace(Manifest.read(temporary), refit=of).write(temporary)
    barrier(world)
    return target


def _link(path: str, target: str) -> None:
    same_file(Path(path), Path(target))
