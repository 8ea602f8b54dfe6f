# SPDX-License-Identifier: Apache-2.0
"""Writes template_goldens.json: what Jinja, set up as transformers does it, makes of templates.

    python tests/text/make_template_goldens.py          (needs transformers and jinja2)

Two kinds of cases. Families: chat templates written for this file in the manner of the published
model families, each rendered over conversations below. Constructs: one expression or statement each,
where Jinja and Python have rules that a reimplementation gets wrong. A case holds the expected text,
or that the template fails.
"""
import datetime
import json
import pathlib

from transformers.utils import chat_template_utils as ctu

NOW = datetime.datetime(2024, 7, 26, 14, 5, 9)


class FixedDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


ctu.datetime = FixedDatetime

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a <place> & \"day\", naïve façade ☂",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "A town"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "default": 3}}, "required": ["place"]}}}
CLOCK = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {
    "type": "object", "properties": {}}}}


def call(name, args, ident="call00001"):
    return {"type": "function", "id": ident, "function": {"name": name, "arguments": args}}


CHATS = {
    "short": {"messages": [{"role": "user", "content": "Hello"}], "add_generation_prompt": True},
    "system": {"messages": [{"role": "system", "content": "  Be brief.\n"},
                            {"role": "user", "content": " What is 2+2? "}], "add_generation_prompt": True},
    "turns": {"messages": [{"role": "system", "content": "You are kind."}, {"role": "user", "content": "Hi\n\nthere"},
                           {"role": "assistant", "content": "Hello 'you' \"there\" <b>"},
                           {"role": "user", "content": "Ünïcödé 漢字 🙂?"}, {"role": "assistant", "content": "Yes."},
                           {"role": "user", "content": "Bye"}], "add_generation_prompt": True},
    "ended": {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello\n"}],
              "add_generation_prompt": False},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image"},
                                                        {"type": "text", "text": " what?"}]}],
              "add_generation_prompt": True},
    "thinking": {"messages": [{"role": "user", "content": "7*6?"},
                              {"role": "assistant", "content": "<think>\nsix sevens\n</think>\n\n42"},
                              {"role": "user", "content": "And 8*7?"},
                              {"role": "assistant", "content": "56", "reasoning_content": "\neight sevens\n"},
                              {"role": "user", "content": "Sum?"}], "add_generation_prompt": True},
    "no_thinking": {"messages": [{"role": "user", "content": "7*6?"}], "add_generation_prompt": True,
                    "enable_thinking": False},
    "tools": {"messages": [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Weather in Rome?"}],
              "tools": [WEATHER, CLOCK], "add_generation_prompt": True},
    "tool_turns": {"messages": [
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"place": "Rome", "days": 2})]},
        {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"temp\": 31.5}"},
        {"role": "assistant", "content": "It is 31.5 C."}, {"role": "user", "content": "Thanks"}],
        "tools": [WEATHER], "add_generation_prompt": True},
    "two_calls": {"messages": [
        {"role": "user", "content": "Rome and the time?"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [
            call("get_weather", {"place": "Rome"}), call("now", {}, "call00002")]},
        {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "31"},
        {"role": "tool", "name": "now", "tool_call_id": "call00002", "content": "12:00"}],
        "tools": [WEATHER, CLOCK], "add_generation_prompt": True},
    "bad_order": {"messages": [{"role": "assistant", "content": "I start"}, {"role": "user", "content": "no"}],
                  "add_generation_prompt": True},
}

