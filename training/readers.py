"""Documents out of manuals: HTML pages, the XML of desktop help, and Perl's plain documentation.

Owns ``Source`` and the readers that serve several packages. Which packages there are is said in
``training.manuals`` and ``training.sources``; which paragraphs are kept, in ``training.prose``.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from training.documents import Document
from training.prose import HEADING, is_decent, page, plain, without_lonely_headings, without_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ANYWHERE: Final = (
    "//div[@role='main'] | //main | //article"
    " | //body[not(//div[@role='main'] or //main or //article)]"
)
"""Where a page has its text, if nothing is known of it."""

# Pages that every generator of manuals writes, and that say nothing.
_NO_TEXT: Final = re.compile(
    r"(^|/)(genindex|search|py-modindex|modindex|index-\d|copyright|license|gfdl|fdl|gpl|legal"
    r"|contents|bookindex|changelog|changes|releasenotes|release-notes|_modules|_sources|_static)"
    r"|(^|/)(whats_?new|release_?notes|news|credits|authors|thanks|security-advisories)",
    re.IGNORECASE,
)
_TITLE: Final = re.compile(r"[\w ,:;?!'()/.&-]{3,80}")


@dataclass(frozen=True, slots=True)
class Source:
    """One package.

    Attributes:
        name: what the table calls it.
        package: Debian's or PyPI's name.
        licence: of the text.
        read: documents of the unpacked package.
        is_debian: which of the two.
        max_share: most it may be of the whole corpus.
        is_copyleft: whether its text is kept out of the sample that lies in the repository.
    """

    name: str
    package: str
    licence: str
    read: Callable[[Path], Iterator[Document]]
    is_debian: bool = True
    max_share: float = 0.15
    is_copyleft: bool = False


@dataclass(frozen=True, slots=True)
class Pages:
    """HTML pages of a manual.

    Attributes:
        root: folder within the package.
        xpath: where a page has its text.
        label: goes before every title.
        folders: the only folders below root to read; all without.
        skipped: expression of paths below root that are left out.
        suffix: end of the pages' names; those of ``gzip`` are unpacked.
        is_help: whether the pages are Mallard or DocBook, as desktops show them.
    """

    root: str
    xpath: str
    label: str
    folders: tuple[str, ...] = ()
    skipped: str = r"$^"
    suffix: str = ".html"
    is_help: bool = False

    def __call__(self, package: Path) -> Iterator[Document]:
        """Documents of the unpacked package, in the order of their paths."""
        root = package / self.root
        for path in sorted(root.rglob(f"*{self.suffix}")):
            name = path.relative_to(root).as_posix()
            if path.is_symlink() or not path.is_file():
                continue
            if re.search(self.skipped, name) or _NO_TEXT.search(name):
                continue
            if self.folders and not name.startswith(self.folders):
                continue
            stored = path.read_bytes()
            stored = gzip.decompress(stored) if path.suffix == ".gz" else stored
            html = help_as_html(stored) if self.is_help else stored
            yield document(self.label, *page(html, self.xpath), path.stem)


@dataclass(frozen=True, slots=True)
class Pod:
    """Perl's plain old documentation: files below ``root`` that end in ``suffix``."""

    root: str
    label: str
    skipped: str = r"$^"
    suffix: str = ".pod"

    def __call__(self, package: Path) -> Iterator[Document]:
        """Documents of the unpacked package, in the order of their paths."""
        root = package / self.root
        for path in sorted(root.rglob(f"*{self.suffix}")):
            if not re.search(self.skipped, path.relative_to(root).as_posix()):
                text = path.read_text(encoding="utf-8", errors="replace")
                yield document(self.label, *pod_blocks(text), path.stem)


def document(label: str, title: str, blocks: list[str], stem: str) -> Document:
    """What of a page is prose, and decent; ``stem`` names it if its title is none."""
    whole = (text for text in blocks if _MISSING not in text and is_decent(text))
    kept = without_lonely_headings(whole)
    title = without_number(title)
    title = title if _TITLE.fullmatch(title) else stem
    return Document(f"{label}: {title}", kept[1:] if kept and kept[0] == title else kept)


# Elements of Mallard and DocBook, by the names that HTML has for such.
_AS_HTML: Final = {
    "para": "p", "simpara": "p", "p": "p", "title": "h2", "item": "li", "listitem": "li",
    "section": "div", "table": "table", "figure": "figure", "term": "dt", "subtitle": "h6",
    "screen": "pre", "programlisting": "pre", "synopsis": "pre", "literallayout": "pre",
}  # fmt: skip
# Listings are blocks in Mallard's ``code``; what is about the page is no part of it.
_ABOUT: Final = re.compile(
    rb"<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^\[>]*(\[.*?\])?>"
    rb"|<(info|\w+info|indexterm|remark|comment)\b.*?</\2>",
    re.DOTALL,
)
_TAG: Final = re.compile(r"<(/?)([a-z]+)\b([^<>]*?)(/?)>")
_MISSING: Final = "\ufffd"


def help_as_html(xml: bytes) -> bytes:
    """A page of help with the names of HTML; where a name was to be filled in, a mark of that."""

    def renamed(match: re.Match[str]) -> str:
        end, name, _, is_empty = match.groups()
        if is_empty:
            return _MISSING if name in {"link", "xref"} else ""
        return f"<{end}{_AS_HTML.get(name, 'span')}>"

    text = re.sub(
        r"&(?!(amp|lt|gt|quot|apos|#\w+);)[\w.-]+;", _MISSING, _ABOUT.sub(b"", xml).decode()
    )
    html = _TAG.sub(renamed, text).replace("<h2>", "<h1>", 1).replace("</h2>", "</h1>", 1)
    return f"<html><body>{html}</body></html>".encode()


_POD_CODE: Final = re.compile(r"\b[A-Z]<([^<>]*)>")
_POD_WIDE_CODE: Final = re.compile(r"\b[A-Z]<< (.*?) >>")
# Stand for the brackets that are text, until those of codes are gone.
_HIDDEN: Final = str.maketrans("<>", "\x01\x02")
_SHOWN: Final = str.maketrans("\x01\x02", "<>")


def pod_blocks(text: str) -> tuple[str, list[str]]:
    """The name that a Perl manual page gives itself, and its paragraphs, headings marked."""
    title = ""
    blocks = []
    is_name = False
    for block in re.split(r"\n\s*\n", text.replace("\r", "")):
        if block.startswith((" ", "\t")) or re.match(r"=(for|begin|end|encoding)\b", block):
            continue
        words = re.sub(r"^=(item|over|back|cut|pod)\b[ *]*", "", block)
        heading = re.match(r"=head\d\s+", words)
        words = plain(_without_pod_codes(words[heading.end() :] if heading else words))
        if heading:
            is_name = words == "NAME"
            blocks.append(f"{HEADING} {words.capitalize() if words.isupper() else words}")
        elif is_name:
            title, is_name = words.split(" - ", 1)[0], False
        else:
            blocks.append(words)
    return title, blocks


def _without_pod_codes(text: str) -> str:
    """``B<word>`` and the like as the bare words, from the inside out."""
    text = _POD_WIDE_CODE.sub(lambda match: match[1].translate(_HIDDEN), text)
    text = text.replace("E<lt>", "\x01").replace("E<gt>", "\x02")
    text = re.sub(r"X<[^<>]*>|Z<>", "", text)
    for _ in range(3):
        text = _POD_CODE.sub(lambda match: match[1].split("|", 1)[0], text)
    return text.translate(_SHOWN)
