"""``strata chat`` going on where it was. Checked against the library's answers to all messages."""

from __future__ import annotations

import json
import re
import stat
from typing import TYPE_CHECKING

import pytest

from strata import Engine
from strata.engine.sampler import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typer.testing import Result

    Strata = Callable[..., Result]

# More than a conversation has to have for its state to be kept.
LONG = "Tell me of the layers. " * 30
CHAT = ("-n", 6, "--temperature", 0)


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.chat.json"))


def reused(result: Result) -> list[int]:
    return [int(count) for count in re.findall(r"(\d+) reused", result.stderr)]


def test_resume_shows_the_last_turns_and_reads_only_what_is_new(
    strata: Strata, tiny: Path, tmp_path: Path
):
    folder = tmp_path / "talks"
    args = ("chat", "-m", tiny, *CHAT, "--conversation-dir", folder)
    first = strata(*args, stdin=f"{LONG}\n")
    assert first.exit_code == 0, first.stderr
    (path,) = kept(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(list(folder.glob("*.conversation"))) == 1
    messages = json.loads(path.read_text())["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]

    second = strata(*args, "--resume", stdin="And then?\n")
    assert second.exit_code == 0, second.stderr
    assert f"going on with {path.name.removesuffix('.chat.json')}, 2 messages:" in second.stderr
    assert f"> {LONG.strip()}"[:60] in second.stderr
    assert messages[1]["content"] in second.stderr
    (num_reused,) = reused(second)
    with Engine.open(tiny) as engine:
        assert num_reused > len(engine.tokenize(messages[:1])) - 12
        wanted = [*messages, {"role": "user", "content": "And then?"}]
        sampling = SamplingParams(temperature=0, max_tokens=6)
        expected = engine.chat(wanted, sampling).complete().text
    assert second.stdout == f"{expected}\n"
    assert len(json.loads(path.read_text())["messages"]) == 4
    assert kept(folder) == [path]


def test_conversations_have_names_and_the_last_one_is_resumed(
    strata: Strata, tiny: Path, tmp_path: Path
):
    args = ("chat", "-m", tiny, *CHAT, "--conversation-dir", tmp_path)
    assert strata(*args, "--chat", "rocks", stdin="of rocks\n").exit_code == 0
    assert strata(*args, "--chat", "birds", "--system", "Sing.", stdin="of birds\n").exit_code == 0
    last = strata(*args, "--resume", stdin="/reset\nof fish\n")
    assert "going on with birds, 3 messages:" in last.stderr
    assert "> of birds" in last.stderr
    assert "Sing." not in last.stderr
    again = strata(*args, "--chat", "rocks", stdin="/undo\n")
    assert "going on with rocks, 2 messages:" in again.stderr
    paths = kept(tmp_path)
    assert [path.name for path in paths[-2:]] == ["birds.chat.json", "rocks.chat.json"]
    assert json.loads(paths[-1].read_text())["messages"] == []
    fish = json.loads(paths[0].read_text())["messages"]
    assert [item["content"] for item in fish[:2]] == ["Sing.", "of fish"]  # as /reset leaves it
    refused = strata(*args, "--chat", "birds", "--system", "Caw.", stdin="")
    assert refused.exit_code == 2
    assert "takes no --system" in refused.stderr


def test_a_chat_file_needs_no_folder_and_another_model_is_told_of(
    strata: Strata, tiny: Path, tmp_path: Path
):
    path = tmp_path / "talk.chat.json"
    assert strata("chat", "-m", tiny, *CHAT, "--chat", path, stdin="hello\n").exit_code == 0
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "model": "another"}))
    result = strata("chat", "-m", tiny, *CHAT, "--chat", path, "--resume", stdin="")
    assert "it was led with another; this is " in result.stderr
    assert "> hello" in result.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--resume",), "--conversation-dir DIR"),
        (("--chat", "x"), "--chat ./x.chat.json"),
        (("--resume", "--chat", "{}/none.json"), "there is no conversation"),
        (("--resume", "--conversation-dir", "{}/empty"), "no conversation is kept in"),
        (("--chat", "{}/list.json"), 'does not say "strata_chat": 1'),
        (("--chat", "{}/broken.json"), "it is no JSON"),
        (("--chat", "{}/roles.json"), "role and content"),
        (("--chat", "{}/empty/"), "cannot be read: Is a directory"),
    ],
)
def test_what_is_no_conversation_is_refused_and_left_alone(
    strata: Strata, tiny: Path, tmp_path: Path, args: tuple[str, ...], message: str
):
    (tmp_path / "empty").mkdir()
    files = {
        "list.json": "[1]",
        "broken.json": "{",
        "roles.json": '{"strata_chat": 1, "messages": [{"role": "tool", "content": "x"}]}',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    result = strata("chat", "-m", tiny, *(arg.format(tmp_path) for arg in args), stdin="hi\n")
    assert result.exit_code == 2
    assert message in result.stderr
    assert {name: (tmp_path / name).read_text() for name in files} == files


def test_a_folder_that_refuses_ends_no_talk(strata: Strata, tiny: Path, tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    result = strata("chat", "-m", tiny, *CHAT, "--chat", blocked / "a.json", stdin="hi\nagain\n")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) >= 2
    assert "cannot write" in result.stderr
