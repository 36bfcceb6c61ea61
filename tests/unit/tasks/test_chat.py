"""Chat templates: what transformers makes of the same messages with the same tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest

from ftppo.config import Config, Model, load_config
from ftppo.driver.datafiles import read_rows
from ftppo.errors import ConfigError, TaskError
from ftppo.tasks.base import Task
from ftppo.tasks.build import build_tasks, build_tokenizer
from ftppo.tasks.chat import ChatTemplate
from tests.byte_tokenizer import NAMED, save_tokenizer
from tests.unit.tasks.making import write_jsonl

TEMPLATE = """{{ bos_token }}{% for message in messages %}
    {%- if message.role not in ("system", "user", "assistant") %}
        {{- raise_exception("no such role: " ~ message.role) }}
    {%- endif %}
    {%- if message.tools is defined %}{{ message.tools | tojson(indent=2) }}{% continue %}{% endif %}
{{ "<|" ~ message.role ~ "|>" }}
{% if message.role == "assistant" %}{% generation %}{{ message.content }}{% endgeneration %}{% else %}
{{ message.content | trim }}
{% endif %}
{% endfor %}
{% if strftime_now is defined %}{{ strftime_now("%Y") }}{% endif %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %}"""
SHORT = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{{ 'a:' if add_generation_prompt }}"
SAID: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": "  Grüße?\n"},
    {"role": "assistant", "content": "Hi "},
    {"role": "user", "tools": [{"a": "ü<"}], "content": ""},
]


def save(folder: Path, template: Any) -> Model:
    save_tokenizer(folder, NAMED if template is None else NAMED | {"chat_template": template})
    shape = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 260}
    (folder / "config.json").write_text(json.dumps(shape))
    return Model(path=str(folder), vocab=260)


def test_the_text_is_that_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    ours = ChatTemplate(save(tmp_path, TEMPLATE))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    undated = TEMPLATE.replace("strftime_now is defined", "false")
    for number in range(1, len(SAID) + 1):
        wanted = theirs.apply_chat_template(
            SAID[:number], chat_template=undated, tokenize=False, add_generation_prompt=True
        )
        assert ours.render(SAID[:number], "here") == wanted
    assert "<bos>" in wanted and "ü<" in wanted


def test_a_template_is_found_in_a_file_of_its_own_or_by_name(tmp_path: Path) -> None:
    several = [{"name": "tools", "template": "no"}, {"name": "default", "template": SHORT}]
    assert ChatTemplate(save(tmp_path, several)).render(SAID[1:2], "here") == "u:  Grüße?\n;a:"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert ChatTemplate(save(tmp_path, SHORT)).render(SAID, "here") == "file"


@pytest.mark.parametrize(("template", "says"), [(None, "has no chat template"), ("{% if %}", "cannot be read")])
def test_a_tokenizer_without_a_template_that_can_be_read(tmp_path: Path, template: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        ChatTemplate(save(tmp_path, template))
    assert caught.value.key == "task.chat"


def test_a_template_stays_in_its_sandbox(tmp_path: Path) -> None:
    chat = ChatTemplate(save(tmp_path, "{{ messages.__class__.__mro__ }}{{ messages.append(1) }}"))
    with pytest.raises(TaskError, match="here: the chat template refuses its messages"):
        chat.render(SAID, "here")


def chatting(folder: Path, path: str, **keys: Any) -> Task:
    save(folder, SHORT)
    task = {"kind": "jsonl", "path": path, "chat": True, "shuffle": False} | keys
    config: Config = load_config({"task": task, "model": {"path": str(folder)}, "rollout": {"max_prompt": 90}})
    return build_tasks(config, build_tokenizer(config.task, config.model), lambda part: read_rows(config, part)).train


def test_prompts_and_messages_are_put_into_the_template(tmp_path: Path) -> None:
    rows = [{"prompt": prompt, "answer": "4"} for prompt in ("2+2?", SAID[1:3], SAID[:2])]
    path = write_jsonl(tmp_path / "a.jsonl", *rows)
    task = chatting(tmp_path, path, template="What is {question}")
    plain = [task.prompt(index).text for index in range(3)]
    assert plain == ["u:What is 2+2?;a:", "u:  Grüße?\n;a:Hi ;a:", "s:Be <brief> & kind.;u:  Grüße?\n;a:"]
    told = chatting(tmp_path, path, system="Count.")
    assert [told.prompt(index).text[:9] for index in range(3)] == ["s:Count.;", "s:Count.;", "s:Be <bri"]


@pytest.mark.parametrize("prompt", [[], [1], [{"content": "x"}], {"role": "user"}, 4])
def test_what_is_no_message_is_named(tmp_path: Path, prompt: Any) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", {"prompt": "fine", "answer": "a"}, {"prompt": prompt, "answer": "a"})
    with pytest.raises(TaskError, match=r'a\.jsonl, line 2: "prompt" is to be a string or messages'):
        chatting(tmp_path, path)
