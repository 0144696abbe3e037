"""mini: a small coding agent in one file of standard library, for endpoints that speak OpenAI chat with tools.

    OPENAI_BASE_URL=… OPENAI_API_KEY=… python3 -I -S mini.py [--model M] [--compact-tokens N] [--delegate] INSTRUCTION

It works in the current directory with three tools: write_file, run_tests (the calls in `examples.txt`) and finish, which leaves
the marker `.finished` for whoever judges the work. The session ends with finish (exit 0), with an answer that calls no tool or
after `--max-calls` answers (exit 3), or when the endpoint fails for good (exit 4).

When an exchange has grown past `--compact-tokens`, or the endpoint says that the prompt is too long, the agent asks for a
summary and goes on from it in a fresh context. With `--delegate` there is a fourth tool that gives a part of the work to a
sub-agent with a context of its own; its requests carry the header `X-Agent-Id`.

Imports are few on purpose: in a training run the program starts thousands of times. `_socket` is the C half of `socket`, whose
Python half takes longer to import than everything else here together.
"""

import _socket
import json
import os
import select
import sys
import time

SYSTEM = "Write solution.py."
SUB_SYSTEM = "Help with one part."
SUMMARIZE = "Summarize the work so far."
SO_FAR = "\n\nSo far: "
MARKER = ".finished"
RETRY_WAITS_S = (0.5, 1.0, 2.0, 4.0)
TEST_DEADLINE_S = 2.0
MAX_SHOWN = 40
"""Characters of a value that run_tests shows."""


def describe_tool(name: str, text: str, properties: dict, required: list) -> dict:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}


TEXT = {"type": "string"}
WRITE = describe_tool("write_file", "Write a file.", {"content": TEXT, "path": TEXT}, ["content"])
RUN = describe_tool("run_tests", "Run the examples.", {}, [])
FINISH = describe_tool("finish", "Say that the work is done.", {}, [])
DELEGATE = describe_tool("delegate", "Give a part of the work to a helper.", {"task": TEXT}, ["task"])


class EndpointError(Exception):
    """The endpoint did not answer, or refused; `too_long` where the prompt did not fit."""

    def __init__(self, message: str, *, too_long: bool = False):
        super().__init__(message)
        self.too_long = too_long


