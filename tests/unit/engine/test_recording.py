"""A recorded run, against what the session itself tells; and that recording changes no token."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata import Engine, SamplingParams
from strata.engine.build import open_parts
from strata.errors import SettingsError
from strata.formats.convert_types import TypePlan
from strata.formats.synth import GEOMETRIES, synthesize
from strata.settings import Settings
from strata.tiers.routing_trace import WindowKind, read_trace

if TYPE_CHECKING:
    from pathlib import Path

GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    geometry = dataclasses.replace(GEOMETRIES["tiny"], num_draft_layers=1)
    synthesize(path, geometry, TypePlan.preset("q8_0"))
    return path


@pytest.mark.parametrize("drafts", [0, 2])
def test_windows_are_those_of_the_run(tiny: Path, tmp_path: Path, drafts: int):
    out = tmp_path / "t.strt"
    with Engine.open(tiny, chunk_tokens=4, draft_tokens=drafts) as engine:
        plain = engine.generate_text("hello there", GREEDY)
        prompt = engine.tokenize("hello there")
    options = {"chunk_tokens": 4, "draft_tokens": drafts, "routing_trace": out}
    with Engine.open(tiny, **options) as engine:
        recorded = engine.generate_text("hello there", GREEDY)
        spec = engine.spec
    assert recorded.token_ids == plain.token_ids
    trace = read_trace(out)
    rows = {w.num_rows for w in trace.windows if w.kind is WindowKind.DECODE}
    assert max(rows) == 1 + drafts
    assert (trace.num_layers, trace.num_experts, trace.top_k) == (
        spec.num_layers, spec.num_experts, spec.top_k,
    )  # fmt: skip
    assert trace.num_prompt == len(prompt)
    sizes = [w.num_rows for w in trace.windows if w.kind is WindowKind.PROMPT]
    assert sizes == [4] * (len(prompt) // 4) + [len(prompt) % 4] * (len(prompt) % 4 > 0)
    # The last token is read back only where it was a draft that was kept.
    num_decoded = len(plain.token_ids) - (0 if drafts else 1)
    assert trace.num_decoded == num_decoded
    position = 0
    for window in trace.windows:
        assert window.position == position
        position += window.num_kept

    # The experts of every row, told by a bare session that reads the same tokens as a prompt.
    tokens = np.array([*prompt, *plain.token_ids[:num_decoded]], np.int32)
    parts = open_parts(Settings.from_options({"model": tiny}))
    session = parts.model.new_session(len(tokens))
    told: list[np.ndarray] = []
    session.on_routing = lambda _layer, ids: told.append(ids.copy())  # type: ignore[attr-defined]
    session.prefill(tokens)
    parts.close()
    kept = np.concatenate([w.ids[:, : w.num_kept] for w in trace.windows], axis=1)
    np.testing.assert_array_equal(kept, np.stack(told))


def test_two_conversations_in_one_trace(tiny: Path, tmp_path: Path):
    out = tmp_path / "t.strt"
    with Engine.open(tiny, routing_trace=out) as engine:
        for prompt in ("hello there", "hello there", "other words"):
            engine.generate_text(prompt, GREEDY)
    windows = read_trace(out).windows
    # The second prompt was remembered whole: its answer begins where the prompt ended.
    begins = [w.position for w in windows if w.kind is WindowKind.PROMPT]
    assert begins == [0, 0]
    decoded = sum(w.num_kept for w in windows if w.kind is WindowKind.DECODE)
    assert decoded == 3 * 8


def test_what_cannot_be_recorded_is_refused_before_loading(tmp_path: Path):
    missing = tmp_path / "no such folder" / "t.strt"
    with pytest.raises(SettingsError, match="--routing-trace cannot write") as caught:
        Engine.open(tmp_path / "no model.gguf", routing_trace=missing)
    assert "Try:" in str(caught.value)
    for device in ("cuda", "auto"):
        with pytest.raises(SettingsError, match="Try: --device cpu"):
            Engine.open(tmp_path / "no model.gguf", routing_trace=tmp_path / "t", device=device)
    assert not list(tmp_path.iterdir())
