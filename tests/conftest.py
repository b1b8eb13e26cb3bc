"""What every test needs of its process."""

import os
import signal
from pathlib import Path

import pytest

# Kernels run in Triton's interpreter where no card is. Triton reads this while it is imported, and
# other packages import it too, so the choice is made before the first test module is.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # noqa: TID251 - a test process, not the package


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works():
    """A shell's background job begins with Ctrl-C ignored, and so would every process it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
