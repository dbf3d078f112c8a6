"""What the tests of the training programs share."""

from __future__ import annotations

from tests.training.conftest import setup, tiny, untranslated  # noqa: F401  the fixtures
