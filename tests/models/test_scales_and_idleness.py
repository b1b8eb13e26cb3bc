"""Scales that files keep beside their tensors, and what an engine costs that has nothing to do."""

import time

import numpy as np

from strata.engine.build import open_parts
from strata.formats.block_formats import FORMATS
from strata.formats.gguf_writer import GgufWriter, TensorPlan
from strata.formats.synth import GEOMETRIES, synthesize, uniform_mix
from strata.formats.tensor_index import open_model
from strata.settings import Settings

SCALED = ("blk.0.attn_qkv", "blk.1.ffn_gate_exps", "blk.3.ffn_down_exps", "blk.2.ffn_up_shexp")


def rewrite(source, target, factor):
    """A copy whose SCALED tensors are F32 and divided by factor, with that scale beside each."""
    with open_model(source) as index:
        plans, parts = [], []
        for name, entry in index.items():
            is_scaled = name.removesuffix(".weight") in SCALED
            plans.append(
                TensorPlan(name, entry.shape, FORMATS["F32"] if is_scaled else entry.format)
            )
            parts.append(index.array(name) / np.float32(factor) if is_scaled else index.raw(name))
        for stem in SCALED if factor != 1 else ():
            num = index[f"{stem}.weight"].shape[0] if stem.endswith("_exps") else 1
            plans.append(TensorPlan(f"{stem}.scale", (num,), FORMATS["F32"]))
            parts.append(np.full(num, factor, np.float32))
        metadata = {k: v for k, v in index.metadata.items() if k != "general.alignment"}
        with GgufWriter(target, metadata, plans) as writer:
            for plan, part in zip(plans, parts, strict=True):
                writer.write(plan.name, part)
    return target


def open_tiny(path):
    return open_parts(Settings(model=path, threads=2, context_len=64)).model


def test_a_scale_of_two_doubles_a_tensor(tmp_path):
    """Halved weights with scales of two give the bits of the whole weights: both are exact."""
    synthesize(tmp_path / "m.gguf", GEOMETRIES["tiny"], uniform_mix("Q8_0"), 3)
    tokens = np.arange(40, dtype=np.int32)
    logits = []
    for factor in (1, 2, 4):
        path = rewrite(tmp_path / "m.gguf", tmp_path / f"{factor}.gguf", factor)
        model = open_tiny(path)
        logits.append(model.new_session(64).prefill(tokens))
        model.close()
    assert np.array_equal(logits[0], logits[1])
    assert np.array_equal(logits[0], logits[2])
    assert np.ptp(logits[0]) > 0.1


def test_an_idle_engine_uses_no_processor(tmp_path):
    synthesize(tmp_path / "m.gguf", GEOMETRIES["tiny"], uniform_mix("Q8_0"), 3)
    model = open_tiny(tmp_path / "m.gguf")
    model.new_session(64).prefill(np.arange(30, dtype=np.int32))
    time.sleep(0.1)  # the threads look for work for a moment
    begin = time.process_time()
    time.sleep(2)
    assert (time.process_time() - begin) / 2 < 0.01
    model.close()
