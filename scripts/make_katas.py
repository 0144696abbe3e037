"""Write `pipelines/tasks/katas`: small Python tasks as Harbor folders, drawn from `kata_templates.py`.

    python scripts/make_katas.py --rounds 5 --seed 0 --out pipelines/tasks/katas

A round draws every template once, in a random order; folder names sort by round. So tasks taken in the order of their names
compare the same templates with each other after every 24 of them (three steps of eight groups), which is what the learning
curve of the quickstart is judged on. The same seed writes the same bytes.

The verifier (`tests/test.sh`, `tests/check.py`) asks for the finish marker that the harness's finish tool leaves: an agent that
never says it is done scores 0. `--no-finish-marker` writes tasks that give partial credit without it.
"""

from __future__ import annotations

import argparse
import random
import shutil
from pathlib import Path

from kata_templates import TEMPLATES, Kata, draw_cases, draw_kata

VISIBLE_CASES = 3
HIDDEN_CASES = 8
CHECKER = Path(__file__).parent / "kata_check.py"

DOCKERFILE = "FROM python:3.11-slim\nWORKDIR /app\nCOPY examples.txt /app/\n"


def render_task_toml(name: str, family: str) -> str:
    """The task's own limits and names."""
    return f"""schema_version = "1.0"

[task]
name = "gyre/{name}"
description = "One small Python function."
keywords = ["python", "kata"]

[metadata]
family = "{family}"

[agent]
timeout_sec = 60.0

[verifier]
timeout_sec = 15.0

[environment]
workdir = "/app"
cpus = 1
memory_mb = 512
network_mode = "no-network"
"""


def render_test_sh(finish_marker: str | None) -> str:
    """Entry of the verification; one Python start, no site packages."""
    option = f" --finish-marker {finish_marker}" if finish_marker else ""
    return f"#!/bin/bash\nexec python3 -I -S /tests/check.py{option}\n"


def render_solve_sh(kata: Kata) -> str:
    """The reference solution: writes the right file and says it is done."""
    return f"#!/bin/sh\ncat > solution.py <<'END'\n{kata.source(kata.right)}END\ntouch .finished\n"


def write_task(folder: Path, kata: Kata, rng: random.Random, finish_marker: str | None) -> None:
    """Write one Harbor folder."""
    cases = draw_cases(kata, VISIBLE_CASES + HIDDEN_CASES, rng)
    lines = [f"solve({', '.join(map(repr, arguments))}) == {want}\n" for arguments, want in cases]
    files = {
        "instruction.md": kata.instruction + "\n",
        "task.toml": render_task_toml(folder.name, kata.family),
        "environment/Dockerfile": DOCKERFILE,
        "environment/examples.txt": "".join(lines[:VISIBLE_CASES]),
        "tests/test.sh": render_test_sh(finish_marker),
        "tests/check.py": CHECKER.read_text(encoding="utf-8"),
        "tests/cases.txt": "".join(lines[VISIBLE_CASES:]),
        "solution/solve.sh": render_solve_sh(kata),
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if name.endswith(".sh"):
            path.chmod(0o755)


def write_katas(out: Path, *, rounds: int, seed: int, finish_marker: str | None = ".finished") -> list[Path]:
    """Write `rounds` × 24 tasks into `out`, replacing what is there; returns their folders in order."""
    rng = random.Random(seed)
    shutil.rmtree(out, ignore_errors=True)
    folders: list[Path] = []
    for round_index in range(rounds):
        for place, template in enumerate(rng.sample(TEMPLATES, len(TEMPLATES))):
            folder = out / f"r{round_index:02d}-{place:02d}-{template.family.replace('_', '-')}"
            write_task(folder, draw_kata(template, rng), rng, finish_marker)
            folders.append(folder)
    return folders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("pipelines/tasks/katas"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-finish-marker", action="store_true")
    args = parser.parse_args()
    marker = None if args.no_finish_marker else ".finished"
    folders = write_katas(args.out, rounds=args.rounds, seed=args.seed, finish_marker=marker)
    print(f"{len(folders)} tasks written to {args.out}")


if __name__ == "__main__":
    main()
