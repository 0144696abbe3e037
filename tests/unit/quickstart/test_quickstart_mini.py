"""The mini harness as a program, against a scripted endpoint on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SUMMARIZE = "Summarize the work so far."


def say(text: str = "", *calls: tuple[str, dict[str, Any]], total_tokens: int = 10) -> dict[str, Any]:
    """One chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {"id": f"call-{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for i, (name, arguments) in enumerate(calls)
        ]
    return {"choices": [{"index": 0, "message": message}], "usage": {"total_tokens": total_tokens}}


WRITE = ("write_file", {"content": "def solve(x):\n    return x + 1"})
WRONG = ("write_file", {"content": "def solve(x):\n    return x - 1"})
RUN = ("run_tests", {})
FINISH = ("finish", {})


class Endpoint:
    """Answers requests from a list: an object is answered 200, a (status, object) as it is, 'drop' by a closed connection."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.chunked = False
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint.requests.append(json.loads(body))
                endpoint.headers.append({k.lower(): v for k, v in self.headers.items()} | {":path": self.path})
                answer = endpoint.answers.pop(0)
                if answer == "drop":
                    self.close_connection = True
                    return
                status, document = answer if isinstance(answer, tuple) else (200, answer)
                data = json.dumps(document).encode()
                self.send_response(status)
                if endpoint.chunked:
                    self.send_header("Transfer-Encoding", "chunked")
                    data = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (5, data[:5], len(data) - 5, data[5:])
                else:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/x/secret/v1"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "examples.txt").write_text("solve(1) == 2\nsolve(-1) == 0\nsolve(5) == 6\n", encoding="utf-8")
    return tmp_path


def run_mini(program: Path, endpoint: Endpoint, workspace: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-S", str(program), *options, "solve(x): x plus 1\n"],
        cwd=workspace,
        env={"OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": "secret", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def results_of(request: dict[str, Any]) -> list[str]:
    """Tool results at the end of a request."""
    found: list[str] = []
    for message in reversed(request["messages"]):
        if message["role"] != "tool":
            break
        found.insert(0, message["content"])
    return found


@pytest.mark.parametrize("chunked", [False, True])
def test_it_writes_tests_and_finishes(mini_program: Path, endpoint: Endpoint, workspace: Path, chunked: bool) -> None:
    endpoint.chunked = chunked
    endpoint.answers = [say("", WRONG, RUN), say("", WRITE, RUN), say("", FINISH)]
    done = run_mini(mini_program, endpoint, workspace)
    assert done.returncode == 0, done.stderr
    assert (workspace / "solution.py").read_text() == "def solve(x):\n    return x + 1\n"
    assert (workspace / ".finished").exists()
    assert endpoint.headers[0][":path"] == "/x/secret/v1/chat/completions"
    assert endpoint.headers[0]["authorization"] == "Bearer secret"
    first, second, third = endpoint.requests
    assert [m["role"] for m in first["messages"]] == ["system", "user"]
    assert first["messages"][1]["content"] == "solve(x): x plus 1"
    assert [t["function"]["name"] for t in first["tools"]] == ["write_file", "run_tests", "finish"]
    assert results_of(second) == ["ok", "0 of 3 passed\nsolve(1) gave 0, want 2"]
    assert results_of(third) == ["ok", "all 3 passed"]
    assert third["messages"][2]["tool_calls"][0]["id"] == "call-0"
    assert third["messages"][3]["tool_call_id"] == "call-0"


def test_an_answer_without_a_call_ends_it_unfinished(mini_program: Path, endpoint: Endpoint, workspace: Path) -> None:
    endpoint.answers = [say("", WRITE), say("I am done.")]
    done = run_mini(mini_program, endpoint, workspace)
    assert done.returncode == 3
    assert not (workspace / ".finished").exists()
    assert (workspace / "solution.py").exists()


def test_it_stops_after_its_calls(mini_program: Path, endpoint: Endpoint, workspace: Path) -> None:
    endpoint.answers = [say("", RUN)] * 3
    done = run_mini(mini_program, endpoint, workspace, "--max-calls", "3")
    assert done.returncode == 3
    assert results_of(endpoint.requests[2])[0].startswith("error: ")


def test_it_compacts_a_grown_history(mini_program: Path, endpoint: Endpoint, workspace: Path) -> None:
    endpoint.answers = [say("", WRITE, RUN, total_tokens=99), say("x + 1, all 3 passed"), say("", FINISH)]
    done = run_mini(mini_program, endpoint, workspace, "--compact-tokens", "80")
    assert done.returncode == 0, done.stderr
    asked, continued = endpoint.requests[1:]
    assert asked["messages"][-1] == {"role": "user", "content": SUMMARIZE}
    assert asked["tools"] == continued["tools"]
    assert [m["role"] for m in continued["messages"]] == ["system", "user"]
    assert continued["messages"][1]["content"] == "solve(x): x plus 1\n\nSo far: x + 1, all 3 passed"


def test_a_prompt_that_is_too_long_starts_compaction(mini_program: Path, endpoint: Endpoint, workspace: Path) -> None:
    too_long = (400, {"error": {"message": "prompt is too long", "code": "context_length_exceeded"}})
    endpoint.answers = [say("", WRITE), too_long, too_long, say("x + 1, not tested"), say("", FINISH)]
    done = run_mini(mini_program, endpoint, workspace)
    assert done.returncode == 0, done.stderr
    assert [m["role"] for m in endpoint.requests[3]["messages"]] == ["system", "user", "user"]
    assert endpoint.requests[4]["messages"][1]["content"].endswith("So far: x + 1, not tested")


def test_it_delegates_to_a_helper(mini_program: Path, endpoint: Endpoint, workspace: Path) -> None:
    delegate = ("delegate", {"task": "write solve"})
    endpoint.answers = [say("", delegate), say("", WRITE, RUN), say("it passes"), say("", FINISH)]
    done = run_mini(mini_program, endpoint, workspace, "--delegate")
    assert done.returncode == 0, done.stderr
    assert [h.get("x-agent-id") for h in endpoint.headers] == [None, "helper-1", "helper-1", None]
    assert endpoint.requests[1]["messages"][1]["content"] == "write solve"
    assert [t["function"]["name"] for t in endpoint.requests[1]["tools"]] == ["write_file", "run_tests"]
    assert results_of(endpoint.requests[3]) == ["it passes"]


def test_it_retries_what_may_pass_and_reports_what_may_not(mini_program: Path, endpoint: Endpoint, workspace: Path) -> None:
    endpoint.answers = ["drop", (503, {"error": {}}), say("", WRITE, FINISH)]
    assert run_mini(mini_program, endpoint, workspace).returncode == 0
    assert endpoint.requests[0] == endpoint.requests[1] == endpoint.requests[2]
    endpoint.answers = [(401, {"error": {"message": "this key has ended"}})]
    done = run_mini(mini_program, endpoint, workspace)
    assert done.returncode == 4
    assert "this key has ended" in done.stderr


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (("write_file", {"path": "../out.py", "content": "x"}), "error: ../out.py is not a path"),
        (("write_file", {"path": ".finished", "content": "x"}), "error: .finished is not a path"),
        (("write_file", {}), "error: write_file needs content"),
        (("shell", {}), "error: the tools are write_file, run_tests, finish"),
        (("delegate", {"task": "x"}), "error: the tools are"),
    ],
)
def test_a_wrong_call_is_answered(
    mini_program: Path, endpoint: Endpoint, workspace: Path, call: tuple[str, dict[str, Any]], result: str
) -> None:
    endpoint.answers = [say("", call), say("", FINISH)]
    assert run_mini(mini_program, endpoint, workspace).returncode == 0
    assert results_of(endpoint.requests[1])[0].startswith(result)
    assert not (workspace.parent / "out.py").exists()


def test_arguments_that_are_not_json_are_answered(mini_program: Path, endpoint: Endpoint, workspace: Path) -> None:
    broken = say("", RUN)
    broken["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = '{"content": '
    endpoint.answers = [broken, say("", FINISH)]
    assert run_mini(mini_program, endpoint, workspace).returncode == 0
    assert results_of(endpoint.requests[1]) == ["error: arguments are not JSON"]


def test_code_that_never_ends_does_not_hang_it(mini_program: Path, endpoint: Endpoint, workspace: Path) -> None:
    endless = ("write_file", {"content": "def solve(x):\n    while x > 1:\n        pass\n    return x + 1"})
    endpoint.answers = [say("", endless, RUN), say("", FINISH)]
    assert run_mini(mini_program, endpoint, workspace).returncode == 0
    assert results_of(endpoint.requests[1])[1] == "2 of 3 passed\nsolve(5) did not end, want 6"


def test_mistakes_in_the_command_line_are_sentences(mini_program: Path, endpoint: Endpoint, workspace: Path) -> None:
    done = run_mini(mini_program, endpoint, workspace, "--speed", "3")
    assert done.returncode == 1
    assert "unknown option --speed" in done.stderr
