"""The texts that are learned from: all sources in order, and how the books among them are read.

Owns what is left out of each book. Manuals are listed in ``training.manuals``; cleaning rules are
in ``training.prose``; packages are fetched in ``training.packages``.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import TYPE_CHECKING, Final

from training.documents import Document
from training.manuals import MANUALS
from training.prose import plain
from training.readers import Source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Tag of a character vector in R's serialisation; its length follows.
_R_STRINGS: Final = b"\x00\x00\x00\x10"


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
# Entries and examples with these are left out: coarse words, and what people argue about.
_UNWANTED: Final = re.compile(
    r"slur|offensive|obscen|vulgar|disparag|derogat|sexual|\bsex\b|genital|penis|vagina|coit|pubic"
    r"|copulat|erotic|prostitut|pimp\b|whore|slut|harlot|brothel|incest|orgasm|fellatio|blowjob"
    r"|crotch|semen|sperm|testic|scrot|vulv|menstru|adulter|concubin|striptease|nude|naked|lust"
    r"|bitch|bastard|nigg|negro|faggot|homosexual|lesbian|porn|\brap(e|ist)\b|breast|nipple|buttock"
    r"|excre|urin|feces|fecal|defecat|\bass\b|arse|shit|fuck|turd|fart|anus|\banal\b|rectum"
    r"|cocaine|heroin|marijuana|opium|hashish|narcotic|hallucinogen|drug|drunk|idiot|moron"
    r"|murder|tortur|massacre|suicid|\bkill|corpse|execution|gallows|\bhang(ed|man|ing)\b|lynch"
    r"|assassin|violen|weapon|\bguns?\b|rifle|pistol|bomb|missile|nuclear|\bwars?\b|warfare|militar"
    r"|\barm(y|ies|ed)\b|troops|soldier|battle|invad|invasion|\briot|persecut|slave|racis|racial"
    r"|genocid|holocaust|terroris|nazi|hitler|reich|fascis|stalin|lenin|marx|soviet|communis"
    r"|socialis|republican|democrat|liberals?\b|conservative|president|election|politic|senator"
    r"|congress|parliament|ballot|\bvot(e|er|ed|ing)\b|clinton|(?-i:Bush)|apartheid|ghetto|gypsy"
    r"|israel|palestin|iraq|vietnam|zion|jihad|\bjew|judai|hebrew|muslim|islam|christ|cathol"
    r"|protestant|hindu|buddh|\bgods?\b|heathen|pagan|religio|church|bible|\bpope\b|abortion",
    re.IGNORECASE,
)
# Names of groups of animals and plants tell a small model nothing.
_GROUP: Final = re.compile(
    r"\bgenus\b|family [A-Z]|\b(order|class|division) [A-Z]|\bsuborder|\bphylum|taxonom"
)
_LATIN: Final = re.compile(r"[A-Z][a-z]+ [a-z-]+(us|a|um|is|i|ae|ens|es|or|ax|os|on|e|x)")
_ANIMALS_AND_PLANTS: Final = {"05", "20"}


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
    if fields[1] in _ANIMALS_AND_PLANTS:
        words = [word for word in words if not _LATIN.fullmatch(word)]
    is_instance = "@i" in fields
    examples = re.findall(r'"([^"]{8,})"', gloss)
    meaning = plain(gloss.split('; "')[0].split('"')[0]).strip(" ;")
    entry = f"{', '.join(words[:4])}: {meaning}."
    if not words or is_instance or len(meaning) < 8 or not entry.isascii():
        return ""
    if _GROUP.search(" ".join([*words, meaning])) or _UNWANTED.search(" ".join([*words, meaning])):
        return ""
    shown = [plain(text) for text in examples if text.isascii() and not _UNWANTED.search(text)]
    return entry + "".join(f' "{_sentence(text)}"' for text in shown[:3])


def _sentence(text: str) -> str:
    return text if text[-1] in ".!?" else f"{text}."


BOOKS: Final = (
    Source("WordNet 3.0 glosses", "wordnet-base", "WordNet (BSD-like)", _wordnet, max_share=0.12),
    Source("Jane Austen's novels", "r-cran-janeaustenr", "public domain (package: MIT)", _austen),
    Source(
        "Shakespeare, modern spelling",
        "shakespeare",
        "public domain (package: MIT)",
        _shakespeare,
        is_debian=False,
        max_share=0.06,
    ),
)
SOURCES: Final = (*BOOKS, *MANUALS)
"""In this order a paragraph belongs to the first that has it."""
