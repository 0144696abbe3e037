"""Chat template to tokens, incrementally: the past is never rendered again.

The stored tokens of the matched path are the prompt's beginning, verbatim; only messages behind them are rendered and encoded.
What stands between a stored answer and the next message is taken from the template itself: the new messages are rendered behind
a stand-in conversation whose answer is a sentinel, and what follows the sentinel is the boundary and the new content, whatever
the template does to earlier turns (strip their thinking, say). New messages that the template refuses are offered in poorer shapes
(`shapes`). The end-of-turn token opens that text; it is left out where the
model sampled it and supplied where the answer was cut. Control tokens come from the template and from the model only: where a client's
text spells one (a file that an agent reads, say) it is encoded as the characters it is, or it could end a turn and open another.

Fed by the session (restored messages), eaten by the engines (tokens). Loads `tokenizer.json` and the Jinja template of a Hugging
Face folder; knows no model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from tokenizers import Tokenizer, decoders

from gyre.errors import UserError
from gyre.rollout.shapes import shapes_of
from gyre.trajectory.messages import Message, ToolCall, ToolSpec

SENTINEL = "gyre-sentinel-7c21f0"
"""Stand-in answer; no template changes it, no conversation holds it by chance."""

BREAK = "gyre-break-7c21f0"
"""Stands in a rendered text behind the first character of a control token that a client spelled: there the text is encoded in pieces."""

STAND_IN_USER = Message(role="user", text="stand-in")
STAND_IN_ANSWER = Message(role="assistant", text=SENTINEL)


class TemplateRefusedError(ValueError):
    """The model's chat template cannot render these messages; the words are the template's own."""


class Renderer:
    r"""Renders and encodes for one model folder.

    With a ChatML template, a path whose last sampled token is `<|im_end|>` (4) and a new user message 'hi':
    `render_delta([user('hi')], [], is_turn_closed=True)` encodes `\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n`;
    with `is_turn_closed=False` (the answer was cut by its length) the text begins with `<|im_end|>`.
    """

    def __init__(self, model_dir: Path) -> None:
        """Load the tokenizer and the template.

        Raises:
            UserError: a file is missing or the folder has no chat template.
        """
        path = model_dir / "tokenizer.json"
        if not path.is_file():
            raise UserError(f"the model folder {model_dir} has no tokenizer.json", hint="name a Hugging Face model folder")
        self._tokenizer = Tokenizer.from_file(str(path))
        config = _read_json(model_dir / "tokenizer_config.json")
        self._special = _special_tokens(config, model_dir)
        self._control_words = _control_words(self._tokenizer)
        # Looks ahead, so that words which overlap are all found.
        self._control_start = re.compile(rf"(?=(?:{'|'.join(map(re.escape, self._control_words))}))[\s\S]")
        self._template = _compile(_find_template(config, model_dir))
        self.vocab_size = _find_vocab_size(model_dir) or self._tokenizer.get_vocab_size(with_added_tokens=True)
        """Ids that the model takes and may sample are below it: models have rows that the tokenizer has no token for."""
        self._turn_end = self._find_turn_end()
        closing = self.encode(self._turn_end)
        if not closing:
            raise UserError(
                f"the chat template of {model_dir} puts nothing behind an answer, so its end cannot be told",
                hint="use a template with an end-of-turn token",
            )
        self.turn_end_id = closing[0]
        """Token that ends an answer in the template."""
        self.stop_token_ids = self._find_stop_ids(model_dir)
        """Tokens that end sampling: the template's end of turn and the model's own end tokens."""

    def render_prefix(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Tokens of a whole conversation with the generation prompt, for a request that shares no stored path."""
        return self.encode(_first_taken(shapes_of(messages, is_start=True), lambda m: self._render(m, tools, is_prompt=True)))

    def render_delta(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, is_turn_closed: bool) -> list[int]:
        """Tokens of new messages behind a stored answer, boundary and generation prompt included.

        Args:
            messages: the new ones only; may be empty.
            tools: what the request offers, for templates whose turns depend on it.
            is_turn_closed: whether the stored path ends with the end-of-turn token.
        """
        text = _first_taken(shapes_of(messages, is_start=False), lambda m: self._text_behind_answer(m, tools))
        tokens = self.encode(text)
        # Encoded with the token that is already there, then cut: the boundary is split exactly as in the whole conversation.
        return tokens[1:] if is_turn_closed and tokens[:1] == [self.turn_end_id] else tokens

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; special tokens written in it are those tokens, except where a `BREAK` cuts them."""
        return [token for piece in text.split(BREAK) for token in self._encode_piece(piece)]

    def _encode_piece(self, text: str) -> list[int]:
        try:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        except TypeError:  # JSON can spell half a surrogate pair, which is no character
            whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return self._tokenizer.encode(whole, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, special ones included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def open_decoder(self) -> StreamDecoder:
        """What decodes one answer while it grows."""
        return StreamDecoder(self._tokenizer, self.stop_token_ids)

    def answer_text(self, output_ids: Sequence[int]) -> str:
        """Text of a sampled answer without the token that ended it."""
        ids = list(output_ids)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self.decode(ids)

    def _text_behind_answer(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        stand_in = [STAND_IN_USER, STAND_IN_ANSWER]
        try:
            whole = self._render(messages, tools, is_prompt=True, stand_in=stand_in)
            return whole[_sentinel_end(whole) :]
        except TemplateRefusedError:
            if not messages or messages[0].role != "tool":
                raise
        # Some templates accept tool results only behind the calls they answer: take what these add to such a conversation.
        calls = tuple(_stand_in_call(m) for m in messages if m.role == "tool")
        caller = Message(role="assistant", text=SENTINEL, tool_calls=calls)
        before = self._render([], tools, is_prompt=False, stand_in=[STAND_IN_USER, caller])
        whole = self._render(messages, tools, is_prompt=True, stand_in=[STAND_IN_USER, caller])
        if not whole.startswith(before):
            raise TemplateRefusedError("the chat template rewrites earlier turns when tool results follow")
        return self._turn_end + whole[len(before) :]

    def _find_turn_end(self) -> str:
        """What the template writes behind an answer: the end-of-turn token and its newline."""
        whole = self._render([], [], is_prompt=False, stand_in=[STAND_IN_USER, STAND_IN_ANSWER])
        return whole[_sentinel_end(whole) :]

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, is_prompt: bool, stand_in: Sequence[Message] = ()) -> str:
        """Text of a conversation that begins with `stand_in`; what a client wrote is kept from being control tokens."""
        listed = [self._tool_object(tool) for tool in tools] or None
        try:
            return self._template.render(
                messages=[*map(_message_object, stand_in), *(self._broken(_message_object(m)) for m in messages)],
                tools=listed,
                add_generation_prompt=is_prompt,
                **self._special,
            )
        except Exception as error:  # a template is a model's own code: whatever it raises is its refusal
            raise TemplateRefusedError(f"the model's chat template cannot render these messages: {error}") from error

    def _broken(self, value: Any) -> Any:
        """A value of a client with a `BREAK` in every control token that its texts spell."""
        if isinstance(value, str):
            return self._control_start.sub(lambda match: match[0] + BREAK, value) if self._spells_control(value) else value
        if isinstance(value, dict):
            return {self._broken(key): self._broken(item) for key, item in value.items()}
        return [self._broken(item) for item in value] if isinstance(value, list) else value

    def _spells_control(self, text: str) -> bool:
        return any(word in text for word in self._control_words)

    def _tool_object(self, tool: ToolSpec) -> dict[str, Any]:
        """A tool in the form that templates read. Its schema is looked through as one text: harnesses send thousands of strings."""
        function = {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters_json)}
        whole = {"type": "function", "function": function}
        texts = (tool.name, tool.description, tool.parameters_json)
        return self._broken(whole) if any("\\u" in text or self._spells_control(text) for text in texts) else whole

    def _find_stop_ids(self, model_dir: Path) -> tuple[int, ...]:
        ids = {self.turn_end_id}
        for name in ("generation_config.json", "config.json"):
            found = _read_json(model_dir / name).get("eos_token_id")
            ids.update([found] if isinstance(found, int) else found or [])
        end = self._tokenizer.token_to_id(self._special.get("eos_token", ""))
        return tuple(sorted(ids | ({end} if end is not None else set())))


def _first_taken(shapes: Iterable[list[Message]], render: Callable[[list[Message]], str]) -> str:
    """The text of the first shape that the template takes; its first refusal where it takes none."""
    refusal: TemplateRefusedError | None = None
    for shape in shapes:
        try:
            return render(shape)
        except TemplateRefusedError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


class StreamDecoder:
    """Decodes one growing answer; costs what is new. Half a character waits for its other half."""

    def __init__(self, tokenizer: Tokenizer, stop_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_token_ids = stop_token_ids
        self._stream = decoders.DecodeStream(skip_special_tokens=False)

    def feed(self, new_ids: Sequence[int]) -> str:
        """Text of new tokens; a token that ends the answer has none."""
        ids = list(new_ids)
        if ids and ids[-1] in self._stop_token_ids:
            ids.pop()
        return (self._stream.step(self._tokenizer, ids) or "") if ids else ""


def _sentinel_end(text: str) -> int:
    place = text.rfind(SENTINEL)
    if place < 0:
        raise TemplateRefusedError("the chat template leaves out an earlier answer")
    return place + len(SENTINEL)


def _message_object(message: Message) -> dict[str, Any]:
    """A message in the form that chat templates read."""
    item: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.reasoning:
        item["reasoning_content"] = message.reasoning
    if message.tool_calls:
        item["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments_object(call.arguments_json)},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        item["tool_call_id"] = message.tool_call_id
    return item


def _arguments_object(text: str) -> Any:
    """Arguments as an object, which templates iterate over; what the model wrote wrongly stands under one name."""
    try:
        value = json.loads(text) if text.strip() else {}
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"arguments": value}


def _stand_in_call(message: Message) -> ToolCall:
    return ToolCall(id=message.tool_call_id or "call00000", name="stand_in", arguments_json="{}")


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    document = json.loads(path.read_text(encoding="utf-8"))
    return document if isinstance(document, dict) else {}


def _find_vocab_size(model_dir: Path) -> int | None:
    """Rows of the model's embedding; None where its configuration does not say."""
    config = _read_json(model_dir / "config.json")
    sizes = (part.get("vocab_size") for part in (config, config.get("text_config")) if isinstance(part, dict))
    return next((size for size in sizes if isinstance(size, int)), None)


