"""A checkpoint's ``mtp.*`` tensors through the converter and onto the processor.

Checked against the draft layer assembled from transformers' modules, on the same tensors.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.models.draft_oracle import draft_model
from tests.models.tiny_models import VOCAB_SIZE

from strata.cpu.build import open_context
from strata.cpu.model import CpuModel
from strata.engine.model_file import open_file
from strata.formats.convert import ConvertOptions, convert
from strata.formats.convert_types import TypePlan

if TYPE_CHECKING:
    from pathlib import Path

    from tests.models.draft_oracle import DraftModel


def save_checkpoint(model: DraftModel, folder: Path) -> None:
    """As transformers saves the trunk, and the draft layer in a file of its own."""
    model.tiny.hf.save_pretrained(folder)
    oracle = model.oracle
    body = {
        name.removeprefix("model."): tensor.numpy()
        for name, tensor in oracle.body.state_dict().items()
        if name.startswith(("model.layers.0.", "model.hyper_connection_mixer."))
    }
    fusion = {name: tensor.numpy() for name, tensor in oracle.fusion.state_dict().items()}
    draft = {f"mtp.{name}": np.ascontiguousarray(w) for name, w in (body | fusion).items()}
    save_file(draft, folder / "model-mtp.safetensors")
    index_path = folder / "model.safetensors.index.json"
    trunk = folder / "model.safetensors"
    assert trunk.exists()
    assert not index_path.exists()
    from_trunk = dict.fromkeys(_names(trunk), trunk.name)
    from_draft = dict.fromkeys(draft, "model-mtp.safetensors")
    index_path.write_text(json.dumps({"metadata": {}, "weight_map": from_trunk | from_draft}))


def _names(path: Path) -> list[str]:
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return [name for name in header if name != "__metadata__"]


@pytest.mark.parametrize("name", ["plain", "many-qsa"])
def test_a_converted_draft_layer_drafts_as_transformers(tmp_path: Path, name: str) -> None:
    model = draft_model(name)
    folder, out = tmp_path / "hf", tmp_path / "model.gguf"
    save_checkpoint(model, folder)
    convert(folder, out, ConvertOptions(TypePlan.preset("f32"), name="tiny"))
    with open_file(out) as file:
        assert file.spec.num_draft_layers == 1
        assert {name: file.index.array(name).shape for name in file.index} == {
            name: weight.shape for name, weight in model.tiny.weights.items()
        }
        for tensor, weight in model.tiny.weights.items():
            np.testing.assert_array_equal(file.index.array(tensor), weight, err_msg=tensor)
        cpu = CpuModel(
            open_context(1, None), file.index, file.spec, kv_format="f32", has_draft=True
        )
    tokens = np.random.default_rng(1).integers(0, VOCAB_SIZE, 40).astype(np.int32)
    session = cpu.new_session(60)
    session.prefill(tokens[:-1])
    ids, probs = session.drafter.propose(int(tokens[-1]), 3)
    streams, next_tokens = model.oracle.trunk_streams(tokens[:-1]), tokens[1:]
    for token, prob in zip(ids, probs, strict=True):
        given, logits = model.oracle.forward(streams, next_tokens)
        assert token == int(logits[-1].argmax())
        powers = np.exp(logits[-1] - logits[-1].max())
        assert prob == pytest.approx(1 / powers.sum(), abs=2e-4)
        streams = np.concatenate([streams, given[-1:]])
        next_tokens = np.append(next_tokens, token)
    cpu.close()
