"""Which control tokens a rendered chat owes to its template, and which to somebody's typing.

Owns the stand-ins: single letters no valid text can hold, put in place of control tokens in the
template before it runs. Does not run templates. Called by ``chat_template`` only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from jinja2 import nodes

from strata.errors import UnsupportedError
from strata.text.tokenizer import Span

if TYPE_CHECKING:
    from collections.abc import Collection

# Lone surrogates: no valid text holds one, so nothing in a message can be mistaken for a stand-in,
# and as single letters no filter (trim, split, slice, tojson ...) can cut them in two.
_FIRST: Final = 0xD800
_NUM: Final = 0x800
_STAND_IN: Final = re.compile("[\ud800-\udfff]")

# Methods whose arguments are looked for in a message, where a literal is meant as text.
_SEARCHES: Final = frozenset(
    {"split", "rsplit", "startswith", "endswith", "find", "rfind", "index", "rindex", "count"}
    | {"strip", "lstrip", "rstrip", "partition", "rpartition", "removeprefix", "removesuffix"}
)


class StandIns:
    """Stand-ins of one template.

    A template that writes whole control tokens, as nearly all do, gets a stand-in for each, and
    what a rendering then holds of literals was typed by somebody. A template that builds them from
    parts (``'<|' + role + '|>'``) is the other way round: possible starts of a control token are
    shielded in the messages, and literals in the rendering are the template's.
    """

    def __init__(self, control_literals: Collection[str]) -> None:
        ordered = sorted(filter(None, control_literals), key=len, reverse=True)
        self._literal = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._starts = {literal[:2] for literal in ordered}
        heads = "|".join(sorted(re.escape(start) for start in self._starts))
        firsts = "".join(sorted({re.escape(start[0]) for start in self._starts}))
        # A start is shielded also where the rest may follow from the next message.
        self._start = re.compile(rf"(?=(?:{heads}))|(?=[{firsts}]\s*$)") if ordered else None
        self._letter_of: dict[str, str] = {}
        self._text_of: dict[str, Span] = {}
        self.is_built = False
        """Whether the template builds control tokens from parts."""

    def replace_in(self, tree: nodes.Template) -> None:
        """Puts stand-ins for the control tokens ``tree`` writes, in place."""
        self._replace(tree, is_search=False)

    def replace_text(self, text: str) -> str:
        """``text`` of the template with a stand-in for every control token."""
        if self._literal is None:
            return text
        text = self._literal.sub(lambda found: self._letter(found[0], is_plain=False), text)
        if any(text.endswith(start) for start in self._starts):
            self.is_built = True
        return text

    def shield(self, text: str) -> str:
        """``text`` of a message, safe to render."""
        if not self.is_built or self._start is None:
            return text
        letters = []
        done = 0
        for found in self._start.finditer(text):
            at = found.start()
            letters += [text[done:at], self._letter(text[at], is_plain=True)]
            done = at + 1
        return "".join([*letters, text[done:]])

    def spans(self, rendered: str) -> list[Span]:
        """``rendered`` with its stand-ins resolved; neighbours of one kind are joined."""
        pieces: list[tuple[list[str], bool]] = []

        def add(text: str, *, is_plain: bool) -> None:
            if text and pieces and pieces[-1][1] == is_plain:
                pieces[-1][0].append(text)
            elif text:
                pieces.append(([text], is_plain))

        done = 0
        for found in _STAND_IN.finditer(rendered):
            add(rendered[done : found.start()], is_plain=not self.is_built)
            # A stand-in that is not ours can only come from an escape in the template itself.
            span = self._text_of.get(found[0], Span("\ufffd", is_plain=True))
            add(span.text, is_plain=span.is_plain)
            done = found.end()
        add(rendered[done:], is_plain=not self.is_built)
        return [Span("".join(texts), is_plain) for texts, is_plain in pieces]

    def _letter(self, text: str, *, is_plain: bool) -> str:
        letter = self._letter_of.get(text)
        if letter is None:
            if len(self._letter_of) == _NUM:
                raise UnsupportedError(
                    f"the chat template names more than {_NUM} different control tokens.\n"
                    "  Try: another model file, or give a template of your own."
                )
            letter = chr(_FIRST + len(self._letter_of))
            self._letter_of[text] = letter
            self._text_of[letter] = Span(text, is_plain)
        return letter

    def _replace(self, node: nodes.Node, *, is_search: bool) -> None:
        if isinstance(node, nodes.TemplateData):
            node.data = self.replace_text(node.data)
        elif isinstance(node, nodes.Const) and isinstance(node.value, str) and not is_search:
            node.value = self.replace_text(node.value)
        elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            self._replace(node.node, is_search=is_search)
            self._replace_args(node.node.attr, [*node.args, *node.kwargs])
        elif isinstance(node, nodes.Filter):
            if node.node is not None:
                self._replace(node.node, is_search=is_search)
            self._replace_args("strip" if node.name == "trim" else node.name, node.args)
        else:
            is_search = is_search or isinstance(node, nodes.Compare | nodes.Test)
            for child in node.iter_child_nodes():
                self._replace(child, is_search=is_search)

    def _replace_args(self, name: str, args: list[nodes.Node] | list[nodes.Expr]) -> None:
        for index, arg in enumerate(args):
            is_search = name in _SEARCHES or (name == "replace" and index == 0)
            self._replace(arg, is_search=is_search)
