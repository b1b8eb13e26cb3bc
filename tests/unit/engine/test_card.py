"""The optional packages of a card: loaded only when asked for, and missed with a message."""

from __future__ import annotations

import subprocess
import sys

import pytest

from strata.engine.build import open_parts
from strata.engine.card import is_card_likely, load_on_card
from strata.errors import DeviceError, SettingsError
from strata.settings import Settings


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
    with pytest.raises(DeviceError, match=r'torch, which is not installed.\n.*engine\[gpu\]"'):
        load_on_card(None, None, Settings(device="cuda"), 64, None)


def test_a_wish_only_the_other_device_grants_is_refused() -> None:
    with pytest.raises(SettingsError, match="f16 or f32"):
        open_parts(Settings(kv_format="int8"))


def test_without_a_driver_no_card_is_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.engine.card._DRIVER_FILES", ())
    assert not is_card_likely()
