"""Clause C3 of docs/numerics.md on real sessions: a conversation that is continued, from wherever,
has the bits of one that is read at once.

The processor's session on every tiny geometry, with drafts and without; a card's in Triton's
interpreter where there is none, where a row costs a third of a second and cuts are 16 tokens apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.models.model_files import cpu_model, write_model
from tests.models.test_cpu_session import same_bits, some_tokens
from tests.models.test_gpu_draft import drafting_model
from tests.models.tiny_models import TINY, tiny_model

from strata import session_rules
from strata.engine.conversation import Conversation
from strata.engine.conversation_disk import ConversationFiles
from strata.engine.conversation_points import Keeping

if TYPE_CHECKING:
    from pathlib import Path

    from strata.engine.session import Model

TURN = 1
PLENTY = 1 << 30


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session_rules, "_LEAST_PAGE_TOKENS", 1)


class Talk:
    """A conversation whose every logit is compared with a fresh session's."""

    def __init__(self, model: Model, capacity: int, folder: Path, *, turn_id: int = TURN) -> None:
        self.model, self.capacity = model, capacity
        self.files = ConversationFiles(folder, "tiny", PLENTY)
        keeping = Keeping(ram_bytes=PLENTY, turn_id=turn_id, worth_tokens=1)
        self.conversation = Conversation(model.new_session(capacity), keeping, self.files)
        self.fresh = model.new_session(capacity)

    def ask(self, prompt: np.ndarray, num_decoded: int) -> tuple[np.ndarray, int]:
        """Prompt and answer, and how many tokens were reused."""
        num_reused = self.conversation.resume(prompt)
        logits = self.conversation.read(prompt)
        self.fresh.reset()
        assert same_bits(logits, self.fresh.prefill(prompt))
        said = [int(np.argmax(logits))]
        for _ in range(num_decoded):
            drafts = []
            if self.conversation.drafter is not None:
                drafts = self.conversation.drafter.propose(said[-1], 2)[0]
            window = np.array([said[-1], *drafts], np.int32)
            row = self.conversation.decode(window)[:1]
            assert same_bits(row, self.fresh.decode(window[:1]))
            self.conversation.commit(window, 1)
            self.fresh.commit(1)
            said.append(int(np.argmax(row[0])))
        self.conversation.settle()
        return np.concatenate([prompt, said]).astype(np.int32), num_reused

    def end(self) -> None:
        assert self.files.flush(10)
        self.files.close()


def prompts(seed: int, *lengths: int) -> list[np.ndarray]:
    made = []
    for at, num in enumerate(lengths):
        tokens = some_tokens(seed + at, max(num, 20))[:num]
        tokens[tokens == TURN] = 2
        tokens[-2] = TURN  # where the answer's turn begins
        made.append(tokens)
    return made


def everywhere(model: Model, folder: Path, capacity: int, one: np.ndarray, two: np.ndarray) -> list:
    """Two conversations in turns, both on after a restart; (tokens reused, of how many)."""
    seen = []
    talk = Talk(model, capacity, folder)
    talks = [one, two]
    more = np.array([5, 6], np.int32)
    for turn in range(4):
        if turn == 2:
            talk.end()
            talk = Talk(model, capacity, folder)
        for which in (0, 1):
            known = len(talks[which])
            said, num_reused = talk.ask(np.concatenate([talks[which], more]), 3)
            seen.append((num_reused, known))
            talks[which] = said
    report = talk.conversation.report()
    assert (report["from_parked"], report["from_disk"]) == (2, 2)
    talk.end()
    return seen


@pytest.mark.parametrize("name", TINY)
def test_processor(name: str, tmp_path: Path):
    model = tiny_model(name, "float64")
    path = write_model(tmp_path / "model.gguf", model)
    loaded = cpu_model(path, model, threads=1, kv_format="f16")
    seen = everywhere(loaded, tmp_path / "kept", 700, *prompts(3, 300, 280))
    # All but the last token of the answer, which was never in the session.
    assert seen == [(0, 300), (0, 280)] + [(known - 1, known) for _, known in seen[2:]]


def test_processor_with_drafts(tmp_path: Path):
    model = drafting_model()
    path = write_model(tmp_path / "model.gguf", model)
    loaded = cpu_model(path, model, threads=1, kv_format="f16", has_draft=True)
    seen = everywhere(loaded, tmp_path / "kept", 700, *prompts(5, 300, 280))
    assert all(known - num_reused == 1 for num_reused, known in seen[2:])


def test_drafts_are_those_of_a_session_that_read_everything(tmp_path: Path):
    model = drafting_model()
    path = write_model(tmp_path / "model.gguf", model)
    loaded = cpu_model(path, model, threads=1, kv_format="f16", has_draft=True)
    one, two = prompts(7, 300, 280)
    talk = Talk(loaded, 400, tmp_path / "kept")
    said, _ = talk.ask(one, 5)
    talk.ask(two, 2)  # writes over the first one's cells
    longer = np.append(said, 4).astype(np.int32)
    assert talk.conversation.resume(longer) == len(said) - 1
    talk.conversation.read(longer)
    fresh = loaded.new_session(400)
    fresh.prefill(longer)
    assert talk.conversation.drafter.propose(3, 3) == fresh.drafter.propose(3, 3)
    talk.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from tests.models import test_gpu_prompt as prompt_tests

    from strata.gpu import prompt_layout
    from strata.gpu import session as session_module
    from strata.gpu.kernels import delta_scan

    cut = prompt_tests.CUT
    for module, attribute in (
        (delta_scan, "CHUNK"), (prompt_layout, "CUT_TOKENS"), (session_module, "CUT_TOKENS"),
    ):  # fmt: skip
        monkeypatch.setattr(module, attribute, cut)
    model = prompt_tests.smallest_model()
    formats = prompt_tests.formats_with_fused_reads(model.weights)
    path = write_model(tmp_path / "model.gguf", model, formats)
    loaded = prompt_tests.load(path, cut)
    prompt, other = some_tokens(1, 20)[: cut + 2], some_tokens(2, 20)[:1]
    expected = loaded.new_session(24).prefill(prompt)
    keeping = Keeping(ram_bytes=PLENTY, worth_tokens=1)

    def opened() -> tuple[Conversation, ConversationFiles]:
        files = ConversationFiles(tmp_path / "kept", "tiny", PLENTY)
        return Conversation(loaded.new_session(24), keeping, files), files

    conversation, files = opened()
    for tokens, num_reused in ((prompt[: cut + 1], 0), (other, 0), (prompt, cut)):
        assert conversation.resume(tokens) == num_reused
        logits = conversation.read(tokens)
    assert same_bits(logits, expected)
    assert conversation.report()["from_parked"] == 1
    conversation.close()
    assert files.report()["files"] == 1
    conversation, files = opened()
    assert conversation.resume(prompt) == cut
    assert same_bits(conversation.read(prompt), expected)
    assert conversation.report()["from_disk"] == 1
    files.close()
