"""Templates for tests, written after the kinds that models ship: ChatML with tools and thinking, strict alternation."""

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>tools\\n' }}
    {%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- set text = message.content %}
        {%- set thoughts = message.reasoning_content or '' %}
        {%- if '</think>' in text %}
            {%- set thoughts = text.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set text = text.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if thoughts %}{{ '<think>\\n' + thoughts + '\\n</think>\\n\\n' }}{% endif %}
        {{- text }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) }}
            {{- '</tool_call>' }}
        {%- endfor %}
    {%- else %}
        {{- message.content }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""

PLAIN_CHATML = """\
{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Refuses a system message anywhere but first, and two turns of one role in a row.
STRICT = """\
{{ bos_token }}
{%- set turns = messages %}
{%- if messages[0].role == 'system' %}
    {{- 'SYSTEM ' + messages[0].content + '\\n' }}
    {%- set turns = messages[1:] %}
{%- endif %}
{%- for message in turns %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {{- message.role + ': ' + message.content | trim + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant:' }}{% endif %}
"""

# Has no place for system text, without a word.
DEAF = """\
{% for message in messages if message.role != 'system' %}{{ message.role }}: {{ message.content }}
{% endfor %}assistant:"""

OPEN_THINK = PLAIN_CHATML[: -len("{% endif %}")] + "{{ '<think>\\n' }}{% endif %}"