class Endpoint:
    """`POST {base}/chat/completions` over one kept connection; retries what may pass."""

    def __init__(self, base_url: str, key: str):
        scheme, _, rest = base_url.partition("://")
        address, _, path = rest.partition("/")
        host, _, port = address.partition(":")
        if scheme != "http":
            raise EndpointError(f"OPENAI_BASE_URL {base_url!r}: only http:// is spoken here")
        self.address = (host, int(port or 80))
        self.path = "/" + (path.rstrip("/") + "/chat/completions").lstrip("/")
        self.headers = f"Host: {address}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        self.connection = None
        self.unread = b""

    def chat(self, body: dict, agent_id: str | None) -> dict:
        """One request with its retries; the parsed answer."""
        payload = json.dumps(body, separators=(",", ":")).encode()
        extra = f"X-Agent-Id: {agent_id}\r\n" if agent_id else ""
        head = f"POST {self.path} HTTP/1.1\r\n{self.headers}{extra}Content-Length: {len(payload)}\r\n\r\n"
        for wait_s in (*RETRY_WAITS_S, None):
            try:
                status, data = self.exchange(head.encode() + payload)
            except OSError as error:
                self.close()
                status, data = 0, str(error).encode()
            if status == 200:
                return json.loads(data)
            text = data.decode(errors="replace")
            too_long = status == 400 and ("too long" in text or "context_length" in text)
            if wait_s is None or (400 <= status < 500 and status != 429):
                raise EndpointError(f"status {status}: {text[:300]}", too_long=too_long)
            time.sleep(wait_s)
        raise AssertionError("the last wait is None")

    def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Send, then read one response with a length or in chunks."""
        if self.connection is None:
            self.connection = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
            self.connection.connect(self.address)
            self.unread = b""
        self.connection.sendall(request)
        head = self.read_until(b"\r\n\r\n").decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        fields = dict(line.split(":", 1) for line in head.split("\r\n")[1:] if ":" in line)
        if "chunked" in fields.get("transfer-encoding", ""):
            data = b""
            while size := int(self.read_until(b"\r\n").split(b";")[0], 16):
                data += self.read_exactly(size)
                self.read_until(b"\r\n")
            self.read_until(b"\r\n")
        else:
            data = self.read_exactly(int(fields.get("content-length", "0")))
        if "close" in fields.get("connection", ""):
            self.close()
        return status, data

    def receive(self) -> None:
        chunk = self.connection.recv(65536)
        if not chunk:
            raise OSError("the endpoint closed the connection")
        self.unread += chunk

    def read_until(self, mark: bytes) -> bytes:
        while mark not in self.unread:
            self.receive()
        found, _, self.unread = self.unread.partition(mark)
        return found

    def read_exactly(self, size: int) -> bytes:
        while len(self.unread) < size:
            self.receive()
        found, self.unread = self.unread[:size], self.unread[size:]
        return found

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def answer_examples(source: str, calls: list, answers_fd: int) -> None:
    """Child of run_tests: `repr` of each call on its own line; never returns."""
    try:
        scope = {"__name__": "solution"}
        try:
            exec(compile(source, "solution.py", "exec"), scope)
        except BaseException as error:
            os.write(answers_fd, (f"raised {type(error).__name__}\n" * len(calls)).encode())
            return
        for call in calls:
            try:
                answer = "gave " + repr(eval(call, scope)).replace("\n", " ")[:4096]
            except Exception as error:
                answer = "raised " + type(error).__name__
            os.write(answers_fd, answer.encode() + b"\n")
    finally:
        os._exit(0)


def run_examples(source: str, calls: list) -> list:
    """What each call gave or raised, from a child process that is ended after TEST_DEADLINE_S."""
    readable_fd, answers_fd = os.pipe()
    child = os.fork()
    if child == 0:
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        answer_examples(source, calls, answers_fd)
    os.close(answers_fd)
    data, end_s = b"", time.monotonic() + TEST_DEADLINE_S
    while len(data) < 65536:
        ready, _, _ = select.select([readable_fd], [], [], max(0.0, end_s - time.monotonic()))
        chunk = os.read(readable_fd, 65536) if ready else b""
        if not chunk:
            break
        data += chunk
    os.kill(child, 9)
    os.waitpid(child, 0)
    os.close(readable_fd)
    answers = data.decode(errors="replace").splitlines()[: len(calls)]
    return answers + ["did not end"] * (len(calls) - len(answers))


def report_examples() -> str:
    """Result of run_tests: how many passed and the first that did not."""
    try:
        with open("solution.py") as file:
            source = file.read()
        with open("examples.txt") as file:
            examples = [line.rstrip("\n").split(" == ", 1) for line in file if " == " in line]
    except (OSError, UnicodeDecodeError) as error:
        return f"error: {error}"
    return describe_answers(examples, run_examples(source, [call for call, _ in examples]))


def describe_answers(examples: list, answers: list) -> str:
    """Text of run_tests for `[call, want]` examples and what each call `gave …` or `raised …`."""
    failed = [(call, answer, want) for (call, want), answer in zip(examples, answers, strict=True) if answer != f"gave {want}"]
    if not failed:
        return f"all {len(examples)} passed"
    call, answer, want = failed[0]
    shown = f"{call[:MAX_SHOWN]} {answer[:MAX_SHOWN]}, want {want[:MAX_SHOWN]}"
    return f"{len(examples) - len(failed)} of {len(examples)} passed\n{shown}"


def write_workspace_file(path: str, content: str) -> str:
    """Result of write_file; paths stay below the work directory."""
    root = os.path.realpath(".")
    target = os.path.realpath(path)
    if not target.startswith(root + os.sep) or os.path.basename(target) == MARKER:
        return f"error: {path} is not a path in the work directory"
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w") as file:
            file.write(content if content.endswith("\n") else content + "\n")
    except (OSError, UnicodeEncodeError) as error:
        return f"error: {error}"
    return "ok"


class Agent:
    """One conversation: the main one, or a sub-agent's with an id of its own."""

    def __init__(self, endpoint: Endpoint, options: dict, instruction: str, *, agent_id: str | None = None):
        self.endpoint, self.options, self.instruction, self.agent_id = endpoint, options, instruction, agent_id
        self.system = SUB_SYSTEM if agent_id else SYSTEM
        self.tools = [WRITE, RUN] if agent_id else [WRITE, RUN, FINISH]
        if options["delegate"] and not agent_id:
            self.tools = [*self.tools, DELEGATE]
        self.messages = self.open_context("")
        self.num_helpers = 0
        self.is_finished = False

    def open_context(self, summary: str) -> list:
        text = self.instruction + (SO_FAR + summary if summary else "")
        return [{"role": "system", "content": self.system}, {"role": "user", "content": text}]

    def ask(self, messages: list) -> tuple[dict, int]:
        """The next assistant message and the tokens of the exchange."""
        body = {"model": self.options["model"], "messages": messages, "tools": self.tools}
        body["max_tokens"] = self.options["max_tokens"]
        answer = self.endpoint.chat(body, self.agent_id)
        return answer["choices"][0]["message"], answer.get("usage", {}).get("total_tokens", 0)

    def compact(self) -> None:
        """Replace the history by a summary of it; without its newest messages where it does not fit."""
        messages = self.messages
        while True:
            try:
                message, _ = self.ask([*messages, {"role": "user", "content": SUMMARIZE}])
                break
            except EndpointError as error:
                if not error.too_long or len(messages) <= 3:
                    raise
                messages = messages[:-2]
        self.messages = self.open_context((message.get("content") or "").strip() or "nothing")

    def work(self) -> str:
        """Answer by answer until the end; the last text that was said."""
        for num_left in reversed(range(self.options["max_calls"])):
            try:
                message, num_tokens = self.ask(self.messages)
            except EndpointError as error:
                if not error.too_long or len(self.messages) <= 2:
                    raise
                self.compact()
                continue
            calls = message.get("tool_calls") or []
            if not calls:
                return message.get("content") or ""
            self.messages.append(message)
            for call in calls:
                result = self.perform(call["function"])
                self.messages.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": result})
            if self.is_finished:
                return "done"
            if num_left and num_tokens > self.options["compact_tokens"]:
                self.compact()
        return ""

    def perform(self, function: dict) -> str:
        """Run one tool call; whatever is wrong with it is its result."""
        name = function.get("name")
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except ValueError:
            return "error: arguments are not JSON"
        allowed = [tool["function"]["name"] for tool in self.tools]
        if name not in allowed or not isinstance(arguments, dict):
            return f"error: the tools are {', '.join(allowed)}"
        if name == "write_file":
            content = arguments.get("content")
            if not isinstance(content, str):
                return "error: write_file needs content"
            return write_workspace_file(str(arguments.get("path") or "solution.py"), content)
        if name == "run_tests":
            return report_examples()
        if name == "delegate":
            self.num_helpers += 1
            helper = Agent(self.endpoint, self.options, str(arguments.get("task")), agent_id=f"helper-{self.num_helpers}")
            return helper.work() or "no answer"
        with open(MARKER, "w"):
            self.is_finished = True
        return "ok"


