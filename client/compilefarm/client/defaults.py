"""Defaults of arguments of `Farm` for work that most pods never do, and whose modules they do not import."""

from __future__ import annotations

# The bundle of torch's Mega-Cache that is meant where none is named.
DEFAULT_BUNDLE = "default"
# Requests at a time in prewarming.
DEFAULT_PARALLEL = 16