def _find_template(config: Mapping[str, Any], model_dir: Path) -> str:
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template") or _read_json(model_dir / "chat_template.json").get("chat_template")
    if isinstance(template, list):  # several by name; the one called default is for chat
        named = {item["name"]: item["template"] for item in template}
        template = named.get("default") or next(iter(named.values()), None)
    if not isinstance(template, str):
        raise UserError(
            f"the model folder {model_dir} has no chat template",
            hint="add chat_template.jinja, or chat_template to tokenizer_config.json",
        )
    return template


def _special_tokens(config: Mapping[str, Any], model_dir: Path) -> dict[str, str]:
    """`bos_token` and its like, which templates write; a token is a string or an object with its content."""
    merged = {**_read_json(model_dir / "special_tokens_map.json"), **config}
    found: dict[str, str] = {}
    for name, value in merged.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, Mapping) else value
            if isinstance(text, str):
                found[name] = text
    return found


def _control_words(tokenizer: Tokenizer) -> tuple[str, ...]:
    """How control tokens are spelled, and our own marks, which a text may hold as well; a single character cannot be broken."""
    special = [str(token.content) for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    return tuple(word for word in (*special, SENTINEL, BREAK) if len(word) > 1)


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`, with which some templates mark what to train on: here only its content counts."""

    tags = {"generation"}  # noqa: RUF012  # the base class declares a set

    def parse(self, parser: Any) -> Any:
        """Replace the block by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compile(source: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise UserError(f"the chat template cannot be compiled: {error}") from error


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
