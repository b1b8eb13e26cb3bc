"""The bounded Jinja sandbox chat templates run in: what they may call, how much they may do.

Owns limits and the names every template expects (``raise_exception``, ``strftime_now``,
``tojson``). Does not know messages or tokens. A model file is a download, so its template is not
trusted to end.
"""

from __future__ import annotations

import functools
import json
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    import datetime

    from jinja2.parser import Parser
    from jinja2.runtime import Context

MAX_SIZE: Final = 1 << 24
"""Letters and items one value of a template may hold; a 256K-token prompt needs about 2^20."""

MAX_WORK: Final = 2_000_000
"""Loop rounds, calls and values looked at in one rendering; takes a few seconds at most."""

_CALL_WORK: Final = 8  # a macro call takes about as long as eight rounds of an empty loop
_LETTERS_PER_WORK: Final = 1024  # a copied KiB costs about as much as one call
_MAX_INT_BITS: Final = 4096
_WIDE_PERCENT: Final = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{5})")
_WIDE_BRACES: Final = re.compile(r"\{[^{}]*(?:\{|\d{5})")


_T = TypeVar("_T")


class TemplateRefusal(Exception):
    """The template called ``raise_exception``, or went past a limit; the text says which."""


class Budget:
    """What one rendering may still do."""

    _current: ContextVar[Budget | None] = ContextVar("template_budget", default=None)

    def __init__(self) -> None:
        self._work_left = MAX_WORK

    def run(self, render: Callable[[], Iterable[str]]) -> str:
        """Joined pieces of a rendering, every step of it charged here."""
        token = Budget._current.set(self)
        try:
            return join(render())
        finally:
            Budget._current.reset(token)

    @classmethod
    def charge(cls, work: int = 1) -> None:
        """Takes ``work`` from the running rendering; while compiling, refuses to fold constants."""
        budget = cls._current.get()
        if budget is None:
            raise nodes.Impossible
        budget._work_left -= work
        if budget._work_left < 0:
            raise TemplateRefusal(f"it did not end within {MAX_WORK} steps")


