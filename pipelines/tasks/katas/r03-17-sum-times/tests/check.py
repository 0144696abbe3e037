"""Verifier of one kata: runs solution.py on hidden cases and writes the share that passed to the verifier's reward file.

Work directory: the workspace. Hidden cases: `cases.txt` beside this file, lines `solve(…) == …`. The tested code runs in a child
process that is forked before the expected values are read, may open no file, and only answers over a pipe with the `repr` of
each result; this process compares. So nothing the tested code does can write the score or look up an answer. A zero is written
first: code that manages to kill its verifier has scored 0.

Only modules that are part of the interpreter are imported: a verification costs one bare Python start.
"""

import os
import select
import sys
import time

REWARD_FILE = "/logs/verifier/reward.txt"

DEADLINE_S = 2.0
"""For all cases together; a kata's cases take well under a millisecond."""

MAX_ANSWER_BYTES = 65536


def write_reward(score: float) -> None:
    draft = REWARD_FILE + ".tmp"
    with open(draft, "w") as file:
        file.write(f"{score:.6f}\n")
    os.replace(draft, REWARD_FILE)


def confine() -> None:
    """No new files, no privileges, bounded time and memory for the code under test."""
    import resource

    if os.geteuid() == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        except OSError:
            pass  # a user namespace that maps no other user has no privileges to drop
    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
    resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def run_tested_code(source: str, calls_fd: int, answers_fd: int) -> None:
    """Child: define `solve`, then answer each call read from `calls_fd`; never returns."""
    try:
        confine()
        scope: dict = {"__name__": "solution"}
        exec(compile(source, "solution.py", "exec"), scope)
        calls = b""
        while chunk := os.read(calls_fd, MAX_ANSWER_BYTES):
            calls += chunk
        for call in calls.decode().splitlines():
            try:
                answer = repr(eval(call, scope))
            except Exception as error:
                answer = type(error).__name__
            os.write(answers_fd, answer.replace("\n", " ").encode() + b"\n")
    finally:
        os._exit(0)


def collect_answers(answers_fd: int) -> list[str]:
    """What the child answered until it ended, the deadline passed or it said too much."""
    end_s = time.monotonic() + DEADLINE_S
    data = b""
    while len(data) < MAX_ANSWER_BYTES:
        readable, _, _ = select.select([answers_fd], [], [], max(0.0, end_s - time.monotonic()))
        chunk = os.read(answers_fd, MAX_ANSWER_BYTES) if readable else b""
        if not chunk:
            break
        data += chunk
    return data.decode(errors="replace").splitlines()


def run_cases(source: str) -> float:
    """Share of the hidden cases that the source passes."""
    calls_out, calls_in = os.pipe()
    answers_out, answers_in = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(calls_in)
        os.close(answers_out)
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        run_tested_code(source, calls_out, answers_in)
    os.close(calls_out)
    os.close(answers_in)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases.txt")) as file:
        cases = [line.rstrip("\n").split(" == ", 1) for line in file]
    try:
        os.write(calls_in, "".join(call + "\n" for call, _ in cases).encode())
        os.close(calls_in)
    except BrokenPipeError:
        pass  # the source did not even load
    answers = collect_answers(answers_out)
    try:
        os.kill(child, 9)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)
    passed = sum(answer == want for answer, (_, want) in zip(answers, cases))  # noqa: B905
    return passed / len(cases)


def main() -> None:
    write_reward(0.0)
    marker = sys.argv[sys.argv.index("--finish-marker") + 1] if "--finish-marker" in sys.argv else None
    if marker and not os.path.exists(marker):
        print(f"no finish marker {marker}: 0")
        return
    try:
        with open("solution.py") as file:
            source = file.read(MAX_ANSWER_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        print(f"solution.py cannot be read: {error}")
        return
    score = run_cases(source)
    write_reward(score)
    print(f"score {score:.3f}")


if __name__ == "__main__":
    main()
