"""A server whose model answers known questions with known texts, for tests of the web page.

Everything but the weights is real: tokenizer, template, the child process, HTTP. ``python -m
tests.server.scribe`` takes the flags of ``strata serve``.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tests.fakes import FakeModel, FakeSession

from strata.cli import app
from strata.engine.default_model import default_model
from strata.engine.engine import Engine
from strata.engine.model_file import open_file
from strata.engine.model_text import ModelText
from strata.engine.parts import Parts
from strata.server import serve as serve_module
from strata.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from strata.engine.session import OnProgress

CONTEXT_LEN = 8192

MARKDOWN = """## Layers of rock

Sedimentary rock is laid down in **strata**, the oldest *below*. Three things to know:

1. Water carries sand, silt and clay.
2. Weight presses them into stone.
   - slowly
   - for millions of years
3. Faults and folds come later.

| rock | made of | hardness |
| :--- | :--- | ---: |
| sandstone | quartz grains | 6 |
| limestone | calcite | 3 |
| shale | clay | 2 |

```python
def age_of(layer: int, per_layer: float = 1.5e6) -> float:
    \"\"\"Years since this layer was laid down.\"\"\"
    return layer * per_layer  # the oldest is the deepest
```

> What has been is what will be.

- [x] read the outcrop
- [ ] draw the section

See [a survey](https://example.org/survey) and `age_of(12)`.
"""

HOSTILE = """<script>window.hacked = 1</script>

<img src="http://127.0.0.1:9/beacon.png" onerror="window.hacked = 2">

![beacon](http://127.0.0.1:9/beacon.png)

[click](javascript:window.hacked=3) [data](data:text/html,<script>window.hacked=4</script>)
[tabbed](java\tscript:window.hacked=5) [coded](&#106;avascript:window.hacked=6) [file](file:///etc/passwd)
[relative](/v1/models) <javascript:window.hacked=7>

<a href="javascript:window.hacked=8" onclick="window.hacked=9">raw</a>
<svg onload="window.hacked=10"></svg> <iframe srcdoc="<script>parent.hacked=11</script>"></iframe>
<style>body { display: none }</style><base href="http://127.0.0.1:9/">
<form action="http://127.0.0.1:9/"><button>go</button></form>

```html"><img src=x onerror=window.hacked=12>
</code></pre><script>window.hacked = 13</script>
```

| <b onmouseover="window.hacked=14">x</b> | `<i>` |
| --- | --- |
| <img src=x onerror=window.hacked=15> | &lt;script&gt;window.hacked=16&lt;/script&gt; |
"""

CALL = """I look that up.

<tool_call>
<function=get_weather>
<parameter=city>
Oslo <script>window.hacked=20</script>
</parameter>
</function>
</tool_call>"""

# What a message of the user that begins so is answered with.
REPLIES = {
    "markdown": MARKDOWN,
    "hostile": HOSTILE,
    "weather": CALL,
    "think": "First 2 and 3 make 5. <b>So</b> it is 5.\n</think>\n\nIt is **5**.",
    "slow": "word " * 400,
    "nested": "> " * 300 + "deep\n\n" + "- " * 200 + "list",
    "long": "\n\n".join(f"Paragraph {number} of a long answer." for number in range(60)),
}
STEP_S = {"slow": 0.03}
_LAST_USER = re.compile(r".*<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)
_LAST_TOOL = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


class ScribeSession(FakeSession):
    """Picks the tokens of a reply one after the other."""

    def __init__(self, text: ModelText, vocab_size: int, capacity: int) -> None:
        super().__init__(vocab_size, capacity, cut_tokens=1)
        self.text = text
        self.reply: list[int] = []
        self.prompt_len = 0
        self.step_s = 0.0

    def prefill(self, tokens, **rest):
        end = self.position + len(tokens)
        self.prompt_len = end
        prompt = self.text.decode([*self.history, *tokens.tolist()])
        asked = _LAST_USER.match(prompt)[1].strip()
        key = asked.split()[0].lower() if asked.split() else ""
        given = _LAST_TOOL.findall(asked)
        answer = f"The tool said: {given[-1]}" if given else REPLIES.get(key, f"You said: {asked}")
        if prompt.rstrip().endswith("<think>") and "</think>" not in answer:
            answer = f"Easy.\n</think>\n\n{answer}"
        self.reply = self.text.encode_more(answer)
        self.step_s = STEP_S.get(key, 0.0)
        return super().prefill(tokens, **rest)

    def decode(self, tokens):
        time.sleep(self.step_s)
        return super().decode(tokens)

    def logits_of(self, history: Sequence[int], state: int):
        place = len(history) - self.prompt_len
        end_id = next(iter(self.text.end_ids))
        logits = np.zeros(self.vocab_size, dtype=np.float32)
        logits[self.reply[place] if 0 <= place < len(self.reply) else end_id] = 100.0
        return logits


class ScribeModel(FakeModel):
    def __init__(self, text: ModelText, spec) -> None:
        super().__init__(spec.vocab_size, cut_tokens=1)
        self.text, self.spec = text, spec

    def new_session(self, capacity: int) -> ScribeSession:
        return ScribeSession(self.text, self.vocab_size, capacity)

    def memory_report(self):
        return {"routed experts": 3 << 30, "dense weights": 1 << 30, "n-gram rows": 200 << 20}


@dataclass(frozen=True)
class OpenScribe:
    """Opens the scribe; ``load_s`` is how long it pretends to load."""

    model: Path | None
    load_s: float = 0.0

    def __call__(self, *, on_progress: OnProgress) -> Engine:
        for step in range(10):
            on_progress(step, 10)
            time.sleep(self.load_s / 10)
        with open_file(self.model or default_model()) as file:
            spec = file.spec
            text = ModelText.from_metadata(file.index.metadata, spec.vocab_size)
        model = ScribeModel(text, spec)
        parts = Parts(model, text, spec.vocab_size, CONTEXT_LEN, model.close)
        return Engine(parts, Settings(checkpoints=0))


def main() -> None:
    real = serve_module.serve

    def serve(settings, options, **rest) -> None:
        real(settings, options, **{**rest, "open_engine": OpenScribe(settings.model)})

    serve_module.serve = serve
    sys.argv = ["strata", "serve", *sys.argv[1:]]
    app.main()


if __name__ == "__main__":
    main()
