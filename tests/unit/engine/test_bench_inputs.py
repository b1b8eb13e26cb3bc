"""What goes into a measurement besides the model: its prompt, and what is told of its origin."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.fakes import FakeText

from strata.engine.bench_prompt import prompts
from strata.engine.provenance import commit, machine, provenance, source_digest
from strata.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

TEXT = FakeText(end_id=0)  # a letter is a token


def test_random_ids_are_used_where_no_text_is_wanted():
    of_length = prompts(TEXT, 97, file=None, is_text=False)
    assert of_length(40).dtype == np.int32
    assert len(set(of_length(400).tolist())) > 80


def test_a_given_text_is_the_prompt(tmp_path: Path):
    file = tmp_path / "text"
    file.write_text("some words")
    of_length = prompts(TEXT, 97, file=file, is_text=False)
    assert of_length(4).tolist() == TEXT.encode("some")
    with pytest.raises(SettingsError, match="the text has 10 tokens; the prompt is to have 11"):
        of_length(11)
    with pytest.raises(SettingsError, match=r"cannot read .*gone: No such file"):
        prompts(TEXT, 97, file=tmp_path / "gone", is_text=False)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not text in UTF-8"):
        prompts(TEXT, 97, file=file, is_text=True)


def test_without_one_the_package_s_sources_are_read():
    prompt = prompts(TEXT, 97, file=None, is_text=True)(60_000)
    # Every file of it imports something.
    assert bytes(TEXT.encode("import")) in bytes(prompt.tolist())
    assert np.array_equal(prompt, prompts(TEXT, 97, file=None, is_text=True)(60_000))


def test_the_commit_is_that_of_the_folder_s_repository(tmp_path: Path):
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    assert commit(tmp_path) is None
    git("init")
    (tmp_path / "__init__.py").write_text("")
    assert commit(tmp_path) is None  # a repository that does not know the package
    git("add", ".")
    git("commit", "-m", "first")
    assert commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "__init__.py").write_text("1")
    assert commit(tmp_path) == git("rev-parse", "HEAD") + "+"


def test_sources_are_named_by_all_their_bytes(tmp_path: Path):
    (tmp_path / "a.py").write_text("1")
    first = source_digest(tmp_path)
    (tmp_path / "b.txt").write_text("no source")
    assert source_digest(tmp_path) == first
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert source_digest(tmp_path) != first


def test_the_machine_is_described(tmp_path: Path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: A Processor @ 2 GHz\n")
    found = machine(info)
    assert found["processor"] == "A Processor @ 2 GHz"
    assert found["memory_bytes"] > 1 << 28
    told = provenance()
    assert str(told["command"]).startswith("strata")
    assert set(told) == {"machine", "date", "command", "commit", "sources", "python"}
