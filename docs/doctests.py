"""Show the examples of docstrings as code: griffe reads `Examples:`, the docstrings have one."""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Rename the section `Example:` of every docstring to `Examples:`."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")
