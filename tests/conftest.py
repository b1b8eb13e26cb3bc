"""What every test needs of its process."""

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works():
    """A shell's background job begins with Ctrl-C ignored, and so would every process it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
