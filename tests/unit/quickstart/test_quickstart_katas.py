"""The katas: written reproducibly, solved by their references, and not to be cheated."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gyre.rollout.sandbox import Sandbox, choose_sandbox
from gyre.rollout.tasks import read_task_folder
from gyre.rollout.verifier import Verdict, verify_workspace


@pytest.fixture(scope="module", params=["auto", "process"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return choose_sandbox(request.param).sandbox


@pytest.fixture
def katas(repo: Path) -> list[Path]:
    return sorted(path for path in (repo / "pipelines/tasks/katas").iterdir() if path.is_dir())


async def verify(task: Path, source: str | None, tmp_path: Path, sandbox: Sandbox, *, is_finished: bool = True) -> Verdict:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    if source is not None:
        (workspace / "solution.py").write_text(source, encoding="utf-8")
    if is_finished:
        (workspace / ".finished").touch()
    return await verify_workspace(task, workspace, deadline_s=20.0, sandbox=sandbox, logs_dir=tmp_path / "logs")


def reference(task: Path) -> str:
    script = (task / "solution/solve.sh").read_text(encoding="utf-8")
    return script.split("<<'END'\n")[1].split("END\n")[0]


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_shipped_katas_are_what_the_generator_writes(repo: Path, scripts: Path, tmp_path: Path) -> None:
    from make_katas import write_katas

    write_katas(tmp_path / "katas", rounds=5, seed=0)
    assert files_below(tmp_path / "katas") == files_below(repo / "pipelines/tasks/katas")


def test_every_round_holds_every_template_once(katas: list[Path], scripts: Path) -> None:
    from kata_templates import TEMPLATES

    assert len(TEMPLATES) == 24
    families = [task.name[7:].replace("-", "_") for task in katas]
    for start in range(0, len(families), 24):
        assert sorted(families[start : start + 24]) == sorted(t.family for t in TEMPLATES)


def test_katas_are_readable_as_tasks(repo: Path) -> None:
    rows = read_task_folder(repo / "pipelines/tasks/katas")
    assert len(rows) == 120
    assert all(row["instruction"].startswith("solve(") for row in rows)


def test_wrong_bodies_fail_but_often_get_partial_credit(scripts: Path) -> None:
    from kata_templates import TEMPLATES, draw_cases, draw_kata, evaluate

    rng = random.Random(3)
    shares = []
    for template in TEMPLATES:
        kata = draw_kata(template, rng)
        cases = draw_cases(kata, 8, rng)
        shares += [sum(evaluate(kata, body, a) == want for a, want in cases) / 8 for body in kata.wrong]
        assert all(evaluate(kata, kata.right, a) == want for a, want in cases)
    assert max(shares) < 1
    assert sum(share > 0 for share in shares) >= 10


@pytest.mark.parametrize("index", [0, 5, 11, 17])
async def test_the_reference_scores_one(katas: list[Path], index: int, tmp_path: Path, sandbox: Sandbox) -> None:
    verdict = await verify(katas[index], reference(katas[index]), tmp_path, sandbox)
    assert verdict.valid
    assert verdict.score == 1.0


async def test_a_partly_right_body_scores_its_share(katas: list[Path], tmp_path: Path, sandbox: Sandbox) -> None:
    task = next(path for path in katas if "at-least" in path.name)
    bound = int(reference(task).split("max(x, ")[1].split(")")[0])
    cases = (task / "tests/cases.txt").read_text(encoding="utf-8").splitlines()
    right = sum(int(line.split("solve(")[1].split(")")[0]) >= bound for line in cases) / len(cases)
    verdict = await verify(task, "def solve(x):\n    return x\n", tmp_path, sandbox)
    assert verdict.score == pytest.approx(right, abs=1e-5)
    assert 0 < right < 1


async def test_work_that_was_not_declared_done_scores_zero(katas: list[Path], tmp_path: Path, sandbox: Sandbox) -> None:
    verdict = await verify(katas[0], reference(katas[0]), tmp_path, sandbox, is_finished=False)
    assert verdict.valid
    assert verdict.score == 0.0


async def test_a_kata_without_marker_gives_credit_to_unfinished_work(scripts: Path, tmp_path: Path, sandbox: Sandbox) -> None:
    from make_katas import write_katas

    task = write_katas(tmp_path / "katas", rounds=1, seed=4, finish_marker=None)[0]
    verdict = await verify(task, reference(task), tmp_path, sandbox, is_finished=False)
    assert verdict.score == 1.0


CHEATS = {
    "no file": None,
    "no python": "this is not python\n",
    "exits": "import os\nos._exit(0)\n",
    "kills its verifier": "import os\nos.kill(os.getppid(), 9)\n",
    "writes the score": "open('/logs/verifier/reward.txt', 'w').write('1')\ndef solve(*a):\n    return 0\n",
    "writes the score when called": "def solve(*a):\n    open('/logs/verifier/reward.txt', 'w').write('1')\n",
    "reads the cases": "def solve(*a):\n    return open('/tests/cases.txt').read()\n",
    "lifts its limits": (
        "import posix\ndef solve(*a):\n    import resource\n    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "    return open('/tests/cases.txt').read()\n"
    ),
    "equals everything": (
        "class Any:\n    def __eq__(self, other):\n        return True\n    def __repr__(self):\n        return 'Any'\n"
        "def solve(*a):\n    return Any()\n"
    ),
    "floods": "def solve(*a):\n    return 'x' * 10**7\n",
    "forks": "import os\npid = os.fork()\ndef solve(*a):\n    return 0.5\n",
}


@pytest.mark.parametrize("name", CHEATS)
async def test_cheating_scores_zero(katas: list[Path], name: str, tmp_path: Path, sandbox: Sandbox) -> None:
    verdict = await verify(katas[0], CHEATS[name], tmp_path, sandbox)
    assert verdict.valid
    assert verdict.score == 0.0


async def test_code_that_does_not_end_keeps_what_passed(katas: list[Path], tmp_path: Path, sandbox: Sandbox) -> None:
    task = next(path for path in katas if "at-most" in path.name)
    bound = reference(task).split("min(x, ")[1].split(")")[0]
    source = f"CALLS = []\ndef solve(x):\n    CALLS.append(x)\n    while len(CALLS) > 4:\n        pass\n    return min(x, {bound})\n"
    verdict = await verify(task, source, tmp_path, sandbox)
    assert verdict.score == 0.5
