"""`pagefall doctor template`: whether a model's chat template is friendly to prefix caches. No server, no weights."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from pagefall.cli.flags import Flag, FlagTable, Group
from pagefall.cli.parser import build_config, parse_arguments
from pagefall.cli.template import template_text
from pagefall.cli.tokenizer_only import load_tokenizer_only
from pagefall.config import ModelConfig
from pagefall.text.prefix_check import Case, PrefixReport, check_prefixes
from pagefall.text.replies.formats import reply_format

_REMEDIES: Final = {
    "thought given back": "thoughts of earlier turns are dropped by the template, or written in another way",
    "thought left out": "the template writes no thought where the client gives none back",
    "tool call": "the template writes calls in another way than the model",
    "parallel calls": "the template writes calls in another way than the model",
    "plain": "the template changes answers: the turn after each is computed from there on",
}


class _Output(msgspec.Struct, frozen=True, kw_only=True):
    json: bool = False


class _Command(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelConfig
    output: _Output


TEMPLATE_FLAGS: Final = FlagTable(
    program="pagefall doctor template",
    summary="Say how much of a prompt and its answer the next turn begins with, under a model's chat template.",
    groups=(
        Group(
            "Model",
            "model",
            ModelConfig,
            (
                Flag("model-path", "a folder, a .gguf file or a hub id; absent: the embedded model", "PATH"),
                Flag("tokenizer-path", "a folder or a hub id; absent: the model's", "PATH"),
                Flag("revision", "branch, tag or commit of a hub model", "REV"),
                Flag("trust-remote-code", "run the Python code that a model brings along"),
                Flag("chat-template", "a Jinja template, or a file with one, in place of the model's own", "FILE|TEXT"),
                Flag("tool-call-parser", "how the model writes tool calls; auto reads it from the chat template"),
                Flag("reasoning-parser", "how the model marks its thoughts; auto reads it from the chat template"),
            ),
        ),
        Group("Output", "output", _Output, (Flag("json", "print the report as JSON"),)),
    ),
)


def doctor_template(argv: Sequence[str]) -> int:
    """Raises `ConfigError` for flags that cannot be used, `ModelError` without a tokenizer."""
    given = parse_arguments(TEMPLATE_FLAGS, argv, os.environ)
    if "chat-template" in given:
        given = {**given, "chat-template": template_text(given["chat-template"])}
    command: _Command = build_config(TEMPLATE_FLAGS, _Command, given)
    tokenizer = load_tokenizer_only(command.model)
    replies = reply_format(
        command.model.tool_call_parser,
        command.model.reasoning_parser,
        chat_template=tokenizer.chat_template,
        special_token_id=tokenizer.special_token_id,
    )
    report = check_prefixes(tokenizer, replies)
    if command.output.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    else:
        sys.stdout.write(render(report))
    return 0


def render(report: PrefixReport) -> str:
    tools = "knows tools" if report.knows_tools else "knows no tools: they are told in a system message"
    lines = [
        f"tool calls  {report.replies.tools}, the template {tools}",
        f"thoughts    {report.replies.thinking}",
        *(["date        the template writes it: prompts of another day share nothing behind it"] * report.writes_date),
        "",
        "The next turn begins with, of the tokens of a prompt and the answer to it:",
    ]
    for case in report.cases:
        lines += _case(case)
    return "\n".join(lines) + "\n"


def _case(case: Case) -> list[str]:
    name = f"  {case.name:20}"
    if case.refusal is not None:
        return [f"{name}refused: {case.refusal}"]
    lines = [f"{name}{case.num_shared} of {case.num_tokens}"]
    if case.num_shared < case.num_tokens:
        indent = " " * len(name)
        lines += [
            f"{indent}{_REMEDIES[case.name]}",
            f"{indent}the model wrote {case.written!r}, the template writes {case.rendered!r}",
        ]
    return lines
