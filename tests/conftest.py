"""What every test needs of its process."""

import os
import signal
from pathlib import Path

import pytest

from strata import telemetry

# Kernels run in Triton's interpreter where no card is. Triton reads this while it is imported, and
# other packages import it too, so the choice is made before the first test module is.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # noqa: TID251 - a test process, not the package


def pytest_addoption(parser):
    parser.addoption(
        "--long", action="store_true", help="also what takes minutes in Triton's interpreter"
    )


def pytest_collection_modifyitems(config, items):
    if config.getoption("--long") or Path("/dev/nvidiactl").exists():
        return
    reason = "takes minutes in Triton's interpreter; runs on a card, or with --long"
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def notices():
    """What is said during a test, line by line."""
    seen: list[str] = []
    stop = telemetry.listen(lambda event: seen.append(event.message))
    yield seen
    stop()


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works():
    """A shell's background job begins with Ctrl-C ignored, and so would every process it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
