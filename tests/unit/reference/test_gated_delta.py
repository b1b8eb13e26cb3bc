"""The delta rule: chunked against stepwise, and both against transformers' torch versions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.qwen4_exp import modeling_qwen4_exp

from strata.reference.gated_delta import causal_conv, chunked, stepwise
from strata.reference.norms import l2_norm


def some_inputs(num_tokens: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    heads, key_dim, value_dim = 3, 16, 12
    return {
        "q": l2_norm(rng.normal(size=(num_tokens, heads, key_dim))),
        "k": l2_norm(rng.normal(size=(num_tokens, heads, key_dim))),
        "v": rng.normal(size=(num_tokens, heads, value_dim)),
        # From hardly any decay to a forgotten past.
        "log_decay": -np.exp(rng.uniform(-6, 3, size=(num_tokens, heads))),
        "beta": rng.uniform(size=(num_tokens, heads)),
        "memory": rng.normal(size=(heads, key_dim, value_dim)),
    }


@pytest.mark.parametrize("num_tokens", [1, 5, 64, 65, 128, 200])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_equals_stepwise(num_tokens: int, chunk: int) -> None:
    inputs = some_inputs(num_tokens)
    out, memory = stepwise(**inputs)
    chunk_out, chunk_memory = chunked(**inputs, chunk=chunk)
    np.testing.assert_allclose(chunk_out, out, rtol=0, atol=1e-12)
    np.testing.assert_allclose(chunk_memory, memory, rtol=0, atol=1e-12)


@pytest.mark.parametrize("function", [stepwise, chunked])
def test_against_transformers(function) -> None:
    inputs = some_inputs(100, seed=1)
    out, memory = function(**inputs)
    names = {"q": "query", "k": "key", "v": "value", "log_decay": "g", "beta": "beta"}
    rule = modeling_qwen4_exp.torch_recurrent_gated_delta_rule
    theirs, their_memory = rule(
        **{names[name]: torch.from_numpy(inputs[name])[None] for name in names},
        initial_state=torch.from_numpy(inputs["memory"])[None],
        output_final_state=True,
    )
    # transformers computes this in float32.
    np.testing.assert_allclose(out, theirs[0].numpy(), rtol=0, atol=2e-6)
    np.testing.assert_allclose(memory, their_memory[0].numpy(), rtol=0, atol=2e-6)


def test_inputs_are_not_modified() -> None:
    for function in (stepwise, chunked):
        inputs = some_inputs(9)
        kept = {name: array.copy() for name, array in inputs.items()}
        function(**inputs)
        for name, array in kept.items():
            np.testing.assert_array_equal(inputs[name], array)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_chunked_keeps_the_dtype(dtype: type) -> None:
    inputs = {name: array.astype(dtype) for name, array in some_inputs(70).items()}
    out, memory = chunked(**inputs)
    assert out.dtype == memory.dtype == dtype
    exact = stepwise(**{name: array.astype(np.float64) for name, array in inputs.items()})[0]
    np.testing.assert_allclose(out, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("kernel", "dilation"), [(4, 1), (2, 1), (4, 3), (3, 2)])
def test_convolution_against_torch(kernel: int, dilation: int) -> None:
    rng = np.random.default_rng(2)
    x, weight = rng.normal(size=(20, 5)), rng.normal(size=(5, kernel))
    reach = (kernel - 1) * dilation
    history = rng.normal(size=(reach, 5))
    wanted = torch.nn.functional.conv1d(
        torch.from_numpy(np.concatenate([history, x]).T.copy())[None],
        torch.from_numpy(weight)[:, None],
        dilation=dilation,
        groups=5,
    )[0].T.numpy()
    np.testing.assert_allclose(causal_conv(x, history, weight, dilation), wanted, atol=1e-13)
    # The same, one token at a time with a moving history.
    for t in range(20):
        one = causal_conv(
            x[t : t + 1], np.concatenate([history, x])[t : t + reach], weight, dilation
        )
        np.testing.assert_allclose(one[0], wanted[t], atol=1e-13)
