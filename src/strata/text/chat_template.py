"""A conversation to the spans of its prompt, by the model file's own Jinja template.

Owns which control tokens the template itself wrote: only those become tokens, whatever the
messages hold. Does not encode. The sandbox and its limits are in ``template_sandbox``.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import jinja2

from strata.errors import CheckpointError, RequestError
from strata.text.stand_ins import StandIns
from strata.text.template_sandbox import Budget, TemplateRefusal, build_environment, parse

if TYPE_CHECKING:
    from strata.text.tokenizer import Span, Tokenizer

TEMPLATE_KEY: Final = "tokenizer.chat_template"

_MAX_DEPTH: Final = 64

_NO_TOOLS: Final = (
    "{%- if tools %}"
    "{{ raise_exception('the model has no chat template, so it cannot be told of tools') }}"
    "{%- endif %}"
)
_CHATML: Final = _NO_TOOLS + (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + (message.content or '') + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
_SIMPLE: Final = _NO_TOOLS + (
    "{%- for message in messages %}"
    "{{- message.role | capitalize + ': ' + (message.content or '') + '\n\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'Assistant:' }}{%- endif %}"
)
_PROBE: Final = "probe"

# What Jinja code may raise on values it was not written for.
_TEMPLATE_FAULTS: Final = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


class ChatTemplate:
    """One compiled template. Immutable; safe to share between threads."""

    def __init__(
        self,
        source: str,
        control_literals: Collection[str] = ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
        *,
        variables: Mapping[str, str] | None = None,
        notice: str | None = None,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        """Compiles ``source``.

        Args:
            source: Jinja text.
            control_literals: texts of the tokenizer's control tokens.
            variables: further names the template may use, such as ``bos_token``; trusted.
            notice: one sentence for the user, when this is not the model's own template.
            now: clock behind ``strftime_now``.

        Raises:
            CheckpointError: the template is not valid Jinja.
        """
        self.source = source
        self.notice = notice
        environment = build_environment(now)
        self._stand_ins = StandIns(control_literals)
        try:
            tree = parse(environment, source)
            self._stand_ins.replace_in(tree)
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise _bad_template(f"{error.message}, line {error.lineno}") from None
        except (jinja2.TemplateError, SyntaxError) as error:
            raise _bad_template(str(error)) from None
        except (RecursionError, MemoryError):
            raise _bad_template("it is nested too deeply") from None
        self._variables = {
            name: self._stand_ins.replace_text(text) for name, text in (variables or {}).items()
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], tokenizer: Tokenizer) -> ChatTemplate:
        """The template of a GGUF file, or a plain stand-in with a ``notice`` if it has none.

        The stand-in is ChatML where the vocabulary has ``<|im_start|>``, otherwise lines of
        ``Role: text``. It takes no tools.

        Raises:
            CheckpointError: the template is not valid Jinja, or not text.
        """
        source = metadata.get(TEMPLATE_KEY)
        literals = tokenizer.control_literals
        if source is None or source == "":
            is_chatml = {"<|im_start|>", "<|im_end|>"} <= set(literals)
            form = "the ChatML form" if is_chatml else "lines of 'Role: text'"
            return cls(
                _CHATML if is_chatml else _SIMPLE,
                literals,
                notice=f"The model file has no chat template; the conversation is given as {form}.",
            )
        if not isinstance(source, str):
            raise _bad_template(f"expected text, found {type(source).__name__}")
        special = {
            "bos_token": tokenizer.bos_id,
            "eos_token": tokenizer.eos_id,
            "pad_token": tokenizer.pad_id,
        }
        variables = {
            name: tokenizer.token_bytes(token_id).decode("utf-8", errors="replace")
            for name, token_id in special.items()
            if token_id is not None
        }
        return cls(source, literals, variables=variables)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,  # noqa: FBT001  # the name templates use
        **kwargs: object,
    ) -> list[Span]:
        """The prompt, cut into what the template wrote as control tokens and everything else.

        Args:
            messages: each with ``role`` and ``content`` (text, or a list of parts), and whatever
                else the template knows, such as ``tool_calls``. Only JSON-like values.
            tools: JSON descriptions of functions, passed as they are.
            add_generation_prompt: end with the opening of an assistant turn.
            kwargs: further names for the template, such as ``enable_thinking``.

        Returns:
            Spans for ``Tokenizer.encode_spans``. Text of the messages is never in a span that is
            not plain.

        Raises:
            RequestError: the template refuses the conversation, fails on it or does not end, or a
                value is not JSON-like or not valid Unicode.
        """
        values: dict[str, Any] = {
            "messages": [self._message(message) for message in messages],
            "tools": tools or None,
            **kwargs,
        }
        plain = {name: self._checked(value, name) for name, value in values.items()}
        return self._stand_ins.spans(
            self._run(self._variables | plain | {"add_generation_prompt": add_generation_prompt})
        )

    def _run(self, values: Mapping[str, object]) -> str:
        try:
            return Budget().run(lambda: self._template.generate(values))
        except TemplateRefusal as error:
            raise RequestError(
                f"the chat template refused the conversation: {error}.\n"
                "  Try: change the messages as it says, or use another template."
            ) from None
        except _TEMPLATE_FAULTS as error:
            raise RequestError(
                "the chat template failed on the conversation: "
                f"{str(error) or type(error).__name__}.\n"
                "  Try: check roles and contents of the messages, or use another template."
            ) from None

    @functools.cached_property
    def takes_parts(self) -> bool:
        """Whether the template reads a content that is a list of parts, found by trying."""
        parts = [{"type": "text", "text": _PROBE}]
        values = {"messages": [{"role": "user", "content": parts}], "tools": None}
        try:
            text = self._run(self._variables | values | {"add_generation_prompt": False})
        except RequestError:
            return False
        return _PROBE in text and "'type'" not in text and '"type"' not in text

    def _message(self, message: object) -> object:
        """``message`` in the form templates read: parts joined if need be, arguments as objects."""
        if not isinstance(message, Mapping):
            return message
        changed = dict(message)
        content = changed.get("content")
        if isinstance(content, Sequence) and not isinstance(content, str) and not self.takes_parts:
            changed["content"] = "\n".join(map(_part_text, content))
        calls = changed.get("tool_calls")
        if isinstance(calls, Sequence) and not isinstance(calls, str):
            changed["tool_calls"] = [_with_object_arguments(call) for call in calls]
        return changed

    def _checked(self, value: object, where: str, depth: int = 0) -> object:
        """A copy of ``value`` of plain JSON types, its texts shielded as the template needs."""
        if depth > _MAX_DEPTH:
            raise _bad_value(where, f"it is nested more than {_MAX_DEPTH} deep")
        if isinstance(value, str):
            if not value.isascii() and (found := _SURROGATE.search(value)):
                raise _bad_value(where, f"a lone surrogate at character {found.start()}")
            return self._stand_ins.shield(str(value))
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise _bad_value(where, f"a key of type {type(key).__name__}")
            return {
                self._checked(key, where, depth + 1): self._checked(
                    item, f"{where}.{key}" if depth < 3 else where, depth + 1
                )
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [
                self._checked(item, f"{where}[{index}]" if depth < 3 else where, depth + 1)
                for index, item in enumerate(value)
            ]
        if value is None or isinstance(value, bool | int | float):
            return value
        raise _bad_value(where, f"a value of type {type(value).__name__}")


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise RequestError(
            f"the chat template takes text only, but a message has a part of type {kind!r}.\n"
            "  Try: send the content as text."
        )
    return text


def _with_object_arguments(call: object) -> object:
    """A tool call whose arguments are an object; clients send them as JSON text."""
    if not isinstance(call, Mapping):
        return call
    function = call.get("function")
    if isinstance(function, Mapping):
        return {**call, "function": _with_object_arguments(function)}
    arguments = call.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return call
    return {**call, "arguments": parsed} if isinstance(parsed, dict) else call


def _bad_value(where: str, problem: str) -> RequestError:
    return RequestError(
        f"the conversation cannot be given to the chat template: {problem}.\n"
        f"  where: {where}\n"
        "  Try: send text, numbers, lists and objects, as valid UTF-8."
    )


def _bad_template(problem: str) -> CheckpointError:
    return CheckpointError(
        f"the model's chat template cannot be used: {problem}.\n"
        f"  metadata: {TEMPLATE_KEY}\n"
        "  Try: another model file, or give a template of your own."
    )