# Reconstructed by their constructs: the markers and the order of things, in words of our own.
FAMILIES = {
    "chatml": """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "smollm2": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe of use.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "llama2": """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must take turns: user, assistant, user ...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "llama3": """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    "llama3.1": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message comes first, cut off from the rest. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "Functions that you may call:" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("There is no first user message to put the tools in!") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- "Answer with a JSON call of one of these functions.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- "<|python_tag|>" + tool_call.name + ".call(" }}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- endif %}
                {%- endfor %}
            {{- ")" }}
        {%- else  %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- '{"name": "' + tool_call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral_v1": """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('user and assistant must alternate') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles!') }}{% endif %}{% endfor %}""",
    "mistral_v3": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- Tool calls and results do not count when turns are checked. #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the system message, user and assistant take turns") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
            {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs must have 9 characters!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant, and a first system message!") }}
    {%- endif %}
{%- endfor %}
""",
    "tekken": """{%- set default_system_message = "Today is " + strftime_now("%Y-%m-%d") + "." %}{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}
        {%- set system_message = messages[0]['content'] %}
    {%- else %}
        {%- set system_message = messages[0]['content'][0]['text'] %}
    {%- endif %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = default_system_message %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if message['content'] is string %}
            {{- '[INST]' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST]' }}
            {%- for block in message['content'] %}
                {%- if block['type'] == 'text' %}
                    {{- block['text'] }}
                {%- elif block['type'] in ['image', 'image_url'] %}
                    {{- '[IMG]' }}
                {%- else %}
                    {{- raise_exception('Only text and image blocks are supported!') }}
                {%- endif %}
            {%- endfor %}
            {{- '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {%- if message.tool_calls is defined and message.tool_calls | length > 0 %}
            {%- for c in message.tool_calls %}{{- '[TOOL_CALLS]' ~ c.function.name ~ '[ARGS]' ~ (c.function.arguments if c.function.arguments is string else c.function.arguments | tojson) }}{%- endfor %}
            {{- eos_token }}
        {%- else %}
            {{- message['content'] + eos_token }}
        {%- endif %}
    {%- elif message['role'] == 'tool' %}
        {{- '[TOOL_RESULTS]' + message['content']|string + '[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception('Only user, system and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}""",
    "gemma2": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    "gemma3": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must alternate user/assistant/user/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
""",
    "qwen2.5": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You help.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nSignatures are within <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nCall like this:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "qwen3": """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "phi3": """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "phi4": """{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}""",
    "deepseek_v3": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<|User|>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['tool_calls'] %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}{{'<|Assistant|><|tool▁calls▁begin|><|tool▁call▁begin|>' + tool['type'] + '<|tool▁sep|>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments']|tojson + '\\n' + '```' + '<|tool▁call▁end|>'}}{%- set ns.is_first = true -%}{%- else %}{{'\\n' + '<|tool▁call▁begin|>' + tool['function']['name'] + '<|tool▁call▁end|>'}}{{'<|tool▁calls▁end|><|end▁of▁sentence|>'}}{%- endif %}{%- endfor %}{%- endif %}{%- if message['role'] == 'assistant' and not message['tool_calls'] %}{%- if ns.is_tool %}{{'<|tool▁outputs▁end|>' + message['content'] + '<|end▁of▁sentence|>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<|Assistant|>' + content + '<|end▁of▁sentence|>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<|tool▁outputs▁begin|><|tool▁output▁begin|>' + message['content'] + '<|tool▁output▁end|>'}}{%- set ns.is_output_first = false %}{%- else %}{{'\\n<|tool▁output▁begin|>' + message['content'] + '<|tool▁output▁end|>'}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<|tool▁outputs▁end|>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<|Assistant|><think>\\n'}}{% endif %}""",
    "command_r": """{{ bos_token }}{%- macro json_to_python_type(json_spec) %}
{%- set basic_type_map = {
    "string": "str",
    "number": "float",
    "integer": "int",
    "boolean": "bool"
} %}

{%- if basic_type_map[json_spec.type] is defined %}
    {{- basic_type_map[json_spec.type] }}
{%- elif json_spec.type == "array" %}
    {{- "List[" +  json_to_python_type(json_spec.items) + "]"}}
{%- elif json_spec.type == "object" %}
    {{- "Dict[str, " + json_to_python_type(json_spec.additionalProperties) + ']'}}
{%- elif json_spec.type is iterable %}
    {{- "Union[" }}
    {%- for t in json_spec.type %}
      {{- json_to_python_type({"type": t}) }}
      {%- if not loop.last %}
        {{- "," }}
      {%- endif %}
    {%- endfor %}
    {{- "]" }}
{%- else %}
    {{- "Any" }}
{%- endif %}
{%- endmacro %}

{%- macro old_tool_parser(tools) %}
{%- for tool in tools %}
    {%- if loop.index0 != 0 %}
        {{- '\\n\\n' }}
    {%- endif %}
    {{- '```python\\ndef ' + tool.name + '(' }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {%- if loop.index0 != 0 %}
            {{- ', '}}
        {%- endif %}
        {{- param_name + ': ' }}
        {%- if not param_name in tool.parameters.required %}
            {{- 'Optional[' + json_to_python_type(param_fields) + '] = None'}}
        {%- else %}
            {{- json_to_python_type(param_fields) }}
        {%- endif %}
    {%- endfor %}
    {{- ') -> List[Dict]:\\n    \\"\\"\\"'}}
    {{- tool.description }}
    {%- if tool.parameters.properties|length != 0 %}
        {{- '\\n\\n    Args:\\n        '}}
        {%- for param_name, param_fields in tool.parameters.properties|items %}
            {%- if loop.index0 != 0 %}
                {{- '\\n        ' }}
            {%- endif %}
            {{- param_name + ' ('}}
            {{- json_to_python_type(param_fields)}}
            {{- '): ' + (param_fields.description or '-') }}
        {%- endfor %}
    {%- endif %}
    {{- '\\n    \\"\\"\\"\\n    pass\\n```' }}
{%- endfor %}
{%- endmacro %}
{%- if tools %}{{ old_tool_parser(tools | map(attribute='function') | list) }}{% endif %}
{%- for message in messages -%}
<|START_OF_TURN_TOKEN|>{{ {'system': '<|SYSTEM_TOKEN|>', 'user': '<|USER_TOKEN|>', 'assistant': '<|CHATBOT_TOKEN|>', 'tool': '<|SYSTEM_TOKEN|>'}[message.role] }}{{ message.content }}<|END_OF_TURN_TOKEN|>
{%- endfor -%}
{%- if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}""",
    "granite": """{%- if messages[0]['role'] == 'system' %}
     {%- set system_message = messages[0]['content'] %}
     {%- set loop_messages = messages[1:] %}
 {%- else %}
     {%- set system_message = "Today's Date: " + strftime_now('%B %d, %Y') + ".\\nYou are a helper." %}
     {%- if tools and documents %}
         {%- set system_message = system_message + " Both." %}
     {%- elif tools %}
         {%- set system_message = system_message + " With tools." %}
     {%- endif %}
     {%- set loop_messages = messages %}
 {%- endif %}
 {{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
 {%- if tools %}
     {{- '<|start_of_role|>tools<|end_of_role|>' }}
     {{- tools | tojson(indent=4) }}
     {{- '<|end_of_text|>\\n' }}
 {%- endif %}
 {%- if documents %}
     {{- '<|start_of_role|>documents<|end_of_role|>' }}
     {%- for document in documents %}
         {{- 'Document ' + loop.index0 | string + '\\n' }}
         {{- document['text'] }}
         {%- if not loop.last %}
              {{- '\\n\\n'}}
         {%- endif%}
     {%- endfor %}
     {{- '<|end_of_text|>\\n' }}
 {%- endif %}
 {%- for message in loop_messages %}
     {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
     {%- if loop.last and add_generation_prompt %}
         {{- '<|start_of_role|>assistant' }}
             {%- if controls %}
                 {{- ' ' + controls | tojson()}}
             {%- endif %}
         {{- '<|end_of_role|>' }}
     {%- endif %}
 {%- endfor %}""",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "vicuna": """{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] | trim ~ ' ' }}{% set messages = messages[1:] %}{% else %}{{ 'A talk between a person and a helper. ' }}{% endif %}{% for message in messages %}{% if message['role'] == 'user' %}{{ 'USER: ' ~ message['content'] | trim ~ ' ' }}{% elif message['role'] == 'assistant' %}{{ 'ASSISTANT: ' ~ message['content'] | trim ~ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}""",
    "alpaca": """{%- if not (messages|selectattr('role', 'equalto', 'system')|list) %}
{{- 'Below is an instruction.\\n\\n' }}
{%- endif %}
{%- for m in messages %}
  {%- if m.role == 'system' %}
{{ m.content }}

  {%- elif m.role == 'user' %}
### Instruction:
{{ m.content }}

  {%- else %}
### Response:
{{ m.content }}{{ eos_token }}

  {%- endif %}
{% endfor %}
{% if add_generation_prompt %}
### Response:
{% endif %}
""",
    "falcon": """{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}{% if message['role'] == 'system' %}{{ 'System: ' }}{% elif message['role'] == 'user' %}{{ 'User: ' }}{% elif message['role'] == 'assistant' %}{{ 'Falcon: ' }}{% endif %}{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}{{ '\\n' + 'Falcon:' }}{% endif %}""",
    "olmo": """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>
' + message['content'] + '
' }}{% elif message['role'] == 'user' %}{{ '<|user|>
' + message['content'] + '
' }}{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>
'  + message['content'] + eos_token + '
' }}{% else %}{{ '<|assistant|>
'  + message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>
' }}{% endif %}{% endfor %}""",
    "smollm3": """{# ─── defaults ─── #}
{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}
{# ─── reasoning mode ─── #}
{%- if enable_thinking -%}
  {%- set reasoning_mode = "/think" -%}
{%- else -%}
  {%- set reasoning_mode = "/no_think" -%}
{%- endif -%}
{# ─── header (system message) ─── #}
{{- "<|im_start|>system\\n" -}}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}
    {%- set reasoning_mode = "/no_think" -%}
  {%- elif "/think" in system_message -%}
    {%- set reasoning_mode = "/think" -%}
  {%- endif -%}
  {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{- "## Metadata\\n\\n" -}}
{{- "Date: " -}}
{%- set today = strftime_now("%d %B %Y") -%}
{{- today ~ "\\n" -}}
{{- "Reasoning Mode: " + reasoning_mode + "\\n\\n" -}}
{%- if custom_instructions -%}
  {{- custom_instructions + "\\n\\n" -}}
{%- endif -%}
{%- if xml_tools or python_tools or tools -%}
  {%- set ns = namespace(xml_tool_string="In <tools>:\\n\\n<tools>\\n") -%}
  {%- for tool in (xml_tools or tools)[:] -%}
    {%- set ns.xml_tool_string = ns.xml_tool_string ~ (tool.function | string) ~ "\\n" -%}
  {%- endfor -%}
  {{- ns.xml_tool_string + "</tools>" -}}
{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\\n"  + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- if reasoning_mode == "/think" -%}
            {{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- else -%}
            {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- endif -%}
        {% endgeneration %}
    {%- elif message.role == "tool" -%}
    {{ "<|im_start|>" + "user\\n"  + content + "<|im_end|>\\n" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {%- if reasoning_mode == "/think" -%}
        {{ "<|im_start|>assistant\\n" }}
    {%- else -%}
        {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n"  }}
    {%- endif -%}
{%- endif -%}
""",
    "yi": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% endif %}{% if system_message is defined %}{{ system_message }}{% endif %}{% for message in messages %}{% set content = message['content'] %}{% if message['role'] == 'user' %}{{ '<|im_start|>user\\n' + content + '<|im_end|>\\n<|im_start|>assistant\\n' }}{% elif message['role'] == 'assistant' %}{{ content + '<|im_end|>' + '\\n' }}{% endif %}{% endfor %}""",
    "internlm2": """{{ bos_token }}{% for message in messages %}{{'<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] ~ '<|im_end|>' ~ '\\n'}}{% endfor %}{{ '<|im_start|>assistant\\n' if add_generation_prompt }}""",
    "stablelm": """{% for message in messages %}{% if message['role'] == 'user' or message['role'] == 'system' %}{{ '<|' ~ message.role ~ '|>\\n' ~ message.content ~ '<|endoftext|>\\n' }}{% else %}{{ '<|assistant|>\\n' ~ message.content }}{{- '<|endoftext|>' }}{{ '\\n' }}{% endif %}{% endfor %}{%- if add_generation_prompt and messages[-1]['role'] != 'assistant' -%}{{- '<|assistant|>\\n' -}}{%- endif %}""",
    "hermes_tools": """{%- macro json_to_python_type(json_spec) %}
{%- set basic_type_map = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
{%- if json_spec.type is not defined %}{{- "Any" }}
{%- elif basic_type_map[json_spec.type] is defined %}
    {{- basic_type_map[json_spec.type] }}
{%- else %}
    {{- "Any" }}
{%- endif %}
{%- endmacro %}
{{- bos_token }}
{{- '<|im_start|>system\\n' }}
{{- "You call functions. Here are the tools: <tools> " }}
{%- if tools is iterable and tools | length > 0 %}
{%- for tool in tools %}
    {%- if tool.function is defined %}
        {%- set tool = tool.function %}
    {%- endif %}
    {{- '{"type": "function", "function": ' }}
    {{- '{"name": "' + tool.name + '", ' }}
    {{- '"description": "' + tool.name + '(' }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {{- param_name + ": " + json_to_python_type(param_fields) }}
        {%- if not loop.last %}
            {{- ", " }}
        {%- endif %}
    {%- endfor %}
    {{- ")" }}
    {%- if tool.return is defined %}
        {{- " -> " + json_to_python_type(tool.return) }}
    {%- endif %}
    {{- " - " + tool.description + "\\n\\n" }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {%- if loop.first %}
            {{- "    Args:\\n" }}
        {%- endif %}
        {{- "        " + param_name + "(" + json_to_python_type(param_fields) + "): " + (param_fields.description|default('')|trim) }}
    {%- endfor %}
    {{- '", "parameters": ' }}
    {%- if tool.parameters.properties | length == 0 %}
        {{- "{}" }}
    {%- else %}
        {{- tool.parameters|tojson }}
    {%- endif %}
    {{- "}" }}
    {%- if not loop.last %}
        {{- "\\n" }}
    {%- endif %}
{%- endfor %}
{%- endif %}
{{- " </tools><|im_end|>\\n" }}
{%- for message in messages %}
    {%- if message.role == "user" or message.role == "system" or (message.role == "assistant" and message.tool_calls is not defined) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
    {%- for tool_call in message.tool_calls %}
       {{- '\\n<tool_call>\\n' }}
           {%- if tool_call.function is defined %}
               {%- set tool_call = tool_call.function %}
           {%- endif %}
            {{- '{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments|tojson }}
            {{- '}' }}
            {{- '\\n</tool_call>' }}
    {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}
            {{- '<|im_start|>tool\\n' }}
        {%- endif %}
        {{- '<tool_response>\\n' }}
        {{- message.content }}
        {%- if not loop.last %}
            {{- '\\n</tool_response>\\n' }}
        {%- else %}
            {{- '\\n</tool_response>' }}
        {%- endif %}
        {%- if not loop.last and loop.nextitem.role != "tool" %}
            {{- '<|im_end|>' }}
        {%- elif loop.last %}
            {{- '<|im_end|>' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "gpt_oss": """{%- macro render_typescript_type(param_spec, required_params, is_nullable=false) -%}
    {%- if param_spec.type == "array" -%}
        {%- if param_spec['items'] -%}{{- render_typescript_type(param_spec['items'], required_params) + "[]" }}{%- else -%}any[]{%- endif -%}
    {%- elif param_spec.type is defined and param_spec.type is iterable and param_spec.type is not string and param_spec.type is not mapping -%}
        {{- param_spec.type | join(" | ") }}
    {%- elif param_spec.enum -%}
        {{- '"' + param_spec.enum|join('" | "') + '"' -}}
    {%- elif param_spec.type == "integer" or param_spec.type == "number" -%}number{%- else -%}{{ param_spec.type or 'any' }}{%- endif -%}
    {%- if is_nullable %} | null{% endif -%}
{%- endmacro -%}
{%- macro render_tool_namespace(namespace_name, tools) -%}
    {{- "## " + namespace_name + "\\n\\nnamespace " + namespace_name + " {\\n\\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\\ntype " + tool.name + " = (" }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- "_: {\\n" }}
            {%- for param_name, param_spec in tool.parameters.properties.items() %}
                {{- param_name }}
                {%- if param_name not in (tool.parameters.required or []) -%}{{- "?" }}{%- endif -%}
                {{- ": " + render_typescript_type(param_spec, tool.parameters.required or []) }}
                {%- if param_spec.default is defined %}{{ ", // default: " ~ param_spec.default }}{% else %},{% endif %}
                {{- "\\n" }}
            {%- endfor %}
            {{- "}" }}
        {%- endif -%}
        {{- ") => any;\\n\\n" }}
    {%- endfor %}
    {{- "} // namespace " + namespace_name }}
{%- endmacro -%}
<|start|>system<|message|>Date: {{ strftime_now("%Y-%m-%d") }}
Reasoning: {{ reasoning_effort | default("medium") }}
{%- if tools -%}{{ "\\n\\n# Tools\\n\\n" + render_tool_namespace("functions", tools) }}{%- endif -%}<|end|>
{%- set last_tool_call = namespace(name=none) %}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "tool_calls" in message -%}
            {%- set future = namespace(found=false) %}
            {%- for later in messages[loop.index:] %}{%- if later.role == 'assistant' and "tool_calls" not in later %}{%- set future.found = true %}{%- break %}{%- endif %}{%- endfor %}
            {%- set last_tool_call.name = message.tool_calls[0].function.name -%}
            {{- "<|start|>assistant to=functions." + last_tool_call.name + "<|channel|>commentary json<|message|>" + message.tool_calls[0].function.arguments|tojson + ("<|call|>" if not future.found else "<|end|>") }}
        {%- elif loop.last and not add_generation_prompt -%}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- elif "thinking" in message %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" + message.content }}
        {%- else -%}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
        {%- endif -%}
    {%- elif message.role == 'tool' -%}
        {%- if last_tool_call.name is none %}{{- raise_exception("A tool message without a call!") }}{%- endif %}
        {{- "<|start|>functions." + last_tool_call.name + " to=assistant<|message|>" + message.content|tojson + "<|end|>" }}
    {%- else -%}
        {{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}""",
    "nemotron": """{{- '<extra_id_0>System' }}{% for message in messages if message['role'] == 'system' %}{{ '\\n' + message['content'].strip() }}{% else %}{{ '\\n' }}{% endfor %}{% if tools %}{% for tool in tools %}{{ '\\n<tool> ' + tool|tojson + ' </tool>' }}{% endfor %}{% endif %}{{ '\\n' }}{% for message in messages if message.role != 'system' %}{{ '<extra_id_1>' ~ (message['role'] | title) ~ ('*' if loop.first) ~ '/' ~ loop.length ~ '\\n' ~ message['content'].strip() ~ '\\n' }}{% endfor %}{%- if add_generation_prompt %}{{'<extra_id_1>Assistant\\n'}}{%- endif %}""",
}

CONSTRUCTS = [
    # white space and tags
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "  {% if true %}x{% endif %}\n\n y", "{%+ if true %} x{%+ endif +%}\n y",
    "a  {{- 'b' -}}  \n c", "a {#- c -#} b", "a\n {# c #}\nb", "{# c #}\n{# d #}x", "{% raw %}{{ x }}{% y %}{% endraw %}!",
    "a {%- raw -%}  {{ b }}  {%- endraw -%}  c", "x\r\ny\rz\n\n", "{{ '{{' }}}}", "{{ 'a\\nb\\t\\x41\\u00e9\\101' }}",
    "{{ \"it's\" 'x' \"y\" }}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}['a'] }}", "    {{ 1 }}", "{{ 'tail' }}\n",
    "x{% set a = 1 %}\n{% set b = 2 %}\ny", "{%- for i in [1,2] %}\n{{ i }}\n{%- endfor %}", "{{ -1 }}{{- -1 }}{{+ 2 }}",
    # literals and operators
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }}",
    "{{ 1 + 2.5 }} {{ 1e3 }} {{ 1e16 }} {{ 1.5e-5 }} {{ 0.1 + 0.2 }} {{ 1_000 }} {{ 0x1f }} {{ 100.0 }} {{ 123456789.125 }}",
    "{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ true + 1 }} {{ 'a' * 3 }} {{ [1] * 2 }} {{ 3 * 'b' }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 != 2 }} {{ not 1 == 2 }}",
    "{{ 'a' in 'abc' }} {{ 'x' not in 'abc' }} {{ 1 in [1] }} {{ 'k' in {'k': 1} }} {{ not 'a' in 'b' }}",
    "{{ 1 and 2 }} {{ 0 and 2 }} {{ 0 or 'x' }} {{ '' or none }} {{ not '' }}", "{{ 'a' if false }}|{{ 'a' if true else 'b' }}",
    "{{ 'x' ~ 1 ~ none ~ true ~ 1.0 ~ [1] }}", "{{ (1, 2) }} {{ (1,) }} {{ () }} {{ 1, 2 }}", "{{ [1, 'a', none, true, 1.5, \"it's\"] }}",
    "{{ {'a': 1, 2: 'b', none: [], 'c\"': '\\n'} }}", "{{ 'é\\u200b\\x07\"\\'' | list }}", "{{ [1,2,3,4,5][1:3] }} {{ [1,2,3][::-1] }} {{ 'héllo'[1:3] }} {{ 'héllo'[::-1] }} {{ 'abc'[-1] }}",
    "{{ [1,2,3][-2:] }} {{ [1,2,3][:-1] }} {{ [1,2,3,4,5][::2] }} {{ 'abcdef'[4:1:-1] }} {{ (1,2,3)[1:] }}",
    "{{ x }}|{{ x.y is defined }}", "{{ a.b }}", "{{ x.y.z }}", "{{ x['y'] }}", "{{ [] .nothing }}|{{ none.x }}|{{ 1.x is defined }}", "{{ [1][5] }}|", "{{ 1 / 0 }}",
    "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ none + 1 }}", "{{ x + 1 }}", "{{ 'a' < 1 }}", "{{ 1 in 5 }}", "{{ x in ['a'] }} {{ 'a' in x }}",
    # undefined
    "{{ x == y }} {{ x | length }} {{ x | list }} {{ x | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | default('d') }}",
    "{% for i in x %}a{% else %}none{% endfor %}", "{{ x is defined }} {{ x is none }} {{ x is string }} {{ x is iterable }} {{ x is sequence }} {{ x is mapping }} {{ x is number }}",
    "{{ x | tojson }}", "{{ x() }}", "{{ x | int }}", "{{ x | trim }}|{{ x | upper }}|{{ x | string }}|{{ x | join }}", "{{ x | items | list }}",
    # statements
    "{% for i in range(3) %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for i in [1,2,3,4] if i % 2 == 0 %}{{ i }}/{{ loop.index }}/{{ loop.length }}/{{ loop.last }} {% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}-{{ b }} {% endfor %}", "{% for k in {'x': 1, 'y': 2} %}{{ k }}{% endfor %}", "{% for c in 'héy' %}{{ c }}.{% endfor %}",
    "{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "{% for i in [1,2] %}{% for j in [3,4] %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{{ loop.index }}{% endfor %}",
    "{% for i in [1,2,3] %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }};{% endfor %}", "{% for i in [1,1,2] %}{{ loop.changed(i) }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in [1,2,3,4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1,2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(x=1) %}{% for i in [1,2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% if true %}{% set y = 5 %}{% endif %}{{ y }}", "{% for i in [1] %}{% set q = 1 %}{% endfor %}{{ q is defined }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1] %}",
    "{% set t %}x{{ 1 }}y{% endset %}[{{ t }}]{{ t | length }}", "{% set t | upper | trim %} ab {% endset %}[{{ t }}]", "{% filter upper %}abc {{ 'd' }}{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "{% macro m(a, b='x', c=b) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}{{ m(b=1, a=2) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, k=3) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}", "{% macro m(a) %}[{{ a }}]{{ a is defined }}{% endmacro %}{{ m() }}",
    "{% macro m(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) m(3) %}{{ y }}!{% endcall %}", "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}hi{% endcall %}",
    "{% set g = 1 %}{% macro m() %}{{ g }}{% set g = 2 %}{{ g }}{% endmacro %}{{ m() }}{{ g }}", "{% macro r(n) %}{{ n }}{% if n > 0 %}{{ r(n - 1) }}{% endif %}{% endmacro %}{{ r(5) }}",
    "{% macro m(a) %}x{{ a }}{% endmacro %}{{ m(1) | upper }}{{ m(1) + 'z' }}", "{% generation %}a{% set zz = 1 %}{% endgeneration %}{{ zz is defined }}",
    "{% set x.y = 1 %}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% for i in [1] recursive_not %}{% endfor %}",
    "{% for i in 5 %}{% endfor %}", "{% for i in none %}{% endfor %}", "{% if %}{% endif %}", "{% endif %}", "{% if true %}", "{{ 1 ", "{{ ) }}", "{% foo %}", "{{ 'a' | nofilter }}", "{{ 1 is notest }}", "{{ 'a }}", "{{ a b }}", "{# open",
    "{% for a in [[1, 2], [3, 4]] %}{% for b in a %}{{ b }}{% if not loop.last %},{% endif %}{% endfor %};{% endfor %}", "{% if false %}{{ 1 | nofilter }}{% endif %}ok",
    "{% for i in [3,1,2] | sort %}{{ i }}{% endfor %}", "{% for i in [1,2,3] if i > 5 %}x{% else %}empty{% endfor %}", "{% if 1 %}a{% elif x.y.z %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif 0 %}b{% elif 1 %}c{% else %}d{% endif %}",
    # calls
    "{{ range(5) | list }} {{ range(2, 8, 3) | list }} {{ range(3, 0, -1) | list }} {{ range(3) }} {{ range(3)[1] }} {{ range(3) | length }}", "{{ range(200000) | length }}", "{{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }}",
    "{{ raise_exception('no: ' ~ 1) }}", "{{ strftime_now('%Y-%m-%d %H:%M:%S %B %b %d') }}", "{{ [1, 2].append(3) }}", "{{ {'a': 1}.pop('a') }}", "{{ {'a': 1}.update({'b': 2}) }}", "{{ 'a'.__class__ }}|", "{{ ''.__class__.__mro__ }}", "{{ 'abc'.upper }}" if False else "{{ 'abc'.upper() }}",
    "{{ dict(**{'a': 1}) }}", "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}", "{{ 'x'.join(['a', 'b']) }} {{ 'x'.join([1]) }}", "{{ none() }}", "{{ 'a'.nope() }}",
    # str methods
    "{{ ' a '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcba'.lstrip('ab') }}|{{ 'abcba'.rstrip('ba') }}|{{ '\\u3000é '.strip() }}|", "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a b c'.rsplit(' ', 1) }} {{ 'a  b c '.split(none, 1) }} {{ ''.split() }} {{ ''.split(',') }}",
    "{{ 'a  b c '.rsplit(none, 1) }} {{ 'a\\nb\\r\\nc\\n'.splitlines() }} {{ 'abc'.partition('b') }} {{ 'abcb'.rpartition('b') }} {{ 'abc'.partition('x') }} {{ 'abc'.rpartition('x') }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'bc')) }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.find('c') }} {{ 'abc'.find('x') }} {{ 'abcb'.rfind('b') }} {{ 'éa'.find('a') }} {{ 'aaa'.count('a') }} {{ 'abc'.index('c') }}",
    "{{ 'aXbX'.replace('X', '-') }} {{ 'aXbX'.replace('X', '-', 1) }} {{ 'ab'.replace('', '.') }} {{ 'aa' | replace('a', 'b', 1) }} {{ 'abc'.removeprefix('a').removesuffix('c') }}",
    "{{ 'hello wORLD it\\'s'.title() }} {{ 'hello wORLD it\\'s (x)' | title }} {{ 'hELLO'.capitalize() }} {{ 'straße ÉÀ'.upper() }} {{ 'ÉÀß'.lower() }} {{ 'aB'.swapcase() }}",
    "{{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ 'a1'.isalnum() }} {{ 'A'.isupper() }} {{ 'a'.islower() }} {{ ''.isdigit() }} {{ '5'.zfill(3) }} {{ '-5'.zfill(4) }} {{ 'a'.ljust(3, '.') }}{{ 'a'.rjust(3) }}",
    "{{ '{} {1}'.format(1, 2) }}", "{{ '{} {}'.format(1, 'x') }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{n}'.format(n=5) }} {{ '{{}}'.format() }} {{ '{a[k]}'.format(a={'k': 3}) }}",
    "{{ '%s-%d-%5.2f|%-4s|%03d|%x%%' % ('a', 7, 3.14159, 'b', 5, 255) }} {{ '%s' % 'x' }} {{ '%(k)s' % {'k': 1} }} {{ '%s %s' | format('a', 1) }}", "{{ '%d' % 'x' }}",
    # dict and list methods
    "{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ {'a': 1}.keys() }} {{ {'a': 1}.values() }} {{ {'a': 1}.items() }} {{ {'a': 1}.keys() | list }}",
    "{{ d.items }}" if False else "{{ {'items': 5}['items'] }}", "{{ {'get': 5}.get('get') }}", "{{ [3, 1].index(1) }} {{ [1, 1].count(1) }} {{ {'a': 1}.copy() }}", "{{ {[]: 1} }}", "{{ {(1, 2): 3}[(1, 2)] }}", "{{ {'a': 1}.items()[0] is defined }}",
    # filters
    "{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A'] | sort(case_sensitive=true) }} {{ [1, 2] | sort(reverse=true) }} {{ [{'a': 2}, {'a': 1}] | sort(attribute='a') }} {{ [{'a': 1, 'b': 2}, {'a': 1, 'b': 1}] | sort(attribute='a,b') }}",
    "{{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(false, 'value') }} {{ {'b': 1, 'a': 2} | dictsort(reverse=true) }}", "{{ [1, 2, 3] | sum }} {{ [{'a': 1}] | sum(attribute='a') }} {{ [1, 3, 2] | max }} {{ [2, 1] | min }} {{ [] | max }}|{{ ['b', 'A'] | min }}",
    "{{ ['a', 'A', 'b'] | unique | list }} {{ 'abc' | reverse }} {{ [1, 2] | reverse | list }} {{ [1, 2] | first }} {{ 'ab' | last }} {{ [] | first }}|", "{{ [1, 2, 3] | join(', ') }} {{ [{'a': 1}, {'a': 2}] | join('-', attribute='a') }} {{ 'abc' | join('.') }} {{ {'a': 1} | join }}",
    "{{ [1, 2, 3, 4] | select('even') | list }} {{ [1, 2, 3] | reject('odd') | list }} {{ [0, 1, '', 'a'] | select | list }} {{ [1, 5] | select('gt', 3) | list }} {{ ['a', 'b'] | select('in', ['b']) | list }}",
    "{{ [{'a': 1}, {'a': 2}, {}] | selectattr('a') | list }} {{ [{'a': 1}, {'a': 2}] | selectattr('a', 'equalto', 2) | list }} {{ [{'a': 1}, {}] | rejectattr('a', 'defined') | list }} {{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }} {{ [{}] | map(attribute='q', default='z') | list }}",
    "{{ ['a', 'b'] | map('upper') | list }} {{ ['a'] | map('replace', 'a', 'x') | list }} {{ [[1, 2], [3]] | map('length') | list }} {{ [[1, 2]] | map(attribute=0) | list }}", "{{ [1] | map('upper') | length }}", "{% set g = [1, 2] | map('string') %}{{ g | list }}{{ g | list }}", "{{ [] | select and 'yes' }}",
    "{{ 'abc' | length }} {{ {'a': 1} | length }} {{ 'é' | count }} {{ 5 | length }}", "{{ '42' | int }} {{ '4x' | int }} {{ '4x' | int(7) }} {{ '42.9' | int }} {{ 3.9 | int }} {{ '0x1f' | int(base=16) }} {{ none | int }} {{ ' 5 ' | int }} {{ true | int }}",
    "{{ '1.5' | float }} {{ 'x' | float }} {{ 'x' | float(2.5) }} {{ 3 | float }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 42.55 | round(1, 'floor') }} {{ 42.1 | round(0, 'ceil') }} {{ 5 | round }} {{ -3 | abs }} {{ -2.5 | abs }}",
    "{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent('> ', blank=true) }}|{{ 'a\\n' | indent }}|", "{{ 'foo bar baz qux' | truncate(9) }} {{ 'foo bar baz qux' | truncate(9, true) }} {{ 'foo bar baz qux' | truncate(11) }}", "{{ 'ab' | center(7) }}|{{ 'abc' | center(6) }}|",
    "{{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | batch(2, 'x') | list }} {{ [1, 2, 3, 4, 5] | slice(3) | list }} {{ [1, 2, 3] | slice(2, 'f') | list }}", "{% for g in [{'k': 'b', 'v': 1}, {'k': 'a', 'v': 2}, {'k': 'B', 'v': 3}] | groupby('k') %}{{ g.grouper if false else g[0] }}:{{ g[1] | length }} {% endfor %}",
    "{{ '<a href=\"x\">&\\'' | e }} {{ '<b>' | safe }} {{ ('<b>' | e) + '<c>' }} {{ ('<b>' | e) ~ '<c>' }} {{ '<' | escape | escape }} {{ '<' | e | forceescape }}", "{{ 'a b' | urlencode }} {{ 'x y z' | wordcount }} {{ 'abc' | attr('upper') is defined }} {{ {'a': 1} | attr('a') is defined }}",
    "{{ 'a' | trim('a') }}|{{ '  b ' | trim }}|{{ 5 | trim }}|{{ none | trim }}|{{ 'xay' | trim('xy') }}", "{{ 'abc' | list }} {{ {'a': 1} | list }} {{ 'a' | string }} {{ 5 | string }} {{ [1] | string }}", "{{ 'hello world' | capitalize }} {{ 'ABC' | lower }} {{ 'abc' | upper }}", "{{ x | default(y, true) | default('z') }}",
    # tojson
    "{{ {'b': 1, 'a': [1, 2.5, none, true, 'é\"\\\\\\n\\t</script>\\x7f\\u2028']} | tojson }}", "{{ {'b': {'c': []}, 'a': [1, {}]} | tojson(indent=2) }}", "{{ [1, [2, {'a': 3}]] | tojson(indent=4) }}", "{{ {'b': 1, 'a': 'é🙂'} | tojson(ensure_ascii=true, sort_keys=true) }}",
    "{{ {'a': [1, 2]} | tojson(separators=(',', ':')) }}", "{{ (1, 'a') | tojson }} {{ 1.0 | tojson }} {{ 1e20 | tojson }} {{ 'x' | tojson }} {{ none | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}", "{{ {'a': 1}.items() | tojson }}", "{{ [1] | map('string') | tojson }}", "{{ [] | tojson(indent=2) }}{{ {} | tojson(indent=2) }}{{ [] | tojson }}", "{{ {'a': [1]} | tojson(indent='\\t') }}",
    # tests
    "{{ 1 is number }} {{ true is number }} {{ 1 is integer }} {{ true is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ 'a' is string }} {{ none is none }} {{ {} is mapping }} {{ [] is sequence }} {{ {} is sequence }} {{ 'a' is sequence }} {{ 1 is iterable }} {{ [] is iterable }} {{ {}.items() is sequence }}",
    "{{ true is true }} {{ 1 is true }} {{ false is false }} {{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is eq 1 }} {{ 1 is ne 1 }} {{ 2 is gt 1 }} {{ 1 is ge 1 }} {{ 1 is lt 1 }} {{ 1 is le 1 }} {{ 1 is in [1] }} {{ 1 is not in [1] }}",
    "{{ 'a' is lower }} {{ 'A' is upper }} {{ none is sameas none }} {{ 1 is sameas true }} {{ range is callable }} {{ 'upper' is filter }} {{ 'even' is test }} {{ x is undefined }} {{ x is not defined }}", "{{ 1 is defined and 2 is defined }} {{ x is defined or true }} {{ not x is defined }} {{ 'a' if x is defined else 'b' }} {{ 5 is divisibleby 5 if true }}",
    "{{ 'a' is equalto 'a' }} {{ [] is defined }} {{ 'A' == 'a' | upper }} {{ 1 + 1 | string }}" if False else "{{ 'a' is equalto 'a' }} {{ 'A' == 'a' | upper }}", "{{ 'a' ~ 'b' | upper }} {{ -5 | abs }} {{ (-5) | abs }} {{ 1 if 0 else 2 if 0 else 3 }}", "{{ 'a'|upper()|lower }} {{ 'abc'|replace('b','')|length + 1 }}",
    # Python's less known corners
    "{{ [true, false] | tojson }} {{ true }} {{ none }} {{ True and None }}", "{{ 'abc'[10:] }}|{{ [][0:5] }}|{{ 'abc'[1:-1] }}|{{ [1,2,3][5:1:-1] }}", "{{ x[1:] }}", "{{ none[1:] }}", "{{ 5[0] is defined }}", "{{ 'ab'['x'] is defined }} {{ 'ab'[0] }} {{ 'ab'.0 }}", "{{ [[1, 2], [3]][0][1] }} {{ {'a': {'b': [5]}}.a.b[0] }}", "{{ ('a' 'b') }} {{ [1, 2,] }} {{ {'a': 1,} }}",
    "{{ 1.0 == 1 }} {{ [1] == [1.0] }} {{ {'a': 1} == {'a': 1.0} }} {{ (1,) == [1] }} {{ 'a' == none }}", "{{ 3 - 1 - 1 }} {{ 2 ** 3 ** 2 }} {{ 10 // 3 * 3 }} {{ 1 - -1 }} {{ +3 }} {{ - 3 }}", "{{ 9223372036854775807 }}", "{{ {} or 'e' }} {{ [] or 'e' }} {{ 0.0 or 'e' }} {{ '0' or 'e' }}", "{{ {'a': 1, 'a': 2} }}", "{{ messages[0].role.upper() ~ messages | length }}",
    "{% set messages = messages + [{'role': 'x'}] %}{{ messages | map(attribute='role') | join(',') }}", "{{ messages[-1]['content'][:2] }} {{ messages | tojson }}", "{{ (messages | first).role }} {{ (messages | last).content }}", "{{ loop }}" if False else "{{ loop is defined }}", "{% for m in messages %}{{ m.items() | list }}{% endfor %}", "{% for m in messages %}{{ 'role' in m and m.get('name', 'anon') }}{% endfor %}",
    "{%- set d = {'k': [1, 2]} -%}{%- for k, v in d | items -%}{{ k }}{{ v | length }}{%- endfor -%}", "{{ '\\\\n' | replace('\\\\n', '\\n') }}", "{{ \"\\\"q\\\"\" }}", "{{ 'a\n b' }}", "{{ 'x' if 'a' in 'abc' and not 'z' in 'abc' else 'y' }}", "{{ [1, 2, 3] | random }}" if False else "{{ [1,2,3] | length > 2 }}",
]


def render(template, variables):
    try:
        compiled = ctu._compile_jinja_template(template)
        return {"text": compiled.render(**variables)}
    except Exception as e:  # noqa: BLE001 - every failure counts, of any class
        return {"fails": type(e).__name__}


def main():
    cases = []
    for family, template in FAMILIES.items():
        for chat, kwargs in CHATS.items():
            variables = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", **kwargs}
            variables["messages"] = ctu._alias_reasoning_fields(variables["messages"])
            cases.append({"name": f"{family}/{chat}", "template": template, "vars": variables, **render(template, variables)})
    variables = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes"}]}
    for i, template in enumerate(CONSTRUCTS):
        cases.append({"name": f"construct {i}", "template": template, "vars": variables, **render(template, variables)})
    texts, chats = {}, {}
    for c in cases:  # templates and variables are stored once
        c["template"] = texts.setdefault(c["template"], len(texts))
        c["vars"] = chats.setdefault(json.dumps(c["vars"]), len(chats))
    out = pathlib.Path(__file__).with_name("template_goldens.json")
    out.write_text(json.dumps({"now": [NOW.year, NOW.month, NOW.day, NOW.hour, NOW.minute, NOW.second],
                               "templates": list(texts), "vars": [json.loads(c) for c in chats], "cases": cases}, ensure_ascii=False, indent=0) + "\n")
    failing = sum("fails" in c for c in cases)
    print(f"{len(cases)} cases, {len(FAMILIES)} families, {failing} of them fail in Jinja too; {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
