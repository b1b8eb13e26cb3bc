"""A trained network as a Hugging Face ``qwen4_exp`` folder in bfloat16.

``python -m training.export WEIGHTS FOLDER``: transformers writes the trunk in the checkpoint's own
layout, so that it surely loads it; the draft layer goes into a file of its own (``mtp.*``, which
transformers ignores).
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import Qwen4ExpForCausalLM, Qwen4ExpTextConfig

from training.config import DEMO, Geometry
from training.weights import read_weights

_DATA = Path(__file__).parent / "data"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_DRAFT_FILE = "model-mtp.safetensors"
_INDEX = "model.safetensors.index.json"


def export(state: dict[str, Tensor], geometry: Geometry, folder: Path) -> None:
    """Writes config, tokenizer and weights.

    Args:
        state: of ``training.network.Network``.
        geometry: that it was built from.
        folder: made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in state.items()}
    draft = {name: state.pop(name) for name in list(state) if name.startswith("mtp.")}
    draft = _per_expert(draft)
    config = Qwen4ExpTextConfig.from_dict(geometry.config())
    model: nn.Module = Qwen4ExpForCausalLM(config)
    nn.Module.to(model, torch.bfloat16)
    missing, unexpected = model.load_state_dict(state, strict=False)
    constants = {name for name, _ in model.named_buffers()}
    if unexpected or set(missing) - constants:
        raise ValueError(f"names differ: missing {missing}, unexpected {unexpected}")
    model.save_pretrained(folder)  # type: ignore[operator]
    save_file(draft, folder / _DRAFT_FILE)
    _write_index(folder)
    for name in _TOKENIZER_FILES:
        if (_DATA / name).is_file() and geometry.vocab_size == DEMO.vocab_size:
            shutil.copyfile(_DATA / name, folder / name)


def _per_expert(draft: dict[str, Tensor]) -> dict[str, Tensor]:
    """Experts one by one, as the checkpoint stores them."""
    out = {}
    for name, tensor in draft.items():
        stem, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            for expert, both in enumerate(tensor):
                gate, up = both.chunk(2)
                out[f"{stem}.{expert}.gate_proj.weight"] = gate.contiguous()
                out[f"{stem}.{expert}.up_proj.weight"] = up.contiguous()
        elif last == "down_proj":
            for expert, down in enumerate(tensor):
                out[f"{stem}.{expert}.down_proj.weight"] = down.contiguous()
        else:
            out[name] = tensor
    return out


def _write_index(folder: Path) -> None:
    """One index over the files transformers wrote and the draft layer's."""
    from safetensors import safe_open

    places: dict[str, str] = {}
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - safe_open has no iteration of its own
                places[name] = path.name
                tensor = file.get_slice(name)
                size = 1
                for length in tensor.get_shape():
                    size *= length
                total += 2 * size
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (folder / _INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Reads the weights of a finished run and writes the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path, help="folder with weights-*.bin of a run")
    parser.add_argument("folder", type=Path)
    wanted = parser.parse_args()
    export(read_weights(wanted.weights), DEMO, wanted.folder)


if __name__ == "__main__":
    main()
