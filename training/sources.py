"""The texts that are learned from: where in a package they lie, and how each is read.

Owns the list of packages, their licences and what is left out of each. Does not fetch packages;
cleaning rules are in ``training.prose``.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from training.documents import Document
from training.prose import page, plain, without_lonely_headings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Tag of a character vector in R's serialisation; its length follows.
_R_STRINGS: Final = b"\x00\x00\x00\x10"


@dataclass(frozen=True, slots=True)
class Source:
    """One package.

    Attributes:
        name: what the table calls it.
        package: Debian's or PyPI's name.
        is_debian: which of the two.
        licence: of the text.
        read: documents of the unpacked package.
        max_share: most it may be of the whole corpus.
    """

    name: str
    package: str
    licence: str
    read: Callable[[Path], Iterator[Document]]
    is_debian: bool = True
    max_share: float = 1.0


@dataclass(frozen=True, slots=True)
class _Pages:
    """HTML pages of a manual.

    Attributes:
        root: folder within the package.
        xpath: where a page has its text.
        folders: the only folders below root to read; all without.
        skipped: expression of paths below root that are left out.
        label: goes before every title.
    """

    root: str
    xpath: str
    label: str
    folders: tuple[str, ...] = ()
    skipped: str = r"$^"
    suffix: str = ".html"

    def __call__(self, package: Path) -> Iterator[Document]:
        root = package / self.root
        for path in sorted(root.rglob(f"*{self.suffix}")):
            name = path.relative_to(root).as_posix()
            if path.is_symlink() or re.search(self.skipped, name):
                continue
            if self.folders and not name.startswith(self.folders):
                continue
            title, blocks = page(path.read_bytes(), self.xpath)
            kept = without_lonely_headings(blocks)
            title = re.sub(r"^(Chapter )?([A-Z]|\d+)(\.\d+)*\.\s*", "", title)
            title = title if re.fullmatch(r"[\w ,:;?!'()/.-]{3,80}", title) else path.stem
            if kept and kept[0] == title:
                kept = kept[1:]
            yield Document(f"{self.label}: {title}", kept)


def _shakespeare(package: Path) -> Iterator[Document]:
    """Modern spelling only (files without ``_f``), an act or twenty poems at a time."""
    skipped = r"_f\.txt$|metadata|lucrece|titus|venus"
    for path in sorted(package.rglob("shksprdata/texts/*_gut.txt")):
        if re.search(skipped, path.name):
            continue
        text = path.read_text(encoding="utf-8", errors="replace").replace("\r", "")
        work = path.stem.removesuffix("_gut").replace("_", " ").title()
        parts = re.split(r"\n(?=[ ]*ACT [IVX1-5]+\b)", text)
        # What comes before the first act is the list of persons.
        parts = parts[1:] if len(parts) > 2 else re.split(r"\n(?=[IVX]+0?\n)", text)
        for number, part in enumerate(_joined(parts, 6000), start=1):
            blocks = [_verse(block) for block in re.split(r"\n\s*\n", part)]
            kept = [block for block in blocks if len(block) > 1 and not block.isupper()]
            yield Document(f"Shakespeare: {work}, part {number}", kept)


def _verse(block: str) -> str:
    """One speech, line by line."""
    lines = (plain(line) for line in block.splitlines())
    return "\n".join(line for line in lines if line and not re.fullmatch(r"\[?\d+\]?", line))


def _joined(parts: list[str], size: int) -> Iterator[str]:
    """``parts``, small neighbours joined to at least ``size`` letters."""
    pending = ""
    for part in parts:
        pending = f"{pending}\n\n{part}" if pending else part
        if len(pending) >= size:
            yield pending
            pending = ""
    if pending:
        yield pending


def _austen(package: Path) -> Iterator[Document]:
    """The six novels, a chapter at a time, out of the R package's compressed objects."""
    stored = next(package.rglob("janeaustenr/data/Rdata.rdb")).read_bytes()
    at = 0
    while at < len(stored):
        stream = zlib.decompressobj()
        lines = _r_strings(stream.decompress(stored[at + 4 :]))
        at = len(stored) - len(stream.unused_data)
        novel = lines[0].title()
        chapters = re.split(r"\n(?=[ ]*CHAPTER \w+)", "\n".join(lines), flags=re.IGNORECASE)
        for number, chapter in enumerate(chapters[1:], start=1):
            blocks = [plain(block).replace("_", "") for block in re.split(r"\n\s*\n", chapter)]
            kept = [block for block in blocks[1:] if not block.isupper() and len(block) > 1]
            if kept and kept[-1].lower().startswith(("the end", "finis")):
                kept.pop()
            yield Document(f"{novel}, chapter {number}", kept)


def _r_strings(serialized: bytes) -> list[str]:
    """The strings of a serialised R character vector (format 3, big-endian)."""
    at = serialized.index(_R_STRINGS) + 4
    (count,) = struct.unpack_from(">i", serialized, at)
    at += 4
    strings = []
    for _ in range(count):
        _, length = struct.unpack_from(">ii", serialized, at)
        at += 8
        strings.append(serialized[at : at + max(length, 0)].decode("utf-8", errors="replace"))
        at += max(length, 0)
    return strings