def join(pieces: Iterable[object]) -> str:
    """The pieces as one text, refused past MAX_SIZE before memory is taken for it."""
    texts = []
    size = 0
    for piece in pieces:
        text = piece if isinstance(piece, str) else str(weighed(piece))
        size += len(text)
        _check_size(size)
        Budget.charge(1 + len(text) // _LETTERS_PER_WORK)
        texts.append(text)
    return "".join(texts)


def weighed(value: _T) -> _T:
    """``value`` itself, once everything in it has been counted.

    A list that holds another twice counts it twice, so doubling a value cannot go on for long.
    """
    size = 0
    stack: list[object] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            size += len(item)
            Budget.charge(1 + len(item) // _LETTERS_PER_WORK)
        else:
            size += 1
            Budget.charge()
            if isinstance(item, Mapping):
                stack.extend(item.keys())
                stack.extend(item.values())
            elif isinstance(item, list | tuple | set | frozenset):
                stack.extend(item)
        _check_size(size)
    return value


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise TemplateRefusal(f"it builds a value of more than {MAX_SIZE} letters or items")


class _Rounds:
    """An iterable whose every round is charged; keeps a length where there was one."""

    def __init__(self, items: Iterable[object]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[object]:
        for item in self._items:
            Budget.charge()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]  # the TypeError is what Jinja expects


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with every operation that can grow a value charged and bounded."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(join)

    # The underscores leave every name free for the called macro's keyword arguments.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        Budget.charge(_CALL_WORK)
        owner = getattr(__obj, "__self__", None)
        if isinstance(__obj, types.BuiltinMethodType) and isinstance(owner, str):
            _check_growth(__obj.__name__, owner, (*args, *kwargs.values()))
        return weighed(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            _check_power(left, right)
        elif operator == "*":
            _check_product(left, right)
        elif operator == "+" and isinstance(left, str) and isinstance(right, str):
            _check_size(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            _check_growth("format", left, ())
        return weighed(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_BRACES.search(value.__self__):
            raise TemplateRefusal("it formats to an unbounded width")
        return wrapped


def _check_power(base: object, exponent: object) -> None:
    if isinstance(base, int) and isinstance(exponent, int):
        _check_bits(base.bit_length() * abs(exponent))


def _check_product(left: object, right: object) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    for many, times in ((left, right), (right, left)):
        if isinstance(many, str | list | tuple) and isinstance(times, int):
            _check_size(len(many) * times)


def _check_bits(num_bits: int) -> None:
    if num_bits > _MAX_INT_BITS:
        raise TemplateRefusal(f"it computes an integer of more than {_MAX_INT_BITS} bits")


def _check_growth(name: str, value: Any, args: tuple[Any, ...]) -> None:
    """Refuses what would make ``value`` grow past MAX_SIZE, before it does."""
    if name == "format" and isinstance(value, str) and _WIDE_PERCENT.search(value):
        raise TemplateRefusal("it formats to an unbounded width")
    if isinstance(value, str) and name == "replace" and len(args) > 1:
        old, new = args[:2]
        if isinstance(old, str) and isinstance(new, str):
            _check_size(len(value) + value.count(old) * len(new))
    if name == "join" and args and hasattr(args[0], "__len__") and hasattr(value, "__len__"):
        _check_size(len(value) * len(args[0]))
    lines = value.count("\n") + value.count("\t") + 1 if isinstance(value, str) else 1
    for arg in args:
        if isinstance(arg, int):
            _check_size(abs(arg) * lines)


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is charged and bounded; wraps keeps Jinja's marks on the function."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        Budget.charge(_CALL_WORK)
        _check_growth(name, args[first], (*args[first + 1 :], *kwargs.values()))
        result = function(*args, **kwargs)
        # Lazy results of map, select and the like are read through once, under the budget.
        return weighed(list(_Rounds(result)) if isinstance(result, types.GeneratorType) else result)

    return guarded


def _bound(tree: nodes.Template) -> None:
    """Routes loops, concatenations and literals of ``tree`` through charged filters, in place."""
    for loop in tree.find_all(nodes.For):
        loop.iter = _filtered("_rounds", cast("nodes.Expr", loop.iter))
    _wrap_children(tree)


def _wrap_children(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        if isinstance(value, list):
            setattr(node, field, [_wrap(item) for item in value])
        else:
            setattr(node, field, _wrap(value))


def _wrap(value: Any) -> Any:
    if not isinstance(value, nodes.Node):
        return value
    _wrap_children(value)
    if isinstance(value, nodes.Concat):
        return _filtered("_concat", nodes.List(value.nodes, lineno=value.lineno))
    is_store = isinstance(value, nodes.Tuple) and value.ctx != "load"
    if isinstance(value, nodes.List | nodes.Tuple | nodes.Dict) and not is_store:
        return _filtered("_weighed", value)
    return value


def _filtered(name: str, node: nodes.Expr) -> nodes.Expr:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """``{% generation %}`` marks trained-on text for trainers; here its body is plain body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _tojson(
    value: object,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001  # the order templates call it with
    ensure_ascii: bool = False,  # noqa: FBT001
) -> str:
    """JSON as models were trained on it: no HTML escapes, every letter as itself."""
    return json.dumps(
        weighed(value),
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def build_environment(now: Callable[[], datetime.datetime]) -> jinja2.Environment:
    """The sandbox; templates compiled in it must be rendered through ``Budget.run``."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        optimized=False,  # folding constants would run a template's arithmetic unbounded
        extensions=["jinja2.ext.loopcontrols", _Generation],
        finalize=lambda value: value if isinstance(value, str) else weighed(value),
    )
    environment.filters["tojson"] = _tojson
    for name, function in list(environment.filters.items()):
        environment.filters[name] = _guarded(name, function)
    environment.filters |= {"_rounds": _Rounds, "_concat": join, "_weighed": weighed}
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def parse(environment: jinja2.Environment, source: str) -> nodes.Template:
    """Syntax tree of ``source`` with its loops and growing values bounded."""
    tree = environment.parse(source)
    _bound(tree)
    tree.set_environment(environment)
    return tree
