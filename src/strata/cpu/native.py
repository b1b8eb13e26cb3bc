"""The compiled extension, set up once: its lookup tables come from ``formats.grids``.

Everything in ``cpu`` reaches ``strata._native`` through here or after ``set_up``.
"""

import numpy as np

from strata import _native
from strata.formats.grids import GRIDS


def set_up() -> None:
    """Hands the i-quant grids to the extension; calling it again changes nothing."""
    for name, values in GRIDS.items():
        _native.set_grid(name, np.ascontiguousarray(values))


set_up()
