"""The tests' own renaming of weights and geometry against the converter's, written apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.arrays import ArraySource, converted
from tests.models.tiny_models import TINY, tiny_model

from strata.formats.convert_transforms import spec_from_config

NAMES = [*TINY, *(f"random-{seed}" for seed in range(4))]


@pytest.mark.parametrize("name", NAMES)
def test_weights_equal_the_converters(name: str) -> None:
    model = tiny_model(name)
    state = {key: tensor.detach().numpy() for key, tensor in model.hf.state_dict().items()}
    theirs = converted(state, model.hf.config.to_dict())
    assert theirs.keys() == model.weights.keys()
    for key, weight in model.weights.items():
        np.testing.assert_array_equal(theirs[key].reshape(weight.shape), weight, err_msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_geometry_equals_the_converters(name: str) -> None:
    model = tiny_model(name)
    state = {key: tensor.detach().numpy() for key, tensor in model.hf.state_dict().items()}
    spec, _ = spec_from_config(model.hf.config.to_dict(), ArraySource(state))
    # A file holds the epsilon in float32.
    assert np.float32(spec.rms_eps) == np.float32(model.spec.rms_eps)
    ours = dataclasses.replace(model.spec, name=spec.name, rms_eps=spec.rms_eps)
    assert spec == ours
