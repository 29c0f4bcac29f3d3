"""Makes goldens.json: what Python's jinja2, set up as transformers does for apply_chat_template,
renders for templates and inputs.

    pip install jinja2
    python goldens.py

The chat templates are written for these tests, in the manner of well-known families. Beside them
there are many small templates, each for a point of the language.
"""
import json
from datetime import datetime

import jinja2
from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2024, 2, 9, 7, 5, 3)


class Generation(Extension):
    """The generation block, which only marks its text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise TemplateError("RAISED " + message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


FAMILIES = {
    "chatml": """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
""",
    "chatml-blocks": """{% for m in messages %}
    {# each turn #}
    {% if loop.first and m['role'] != 'system' %}
<|im_start|>system
Be brief.<|im_end|>
    {% endif %}
<|im_start|>{{ m['role'] }}
{{ m['content'] }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}

""",
    "llama2": """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set system = false %}{% endif %}
{%- for m in rest -%}
  {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{ raise_exception('Roles must alternate: user, assistant, user, ...') }}
  {%- endif -%}
  {%- if loop.index0 == 0 and system != false -%}
    {%- set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + m['content'] -%}
  {%- else -%}
    {%- set content = m['content'] -%}
  {%- endif -%}
  {%- if m['role'] == 'user' -%}
    {{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
  {%- elif m['role'] == 'assistant' -%}
    {{ ' '  + content.strip() + ' ' + eos_token }}
  {%- endif -%}
{%- endfor -%}
""",
    "llama3": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
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
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "These functions can be called, as JSON with name and parameters:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system }}
{{- "<|eot_id|>" }}
{%- for m in messages %}
    {%- if not (m.role == 'ipython' or m.role == 'tool' or 'tool_calls' in m) %}
        {{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n'+ m['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in m %}
        {%- if not m.tool_calls|length == 1 %}
            {{- raise_exception("One tool call at a time!") }}
        {%- endif %}
        {%- set call = m.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif m.role == "tool" or m.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if m.content is mapping or m.content is iterable %}
            {{- m.content | tojson }}
        {%- else %}
            {{- m.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate user/assistant") }}
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
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
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
    {%- elif message["role"] == "tool" or message["role"] == "tool_results" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    "gemma": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}
""",
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
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
""",
    "qwen2.5": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You help.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call functions. Their signatures are within <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nReturn a JSON object within <tool_call></tool_call>:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
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
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "macros": """{%- macro render_type(spec, deep=false, names=['a', 'b']) -%}
    {%- if spec.type == 'array' -%}
        {{ render_type(spec['items']) }}[]
    {%- elif spec.enum is defined -%}
        {%- for e in spec.enum -%}"{{ e }}"{% if not loop.last %} | {% endif %}{%- endfor -%}
    {%- elif spec.type == 'object' and spec.properties -%}
        {
        {%- for name, prop in spec.properties.items() %}
 {{ name }}{{ '' if name in spec.required|default([]) else '?' }}: {{ render_type(prop, deep=true) }}{{ ',' if not loop.last }}
        {%- endfor %} }
    {%- else -%}
        {{ spec.type | default('any') }}
    {%- endif -%}
{%- endmacro -%}
{%- macro shout(text, mark='!') %}{{ text | upper }}{{ mark * 3 }}{% endmacro -%}
{% for tool in tools or [] %}
type {{ tool.function.name }} = (_: {{ render_type(tool.function.parameters) }}) => any;{# done #}
{% endfor %}
{% for m in messages %}{{ shout(m.role, mark='?') }} {{ m.content }}
{% endfor %}
""",
    "generation": """{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}
A: {{ m.content }}
{% endgeneration %}{% else %}
Q: {{ m.content }}
{% endif %}{% endfor %}
{% raw %}{{ not rendered }} {% if %}{% endraw %}
""",
}

U = lambda s: {"role": "user", "content": s}
A = lambda s, **kw: {"role": "assistant", "content": s, **kw}
S = lambda s: {"role": "system", "content": s}

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather at a place, <b>today</b> & tomorrow: \"é\" 😀", "parameters": {
        "type": "object", "properties": {
            "place": {"type": "string", "description": "City, e.g. 'Zürich'"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "array", "items": {"type": "integer", "minimum": 1.0, "maximum": 14}}},
        "required": ["place"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"b": {"type": "number"}, "a": {"type": "number", "x": None}}, "required": []}, "return": {"type": "number"}}},
]
CALL = lambda: A("", tool_calls=[{"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "Zürich", "days": [1, 2], "f": 1.0, "z": 1e-7, "big": 1e20, "nested": {"k": "a\"b\\c\n"}}}}])
CONVERSATIONS = [
    {"messages": [U("Hello")], "add_generation_prompt": True},
    {"messages": [U("Hello"), A("Hi there"), U("  How are you?\n")], "add_generation_prompt": True},
    {"messages": [S("Be kind."), U("Hello\n\nworld"), A("Hi"), U("Bye")], "add_generation_prompt": True},
    {"messages": [S(" Be kind. "), U("a"), A("b")]},
    {"messages": [A("I begin"), U("?")]},
    {"messages": [U("Weather?")], "tools": TOOLS, "add_generation_prompt": True},
    {"messages": [S("Sys"), U("Weather in Zürich?"), CALL(), {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": "{\"t\": 21}"}, A("It is 21 °C."), U("Thanks")], "tools": TOOLS, "add_generation_prompt": True},
    {"messages": [U("two calls"), {"role": "assistant", "content": None, "tool_calls": CALL()["tool_calls"] * 2}, {"role": "tool", "tool_call_id": "x", "content": "1"}, {"role": "tool", "tool_call_id": "y", "content": "2"}], "tools": TOOLS[:1]},
    {"messages": [U("q"), A("<think>\nhm\n</think>\n\nanswer", reasoning_content=None), U("again"), A("x", reasoning_content="because")], "add_generation_prompt": True, "enable_thinking": False},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": " see "}, {"type": "image"}, {"type": "text", "text": "this"}]}], "add_generation_prompt": True},
    {"messages": [U("{{ not a template }} {% raw %} <|im_end|> 'q' \"d\" \\n é😀\u2028\u00a0")], "add_generation_prompt": True},
]

# Points of the language, each a template of its own, with these variables.
VARS = {"s": "Hello World", "n": 7, "f": 2.5, "t": True, "no": None, "l": [3, 1, 2], "e": [], "d": {"b": 1, "a": [1, 2.0, None, True], "items": "mine"},
        "w": "  padded\t\n", "u": "naïve Ünïcode 😀 ß ǆ", "html": "<a href=\"x\">'&'</a>", "people": [{"name": "Bo", "age": 30, "x": {"y": 1}}, {"name": "al", "age": 25}, {"name": "Cy", "age": 30, "ok": False}],
        "lines": "one\ntwo\n\nthree", "csv": "a,b,,c", "neg": -3, "big": 12345678901234567, "messages": [U("m")]}
POINTS = r"""
{{ s }}|{{ n }}|{{ f }}|{{ t }}|{{ no }}|{{ l }}|{{ d }}|{{ missing }}|{{ people }}
{{ 1.0 }}|{{ 1e5 }}|{{ 1e16 }}|{{ 1e-5 }}|{{ 0.0001 }}|{{ 123456789.125 }}|{{ 0x1F }}|{{ 1_000 }}|{{ -0.0 }}|{{ 1/3 }}|{{ 7//2 }}|{{ 7%3 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ 7.5 % 2 }}|{{ 2 ** 10 }}|{{ 2 ** -1 }}|{{ -2 ** 2 }}|{{ 2*3.5 }}
{{ 'a' 'b' }}|{{ 'it\'s' }}|{{ "q\"q" }}|{{ 'tab\tnl\n\r\x41\u00e9\\' }}|{{ '\d' }}|{{ 'é' }}
{{ 'ab' * 3 }}|{{ 3 * 'ab' }}|{{ 'x' * 0 }}|{{ 'x' * neg }}|{{ [1, 2] * 2 }}|{{ 2 + 3 * 4 }}|{{ (2 + 3) * 4 }}|{{ 2 * 3 + 4 * 5 }}|{{ n * n - 1 }}|{{ 100 // 7 * 3 }}|{{ 2 * -3 }}|{{ -2 * 3 }}|{{ 2 * 3 * 4 }}|{{ s|length * 2 }}|{{ d.a[0] * 5 }}
{{ s ~ n ~ f ~ no }}|{{ 'a' + n ~ 'b' }}|{{ 'a' + 'b' ~ 'c' }}|{{ no ~ '' if false else '' }}
{{ n > 5 and f < 3 }}|{{ not t }}|{{ n == 7.0 }}|{{ 'a' < 'b' }}|{{ 'b' in 'abc' }}|{{ 1 in l }}|{{ 9 not in l }}|{{ 'b' in d }}|{{ t == true }}|{{ l == [3,1,2] }}|{{ d == d }}|{{ no == none }}|{{ s != s }}|{{ 1 < 2 }}|{{ '10' < '9' }}
{{ 'yes' if t else 'no' }}|{{ 'yes' if not t }}|{{ ('a' if no else 'b') ~ 'c' }}|{{ 1 if no else 2 if no else 3 }}|{{ 1 < n < 8 }}|{{ 1 < n < 3 }}
{{ s[0] }}|{{ s[-1] }}|{{ s[1:3] }}|{{ s[:-1] }}|{{ s[::-1] }}|{{ l[-1] }}|{{ l[1:] }}|{{ l[:1] }}|{{ l[::-1] }}|{{ l[::2] }}|{{ d['b'] }}|{{ d.b }}|{{ d['zz'] }}|{{ l[99] }}|{{ u[0:4] }}|{{ u[-3:] }}|{{ l[5:] }}|{{ s[:100] }}
{{ d.keys() | list }}|{{ d.values() | list }}|{{ d.get('b') }}|{{ d.get('q') }}|{{ d.get('q', 'z') }}|{{ d['items'] }}
{{ s.upper() }}|{{ s.lower() }}|{{ w.strip() }}|{{ w.lstrip() }}|{{ w.rstrip() }}|{{ s.split() }}|{{ csv.split(',') }}|{{ csv.split(',', 1) }}|{{ csv.rsplit(',', 1) }}|{{ s.replace('o', '0') }}|{{ s.replace('o', '0', 1) }}|{{ s.startswith('He') }}|{{ s.endswith('x') }}|{{ s.startswith(('x', 'H')) }}
{{ s.find('o') }}|{{ s.find('zz') }}|{{ s.rfind('o') }}|{{ s.count('l') }}|{{ s.title() }}|{{ 'heLLo wORLD-x it\'s'.title() }}|{{ 'heLLo'.capitalize() }}|{{ ', '.join(['a', 'b']) }}|{{ lines.splitlines() }}|{{ 'xxabcxx'.strip('x') }}|{{ 'abc'.removeprefix('a') }}|{{ 'abc'.removesuffix('c') }}
{{ '{} and {}'.format(1, 'x') }}|{{ '{0}{1}{0}'.format('a', 'b') }}|{{ '{x}'.format(x=5) }}|{{ '{{}}'.format() }}|{{ 'abc'.partition('b') | list }}|{{ 'a b  c'.split(' ') }}|{{ ' a b '.split(none, 1) }}|{{ '42'.isdigit() }}|{{ 'ab'.isalpha() }}|{{ 'AB'.isupper() }}|{{ 'ab'.islower() }}|{{ '7'.zfill(3) }}|{{ 'a'.ljust(3) }}x|{{ 'a'.rjust(3, '.') }}|{{ 'a'.center(4, '*') }}|{{ 'ab'.center(5, '*') }}
{{ s | upper }}|{{ s | lower }}|{{ 'heLLo wORLD-x (it\'s)' | title }}|{{ 'heLLo' | capitalize }}|{{ w | trim }}|{{ 'xax' | trim('x') }}|{{ s | replace('l', 'L') }}|{{ s | replace('l', 'L', 1) }}|{{ s | length }}|{{ l | count }}|{{ d | length }}|{{ s | wordcount }}|{{ s | reverse }}|{{ l | reverse | list }}
{{ l | first }}|{{ l | last }}|{{ s | first }}|{{ s | last }}|{{ e | first }}|{{ l | sum }}|{{ l | max }}|{{ l | min }}|{{ l | sort }}|{{ l | sort(reverse=true) }}|{{ ['b', 'A', 'a', 'B'] | sort }}|{{ ['b', 'A', 'a'] | sort(case_sensitive=true) }}|{{ [1, 2, 1, 'a', 'A'] | unique | list }}|{{ s | list }}|{{ d | list }}
{{ people | map(attribute='name') | list }}|{{ people | map(attribute='zz', default='?') | list }}|{{ people[:1] | map(attribute='x.y') | list }}|{{ ['a', 'b'] | map('upper') | list }}|{{ people | sort(attribute='age') | map(attribute='name') | join(',') }}|{{ people | sum(attribute='age') }}|{{ people | join(', ', attribute='name') }}|{{ l | join }}|{{ l | join('-') }}|{{ l | join(d='+') }}
{{ people | selectattr('age', 'equalto', 30) | map(attribute='name') | list }}|{{ people | rejectattr('age', 'gt', 26) | map(attribute='name') | list }}|{{ people | selectattr('ok', 'defined') | list | length }}|{{ people | selectattr('age') | list | length }}|{{ people | rejectattr('ok') | list | length }}|{{ l | select('odd') | list }}|{{ l | reject('>', 1) | list }}|{{ [0, 1, ''] | select | list }}|{{ ['a', none] | select('string') | list }}|{{ people | selectattr('name', 'in', ['Bo']) | list | length }}
{{ missing | default('d') }}|{{ no | default('d') }}|{{ no | default('d', true) }}|{{ '' | default('d', boolean=true) }}|{{ missing | d(5) }}|{{ missing.x | default('d') if false else 1 }}|{{ e | default([1]) }}
{{ '42' | int }}|{{ 'x' | int }}|{{ 'x' | int(9) }}|{{ '3.7' | int }}|{{ 3.99 | int }}|{{ '3.5' | float }}|{{ 'q' | float }}|{{ 2.5 | round }}|{{ 3.5 | round }}|{{ 2.567 | round(2) }}|{{ 2.1 | round(method='ceil') }}|{{ 7 | round }}|{{ neg | abs }}|{{ n | string + '!' }}|{{ t | string }}|{{ no | string }}|{{ l | string }}
{{ html | e }}|{{ html | escape }}|{{ html | safe }}|{{ lines | indent }}|{{ lines | indent(2, true) }}|{{ lines | indent(width=1, blank=true) }}|{{ lines | indent('> ', first=true) }}|{% for k, v in d | dictsort(reverse=true) %}{{ k }}{{ v }}{% endfor %}|{{ [1,2,3,4,5] | batch(2) | list }}|{{ [1,2,3] | batch(2, 'x') | list }}
{{ d | tojson }}|{{ u | tojson }}|{{ html | tojson }}|{{ people | tojson(indent=2) }}|{{ d | tojson(sort_keys=true) }}|{{ d | tojson(separators=(',', ':')) }}|{{ u | tojson(ensure_ascii=true) }}|{{ [] | tojson(indent=1) }}|{{ {} | tojson }}|{{ [1.0, 1e20, 1e-7, 1e16, 0.1, big, none, true, 'a\u0007\u2028/'] | tojson }}|{{ {'k': [{}]} | tojson(indent=3) }}|{{ "x\x7f" | tojson }}
{{ missing is defined }}|{{ s is defined }}|{{ no is none }}|{{ no is not none }}|{{ s is string }}|{{ n is number }}|{{ n is integer }}|{{ f is float }}|{{ t is boolean }}|{{ t is integer }}|{{ t is number }}|{{ d is mapping }}|{{ l is sequence }}|{{ s is sequence }}|{{ d is iterable }}|{{ n is iterable }}|{{ t is true }}|{{ t is false }}|{{ n is odd }}|{{ n is even }}|{{ n is divisibleby 7 }}|{{ n is divisibleby(2) }}|{{ 'A' is upper }}|{{ 'a' is lower }}|{{ n is eq 7 }}|{{ n is gt(3) }}|{{ 1 is in l }}|{{ 1 is sameas 1 }}|{{ range is callable }}|{{ missing is undefined }}
{{ n is odd and s is string }}|{{ not missing is defined }}|{{ missing is not defined or t }}|{{ 1 if no is none else 2 }}|{{ n is none or n is integer }}|{{ (n is odd) == t }}
{% set x = 1 %}{{ x }}|{% set x = 'a' ~ 'b' %}{{ x }}|{% set a, b = 1, 2 %}{{ a }}{{ b }}|{% set t3 = 1, 2 %}{{ t3[1] }}|{% set x %}block {{ n }}{% endset %}[{{ x }}]|{% set y | upper | trim %} low {% endset %}[{{ y }}]
{% for x in l %}{{ x }},{% endfor %}|{% for x in e %}x{% else %}none{% endfor %}|{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}|{% for k in d %}{{ k }}{% endfor %}|{% for c in 'abc' %}{{ c }}.{% endfor %}|{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %}|{% for k, v in d.items() if k != 'b' %}{{ loop.index0 }}{{ k }}{% endfor %}|{% for (a, b) in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}|{% for a, b, c in [(1, 2, 3), (4, 5, 0)] if c and a.x is undefined %}{{ a + b + c }}{% endfor %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}
{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}|{% for a in [1, 2] %}{% for b in [1, 2] %}{{ a }}{{ b }}{{ loop.index }} {% endfor %}{{ loop.index }};{% endfor %}|{% for x in range(3) %}{{ x }}{% endfor %}|{% for x in range(5, 1, -2) %}{{ x }}{% endfor %}|{{ range(2, 4) | list }}|{{ range(0) | list }}|{{ range(1, 10, 4) | list }}
{% for x in l %}{% if loop.first %}{% set y = 'set' %}{% endif %}{{ y is defined }}{{ y }},{% endfor %}{{ y is defined }}|{% set z = 0 %}{% for x in l %}{{ z }}{% set z = z + x %}{{ z }} {% endfor %}{{ z }}|{% set ns = namespace(v=0) %}{% for x in l %}{% set ns.v = ns.v + x %}{% endfor %}{{ ns.v }}|{% set ns = namespace({'q': 1}) %}{{ ns.q }}|{% for x in l %}{% for q in l %}{% set x = q %}{% endfor %}{{ x }}{% endfor %}
{% macro m(a, b=2, c='x,y') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='z') }}{{ m(b=9, a=8) }}{{ m() }}|{% macro f(n) %}{{ n }}{% if n > 1 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}|{% macro w() %}<{{ caller() }}>{% endmacro %}{% call w() %}in {{ n }}{% endcall %}|{% macro w2() %}<{{ caller('p') }}>{% endmacro %}{% call(z) w2() %}{{ z }}!{% endcall %}|{{ m(1) | upper | length }}
{% filter upper %}abc {{ s }}{% endfilter %}|{% filter replace('a', 'b') | upper %}aaa{% endfilter %}|{% if no %}a{% elif n == 7 %}b{% else %}c{% endif %}|{% if e %}x{% endif %}|{% if not e and l %}y{% endif %}
{{ dict(a=1) }}|{{ dict({'x': 2}).x }}|{{ {'a': 1, 'b': [1, 2]}['b'][1] }}|{{ {'a': {'b': 5}}.a.b }}|{{ [1, [2, 3]][1][0] }}|{{ (1, 2)[1] }}|{{ [] }}|{{ {} }}|{{ ['a', "it's", 'q"', 'n\n'] }}|{{ [none, true, 1.0] }}|{{ {'k': 'é'} }}|{% set j = joiner(', ') %}{{ j() }}a{{ j() }}b{{ j() }}c|{% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}
{{ strftime_now('%Y-%m-%d %H:%M:%S') }}|{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%A, %B %d, %y %I:%M %p %j %% %a %-d/%-m %e') }}
{{- s -}} |   {{- n }}   | {{ s -}}   x|a {#- c -#} b|a {# c #} b|x{{ '\n' }}{%- if t %}  y  {%- endif %}  z
{{ ' a ' | trim ~ 'b' }}|{{ s | replace('o', '') | upper | length + 1 }}|{{ -n | abs if false else 1 }}|{{ (-n) | abs }}|{{ l | length - 1 }}|{{ 'a' if l | length > 2 else 'b' }}|{{ l[l | length - 1] }}|{{ not 'x' in s }}|{{ s.split(' ')[1].lower() | first }}
""".strip().split("\n")

# White space control, one template each: lines count.
SPACE = [
    "  {% if t %}\n  a\n  {% endif %}\n  b\n",
    "\t{% if t %} x {% endif %}\t\n y",
    "a\n   {%+ if t %}b{% endif +%}\nc",
    "a\n{% if t +%}\nb\n{%- endif %}\nc\n\n",
    "a\n\n   {#- comment -#}   \n\nb",
    "   {# comment #}\n b\n   {# c #} x\n",
    "{{ s }}\n{{ n }}\n",
    "{{ s }}   {% if t %}x{% endif %}   {{ n }}",
    "   {{ s }}\n   {{ n -}}   \n  x",
    "{% for x in l %}\n  {{ x }}\n{% endfor %}\nend",
    "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\nend\n",
    "a\r\n{% if t %}\r\nb\r\n{% endif %}\r\nc\r\n",
    "{% raw %}\n  {{ x }}  {% if %}\n{% endraw %}\nz",
    "a\n  {%- raw -%}  {{ x }}  {%- endraw -%}  b",
    "  {% raw %} a {% endraw %}  \n b",
    "{% set x %}\n  in\n{% endset %}\n[{{ x }}]\n",
    "{% if t %}{% if t %}\n\n  x\n{% endif %}{% endif %}\n",
    "x {% if t %} y\n\n\n",
    "{%- if t -%}\n\n a \n\n{%- endif -%}\n\n",
    "\n\n  {% if t %}a{% endif %}",
    "{{ '{{' }} {{ '%}' }} {{ \"}}\" }} { { } } {",
    "{%if t%}tight{%endif%}{{s}}{#c#}",
    "{{\n  s\n  | upper\n}}\n{%\n if t\n%}\nx{%\nendif\n%}",
    "a\n    \n    {% if t %}\n    \n    b\n{% endif %}",
    "{{ {'a': {'b': 1}}.a.b }}{{ {'a': 1}}}",
]
SPACE[17] += "{% endif %}"


def render(env, source, variables):
    try:
        return {"text": env.from_string(source).render(**variables)}
    except TemplateError as e:
        message = str(e)
        return {"raised": message[7:]} if message.startswith("RAISED ") else {"error": message}
    except Exception as e:
        return {"error": "%s: %s" % (type(e).__name__, e)}


def main():
    env = environment()
    out = {
        "source": "jinja2 %s with transformers' settings; testdata/goldens.py" % jinja2.__version__,
        "now": NOW.isoformat(),
        "templates": FAMILIES, "conversations": CONVERSATIONS, "vars": VARS, "renders": [], "points": [],
    }
    for name, source in FAMILIES.items():
        for i, c in enumerate(CONVERSATIONS):
            variables = {"tools": None, "documents": None, "add_generation_prompt": False, "bos_token": "<s>", "eos_token": "</s>", **c}
            out["renders"].append({"template": name, "conversation": i, **render(env, source, variables)})
    variables = {"tools": None, "documents": None, "add_generation_prompt": False, "bos_token": "<s>", "eos_token": "</s>", **VARS}
    for line in POINTS:
        out["points"].append({"source": line, **render(env, line, variables)})
    for source in SPACE:
        out["points"].append({"source": source, **render(env, source, variables)})
    with open("goldens.json", "w") as f:
        json.dump(out, f, ensure_ascii=True, indent=1)
        f.write("\n")
    print(len(out["renders"]), "renders,", len(out["points"]), "points")
    for p in out["points"]:
        if "text" not in p:
            print(p)
    print([(r["template"], r["conversation"], r.get("error") or r.get("raised")) for r in out["renders"] if "text" not in r])


main()
