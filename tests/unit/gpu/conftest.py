"""Where the kernels of these tests run: on a card, or in Triton's interpreter when there is none.

tests/conftest.py chooses, since triton must not be imported before the choice.
"""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

# Interpreted kernels are numpy calls on tiny arrays: more threads only cost.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def device() -> str:
    """The torch device of a test's tensors."""
    return "cpu" if triton.knobs.runtime.interpret else "cuda"
