"""Asks the shipped model everything it must be able to do, greedily, and judges the answers.

``python -m training.evaluate --json training/results/evaluation.json``; without ``--model`` the
shipped file. Owns the command line and the order; exit code 1 if a threshold is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata import Engine, __version__
from strata.cli.console import Bar, notices_on_stderr, say
from strata.engine.build import model_path
from strata.engine.model_file import open_file
from strata.errors import SettingsError, StrataError
from strata.settings import Settings
from strata.wishes import nearest
from training.eval_answers import SEED, case_rng, complete_greedily, run_task
from training.eval_checks import Verdict, judge
from training.eval_drafts import DraftTotals
from training.eval_long import code_word_cells
from training.eval_routing import routing_table
from training.eval_text import read_text
from training.held_out import HELD_OUT_TEXT, held_out_documents
from training.tasks import ALL_TASKS
from training.tasks.example import Example, Split
from training.tasks.grading import last_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from training.eval_answers import ChatEngine
    from training.tasks.example import Task

SECTIONS = ("tasks", "code-words", "sanity", "stories", "text")
SANITY_QUESTION = "What is 12*12?"
STORY_TASK = "tell_story"
NUM_STORIES = 20
STORY_TOKENS = 300
TEXT_TOKENS = 16_384
# Each of the twelve cells of length and depth gets this part of the cases of a task.
CELL_PART = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _evaluate(options)
    except StrataError as error:
        say(f"{type(error).__name__}: {error}")
        return 2


def ask_sanity(engine: ChatEngine) -> dict[str, Any]:
    """The question whose answer everybody knows."""
    example = Example("sanity", ({"role": "user", "content": SANITY_QUESTION}, {}))
    answer = complete_greedily(engine, example, 32)
    is_right = last_number(answer.text) == 144
    return {"question": SANITY_QUESTION, "answer": answer.text, "is_right": is_right}


def tell_stories(
    engine: ChatEngine, task: Task, num_stories: int, drafts: DraftTotals
) -> list[dict[str, str]]:
    """Stories to held-out requests, for people to read; their drafts are added to ``drafts``."""
    stories = []
    with Bar("stories") as bar:
        for number in range(num_stories):
            example = task.generate(case_rng("stories told", number), Split.HELD_OUT)
            answer = complete_greedily(engine, example, STORY_TOKENS)
            drafts.add(answer.drafts_proposed, answer.drafts_accepted)
            request = str(example.prompt[-1]["content"])
            stories.append({"request": request, "story": answer.text})
            bar(number + 1, num_stories)
    return stories


def read_held_out(model: Path | None, path: Path, max_tokens: int) -> dict[str, Any]:
    """Perplexity and routing on held-out documents, of their first ``max_tokens`` tokens."""
    documents = held_out_documents(path)
    with Bar("reading held-out text") as bar:
        reading = read_text(model, documents, max_tokens, bar)
    num_experts = reading.num_experts
    return {
        "tokens": reading.num_predicted,
        "perplexity": reading.perplexity,
        "num_experts": num_experts,
        "routing": [asdict(layer) for layer in routing_table(reading.expert_ids, num_experts)],
    }


def chosen_tasks(names: Sequence[str]) -> list[Task]:
    """The tasks of these names; without names all that training draws from this list.

    Raises:
        SettingsError: there is no such task.
    """
    known = {task.name: task for task in ALL_TASKS}
    for name in names:
        if name not in known:
            hint = nearest(name, tuple(known)) or ", ".join(known)
            raise SettingsError(f"there is no task {name!r}.\n  Try: {hint}")
    if not names:
        # Long code words are asked at set lengths and depths instead.
        return [task for task in ALL_TASKS if task.weight > 0]
    return [known[name] for name in names]


def _evaluate(options: argparse.Namespace) -> int:
    started_s = time.perf_counter()
    sections = options.only or SECTIONS
    tasks = chosen_tasks(options.tasks)
    results: dict[str, Any] = {"strata": __version__, "seed": SEED, "cases": options.cases}
    settings = Settings.from_options(
        {"model": options.model, "threads": options.threads, "draft_tokens": options.draft}
    )
    with notices_on_stderr():
        results["model"] = _file_facts(settings)
        with Engine.from_settings(settings) as engine:
            drafts = _ask_everything(engine, tasks, sections, options.cases, results)
        results["drafts"] = drafts.as_dict()
        # Answers take long; a text that cannot be read shall not lose them.
        _save(results, options.json)
        if "text" in sections:
            if options.text.is_file():
                results["text"] = read_held_out(options.model, options.text, options.text_tokens)
            else:
                say(f"note: there is no {options.text}; perplexity and routing are left out.")
    results["seconds"] = time.perf_counter() - started_s
    verdicts = judge(results)
    results["checks"] = [verdict.as_dict() for verdict in verdicts]
    _show_verdicts(verdicts)
    _save(results, options.json)
    # What a partial run leaves out is not held against it.
    is_whole = not options.only and not options.tasks
    missed = (False, None) if is_whole else (False,)
    return int(any(verdict.is_met in missed for verdict in verdicts))


def _ask_everything(
    engine: ChatEngine,
    tasks: Sequence[Task],
    sections: Sequence[str],
    num_cases: int,
    results: dict[str, Any],
) -> DraftTotals:
    """Puts the answers into ``results``; gives the drafts of all of them."""
    drafts = DraftTotals()
    if "sanity" in sections:
        results["sanity"] = ask_sanity(engine)
        print(f"{SANITY_QUESTION} {results['sanity']['answer']}", flush=True)
    if "tasks" in sections:
        results["tasks"] = []
        for task in tasks:
            with Bar(task.name) as bar:
                tally = run_task(engine, task, num_cases, bar)
            results["tasks"].append(tally.as_dict())
            drafts.add(tally.drafts.proposed, tally.drafts.accepted)
            print(f"{task.name:28} {tally.num_right:4} of {tally.num_cases}", flush=True)
    if "stories" in sections:
        [task] = chosen_tasks([STORY_TASK])
        results["stories"] = tell_stories(engine, task, NUM_STORIES, drafts)
        for story in results["stories"]:
            print(f"\n{story['request']}\n  {story['story']}", flush=True)
    if "code-words" in sections:
        with Bar("code words in long texts") as bar:
            cells, tally = code_word_cells(engine, max(1, num_cases // CELL_PART), bar)
        drafts.add(tally.drafts.proposed, tally.drafts.accepted)
        results["code_words"] = [cell.as_dict() for cell in cells]
        results["code_words_wrong"] = tally.as_dict()["wrong"]
        for cell in cells:
            place = f"code word, {cell.num_tokens} tokens, at {100 * cell.depth:.0f} %"
            print(f"{place:40} {cell.num_right:4} of {cell.num_cases}", flush=True)
    return drafts


def _save(results: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
        path.write_text(text, encoding="utf-8")


def _file_facts(settings: Settings) -> dict[str, Any]:
    with open_file(model_path(settings)) as model_file:
        paths = model_file.index.paths
        formats: dict[str, int] = {}
        for _, entry in model_file.index.items():
            formats[entry.format.name] = formats.get(entry.format.name, 0) + entry.num_bytes
        return {
            "name": model_file.spec.name,
            "files": {path.name: path.stat().st_size for path in paths},
            "bytes_by_format": dict(sorted(formats.items())),
        }


def _show_verdicts(verdicts: Sequence[Verdict]) -> None:
    words = {True: "pass", False: "MISSED", None: "not measured"}
    print()
    for verdict in verdicts:
        value = "" if verdict.value is None else f"{100 * verdict.value:.1f} %"
        wanted = f"at least {100 * verdict.threshold:.0f} %"
        print(f"{verdict.name:52} {value:>9}  {wanted:15} {words[verdict.is_met]}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__)
    parser.add_argument("--model", type=Path, help="GGUF file; default: the shipped demo")
    parser.add_argument("--cases", type=int, default=200, help="cases of each task")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--tasks", nargs="+", default=[], help="ask only these tasks")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="only these parts")
    parser.add_argument("--text", type=Path, default=HELD_OUT_TEXT, help="held-out prose")
    parser.add_argument("--text-tokens", type=int, default=TEXT_TOKENS, help="tokens of it read")
    parser.add_argument("--draft", type=int, default=3, help="draft tokens in each step")
    parser.add_argument("--threads", type=int, help="worker threads")
    return parser


if __name__ == "__main__":
    sys.exit(main())
