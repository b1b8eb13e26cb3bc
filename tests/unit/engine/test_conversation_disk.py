"""The folder of conversations: what survives a restart, what is skipped, what is deleted.

Checked against a fresh session, as everywhere; damage and a full disk are real ones.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.fakes import FakeSession

from strata.engine.conversation import Conversation
from strata.engine.conversation_disk import ConversationFiles
from strata.engine.conversation_points import Keeping
from strata.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

PLENTY = 1 << 30
ONE = np.full(60, 3, np.int32)
MORE = np.append(ONE, [4, 5]).astype(np.int32)
KEEPING = Keeping(turn_id=1, worth_tokens=8)


class Process:
    """A conversation over a folder, as one process has it."""

    def __init__(
        self,
        folder: Path,
        identity: str = "model",
        budget: int = PLENTY,
        capacity: int = 400,
        ahead: int = 0,
    ) -> None:
        self.files = ConversationFiles(folder, identity, budget, ahead)
        self.conversation = Conversation(FakeSession(50, capacity, 1), KEEPING, self.files)

    def ask(self, prompt: np.ndarray) -> int:
        num_reused = self.conversation.resume(prompt)
        logits = self.conversation.read(prompt)
        assert np.array_equal(logits, FakeSession(50, 400, 1).prefill(prompt))
        self.conversation.settle()
        assert self.files.flush(10)
        return num_reused

    def dies(self) -> None:
        self.files.close()  # the thread would outlive the test; nothing is waiting

    def report(self, name: str) -> int:
        return self.conversation.report()[name]


def saved(folder: Path, *prompts: np.ndarray) -> list[Path]:
    process = Process(folder)
    for prompt in prompts:
        assert process.ask(prompt) == 0
    process.dies()
    paths = sorted(folder.glob("*.conversation"), key=lambda path: path.stat().st_mtime_ns)
    assert len(paths) == len(prompts)
    return paths


def test_a_conversation_outlives_its_process(tmp_path: Path):
    saved(tmp_path / "new" / "folder", ONE, ONE + 1)
    again = Process(tmp_path / "new" / "folder")
    assert again.ask(MORE) == 60
    assert again.ask(MORE + 1) == 60
    assert again.report("from_disk") == 2
    assert again.ask(np.append(MORE, 7).astype(np.int32)) == 62  # it was saved again
    again.dies()
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 2


def reads_ahead(folder: Path, num: int = 1, ahead: int = PLENTY) -> Process:
    """A process whose thread has read so many files before it is asked."""
    process = Process(folder, ahead=ahead)
    end_s = time.monotonic() + 5
    while len(process.files._ahead) < num:
        assert time.monotonic() < end_s
        time.sleep(0.005)
    return process


def test_those_used_last_are_read_before_they_are_asked_for(tmp_path: Path, monkeypatch):
    paths = saved(tmp_path, ONE, ONE + 1, ONE + 2)
    again = reads_ahead(tmp_path, 2, sum(path.stat().st_size for path in paths[1:]))
    assert again.conversation.checkpoint_bytes == again.files.held_bytes > 0
    with monkeypatch.context() as patch:
        patch.setattr("strata.engine.conversation_disk.read_history", pytest.fail)
        assert again.ask(MORE + 1) == 60
        assert again.ask(MORE + 2) == 60
    assert again.files.held_bytes == 0  # they are the session's now
    assert again.ask(MORE) == 60  # read when asked for
    assert again.report("from_disk") == 3
    again.dies()


def test_what_was_read_ahead_makes_room_for_what_is_parked(tmp_path: Path):
    saved(tmp_path, ONE, ONE + 1)
    again = reads_ahead(tmp_path, 2)
    keeping = replace(KEEPING, ram_bytes=again.files.held_bytes * 19 // 10)
    again.conversation = Conversation(FakeSession(50, 400, 1), keeping, again.files)
    again.ask(ONE + 2)
    again.ask(ONE + 3)
    assert again.report("parked") == 1
    assert again.files.held_bytes > 0
    again.ask(ONE + 4)
    assert again.report("parked") == 2
    assert again.files.held_bytes == 0
    assert again.ask(MORE) == 60
    again.dies()


def test_what_was_read_ahead_counts_only_while_its_file_is_there(tmp_path: Path, notices):
    (path,) = saved(tmp_path, ONE)
    again = reads_ahead(tmp_path)
    path.unlink()
    assert again.ask(MORE) == 0
    assert again.files.held_bytes == 0
    again.dies()


def test_what_was_read_ahead_counts_only_while_its_file_is_the_same(tmp_path: Path, notices):
    (path,) = saved(tmp_path, ONE)
    again = reads_ahead(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[:-20] + bytes(20))
    os.utime(path, (1, 1))
    assert again.ask(MORE) == 0
    assert any("checksum" in text for text in notices)
    again.dies()


def test_a_damaged_file_is_told_when_it_is_asked_for(tmp_path: Path, notices):
    (path,) = saved(tmp_path, ONE)
    content = path.read_bytes()
    path.write_bytes(content[:-20] + bytes(20))
    again = Process(tmp_path, ahead=PLENTY)
    assert again.files.flush(5)
    assert again.ask(ONE + 1) == 0
    assert not notices
    assert again.ask(MORE) == 0
    assert any("checksum" in text for text in notices)
    again.dies()


def test_what_is_too_large_is_not_read_ahead(tmp_path: Path):
    (path,) = saved(tmp_path, ONE)
    again = Process(tmp_path, ahead=path.stat().st_size - 1)
    time.sleep(0.1)
    assert again.files.held_bytes == 0
    assert again.ask(MORE) == 60
    again.dies()


def test_what_is_saved_is_the_whole_answer(tmp_path: Path):
    process = Process(tmp_path)
    process.ask(ONE)
    window = np.array([7], np.int32)
    process.conversation.decode(window)
    process.conversation.commit(window, 1)
    process.conversation.close()
    again = Process(tmp_path)
    assert again.ask(np.append(ONE, [7, 8]).astype(np.int32)) == 61
    again.dies()


def test_going_back_far_leaves_both_on_disk(tmp_path: Path):
    process = Process(tmp_path)
    begin = [1, *([2] * 30), 1]
    long, other = ([*begin, *([token] * 100), 1, 9] for token in (5, 6))
    process.ask(np.array(long, np.int32))
    process.ask(np.array([*begin, 9], np.int32))  # its turn begins where both begin
    process.ask(np.array(long, np.int32))
    process.ask(np.array(other, np.int32))
    process.dies()
    again = Process(tmp_path)
    assert again.ask(np.array([*long, 7], np.int32)) >= 132
    assert again.ask(np.array([*other, 7], np.int32)) >= 132
    again.dies()


@pytest.mark.parametrize("at", [0, 9, 40, -400, -10])
def test_a_damaged_file_is_skipped_and_told(tmp_path: Path, at: int, notices: list[str]):
    (path,) = saved(tmp_path, ONE)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    again = Process(tmp_path)
    assert again.ask(MORE) == 0
    assert again.report("files_skipped") == 1
    again.dies()
    (message,) = notices
    assert message.startswith(f"{path} is skipped: ")
    assert path.read_bytes() == content


def test_a_truncated_file_is_skipped_and_told(tmp_path: Path, notices: list[str]):
    (path,) = saved(tmp_path, ONE)
    os.truncate(path, path.stat().st_size - 1)
    again = Process(tmp_path)
    assert again.ask(MORE) == 0
    again.dies()
    assert "bytes of" in notices[0]


def test_a_file_cut_short_while_served_is_skipped(tmp_path: Path, notices: list[str]):
    (path,) = saved(tmp_path, ONE)
    again = Process(tmp_path)
    os.truncate(path, 100)
    assert again.ask(MORE) == 0
    assert "is skipped" in notices[0]
    again.dies()


def test_a_file_deleted_by_another_is_forgotten(tmp_path: Path, notices: list[str]):
    (path,) = saved(tmp_path, ONE)
    again = Process(tmp_path)
    path.unlink()
    assert again.ask(MORE) == 0
    assert notices == []
    again.dies()


def test_states_of_another_model_are_skipped(tmp_path: Path, notices: list[str]):
    saved(tmp_path, ONE)
    again = Process(tmp_path, identity="another")
    assert again.ask(MORE) == 0
    again.dies()
    assert "another model" in notices[0]
    assert len(list(tmp_path.iterdir())) == 2


def test_states_beyond_this_context_are_skipped(tmp_path: Path):
    saved(tmp_path, ONE)
    again = Process(tmp_path, capacity=50)
    assert again.ask(MORE[:40]) == 0
    again.dies()


def test_files_that_are_not_known_are_never_touched(tmp_path: Path):
    names = [
        "notes.txt", "0123456789abcdef.conversation", "f" * 16 + ".conversation.bak",
        ".0123456789abcdef.conversation.12.part",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).write_bytes(bytes(9000))
    process = Process(tmp_path, budget=1)
    for token in range(3, 7):
        process.ask(np.full(60, token, np.int32))
    process.dies()
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    assert process.report("files_deleted") == 4


def test_a_temporary_file_left_by_a_crash_goes_when_it_is_old(tmp_path: Path):
    left = tmp_path / ".0123456789abcdef.conversation.12.part"
    left.write_bytes(bytes(10))
    Process(tmp_path).dies()
    assert left.exists()
    old_s = time.time() - 7200
    os.utime(left, (old_s, old_s))
    Process(tmp_path).dies()
    assert not left.exists()


def test_the_oldest_go_when_the_budget_is_full(tmp_path: Path):
    prompts = [np.full(60, token, np.int32) for token in range(2, 8)]
    size = saved(tmp_path, *prompts[:3])[0].stat().st_size
    process = Process(tmp_path, budget=3 * size + size // 2)
    assert process.ask(np.append(prompts[0], 9).astype(np.int32)) == 60  # used: not the oldest now
    process.ask(prompts[3])
    process.dies()
    again = Process(tmp_path)
    reused = [again.ask(np.append(prompt, 9).astype(np.int32)) for prompt in prompts[:4]]
    assert reused == [61, 0, 60, 60] or reused == [60, 0, 60, 60]
    again.dies()


def test_a_full_disk_loses_nothing(tmp_path: Path, notices: list[str]):
    (path,) = saved(tmp_path, ONE)
    before = path.read_bytes()
    process = Process(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        assert process.ask(MORE) == 60
        assert process.ask(ONE + 1) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert process.report("files_failed") == 2
    assert "could not be saved" in notices[0]
    assert [item.name for item in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before
    process.dies()
    again = Process(tmp_path)
    assert again.ask(np.append(ONE, 7).astype(np.int32)) == 60
    again.dies()


def test_only_their_owner_can_read_conversations(tmp_path: Path):
    before = os.umask(0o022)
    try:
        (path,) = saved(tmp_path / "folder", ONE)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_what_is_no_file_is_skipped_and_not_waited_for(tmp_path: Path, notices: list[str]):
    pipe, folder = (tmp_path / f"{digit * 16}.conversation" for digit in "01")
    os.mkfifo(pipe)  # whoever opens it waits for a writer
    folder.mkdir()
    process = Process(tmp_path, budget=1)
    assert process.ask(ONE) == 0
    process.dies()
    assert notices == [f"{path} is skipped: it is not a file" for path in (pipe, folder)]
    assert sorted(tmp_path.iterdir()) == [pipe, folder]


def test_files_that_vanish_while_looked_at_are_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices: list[str]
):
    """Another server of the same folder cleans up at the same moment."""
    saved(tmp_path, ONE, ONE + 1)
    (tmp_path / ".0123456789abcdef.conversation.12.part").touch()
    process = Process(tmp_path)
    path_type = type(tmp_path)
    stat = path_type.stat

    def vanishing(path: Path, **options: bool) -> os.stat_result:
        if path.suffix in {".conversation", ".part"}:
            path.unlink(missing_ok=True)
        return stat(path, **options)

    monkeypatch.setattr(path_type, "stat", vanishing)
    assert process.ask(ONE + 2) == 0
    process.dies()
    Process(tmp_path).dies()
    monkeypatch.undo()
    assert process.report("files_failed") == 0
    assert not any("could not be saved" in notice for notice in notices)


def test_the_writer_survives_what_it_cannot_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices: list[str]
):
    process = Process(tmp_path)

    def no_memory(*_: object) -> int:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("strata.engine.conversation_disk.write_conversation", no_memory)
        assert process.ask(ONE) == 0
    assert process.report("files_failed") == 1
    assert "there is no memory for it" in notices[0]
    assert process.ask(ONE + 1) == 0
    assert process.report("files_saved") == 1
    process.dies()


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(SettingsError, match="cannot be kept in"):
        ConversationFiles(file, "model", PLENTY)
