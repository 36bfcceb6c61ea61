"""A model's own chat template. Comes in: messages, each with role and content; goes out: the prompt's text.

Templates are Jinja as transformers runs it: in a sandbox, with the same filters and globals but one. `strftime_now` is
left undefined, which templates provide for: a prompt must not hang on the day.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ftppo.config_model import Model
from ftppo.errors import ConfigError, TaskError
from ftppo.pretrained import CONFIG, TOKENIZER, locate, read_json

KEY = "task.chat"

type Messages = Sequence[Mapping[str, Any]]


class _Generation(Extension):
    """{% generation %} marks what a model says, for training on it; here it is read over."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """The template of the tokenizer that comes with a pretrained model."""

    def __init__(self, model: Model) -> None:
        """Raises ConfigError where the tokenizer has none, or one that cannot be read."""
        assert model.path is not None, "config_check asks for it"
        folder = locate(model.path, (*TOKENIZER, CONFIG))
        named = read_json(folder, "tokenizer_config.json")
        source = _source(folder, named)
        if source is None:
            remedy = f"the tokenizer of {model.path} has no chat template: leave chat out, and write task.template"
            raise ConfigError(KEY, True, remedy)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(KEY, True, f"the chat template of {model.path} cannot be read: {error}") from error
        self._special = {role: text for role in named if role.endswith("_token") and (text := _text(named[role]))}

    def render(self, messages: Messages, where: str) -> str:
        """The text of `messages` with the beginning of an answer. Raises TaskError naming `where` they stand."""
        try:
            return self._template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._special
            )
        except (jinja2.TemplateError, LookupError, TypeError, ValueError) as error:
            raise TaskError(f"{where}: the chat template refuses its messages: {error}") from error


def _source(folder: Path, named: Mapping[str, Any]) -> str | None:
    """The template's text: a file of its own, or a key of tokenizer_config.json, there perhaps one of several."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = named.get("chat_template")
    if isinstance(found, list):
        found = {one["name"]: one["template"] for one in found}.get("default")
    return found if isinstance(found, str) else None


def _text(token: object) -> str | None:
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    """Jinja's own would escape what is special in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
