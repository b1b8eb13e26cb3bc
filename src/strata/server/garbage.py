"""Python's collector of cyclic garbage, kept out of the way of tokens.

Owns when it runs: by its own rule it runs in the middle of whatever allocates, and a token or a
request that does so pays one to five milliseconds; here it runs while nobody is answered.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# Objects made and not freed since the last collection that are worth one: Python's own measure.
_WORTH_IT: Final = 700
_LOOK_EVERY_S: Final = 0.5
# Garbage waits no longer than this, whoever is answered: some 100 KB a request.
_LONGEST_WAIT_S: Final = 20.0


async def collect_between_answers(is_idle: Callable[[], bool]) -> None:
    """Collects when ``is_idle``, until cancelled; what is alive now is never looked at again.

    Begun before anything is asked: the first collection takes some 50 ms.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    collected_s = time.monotonic()
    try:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            now_s = time.monotonic()
            is_late = now_s - collected_s >= _LONGEST_WAIT_S
            if gc.get_count()[0] >= _WORTH_IT and (is_idle() or is_late):
                gc.collect()
                collected_s = now_s
    finally:
        gc.enable()
        gc.unfreeze()