def read_options(argv: list) -> tuple[dict, str]:
    """Options and the instruction; argparse would double the start of the program."""
    options = {"model": os.environ.get("OPENAI_MODEL", "policy"), "delegate": False}
    options |= {"max_calls": 8, "max_tokens": 80, "compact_tokens": 1 << 30}
    words = list(argv)
    while words and words[0].startswith("--"):
        name = words.pop(0)[2:].replace("-", "_")
        if name not in options:
            sys.exit(f"unknown option --{name.replace('_', '-')}; the options are {', '.join(options)}")
        options[name] = True if name == "delegate" else words.pop(0) if name == "model" else int(words.pop(0))
    return options, " ".join(words).strip()


def main() -> int:
    options, instruction = read_options(sys.argv[1:])
    if not instruction:
        sys.exit("no instruction: give it as the last argument")
    try:
        endpoint = Endpoint(os.environ["OPENAI_BASE_URL"], os.environ.get("OPENAI_API_KEY", ""))
        agent = Agent(endpoint, options, instruction)
        last_text = agent.work()
    except EndpointError as error:
        print(f"mini: {error}", file=sys.stderr)
        return 4
    print(f"mini: {'finished' if agent.is_finished else 'stopped: ' + last_text[:200]}")
    return 0 if agent.is_finished else 3


if __name__ == "__main__":
    sys.exit(main())
