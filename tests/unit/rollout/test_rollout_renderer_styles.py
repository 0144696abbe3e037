"""Increments against hand-written turns, in the styles of well-known chat templates: what a path holds is what each style would write.

The templates are this project's own, with the structure of the families they are named for: their turn marks, what they strip and
what they refuse.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxy_fakes import make_model_dir

from gyre.rollout.renderer import Renderer
from gyre.trajectory.messages import Message, ToolCall, ToolSpec

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n' }}{%- for tool in tools %}{{- (tool | tojson) + '\\n' }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- elif add_default %}{{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if thinks and loop.index0 > ns.last and m.reasoning_content %}
            {{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- m.content }}
        {%- for c in m.tool_calls or [] %}
            {{- '\\n<tool_call>\\n' + ({'name': c.function.name, 'arguments': c.function.arguments} | tojson) + '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
QWEN3 = "{%- set thinks = true %}" + QWEN
QWEN25 = "{%- set add_default = true %}" + QWEN
SMOLLM2 = """{% for m in messages %}{% if loop.first and m.role != 'system' %}
{{- '<|im_start|>system\\nYou are small.<|im_end|>\\n' }}{% endif %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
LLAMA3 = """{{- bos_token }}
{%- for m in messages %}
    {%- if m.tool_calls %}
        {%- if m.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' + m.content + (m.tool_calls[0].function | tojson) + '<|eot_id|>' }}
    {%- elif m.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + m.content + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + (m.content | trim) + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
GEMMA = """{{- bos_token }}
{%- if messages[0].role == 'system' %}{{- raise_exception('no system role') }}{%- endif %}
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}
    {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + (m.content | trim) + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""


@dataclass(frozen=True)
class Style:
    template: str
    marks: tuple[str, ...]
    begin: str
    """In front of a first user message."""
    turn: str
    """A turn of a role with a text."""
    prompt: str
    between: str
    """Behind the end-of-turn token."""
    tools: str
    """Two tool results, `{one}` and `{two}`, as one increment without its generation prompt."""
    system_first: str
    """A system message `{system}` and a user message `{user}` at the beginning."""

    @property
    def end(self) -> str:
        return self.marks[-1]

    def user(self, text: str) -> str:
        return self.turn.format(role="user", text=text)


CHATML_TURN, CHATML_MARKS = "<|im_start|>{role}\n{text}<|im_end|>\n", ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_TOOLS = "<|im_start|>user\n<tool_response>\n{one}\n</tool_response>\n<tool_response>\n{two}\n</tool_response><|im_end|>\n"
CHATML_SYSTEM = "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"


def chatml(template: str, begin: str, tools: str = QWEN_TOOLS) -> Style:
    return Style(template, CHATML_MARKS, begin, CHATML_TURN, "<|im_start|>assistant\n", "\n", tools, CHATML_SYSTEM)


STYLES = {
    "qwen3": chatml(QWEN3, ""),
    "qwen2.5": chatml(QWEN25, "<|im_start|>system\nYou help.<|im_end|>\n"),
    "smollm2": chatml(
        SMOLLM2,
        "<|im_start|>system\nYou are small.<|im_end|>\n",
        "<|im_start|>tool\n{one}<|im_end|>\n<|im_start|>tool\n{two}<|im_end|>\n",
    ),
    "llama3": Style(
        LLAMA3,
        ("<|endoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|endoftext|>",
        "<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "",
        "<|start_header_id|>ipython<|end_header_id|>\n\n{one}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n{two}<|eot_id|>",
        "<|endoftext|><|start_header_id|>system<|end_header_id|>\n\n{system}<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n{user}<|eot_id|>",
    ),
    "gemma": Style(
        GEMMA,
        ("<|endoftext|>", "<start_of_turn>", "<end_of_turn>"),
        "<|endoftext|>",
        "<start_of_turn>{role}\n{text}<end_of_turn>\n",
        "<start_of_turn>model\n",
        "\n",
        "<start_of_turn>user\n{one}\n\n{two}<end_of_turn>\n",
        "<|endoftext|><start_of_turn>user\n{system}\n\n{user}<end_of_turn>\n",
    ),
}


@pytest.fixture(scope="module")
def renderers(tmp_path_factory) -> dict[str, Renderer]:
    folder = tmp_path_factory.mktemp("styles")
    return {
        name: Renderer(make_model_dir(folder / name.replace(".", ""), style.template, eos=style.end, specials=style.marks))
        for name, style in STYLES.items()
    }


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<>"), max_size=12).map(lambda t: f"a{t}z")
ANSWERS = st.one_of(WORDS, WORDS.map(lambda text: f"<think>\n{text}\n</think>\n\nDone."))
ALL = pytest.mark.parametrize("name", list(STYLES))


@ALL
@settings(max_examples=25, deadline=None)
@given(turns=st.lists(st.tuples(WORDS, ANSWERS, st.sampled_from(["user", "tools", "cut"])), min_size=1, max_size=5))
def test_a_path_holds_what_was_sampled_and_the_styles_own_boundaries(renderers, name, turns):
    style, renderer = STYLES[name], renderers[name]
    tokens: list[int] = []
    expected, is_closed, kind = "", True, "user"
    for asked, said, following in turns:
        if not tokens:
            tokens += renderer.render_prefix([Message(role="user", text=asked)], [])
            expected += style.begin + style.user(asked) + style.prompt
        else:
            results = [Message(role="tool", text=text, tool_call_id=text) for text in (asked, "ok")]
            new = results if kind == "tools" else [Message(role="user", text=asked)]
            tokens += renderer.render_delta(new, [], is_turn_closed=is_closed)
            supplied = "" if is_closed else style.end
            shown = style.tools.format(one=asked, two="ok") if kind == "tools" else style.user(asked)
            expected += supplied + style.between + shown + style.prompt
        is_closed, kind = following != "cut", following
        sampled = [*renderer.encode(said), *([renderer.turn_end_id] if is_closed else [])]
        tokens += sampled
        expected += said + (style.end if is_closed else "")
    # The past is verbatim although a template may strip thinking from it: nothing of it is rendered again.
    assert renderer.decode(tokens) == expected
    assert tokens == renderer.encode(expected)


@ALL
def test_a_system_message_is_seen_in_every_style(renderers, name):
    style, renderer = STYLES[name], renderers[name]
    text = renderer.decode(renderer.render_prefix([Message(role="system", text="S"), Message(role="user", text="U")], []))
    assert text == style.system_first.format(system="S", user="U") + style.prompt


@ALL
def test_a_system_entry_between_turns_is_seen_in_every_style(renderers, name):
    style, renderer = STYLES[name], renderers[name]
    new = [Message(role="system", text="S"), Message(role="user", text="U")]
    text = renderer.decode(renderer.render_delta(new, [], is_turn_closed=True))
    if name == "gemma":
        shown = style.user("S\n\nU")
    else:
        shown = style.turn.format(role="system", text="S") + style.user("U")
    assert text == style.between + shown + style.prompt


@ALL
def test_a_foreign_history_with_parallel_calls_is_rendered_in_every_style(renderers, name):
    calls = tuple(ToolCall(id=i, name="run", arguments_json='{"a": 1}') for i in "xy")
    history = [
        Message(role="user", text="U"),
        Message(role="assistant", text="I run.", tool_calls=calls),
        Message(role="tool", text="one", tool_call_id="x"),
        Message(role="tool", text="two", tool_call_id="y"),
        Message(role="user", text="V"),
        Message(role="user", text="W"),
    ]
    text = renderers[name].decode(renderers[name].render_prefix(history, [ToolSpec(name="run")]))
    assert [text.count(word) for word in ("I run.", "one", "two", "V", "W")] == [1] * 5
    assert text.index("I run.") < text.index("one") < text.index("two") < text.index("V") < text.index("W")


@ALL
def test_half_a_surrogate_pair_is_no_reason_to_fail(renderers, name):
    assert renderers[name].render_prefix([Message(role="user", text="a\ud83dz")], [])


@ALL
@settings(max_examples=25, deadline=None)
@given(text=st.text(max_size=30), cuts=st.lists(st.integers(1, 4), max_size=40))
def test_decoding_in_pieces_is_decoding_at_once(renderers, name, text, cuts):
    renderer = renderers[name]
    ids = [*renderer.encode(text), renderer.turn_end_id]
    decoder, place, out = renderer.open_decoder(), 0, ""
    for step in [*cuts, len(ids)]:
        out += decoder.feed(ids[place : place + step])
        place += step
    whole = renderer.answer_text(ids)
    assert whole.startswith(out)
    assert not whole[len(out) :].strip("\N{REPLACEMENT CHARACTER}")
