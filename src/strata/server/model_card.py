"""Facts of the served model for people: sizes, layers, experts, and what of it this server knows.

Owns which facts are told. No figure in it changes while the server runs.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from strata import __version__
from strata.engine.sampling_params import SamplingParams
from strata.model_spec import LayerKind

if TYPE_CHECKING:
    from strata.server.serving import Serving
    from strata.server.telemetry_host import HostFacts

_DEFAULTS: Final = SamplingParams()
_TOLD: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
)


def card_of(serving: Serving, machine: HostFacts) -> dict[str, Any]:
    """The facts, as JSON."""
    spec, model = serving.model.spec, serving.model
    ready = serving.engine.ready
    kinds = spec.layer_kinds
    return {
        "version": __version__,
        "model": {
            "id": model.name,
            "aliases": [name for name in serving.aliases if name != "*"],
            "name": spec.name or None,
            "layers": spec.num_layers,
            "recurrent_layers": sum(kind is LayerKind.GDN for kind in kinds),
            "attention_layers": sum(kind is LayerKind.QSA for kind in kinds),
            "draft_layers": spec.num_draft_layers,
            "experts": spec.num_experts,
            "active_experts": spec.top_k,
            "width": spec.hidden_size,
            "vocabulary": spec.vocab_size,
            "trained_context": spec.context_len,
            "has_thinking": model.text.has_thinking,
            "has_images": False,
        },
        "sampling": {name: getattr(_DEFAULTS, name) for name in _TOLD},
        "context_len": None if ready is None else ready.context_len,
        "machine": dataclasses.asdict(machine),
    }
