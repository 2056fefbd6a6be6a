"""The one learning-rate schedule: linear warm-up, then a cosine."""

import numpy as np


def warm_up_then_cosine(step: int, steps: int, warm_up: int, floor: float = 0.0) -> float:
    """Factor on the peak learning rate, in (0, 1]. `step` counts from 0 of `steps`.

    The first `warm_up` steps rise linearly to 1, the rest fall along half a cosine to `floor`. transformers' and
    torch's own schedules begin at a factor of 0, which wastes the first step of runs as short as ours.
    """
    if step < warm_up:
        return (step + 1) / warm_up
    share = min(1.0, (step - warm_up) / max(1, steps - warm_up))
    return float(floor + (1 - floor) * 0.5 * (1 + np.cos(np.pi * share)))
