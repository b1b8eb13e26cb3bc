"""Writes what docs/ has from the code: ``python scripts/write_docs.py``. A test compares.

docs/modules.md is made from the first lines of modules and headers, the table in docs/settings.md
from the fields of ``Settings``.
"""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

from strata.settings import Settings, wish_of

ROOT = Path(__file__).resolve().parents[1]
MODULES, SETTINGS = ROOT / "docs" / "modules.md", ROOT / "docs" / "settings.md"
_SOURCE = ROOT / "src" / "strata"
_HEAD = """# Modules

Every module and what it is for, in its own first words: to find the one that does something. How
they belong together is in [architecture](architecture.md). Made by `python scripts/write_docs.py`.
"""


def modules_page() -> str:
    """Markdown with a table for each folder of the package, and one for the extension."""
    folders = sorted({path.parent for path in _SOURCE.rglob("*.py")})
    parts = [_HEAD]
    for folder in folders:
        name = ".".join(folder.relative_to(_SOURCE.parent).parts)
        rows = [(path.stem, _first_words(path)) for path in sorted(folder.glob("[!_]*.py"))]
        parts.append(_table(f"`{name}`", _first_words(folder / "__init__.py"), rows))
    rows = [(path.name, _first_sentence(path)) for path in sorted((ROOT / "native").glob("*.h"))]
    parts.append(_table("`native`", "The extension `strata._native`, in C++.", rows))
    return "\n".join(parts)


def settings_table() -> str:
    """A row for each field of ``Settings``."""
    lines = ["| name | flag | environment | default | meaning |", "| --- | --- | --- | --- | --- |"]
    for item in fields(Settings):
        wish = wish_of(item.name)
        flag = ", ".join(f"`{part}`" for part in wish.flags)
        env = f"`{wish.env}`" if wish.env else ""
        choices = f" One of {', '.join(wish.choices)}." if wish.choices else ""
        default = "" if item.default is None else f"`{item.default}`"
        lines.append(f"| `{item.name}` | {flag} | {env} | {default} | {wish.help}{choices} |")
    return "\n".join(lines) + "\n"


def settings_page(old: str) -> str:
    """The page with the table in the place of the one it has."""
    return re.sub(r"(?m)(^\|.*\n)+", lambda _: settings_table(), old, count=1)


def _table(title: str, intro: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"## {title}", "", intro, "", "| module | what it is |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| `{name}` | {words} |" for name, words in rows), ""])


def _first_words(path: Path) -> str:
    """The first paragraph of a module's docstring, as Markdown."""
    paragraph = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
    return " ".join(paragraph.split()).replace("``", "`").replace("|", "\\|")


def _first_sentence(path: Path) -> str:
    """Of the comment a header begins with."""
    comment = re.match(r"(//.*\n)+", path.read_text())
    text = re.sub(r"(?m)^// ?", "", comment[0]) if comment else ""
    sentence = re.match(r"(.+?\.)(\n| (?=[A-Z]))", text, re.DOTALL)
    return " ".join(sentence[1].split()) if sentence else ""


def main() -> None:
    """Writes both pages."""
    MODULES.write_text(modules_page())
    SETTINGS.write_text(settings_page(SETTINGS.read_text()))


if __name__ == "__main__":
    main()
