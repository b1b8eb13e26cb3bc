"""Answers of an untrained model that must have a form: all of them have it, drafts or not.

The model is random, its vocabulary one of bytes; the validator is ``jsonschema``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING

import pytest
from tests.form_schemas import PERSON, SCHEMAS, check

from strata import Engine, FinishReason, SamplingParams
from strata.engine.sampler import sample
from strata.errors import RequestError
from strata.formats.convert_types import TypePlan
from strata.formats.synth import GEOMETRIES, synthesize
from strata.text.form import Form

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy as np

    from strata.engine.session import Session

SAMPLED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, max_tokens=1500)
# An untrained model seldom ends a text by itself; where one may be of any length, it is helped.
CLOSERS = tuple((ord(letter), 6.0) for letter in '"}]')


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    geometry = dataclasses.replace(GEOMETRIES["tiny"], num_draft_layers=1)
    synthesize(path, geometry, TypePlan.preset("q4_k"))
    return path


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[Engine]:
    with Engine.open(tiny, context_len=1600, threads=1, draft_tokens=0) as engine:
        yield engine


@pytest.fixture(scope="module")
def drafting(tiny: Path) -> Iterator[Engine]:
    with Engine.open(tiny, context_len=1600, threads=1, draft_tokens=3) as engine:
        yield engine


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_is_what_the_schema_allows(engine, drafting, name):
    form = Form.json_schema(SCHEMAS[name])
    for seed in (1, 2):
        sampling = dataclasses.replace(SAMPLED, seed=seed, logit_bias=CLOSERS)
        answer = engine.generate("abc", sampling, form=form).complete()
        assert answer.finish_reason is FinishReason.STOP, answer.text[-200:]
        check(answer.text, SCHEMAS[name])
        same = drafting.generate("abc", sampling, form=form).complete()
        assert (same.text, same.token_ids) == (answer.text, answer.token_ids)


class HostPicker:
    """Picks as a card does, masks and all, from the session's own logits."""

    def __init__(self, session: Session, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._session = session
        self._tokens: list[int] = []
        self._options = SAMPLED
        self.num_masks = 0

    def begin(self, options: SamplingParams, tokens: Sequence[int]) -> None:
        self._options, self._tokens = options, list(tokens)

    def decode(self, window: np.ndarray, masks: Sequence[np.ndarray | None] | None) -> list[int]:
        logits = self._session.decode(window)
        start = self._session.position
        picked = []
        for row, token in enumerate(window.tolist()):
            self._tokens[start + row :] = [token]
            mask = None if masks is None else masks[row]
            self.num_masks += mask is not None
            try:
                found = sample(logits[row], self._options, self._tokens, start + row + 1, mask).id
            except RequestError:
                found = -1
            picked.append(found)
        return picked


@pytest.mark.parametrize(
    "name", ["nested", "unicode enum", "tree", "anyOf", "lengths", "addresses"]
)
@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_a_device_that_picks_gives_the_same_text(tiny, engine, monkeypatch, name, draft_tokens):
    """Masks are asked for along drafts, and taken back with those that are not kept."""
    form = Form.json_schema(SCHEMAS[name])
    sampling = dataclasses.replace(SAMPLED, seed=11)
    plain = engine.generate("abc<think>\n", sampling, form=form, form_after="</think>").complete()
    with Engine.open(tiny, context_len=1600, threads=1, draft_tokens=draft_tokens) as other:
        session = other._turn.conversation._session
        picker = HostPicker(session, other.spec.vocab_size)
        monkeypatch.setattr(type(session), "picker", picker)
        answer = other.generate("abc<think>\n", sampling, form=form, form_after="</think>")
        assert answer.complete().text == plain.text
        assert picker.num_masks > 10


def test_windows_had_drafts_that_were_kept(drafting):
    form = Form.json_schema(SCHEMAS["free text"])
    answer = drafting.generate("abc", dataclasses.replace(SAMPLED, seed=2), form=form).complete()
    assert sum(answer.timings.drafts_accepted) > 0


@pytest.mark.parametrize("penalty", [1.0, 50.0])
def test_penalties_and_biases_cannot_leave_the_form(engine, penalty):
    sampling = dataclasses.replace(
        SAMPLED, seed=4, repeat_penalty=penalty, logit_bias=((ord("x"), 100.0),)
    )
    for schema in (PERSON, SCHEMAS["unicode names"]):
        answer = engine.generate("abc", sampling, form=Form.json_schema(schema)).complete()
        check(answer.text, schema)


def test_logprobs_are_of_what_was_allowed(engine):
    sampling = dataclasses.replace(SAMPLED, seed=1, logprobs=5)
    answer = engine.generate("abc", sampling, form=Form.one_of(["a", "b"])).complete()
    first, end = answer.logprobs
    assert len(first.top) == 2
    for item in (first, end):
        assert sum(math.exp(value) for _, value in item.top) == pytest.approx(1)


def test_stop_texts_and_lengths_still_end_an_answer(engine):
    form = Form.regex("[a-f]*;[a-f]*")
    stopped = engine.generate("x", dataclasses.replace(SAMPLED, seed=1, stop=(";",)), form=form)
    answer = stopped.complete()
    assert answer.finish_reason is FinishReason.STOP
    assert re.fullmatch("[a-f]*", answer.text)
    short = dataclasses.replace(SAMPLED, seed=1, max_tokens=3)
    answer = engine.generate("x", short, form=Form.regex("[a-f]{40}")).complete()
    assert answer.finish_reason is FinishReason.LENGTH
    assert re.fullmatch("[a-f]{3}", answer.text)


def test_the_form_begins_behind_the_reasoning(engine, drafting):
    form = Form.json_schema(PERSON)
    sampling = dataclasses.replace(SAMPLED, seed=7)
    answer = engine.generate("abc<think>\n", sampling, form=form, form_after="</think>").complete()
    assert answer.finish_reason is FinishReason.STOP
    thought, mark, said = answer.text.partition("</think>")
    assert mark
    assert thought
    check(said.lstrip("\n"), PERSON)
    drafted = drafting.generate("abc<think>\n", sampling, form=form, form_after="</think>")
    assert drafted.complete().text == answer.text


def test_what_contradicts_a_form_is_refused(engine):
    form = Form.regex("a+")
    with pytest.raises(RequestError, match="end cannot be ignored"):
        engine.generate("x", SamplingParams(ignore_eos=True), form=form)
    with pytest.raises(RequestError, match="allowed tokens"):
        engine.generate("x", SAMPLED, form=form, allow=lambda _: None)


def test_a_form_that_fails_leaves_the_engine_alive(engine):
    # No vocabulary of this model can name this token.
    form = Form.of({"lark_grammar": "start: <|nothing|>"})
    with pytest.raises(RequestError, match="form"):
        engine.generate("x", SAMPLED, form=form).complete()
    assert engine.generate("x", SAMPLED, form=Form.regex("a")).complete().text == "a"