_WORD_KINDS: Final = {"noun": "Nouns", "verb": "Verbs", "adj": "Adjectives", "adv": "Adverbs"}
_SYNSETS_A_DOCUMENT: Final = 40
# Entries and examples with these are left out: coarse words, and what one argues about.
_UNWANTED: Final = re.compile(
    r"slur|offensive|obscen|vulgar|disparag|derogat|sexual|\bsex\b|genital|penis|vagina|coit|copulat"
    r"|erotic|prostitut|whore|bitch|bastard|nigger|negro|faggot|homosexual|lesbian|porn|rape|rapist"
    r"|nazi|hitler|genocid|holocaust|terroris|suicid|murder|tortur|massacre|slave|racis|racial"
    r"|communis|fascis|socialis|republican|democrat|liberals?\b|conservative|president|election"
    r"|politic|senator|congress|parliament|nuclear|\bwars?\b|warfare|bomb|missile|\bkill|jew|muslim|islam|christ"
    r"|cathol|protestant|\bgods?\b|religio|church|bible|abortion|cocaine|heroin|marijuana|drug|fart"
    r"|excre|urin|feces|defecat|\bass\b|arse|shit|fuck|turd|breast|nipple|buttock|corpse|execution|idiot|moron",
    re.IGNORECASE,
)
# Names of groups of animals and plants, and of persons, tell a small model nothing.
_LATIN: Final = re.compile(r"\bgenus\b|\bfamily [A-Z]|\border [A-Z]|\bsuborder|\bphylum|taxonom")


def _wordnet(package: Path) -> Iterator[Document]:
    """Words and what they mean, forty meanings at a time."""
    for kind, label in _WORD_KINDS.items():
        path = next(package.rglob(f"wordnet/data.{kind}"))
        entries = [
            entry
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
            if not line.startswith(" ") and (entry := _entry(line))
        ]
        for number, start in enumerate(range(0, len(entries), _SYNSETS_A_DOCUMENT), start=1):
            paragraphs = entries[start : start + _SYNSETS_A_DOCUMENT]
            yield Document(f"{label} and what they mean, part {number}", paragraphs)


def _entry(line: str) -> str:
    """``apple: fruit with red or yellow skin. "She ate an apple."``, or nothing."""
    head, _, gloss = line.partition(" | ")
    fields = head.split()
    num_words = int(fields[3], 16)
    words = [re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in fields[4::2][:num_words]]
    is_instance = "@i" in fields
    examples = re.findall(r'"([^"]{8,})"', gloss)
    meaning = plain(gloss.split('; "')[0].split('"')[0]).strip(" ;")
    if len(meaning) < 8 or is_instance or _LATIN.search(f"{words[0]} {meaning}"):
        return ""
    if _UNWANTED.search(" ".join(words)) or _UNWANTED.search(meaning):
        return ""
    shown = [plain(text) for text in examples if text.isascii() and not _UNWANTED.search(text)]
    quoted = "".join(f' "{_sentence(text)}"' for text in shown[:3])
    entry = f"{', '.join(words[:4])}: {meaning}.{quoted}"
    return entry if entry.isascii() else ""


def _sentence(text: str) -> str:
    return text if text[-1] in ".!?" else f"{text}."


_PYTHON: Final = _Pages(
    "usr/share/doc/python3.11/html",
    "//div[@role='main']",
    "Python",
    skipped=r"^(about|bugs|contents|copyright|distutils|download|genindex|index|license|py-modindex"
    r"|search)|whatsnew/changelog|library/(intro|index)|/index\.html",
)
_POSTGRESQL: Final = _Pages(
    "usr/share/doc/postgresql-doc-15/html",
    "//body",
    "PostgreSQL",
    skipped=r"^(release|features|bookindex|index|legalnotice|biblio|acronyms|errcodes|sql-keywords"
    r"|contrib-|acknowledg|resources)",
)
_SQLITE: Final = _Pages(
    "usr/share/doc/sqlite3",
    "//body",
    "SQLite",
    skipped=r"^(changes|chronology|doc_|keyword_index|cves|releaselog|consortium|hirely|codeof|crew"
    r"|private|prosupport|copyright|c3ref/(objlist|funclist|constlist|c_)|docs|download|sitemap|news"
    r"|support|famous|books|different$|syntax/|session/c_|rescode|th3|index|oldnews|mingo)",
)
_RUST: Final = _Pages(
    "usr/share/doc/rust-doc/html",
    "//main",
    "Rust",
    skipped=r"^(core|src|implementors|test|guide-|settings|help|grammar|tutorial|complement|index)|(first|second|2018)-edition|print\.html|std/(arch|simd)|core_arch|SUMMARY|os/raw",
)
_DJANGO: Final = _Pages(
    "usr/share/doc/python-django-doc/html",
    "//div[@id='bd']//div[@class='yui-b'] | //div[@role='main']",
    "Django",
    folders=("faq", "glossary", "howto", "intro", "ref", "topics", "misc", "internals"),
    skipped=r"internals/(deprecation|security|organization)|index\.html",
)
_APACHE: Final = _Pages(
    "usr/share/doc/apache2-doc/manual/en",
    "//div[@id='page-content']",
    "Apache",
    skipped=r"sitemap|license|index\.html|new_features|quickreference",
)

SOURCES: Final = (
    Source("WordNet 3.0 glosses", "wordnet-base", "WordNet (BSD-like)", _wordnet),
    Source("Jane Austen's novels", "r-cran-janeaustenr", "public domain (package: MIT)", _austen),
    Source(
        "Shakespeare, modern spelling",
        "shakespeare",
        "public domain (package: MIT)",
        _shakespeare,
        is_debian=False,
        max_share=0.15,
    ),
    Source("Python manual", "python3.11-doc", "PSF-2.0", _PYTHON),
    Source("PostgreSQL manual", "postgresql-doc-15", "PostgreSQL", _POSTGRESQL),
    Source("SQLite manual", "sqlite3-doc", "public domain", _SQLITE),
    Source("Rust books and library manual", "rust-doc", "MIT or Apache-2.0", _RUST),
    Source("Django manual", "python-django-doc", "BSD-3-Clause", _DJANGO),
    Source("Apache web server manual", "apache2-doc", "Apache-2.0", _APACHE),
)
