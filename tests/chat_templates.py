"""Chat templates in the manner of well-known families, with what their turns, tools and calls look like."""

from __future__ import annotations

from typing import Final

CHATML_WITH_TOOLS: Final = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}\
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}\
{{- '# Tools\\n<tools>' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}\
{{- '\\n</tools><|im_end|>\\n' }}{%- elif messages[0].role == 'system' %}\
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}\
{%- for message in messages %}{%- if message.role == 'user' %}\
{{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}\
{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' + message.content }}\
{%- for call in message.tool_calls or [] %}\
{%- if (loop.first and message.content) or not loop.first %}{{- '\\n' }}{%- endif %}\
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments | tojson }}\
{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}\
{%- elif message.role == 'tool' %}\
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}\
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}\
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}\
{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""Qwen 2.5's manner."""

PRINTS_STRINGS: Final = CHATML_WITH_TOOLS.replace(
    "{{- call.function.arguments | tojson }}",
    "{%- if call.function.arguments is string %}{{- call.function.arguments }}{%- else %}"
    "{{- call.function.arguments | tojson }}{%- endif %}",
)
"""Qwen 3's manner."""

THINKS: Final = """\
{%- for message in messages %}{%- if message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}\
{%- if message.reasoning_content %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}\
{{- message.content + '<|im_end|>\\n' }}{%- else %}\
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}\
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"""
"""That of models that always think."""

ONE_CALL: Final = """\
{%- for message in messages %}{%- if message.tool_calls %}{%- if message.tool_calls | length != 1 %}\
{{- raise_exception('only single tool-calls at once') }}{%- endif %}\
{{- '<|start_header_id|>assistant<|end_header_id|>' + message.tool_calls[0].function.arguments['city'] }}\
{%- else %}{{- '<|start_header_id|>' + message.role + '<|end_header_id|>' + message.content }}{%- endif %}{%- endfor %}\
{%- if tools %}{%- endif %}"""
"""Llama 3's manner: it refuses parallel calls, and looks into their arguments."""

SHORT_IDS: Final = """\
{%- for message in messages %}{%- for call in message.tool_calls or [] %}\
{%- if call.id | length != 9 %}{{- raise_exception('Tool call IDs should have length 9!') }}{%- endif %}\
{{- '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' }}{%- endfor %}\
{%- if message.role == 'tool' %}{{- '[TOOL_RESULTS]' + message.tool_call_id }}{%- endif %}{{- message.content }}\
{%- endfor %}{%- if tools %}{%- endif %}"""
"""Mistral's manner."""
