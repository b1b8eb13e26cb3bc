"""What is made before the first request: that it is made, and that nothing shows it.

Memory is counted by the system; answers are compared with the library's.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.server.conftest import Served, fetch

from strata.engine.model_text import ModelText
from strata.engine.sampling_params import SamplingParams
from strata.server.first_use import make_first_use
from strata.server.model_side import ModelSide
from strata.settings import Settings
from strata.text.chat_template import ChatTemplate

if TYPE_CHECKING:
    from strata import Engine

MESSAGES = [{"role": "user", "content": "What is 12*12?"}]
LONG = "the river keeps a stone for every name it has forgotten and the hill counts again " * 250


@pytest.fixture(scope="module")
def model() -> ModelSide:
    return ModelSide.open(Settings())


def with_template(model: ModelSide, source: str | None) -> ModelSide:
    tokenizer = model.text._tokenizer
    metadata = {} if source is None else {"tokenizer.chat_template": source}
    template = ChatTemplate.from_metadata(metadata, tokenizer)
    return replace(model, text=ModelText(tokenizer, template, model.spec.vocab_size))


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_THREAD"), reason="faults are not told by thread")
def test_a_long_text_finds_memory_there(model: ModelSide):
    def num_faults() -> int:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        model.text.encode(LONG)
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    # Memory belongs to a thread.
    with ThreadPoolExecutor(1) as plain, ThreadPoolExecutor(1) as prepared:
        without = plain.submit(num_faults).result()
        prepared.submit(make_first_use, model).result()
        assert prepared.submit(num_faults).result() < without / 2


@pytest.mark.parametrize("source", [None, "{{ raise_exception('never') }}", "{{ 1 // 0 }}"])
def test_any_template_will_do(model: ModelSide, source: str | None, notices: list[str]):
    make_first_use(with_template(model, source))
    assert not notices


ENDLESS = """
from types import SimpleNamespace
from strata.server.first_use import begin_first_use

def chat(messages, values):
    while True:
        pass

begin_first_use(SimpleNamespace(text=SimpleNamespace(has_chat_template=True), chat=chat))
"""


def test_a_template_that_never_ends_holds_nobody_up():
    ended = subprocess.run([sys.executable, "-c", ENDLESS], timeout=60, check=False)
    assert ended.returncode == 0


def test_nothing_shows_it(engine: Engine):
    served = Served("--threads", 1)
    status = json.loads(fetch(served.address, "/v1/status")[1])
    monitor = json.loads(fetch(served.address, "/v1/monitor")[1])
    metrics = fetch(served.address, "/metrics")[1].decode()
    body = {"model": served.name, "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
    content = json.dumps(body).encode()
    answer = json.loads(fetch(served.address, "/v1/chat/completions", content)[1])
    assert served.end() == 0
    assert status["answered_requests"] == status["memory_bytes"]["checkpoints"] == 0
    assert not any(status["conversations"].values())
    assert monitor["requests"] == monitor["live"]["requests"] == []
    counts = re.findall(r"^(\w+(?:_total|_count)(?:{.*})?) (\S+)$", metrics, re.MULTILINE)
    assert len(counts) > 5
    assert [name for name, value in counts if float(value)] == []
    assert len(served.lines) == 3, served.lines  # its address, which model, that it is ready
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    expected = engine.chat(MESSAGES, SamplingParams(temperature=0, max_tokens=24)).complete().text
    assert answer["choices"][0]["message"]["content"] == expected
