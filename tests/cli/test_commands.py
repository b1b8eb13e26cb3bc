"""Commands in this process: what they print and what they refuse.

Generated text is checked against the library (``Engine``) on the same file; file figures against
the file itself (its size, the geometry it was made from).
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from strata import Engine, SamplingParams, __version__
from strata.cli.app import COMMANDS
from strata.formats.convert_types import TypePlan
from strata.formats.synth import GEOMETRIES, synthesize

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typer.testing import Result

    Strata = Callable[..., Result]


def test_help_lists_every_command(strata: Strata):
    result = strata("--help")
    assert result.exit_code == 0
    for name, (_, line) in COMMANDS.items():
        assert name in result.stdout
        assert line in result.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(strata: Strata, name: str):
    result = strata(name, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_version(strata: Strata):
    assert strata("--version").stdout == f"strata {__version__}\n"


def test_unknown_command_names_the_nearest(strata: Strata):
    result = strata("chta")
    assert result.exit_code == 2
    assert "did you mean chat?" in result.stderr


def test_run_prints_what_the_library_answers(strata: Strata, tiny: Path):
    result = strata("run", "-m", tiny, "--raw", "-n", 9, "--ignore-eos", "hello there")
    assert result.exit_code == 0, result.stderr
    with Engine.open(tiny) as engine:
        sampling = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
        completion = engine.generate_text("hello there", sampling)
    assert result.stdout == completion.text + "\n"
    assert "9 generated" in result.stderr


def test_run_uses_the_chat_template_unless_raw(strata: Strata, tiny: Path):
    args = ("run", "-m", tiny, "-n", 3, "--json", "hi")
    in_chat = json.loads(strata(*args).stdout)
    raw = json.loads(strata(*args, "--raw").stdout)
    with Engine.open(tiny) as engine:
        assert in_chat["prompt_tokens"] == len(engine.tokenize([{"role": "user", "content": "hi"}]))
        assert raw["prompt_tokens"] == len(engine.tokenize("hi"))


def test_run_samples_the_same_text_for_the_same_seed(strata: Strata, tiny: Path):
    def ids(seed: int) -> list[int]:
        args = ("run", "-m", tiny, "--raw", "-n", 12, "--temperature", 1, "--ignore-eos")
        answer = strata(*args, "--seed", seed, "--json", "hello")
        return json.loads(answer.stdout)["token_ids"]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_run_reads_standard_input(strata: Strata, tiny: Path):
    args = ("run", "-m", tiny, "--raw", "-n", 4, "--json")
    by_pipe = json.loads(strata(*args, "-", stdin="hello").stdout)
    by_argument = json.loads(strata(*args, "hello").stdout)
    assert by_pipe["token_ids"] == by_argument["token_ids"]


@pytest.mark.parametrize(
    ("args", "stdin", "code", "message"),
    [
        (("",), None, 1, "the prompt is empty"),
        (("-",), b"", 1, "the prompt is empty"),
        (("-",), b"ab\xff", 1, "not UTF-8: byte 0xff at offset 2"),
        (("hi", "--context", 4), None, 1, "context holds 4"),
        (("hi", "--context", 0), None, 2, "context_len must be at least 1"),
        (("hi", "--kv", "f61"), None, 2, "Try: f16"),
        (("hi", "--temperature", -1), None, 2, "temperature is -1.0"),
        (("hi", "--threads", "two"), None, 2, "--threads"),
        (("hi", "--no-such-flag"), None, 2, "--no-such-flag"),
        (("hi", "-n", 5000), None, 1, "5000 to generate, but the context holds 4096"),
    ],
)
def test_run_refuses(
    strata: Strata, tiny: Path, args: tuple[object, ...], stdin: bytes, code: int, message: str
):
    result = strata("run", "-m", tiny, *args, stdin=stdin)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_environment_is_below_flags(strata: Strata, tiny: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STRATA_THREADS", "none")
    assert strata("run", "-m", tiny, "hi", "-n", 1, "--threads", 1).exit_code == 0
    result = strata("run", "-m", tiny, "hi", "-n", 1)
    assert result.exit_code == 2
    assert "STRATA_THREADS must be a whole number, not 'none'" in result.stderr


def test_run_without_a_model_uses_the_demo(strata: Strata):
    result = strata("run", "What is 12*12?")
    assert result.exit_code == 0
    assert "144" in result.stdout
    assert "small demo model" in result.stderr


def test_run_without_a_model_where_the_demo_is_missing(
    strata: Strata, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("strata.engine.default_model._DEMO_FOLDER", "nowhere")
    result = strata("run", "hi")
    assert result.exit_code == 1
    assert "is not installed" in result.stderr
    assert "Traceback" not in result.stderr


def test_chat_answers_and_forgets(strata: Strata, tiny: Path):
    lines = "hello\n/undo\n/undo\nhello\n/reset\n/nonsense\nhello\n/quit\nnever read\n"
    result = strata("chat", "-m", tiny, "-n", 5, "--temperature", 0, stdin=lines)
    assert result.exit_code == 0, result.stderr
    answers = result.stdout.splitlines()
    with Engine.open(tiny) as engine:
        messages = [{"role": "user", "content": "hello"}]
        sampling = SamplingParams(temperature=0.0, max_tokens=5)
        expected = engine.chat(messages, sampling).complete().text
    # After /undo and after /reset the same question is the first one again.
    assert answers == [line for _ in range(3) for line in expected.splitlines()]
    assert "nothing to take back" in result.stderr
    assert "/nonsense" in result.stderr


def test_chat_remembers(strata: Strata, tiny: Path):
    result = strata("chat", "-m", tiny, "-n", 5, "--temperature", 0, stdin="hello\nagain\n")
    first_prompt, second_prompt = (
        int(line.split()[0][1:]) for line in result.stderr.splitlines() if "prompt tokens" in line
    )
    assert second_prompt > first_prompt + 5


def test_chat_says_when_the_context_is_full_and_goes_on(strata: Strata, tiny: Path):
    long = "word " * 400
    lines = f"{long}\nhello\n"
    result = strata("chat", "-m", tiny, "-n", 3, "--context", 200, stdin=lines)
    assert result.exit_code == 0
    assert "context holds 200" in result.stderr
    assert "/reset" in result.stderr
    assert "3 generated" in result.stderr


def test_inspect_tells_the_geometry_and_all_bytes(strata: Strata, tiny: Path):
    report = json.loads(strata("inspect", tiny, "--json", "--tensors").stdout)
    sizes = GEOMETRIES["tiny"]
    assert report["geometry"]["layers"] == sizes.num_layers
    assert report["geometry"]["experts"] == sizes.num_experts
    assert report["geometry"]["vocabulary"] == sizes.vocab_size
    assert report["bytes"] == sum(tensor["bytes"] for tensor in report["tensors"])
    header = tiny.stat().st_size - report["bytes"]
    assert 0 < header < 200_000
    experts = report["classes"]["routed experts"]
    weights = sizes.num_layers * sizes.num_experts * 3 * sizes.hidden_size * sizes.expert_size
    assert experts["weights"] == weights
    assert experts["bytes"] == weights * 34 // 32  # Q8_0: 34 bytes for 32 weights
    assert experts["bytes_per_token"] == experts["bytes"] * sizes.top_k // sizes.num_experts
    assert report["tokenizer"]["pre"] == "qwen35"


def test_inspect_for_people(strata: Strata, tiny: Path):
    result = strata("inspect", tiny)
    assert result.exit_code == 0
    assert "2 of 8" in result.stdout
    assert "routed experts" in result.stdout


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model" * 100])
def test_inspect_refuses_what_is_no_model(strata: Strata, tmp_path: Path, content: bytes):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    for args in (("inspect", path), ("run", "-m", path, "hi")):
        result = strata(*args)
        assert result.exit_code == 1
        assert "bad.gguf" in result.stderr
        assert "Try:" in result.stderr


def test_synth_takes_sizes_and_formats(strata: Strata, tmp_path: Path):
    out = tmp_path / "made.gguf"
    result = strata(
        "synth", out, "--set", "num_experts=4", "--set", "num_layers=8", "--mix", "Q4_0"
    )
    assert result.exit_code == 0, result.stderr
    report = json.loads(strata("inspect", out, "--json").stdout)
    assert report["geometry"]["experts"] == 4
    assert report["geometry"]["sparse_attention_layers"] == 2
    assert set(report["classes"]["routed experts"]["formats"]) == {"Q4_0"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--geometry", "tyni"), "Try: --geometry tiny"),
        (("--set", "num_expert=4"), "Try: --set num_experts=1"),
        (("--set", "num_experts=four"), "must be a number"),
        (("--mix", "Q9"), "Q9"),
        (("--mix", "preset:q9"), "q9"),
    ],
)
def test_synth_refuses(strata: Strata, tmp_path: Path, args: tuple[str, ...], message: str):
    result = strata("synth", tmp_path / "made.gguf", *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 1, "config.json"),
        (("--type", "q9"), 2, "q9"),
        (("--class-type", "dens=Q8_0"), 2, "Try: dense"),
        (("--class-type", "dense"), 2, "must be NAME=FORMAT"),
    ],
)
def test_convert_refuses(
    strata: Strata, tmp_path: Path, args: tuple[str, ...], code: int, message: str
):
    result = strata("convert", tmp_path, tmp_path / "out.gguf", *args)
    assert result.exit_code == code
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_bench_measures(strata: Strata, tiny: Path, tmp_path: Path):
    out = tmp_path / "figures.json"
    args = ("--prompt-tokens", 20, "--decode-tokens", 4, "--rounds", 2, "--threads", 1)
    result = strata("bench", "-m", tiny, *args, "--json", out)
    assert result.exit_code == 0, result.stderr
    report = json.loads(out.read_text())
    assert len(report["measured"]) == 2
    assert report["measured"][0]["prompt_tokens"] == 20
    assert report["measured"][0]["decode_tokens"] == 4
    by_class = sum(report["bytes_per_token_by_class"].values())
    assert report["bytes_per_token"] == by_class
    share = report["decode_tokens_per_s"] * by_class / report["bandwidth_bytes_per_s"]
    assert report["bandwidth_share"] == pytest.approx(share)
    assert "tokens/s" in result.stdout


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "drafting.gguf"
    geometry = dataclasses.replace(GEOMETRIES["tiny"], num_draft_layers=1)
    synthesize(path, geometry, TypePlan.preset("q8_0"))
    return path


def test_run_with_drafts_prints_the_same_and_counts_them(strata: Strata, drafting: Path):
    args = ("run", "-m", drafting, "--raw", "-n", 40, "--ignore-eos", "hello there")
    plain, drafted = strata(*args), strata(*args, "--draft", 2)
    assert drafted.stdout == plain.stdout
    assert "drafts kept" not in plain.stderr
    report = json.loads(strata(*args, "--draft", 2, "--json").stdout)
    kept = ", ".join(
        f"{kept} of {offered}"
        for kept, offered in zip(report["drafts_accepted"], report["drafts_proposed"], strict=True)
    )
    assert len(report["drafts_proposed"]) == 2
    assert sum(report["drafts_accepted"]) > 0
    assert f"drafts kept: {kept}]" in drafted.stderr


def test_drafts_without_a_draft_layer_are_a_notice(strata: Strata, tiny: Path):
    result = strata("run", "-m", tiny, "--raw", "-n", 2, "--draft", 1, "hello")
    assert result.exit_code == 0
    assert "no draft layer" in result.stderr


def test_bench_counts_drafts(strata: Strata, drafting: Path, tmp_path: Path):
    out = tmp_path / "figures.json"
    args = ("--prompt-tokens", 20, "--decode-tokens", 20, "--rounds", 2, "--threads", 1)
    result = strata("bench", "-m", drafting, *args, "--draft", 2, "--json", out)
    assert result.exit_code == 0, result.stderr
    report = json.loads(out.read_text())
    assert len(report["drafts"]) == 2
    for place, counts in enumerate(report["drafts"]):
        for key in ("proposed", "accepted"):
            assert counts[key] == sum(item[f"drafts_{key}"][place] for item in report["measured"])
    assert f"of {report['drafts'][1]['proposed']}" in result.stdout


def test_bench_against_nobody_known(strata: Strata, tiny: Path):
    result = strata("bench", "-m", tiny, "--against", "vllm")
    assert result.exit_code == 2
    assert "--against llama.cpp" in result.stderr


def test_bench_against_llama_cpp(strata: Strata, tiny: Path, tmp_path: Path):
    pytest.importorskip("xllamacpp")
    out = tmp_path / "figures.json"
    args = ("--prompt-tokens", 16, "--decode-tokens", 4, "--rounds", 2, "--threads", 1)
    result = strata("bench", "-m", tiny, *args, "--against", "llama.cpp", "--json", out)
    assert result.exit_code == 0, result.stderr
    report = json.loads(out.read_text())
    rival = report["rival"]
    assert len(rival["decode_ratios"]) == 2
    assert [item["prompt_tokens"] for item in rival["rounds"]] == [16, 16]
    assert [item["decode_tokens"] for item in rival["rounds"]] == [4, 4]
    assert "xllamacpp" in result.stdout
