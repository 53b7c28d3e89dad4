"""Settings of all unit tests."""

from __future__ import annotations

from hypothesis import settings

# Tests are never timed: the machine may be busy with a Ray cluster.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
