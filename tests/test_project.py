"""The project's own rules, run with the tests: style, types, layers, sizes, documents."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from scripts.write_docs import MODULES, SETTINGS, modules_page, settings_page

import strata
from strata.cli.app import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
MAX_MODULE_LINES = 400
MAX_BODY_LINES = 60
# Functions whose bodies are longer, and why.
LONG_BODIES = {
    "delta_step._step_kernel": "who writes and who reads between its barriers stands in one place",
}


def run_tool(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.parametrize("arguments", [("check", "."), ("format", "--check", ".")])
def test_ruff(arguments):
    run_tool(sys.executable, "-m", "ruff", *arguments)


def test_types():
    run_tool(sys.executable, "-m", "mypy")


def test_types_of_training():
    pytest.importorskip("torch", reason="the training code's types are torch's")
    run_tool(sys.executable, "-m", "mypy", "training")


def test_layers():
    # The tool has no module to run; its command lies beside the interpreter.
    run_tool(str(Path(sys.executable).with_name("lint-imports")))


def test_modules_are_small():
    modules = [p for folder in ("src", "training") for p in (ROOT / folder).rglob("*.py")]
    sizes = {p: len(p.read_text().splitlines()) for p in modules}
    assert len(sizes) > 60
    assert [str(p) for p, lines in sizes.items() if lines > MAX_MODULE_LINES] == []


def test_functions_are_short():
    """Bodies alone: a signature and a docstring are as long as they have to be."""
    found = set()
    for folder in ("src", "training"):
        for path in (ROOT / folder).rglob("*.py"):
            for item in ast.walk(ast.parse(path.read_text())):
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                    body = item.body[ast.get_docstring(item) is not None :]
                    if body and item.end_lineno - body[0].lineno >= MAX_BODY_LINES:
                        found.add(f"{path.stem}.{item.name}")
    assert found == set(LONG_BODIES)


def test_links_in_docs_lead_somewhere():
    pages = [
        p for folder in ("docs", "training", "src", "tests") for p in (ROOT / folder).rglob("*.md")
    ]
    pages += ROOT.glob("*.md")
    broken = [
        f"{page.name}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert broken == []


def test_pages_made_from_the_code_are_up_to_date():
    told = "to write them anew: python scripts/write_docs.py"
    assert MODULES.read_text() == modules_page(), told
    assert SETTINGS.read_text() == settings_page(SETTINGS.read_text()), told


def test_every_module_says_what_it_is_for():
    assert [line for line in modules_page().splitlines() if line.endswith("|  |")] == []


def test_readme_names_every_command():
    told = (ROOT / "README.md").read_text()
    assert [name for name in COMMANDS if f"| `strata {name}" not in told] == []


def test_readme_s_example_tells_a_story():
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code[1]], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Once upon a time, there was")


def test_decisions_are_numbered_and_listed():
    folder = ROOT / "docs" / "decisions"
    titles = {path.name: path.read_text().splitlines()[0] for path in folder.glob("0*.md")}
    numbers = [int(name[:4]) for name in sorted(titles)]
    assert numbers == list(range(1, len(titles) + 1))
    listed = (folder / "README.md").read_text()
    for name, title in titles.items():
        number, _, words = title.removeprefix("# ").partition(". ")
        assert int(number) == int(name[:4])
        assert f"{number}. [{words}]({name})\n" in listed


def test_version_is_in_changelog():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_public_names():
    assert sorted(strata.__all__) == list(strata.__all__)
    for name in strata.__all__:
        assert getattr(strata, name) is not None


def test_names_of_test_modules_differ():
    """Without packages pytest imports them by name alone, and refuses the second."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
