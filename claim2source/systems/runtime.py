"""Load models and open the store for systems; only one dense model is in memory at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from claim2source.core.errors import UserError
from claim2source.data.store import Store
from claim2source.models import Manifest, ModelConfig, Resolved, checkpoint_folder, resolve
from claim2source.models.manifest import FILE
from claim2source.text import Rendering


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a loaded model.

    `rendering` is the rendering of records in its training, `record` its manifest, and
    `untrained_base` the name of the base of an untrained checkpoint (step 0).
    """

    rendering: Rendering | None
    record: Manifest | None
    parameters: int
    untrained_base: str | None


@dataclass(eq=False)
class SystemRuntime:
    """Store, device, one dense model at a time, and the facts about all loaded models.

    Raises `UserError` if a model cannot be loaded.
    """

    store: Store | None = None
    device: str | None = None
    progress: bool = True
    _loaded: tuple[ModelConfig, Resolved] | None = field(default=None, init=False)
    _facts: dict[str, ModelFacts] = field(default_factory=dict, init=False)
    _refused: dict[str, UserError] = field(default_factory=dict, init=False)

    def load(self, model: ModelConfig) -> Resolved:
        """Return a model; the previous one is released first."""
        key = repr(model)
        if key in self._refused:
            raise self._refused[key].with_traceback(None)
        if self._loaded is None or self._loaded[0] != model:
            self._loaded = None  # before loading the next one: memory may not hold two
            try:
                resolved = resolve(model, self.device)
            except UserError as error:
                # Not tried again for every form and hybrid: the hub may take long to fail.
                self._refused[key] = error
                error.model = model.name
                # Stored without its frames, which may refer to a model.
                error.__context__ = None
                raise error.with_traceback(None) from None
            self._loaded = model, resolved
            untrained = resolved.manifest is not None and not resolved.is_trained
            self._facts[key] = ModelFacts(
                resolved.rendering,
                resolved.record,
                resolved.encoder.parameters,
                resolved.base.name if untrained else None,
            )
        return self._loaded[1]

    def rendering(self, model: ModelConfig) -> Rendering | None:
        """Return the rendering of a model's training; with a manifest the model is not loaded."""
        folder = checkpoint_folder(model.name)
        is_checkpoint = (folder / FILE).is_file()
        return Manifest.read(folder).rendering if is_checkpoint else self.facts(model).rendering

    def facts(self, model: ModelConfig) -> ModelFacts:
        """Return the facts about a model, which is loaded once."""
        if repr(model) not in self._facts:
            self.load(model)
        return self._facts[repr(model)]
