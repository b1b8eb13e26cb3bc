"""The optional packages of a card: loaded only when asked for, and missed with a message."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from strata.engine.build import open_parts
from strata.engine.card import is_card_likely, load_on_card
from strata.errors import DeviceError, SettingsError
from strata.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def test_an_engine_without_a_card_imports_neither_package() -> None:
    code = (
        "import sys, strata.engine.build, strata.engine.card as c; c.is_card_likely();"
        "print([m for m in ('torch', 'triton', 'strata.gpu') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("strata.gpu")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    with pytest.raises(DeviceError, match=r'torch, which is not installed.\n.*\.\[gpu\]"'):
        load_on_card(None, None, Settings(device="cuda"), 64, None)


def test_a_package_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: not found')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from strata.engine.card import load_on_card\n"
        "from strata.errors import DeviceError\n"
        "from strata.settings import Settings\n"
        "try:\n    load_on_card(None, None, Settings(device='cuda'), 64, None)\n"
        "except DeviceError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert "torch, which cannot be loaded: libcudart.so.13: not found" in done.stdout


def test_a_wish_only_the_other_device_grants_is_refused() -> None:
    with pytest.raises(SettingsError, match="f16 or f32"):
        open_parts(Settings(kv_format="int8"))


def test_without_a_driver_no_card_is_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.engine.card._DRIVER_FILES", ())
    assert not is_card_likely()
