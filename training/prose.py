"""Which text is worth learning from, and how it is written down.

Owns the way from HTML to paragraphs, the spelling of punctuation, and the rules that keep prose and
drop code, tables, listings and names. Knows no source of text.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_PUNCTUATION: Final = str.maketrans(
    {
        "\u2018": "'", "\u2019": "'", "\u201a": "'", "\u201b": "'", "\u2032": "'", "\u00b4": "'",
        "\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2033": '"', "\u00ab": '"', "\u00bb": '"',
        "\u2010": "-", "\u2011": "-", "\u2012": "-", "\u2013": "-", "\u2212": "-", "\u2015": "--",
        "\u2014": "--", "\u2026": "...", "\u00a0": " ", "\u2002": " ", "\u2003": " ",
        "\u2009": " ", "\u200a": " ", "\u202f": " ", "\u3000": " ", "\u00ad": "", "\u200b": "",
        "\u200c": "", "\u200d": "", "\ufeff": "", "\u00b6": "", "\u2022": "-", "\u00b7": "-",
        "\u2192": "->", "\u2190": "<-", "\u21d2": "=>", "\u00d7": "x", "\u2264": "<=",
        "\u2265": ">=", "\u2260": "!=", "\u2044": "/",
    }
)  # fmt: skip

_DROPPED_TAGS: Final = frozenset(
    {"script", "style", "nav", "pre", "table", "dt", "svg", "form", "math", "summary", "button"}
    | {"select", "footer", "header", "figure", "iframe", "noscript", "textarea", "h6"}
)
_DROPPED_CLASSES: Final = frozenset(
    {"headerlink", "toc", "contents", "navheader", "navfooter", "nosearch", "admonition-title"}
    | {"versionadded", "versionchanged", "deprecated", "highlight", "indexterm", "footnote"}
    | {"synopsis", "refsynopsisdiv", "related", "sphinxsidebar"}
    | {"toctree-wrapper", "seealso", "sidebar", "out-of-band", "code-header", "stab", "since"}
    | {"example-wrap", "item-info", "mobile-nav", "imgcontainer", "availability"}
    | {"bottomlang", "toplang", "section-number", "item-table", "src", "directive-table", "up"}
)
_BLOCK_TAGS: Final = frozenset(
    {"p", "li", "dd", "dl", "ul", "ol", "div", "section", "blockquote", "article", "main", "body"}
    | {"h1", "h2", "h3", "h4", "h5", "h6", "td", "tr", "details", "aside", "center", "hr"}
)
HEADING: Final = "#"
"""Starts the text of a heading among the paragraphs of a page."""

_SYMBOLS: Final = re.compile(r"[^A-Za-z0-9\s.,;:!?'\"()-]")
_WORD: Final = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
_LIKE_CODE: Final = re.compile(
    r"\w_\w|\w\(\)|::|[a-z]\.[a-z]|[a-z][A-Z]|--[a-z]|==|\$\w|\\|[A-Za-z]\d|\d[A-Za-z]{2}|\b[A-Z]{4,}\b"
)
_NUMBER: Final = re.compile(r"^(?:(?:Chapter|Appendix) )?(?:[A-Z]\.[\d.]*|\d[\d.]*) +(?=\S)")
# What ends in a colon led to something that was left out.
_SENTENCE_END: Final = re.compile(r"[.!?][\"')]*$")
# Manuals joke, give examples and argue; a word that also has a technical sense is not here.
_INDECENT: Final = re.compile(
    r"\b(fuck|shit|bitch|bastard|nigg|faggot|porn|whore|slut|penis|vagina|dildo|orgasm|masturbat|rapist"
    r"|suicid|murder|massacre|genocid|holocaust|hitler|nazi|fascis|terroris|terrorism|jihad|apartheid"
    r"|abortion|cocaine|heroin\b|marijuana|stalin\b|lenin\b|marxis|communis[mt]|socialis[mt]"
    r"|republicans?\b|presidential|clinton|trump\b|obama|israeli|palestin|iraq|afghan|crap(py)?\b"
    r"|\bass(es|hole)?\b|arse(hole)?\b|damn|goddam|sexual|sexy|\bsex\b|erotic|nude\b|boobs?\b|tits\b"
    r"|retard(ed)?\b|racis[mt]|sexis[mt]|slaves? trade|politic(s|al|ally|ians?)\b|idiot|stupid"
    r"|suck(s|ed|ing)?\b|psychoactive|drugs?\b|terror|teenage)",
    re.IGNORECASE,
)
# The words every running English text is full of.
_COMMON: Final = frozenset(
    {"the", "a", "an", "of", "to", "and", "in", "is", "it", "that", "for", "be", "are", "was", "as"}
    | {"with", "on", "by", "this", "not", "or", "which", "at", "from", "you", "can", "have", "has"}
    | {"if", "but", "will", "he", "she", "his", "her", "they", "their", "one", "when", "may", "its"}
    | {"i", "my", "me", "all", "so"}
)


def plain(text: str) -> str:
    """``text`` composed, with ASCII punctuation and single spaces."""
    composed = unicodedata.normalize("NFC", text).translate(_PUNCTUATION)
    return " ".join(composed.split())


def is_prose(paragraph: str) -> bool:
    """Whether ``paragraph`` (of ``plain`` text) is sentences rather than code, names or a list."""
    words = _WORD.findall(paragraph)
    num_words = len(words)
    if num_words < 6 or not _SENTENCE_END.search(paragraph) or not paragraph[0].isascii():
        return False
    letters = sum(map(len, words))
    common = sum(word.lower() in _COMMON for word in words)
    return (
        common >= 0.22 * num_words
        and letters >= 0.72 * len(paragraph)
        and letters <= 6.6 * num_words
        and len(_SYMBOLS.findall(paragraph)) <= 0.01 * len(paragraph)
        and len(_LIKE_CODE.findall(paragraph)) <= 0.04 * num_words
        and max(map(len, paragraph.split())) <= 28
        and sum(not letter.isascii() for letter in paragraph) <= 0.01 * len(paragraph)
    )


def is_decent(paragraph: str) -> bool:
    """Whether ``paragraph`` of a manual can be read to anybody: nothing coarse, no politics."""
    return not _INDECENT.search(paragraph)


def without_lonely_headings(paragraphs: Iterable[str]) -> list[str]:
    """The paragraphs that are prose, and the headings that still have some under them."""
    kept: list[str] = []
    heading = ""
    for paragraph in paragraphs:
        if paragraph.startswith(HEADING):
            heading = without_number(paragraph.removeprefix(HEADING).strip())
        elif is_prose(paragraph):
            if heading and _is_plain_heading(heading):
                kept.append(heading)
            heading = ""
            kept.append(paragraph)
    return kept


def without_number(heading: str) -> str:
    """``heading`` without the number of its chapter or section."""
    return _NUMBER.sub("", heading)


def page(html: bytes, xpath: str) -> tuple[str, list[str]]:
    """Title and paragraphs of the first element of an HTML page that ``xpath`` finds.

    Args:
        html: UTF-8.
        xpath: where the text is.

    Returns:
        The main heading, and the blocks in order, headings marked with ``HEADING``. Nothing where
        the page has no such element.
    """
    # Only who makes the corpus needs it.
    import lxml.html

    if not html.strip():
        return "", []
    parser = lxml.html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    root = lxml.html.document_fromstring(html, parser=parser)
    found = root.xpath(xpath)
    if not found:
        return "", []
    blocks = _Blocks()
    blocks.read(found[0], "body")
    named = plain(root.findtext("head/title") or "")
    title = next((text for tag, text in blocks.found if tag == "h1"), named)
    return title, [
        f"{HEADING} {text}" if re.fullmatch("h[1-6]", tag) else text for tag, text in blocks.found
    ]


class _Blocks:
    """The blocks of an element: tag of the innermost block around a text, and the text."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self._pending: list[str] = []

    def read(self, element: Any, around: str) -> None:
        """Adds what ``element`` holds; ``around`` is the block it stands in."""
        tag = element.tag if isinstance(element.tag, str) else ""
        is_block = tag in _BLOCK_TAGS or tag in _DROPPED_TAGS
        if is_block:
            self._end_block(around)
        elif tag == "br":
            self._pending.append(" ")
        if tag and tag not in _DROPPED_TAGS and _DROPPED_CLASSES.isdisjoint(element.classes):
            self._read_inside(element, tag if is_block else around)
        if is_block:
            self._end_block(tag)

    def _read_inside(self, element: Any, around: str) -> None:
        self._pending.append(element.text or "")
        for child in element:
            self.read(child, around)
            self._pending.append(child.tail or "")

    def _end_block(self, tag: str) -> None:
        text = plain("".join(self._pending))
        self._pending.clear()
        if text:
            self.found.append((tag, text))


def _is_plain_heading(heading: str) -> bool:
    return len(heading) <= 70 and not _LIKE_CODE.search(heading) and not _SYMBOLS.search(heading)
