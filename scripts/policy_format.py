"""How the quickstart's policy reads and writes: its tokenizer and its chat template.

The tokenizer is a byte-level BPE of 512 entries. Words are split off before merging, digits stay single, and each tag of the
`qwen3_coder` tool format (with the newline that belongs to it) is one added token: the fewer syntax tokens a small policy has to
get right, the more of its updates go to the work itself. A space before a digit belongs to what stands before it, so that a
number is the same token in an instruction, in code and in a test report.

The chat template is ChatML with tools listed by name and parameters, calls as `qwen3_coder` writes them, and one turn per tool
result. It only ever appends: rendering one more message leaves what was rendered before as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 512
CONTEXT_TOKENS = 2048

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)

TAG_TOKENS = (
    "<tool_call>\n",
    "<function=write_file>\n",
    "<function=run_tests>\n",
    "<function=finish>\n",
    "<parameter=content>\n",
    "\n</parameter>\n",
    "</function>\n",
    "</tool_call>",
    "<tool_response>\n",
    "\n</tool_response>",
)

SPLIT = r"(?: ?[A-Za-z_]+| ?[^\sA-Za-z0-9_]+)(?: (?=[0-9]))?|[0-9]|\s+"

CHAT_TEMPLATE = r"""
{%- macro tool_list(tools) %}
    {{- 'Tools: ' }}
    {%- for tool in tools %}
        {%- set spec = tool.function if tool.function is defined else tool %}
        {%- set parameters = spec.parameters.properties if spec.parameters.properties is defined else {} %}
        {{- spec.name + '(' + (parameters | join(', ')) + ')' + ('' if loop.last else ', ') }}
    {%- endfor %}
{%- endmacro %}
{%- if tools and messages and messages[0].role != 'system' %}
    {{- '<|im_start|>system\n' + tool_list(tools) + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' + (message.content or '') }}
        {%- for item in message.tool_calls or [] %}
            {%- set call = item.function if item.function is defined else item %}
            {{- ('\n' if message.content or not loop.first else '') + '<tool_call>\n<function=' + call.name + '>\n' }}
            {%- for name, value in call.arguments.items() %}
                {{- '<parameter=' + name + '>\n' }}
                {{- value if value is string else value | tojson }}
                {{- '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content }}
        {%- if tools and message.role == 'system' and loop.first %}
            {{- '\n' + tool_list(tools) }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
""".strip()


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A byte-level BPE of VOCAB_SIZE entries, trained on conversations; control and tag tokens come first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokens = [AddedToken(text, special=True, normalized=False) for text in CONTROL_TOKENS]
    tokens += [AddedToken(text, special=False, normalized=False) for text in TAG_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(f"the corpus gives only {tokenizer.get_vocab_size()} of {VOCAB_SIZE} entries: use more of it")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, with the chat template, as Hugging Face libraries read them."""
    folder.mkdir(parents=True, exist_ok=True)
    document = json.loads(tokenizer.to_str())
    for token in document["added_tokens"]:
        token["special"] = token["content"] in CONTROL_TOKENS
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_TOKENS,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
