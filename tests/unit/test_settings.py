"""Settings: where a value comes from, and what is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from strata.errors import SettingsError
from strata.settings import Settings, wish_of


def test_options_over_environment_over_defaults():
    environ = {"STRATA_THREADS": "3", "STRATA_ISA": "scalar"}
    settings = Settings.from_options({"threads": 2, "isa": None}, environ=environ)
    assert settings.threads == 2
    assert settings.isa == "scalar"
    assert settings.kv_format == "f16"
    assert settings.context_len is None


def test_text_is_parsed():
    options = {"model": "x.gguf", "context_len": "64", "direct_io": "no"}
    settings = Settings.from_options(options, environ={})
    assert settings.model == Path("x.gguf")
    assert settings.context_len == 64
    assert settings.direct_io is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thread": 2}, r"no setting 'thread'.\n  Try: did you mean threads\?"),
        ({"zzzzzz": 2}, "no setting 'zzzzzz'.\n  Try: one of model, "),
        ({"threads": "two"}, "threads must be a whole number, not 'two'"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
        ({"threads": 5000}, "threads must be at most 1024, not 5000"),
        ({"threads": True}, "threads must be int, not bool"),
        ({"threads": 1.5}, "threads must be int, not float"),
        ({"isa": "avx"}, "one of scalar, avx2, avx512, amx, not 'avx'.\n  Try: avx2"),
        ({"direct_io": "maybe"}, "direct_io must be 0 or 1, not 'maybe'"),
        ({"model": 7}, "model must be Path, not int"),
    ],
)
def test_refused(options: dict[str, object], message: str):
    with pytest.raises(SettingsError, match=message):
        Settings.from_options(options, environ={})


def test_a_bad_environment_value_is_not_ignored():
    with pytest.raises(SettingsError, match="STRATA_THREADS must be a whole number, not 'many'"):
        Settings.from_options({}, environ={"STRATA_THREADS": "many"})


def test_made_directly_they_are_checked_too():
    with pytest.raises(SettingsError, match="kv_format"):
        Settings(kv_format="f8")
    with pytest.raises(SettingsError, match="kv_format"):
        Settings(kv_format=None)  # type: ignore[arg-type]


def test_nothing_edits_them():
    with pytest.raises(FrozenInstanceError):
        Settings().threads = 3  # type: ignore[misc]


def test_every_field_has_a_flag_of_its_own_and_a_help():
    flags: set[str] = set()
    for field in fields(Settings):
        wish = wish_of(field.name)
        assert wish.flags
        assert wish.help.endswith(".")
        assert not flags & set(wish.flags)
        flags |= set(wish.flags)


@pytest.mark.parametrize(
    ("text", "mib"), [("8G", 8192), ("1.5GiB", 1536), ("300", 300), ("512M", 512), ("1tb", 1 << 20)]
)
def test_memory_may_be_said_with_a_unit(text: str, mib: int) -> None:
    for name in ("ram_limit", "vram_limit"):
        assert getattr(Settings.from_options({name: text}), name) == mib


@pytest.mark.parametrize("text", ["8X", "G", "-1", "0"])
def test_other_units_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="ram_limit") as told:
        Settings.from_options({"ram_limit": text})
    if not text.lstrip("-").isdigit():
        assert "must be MiB or a size such as 8G" in str(told.value)
