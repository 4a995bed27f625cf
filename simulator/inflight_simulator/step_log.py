"""Work and duration of each step of a recorded run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from inflight_engine.cost_fit.least_squares import Floats
from inflight_engine.recording.lines import Step
from inflight_engine.recording.reader import Recording, RecordingError
from inflight_simulator.errors import InputError

_MICRO = 1e-6


def read_steps(path: Path) -> tuple[Floats, Floats]:
    """Read the steps of a recording that gave tokens; failed ones are left out.

    Returns:
        [steps, numbers of `StepWork`] and the seconds of each step.

    Raises:
        InputError: the file cannot be read, is no recording, or has no steps.
    """
    try:
        events = Recording(path).events()
        steps = [event for event in events if isinstance(event, Step) and event.ended is not None]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except RecordingError as error:
        raise InputError(f"{path} {error}") from error
    if not steps:
        raise InputError(f"{path} has no steps in it")
    return np.array([step.work for step in steps], np.float64), np.array([step.micros * _MICRO for step in steps])
