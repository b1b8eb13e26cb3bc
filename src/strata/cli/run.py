"""``strata run``: one prompt, one answer. Text on stdout, everything else on stderr."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from strata.cli.console import Answer, Bar, interrupt, notices_on_stderr, read_stdin, say
from strata.cli.forms import Grammar, JsonSchema, form_of
from strata.cli.options import ENGINE_SETTINGS, with_settings
from strata.cli.spoken import Spoken
from strata.cli.stats import stats_of
from strata.engine.engine import Engine
from strata.engine.generation import Generation
from strata.engine.request import Completion, Timings, TokenEvent
from strata.engine.sampler import SamplingParams
from strata.engine.session import OnProgress
from strata.errors import EngineStopped, RequestError
from strata.settings import Settings
from strata.text.form import Form
from strata.text.thoughts import THINK_END

Thinking = Annotated[
    bool | None,
    typer.Option(
        "--thinking/--no-thinking", help="Reason before the answer. Default: as the model does."
    ),
]


@with_settings(*ENGINE_SETTINGS, "routing_trace")
def command(
    settings: Settings,
    prompt: Annotated[str, typer.Argument(help="The text; - reads standard input.")],
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", help="End after this many tokens.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="0 always takes the likeliest token; 1 samples as trained.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample among the K likeliest; 0 for all.")] = 20,
    top_p: Annotated[float, typer.Option(help="Sample within this share of probability.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text itself, without the chat template.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with ids and timings at the end.")
    ] = False,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after an end token.")
    ] = False,
    thinking: Thinking = None,
    json_schema: JsonSchema = None,
    grammar: Grammar = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Say afterwards where experts were found.")
    ] = False,
) -> None:
    """Answer one prompt. The text streams to standard output."""
    text = read_stdin() if prompt == "-" else prompt
    if not text:
        raise RequestError("the prompt is empty.\n  Try: strata run 'a question'.")
    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    form = form_of(json_schema, grammar)
    with notices_on_stderr(), Bar("loading") as loading, Bar("reading the prompt") as reading:
        engine = Engine.from_settings(settings, on_progress=loading)
        with engine:
            is_chat = not raw and engine.has_chat_template
            if not raw and not is_chat:
                say("note: this model has no chat template; the text is continued as it stands.")
            if is_chat and form is not None and engine.has_thinking:
                thinking = bool(thinking)  # the form has to know where it begins
            if is_chat:
                generation = _asked(engine, text, sampling, form, thinking, reading)
            else:
                generation = engine.generate(text, sampling, form=form, on_progress=reading)
            answer = Answer(generation)
            is_thinking = is_chat and bool(thinking)
            spoken = Spoken(is_thinking=is_thinking, is_silent=as_json)
            try:
                completion = _show(answer, spoken)
            except KeyboardInterrupt:
                if not as_json:
                    typer.echo()
                interrupt(answer)
                raise
            except BrokenPipeError:
                answer.cancel()
                raise
            told = stats_of(engine, completion.timings) if stats else []
    if as_json:
        typer.echo(json.dumps(_as_dict(completion, spoken), ensure_ascii=False))
    else:
        typer.echo()
        say(describe(completion.timings))
    for part in told:
        Console(stderr=True, highlight=False, soft_wrap=True).print(part)


def _asked(
    engine: Engine,
    text: str,
    sampling: SamplingParams,
    form: Form | None,
    is_thinking: bool | None,  # noqa: FBT001
    on_progress: OnProgress,
) -> Generation:
    """The answer to a text as a user's message; a form begins where its thinking ends."""
    return engine.chat(
        [{"role": "user", "content": text}],
        sampling,
        form=form,
        form_after=THINK_END if form is not None and is_thinking else "",
        on_progress=on_progress,
        **thinking_values(engine, is_thinking),
    )


def thinking_values(engine: Engine, is_on: bool | None) -> dict[str, Any]:  # noqa: FBT001
    """What the chat template is told of thinking; nothing when nobody asked.

    Raises:
        RequestError: thinking is asked of a model that has none.
    """
    if is_on is None:
        return {}
    if is_on and not engine.has_thinking:
        raise RequestError(
            "this model's chat template has no thinking to turn on.\n  Try: leave --thinking out."
        )
    return {"enable_thinking": is_on}


def describe(timings: Timings) -> str:
    """Counts and speeds in one line."""
    return (
        f"[{timings.prompt_tokens} prompt tokens"
        + (f", {timings.reused_tokens} reused" if timings.reused_tokens else "")
        + f", {timings.prompt_tokens_per_s:.1f}/s; {timings.generated_tokens} generated, "
        f"{timings.decode_tokens_per_s:.1f}/s; first after {timings.ttft_s:.2f} s"
        + (f"; drafts kept: {_describe_drafts(timings)}" if timings.drafts_proposed else "")
        + "]"
    )


def _describe_drafts(timings: Timings) -> str:
    """Kept of proposed for each place in the window."""
    counts = zip(timings.drafts_accepted, timings.drafts_proposed, strict=True)
    return ", ".join(f"{accepted} of {proposed}" for accepted, proposed in counts)


def _show(answer: Answer, spoken: Spoken) -> Completion:
    parts: list[str] = []
    ids: list[int] = []
    last: TokenEvent | None = None
    for event in answer:
        parts.append(event.text)
        ids += event.token_ids
        spoken.add(event.text)
        last = event
    spoken.end()
    if last is None or last.finish_reason is None or last.timings is None:
        raise EngineStopped("the answer ended without a reason.\n  Try: run it again.")
    text = "".join(parts)
    return Completion(last.request_id, text, tuple(ids), last.finish_reason, last.timings)


def _as_dict(completion: Completion, spoken: Spoken) -> dict[str, object]:
    timings = completion.timings
    return {
        "text": spoken.text,
        "reasoning": spoken.reasoning,
        "token_ids": list(completion.token_ids),
        "finish_reason": str(completion.finish_reason),
        "prompt_tokens": timings.prompt_tokens,
        "reused_tokens": timings.reused_tokens,
        "generated_tokens": timings.generated_tokens,
        "ttft_s": timings.ttft_s,
        "prompt_tokens_per_s": timings.prompt_tokens_per_s,
        "decode_tokens_per_s": timings.decode_tokens_per_s,
        "drafts_proposed": list(timings.drafts_proposed),
        "drafts_accepted": list(timings.drafts_accepted),
        "experts": None if timings.experts is None else timings.experts.as_dict(),
    }
