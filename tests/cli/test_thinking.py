"""``--thinking`` and ``/think``, against what the library does with the same template values."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import training
from tests.unit.formats import checkpoints

from strata import Engine, SamplingParams
from strata.formats.convert import ConvertOptions, convert
from strata.formats.convert_types import TypePlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer.testing import Result

    Strata = Callable[..., Result]

TEMPLATE = Path(training.__file__).parent / "data" / "chat_template.jinja"
QUESTION = "what is this"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights and the demo's chat template."""
    folder = tmp_path_factory.mktemp("thinker")
    checkpoints.save_text_model(folder, vocab_size=checkpoints.VOCAB_SIZE)
    checkpoints.add_tokenizer(folder)
    shutil.copyfile(TEMPLATE, folder / TEMPLATE.name)
    path = folder / "model.gguf"
    convert(folder, path, ConvertOptions(types=TypePlan.preset("f32")))
    return path


def answers(path: Path, *settings: bool) -> list[tuple[int, str]]:
    """Prompt tokens and text of the library's answer under each setting of thinking."""
    found = []
    with Engine.open(path) as engine:
        assert engine.has_thinking
        for is_on in settings:
            messages = [{"role": "user", "content": QUESTION}]
            sampling = SamplingParams(temperature=0.0, max_tokens=6)
            completion = engine.chat(messages, sampling, enable_thinking=is_on).complete()
            found.append((completion.timings.prompt_tokens, completion.text))
    return found


def test_run_thinks_when_asked(strata: Strata, thinker: Path):
    off, on = answers(thinker, False, True)
    assert off[0] > on[0]  # the empty thinking is part of the prompt
    for flags, expected in (((), off), (("--no-thinking",), off), (("--thinking",), on)):
        result = strata("run", "-m", thinker, QUESTION, "-n", 6, "--json", *flags)
        assert result.exit_code == 0, result.stderr
        told = json.loads(result.stdout)
        part = "reasoning" if flags == ("--thinking",) else "text"
        assert (told["prompt_tokens"], told[part]) == expected


def test_chat_begins_and_ends_thinking(strata: Strata, thinker: Path):
    off, on = answers(thinker, False, True)
    lines = f"{QUESTION}\n/undo\n/think\n{QUESTION}\n/undo\n/think\n{QUESTION}\n"
    result = strata("chat", "-m", thinker, "-n", 6, "--temperature", 0, stdin=lines)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "".join(f"{text}\n" for text in (off[1], "", off[1]))
    assert on[1] in result.stderr  # it ends before the thinking does
    assert result.stderr.index("thinking is on") < result.stderr.index("thinking is off")
    first = strata("chat", "-m", thinker, "-n", 6, "--temperature", 0, "--thinking", stdin=QUESTION)
    assert first.stdout == "\n"
    assert on[1] in first.stderr


def test_thinking_is_set_by_name(strata: Strata, thinker: Path):
    lines = "/think off\n/think on\n/think on\n/think maybe\n/undo all\n/nothing at all\n"
    result = strata("chat", "-m", thinker, stdin=lines)
    assert result.exit_code == 0
    told = [line for line in result.stderr.splitlines() if "thinking is" in line]
    assert told == ["thinking is off.", "thinking is on.", "thinking is on."]
    assert "/think takes on or off or nothing, not 'maybe'" in result.stderr
    assert "/undo takes nothing, not 'all'" in result.stderr
    assert "there is no command /nothing" in result.stderr


def test_a_model_without_thinking_says_so(strata: Strata, tiny: Path):
    result = strata("run", "-m", tiny, "hi", "-n", 1, "--thinking")
    assert result.exit_code == 1
    assert "no thinking to turn on" in result.stderr
    assert strata("run", "-m", tiny, "hi", "-n", 1, "--no-thinking").exit_code == 0
    chat = strata("chat", "-m", tiny, "-n", 1, stdin="/think\nhi\n")
    assert chat.exit_code == 0
    assert "no thinking to turn on" in chat.stderr
