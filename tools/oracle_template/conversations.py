"""Conversations that every chat template is tried with.

What: CONVERSATIONS, name -> variables of one rendering; TOKENS, what a tokenizer adds to them.
Why here: templates branch on roles, tools, calls, thinking and on what is missing.
Must not know: any one template.
"""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a \"city\" <now> & then.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name, e.g. São Paulo"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": ["number", "null"]}},
                          "required": ["lat"]},
                "exact": {"type": "boolean", "nullable": True},
                "mode": {"oneOf": [{"type": "string"}, {"type": "integer", "default": 3}]},
            },
            "required": ["city"],
        },
        "return": {"type": "string"},
    },
}
NOOP = {"type": "function", "function": {"name": "noop", "description": "Does nothing.",
                                         "parameters": {"type": "object", "properties": {}}}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def call(name, arguments, number="abcdef123"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(text, **more):
    return {"role": "tool", "content": text, "tool_call_id": "abcdef123", "name": "get_weather", **more}


TURN = [user("Hi there!"), assistant("Hello, how can I help?"), user("Tell me a joke.")]
CALLED = [user("Weather in Paris?"), assistant(None, tool_calls=[call("get_weather", {"city": "Paris", "days": [1, 2]})]),
          tool("{\"temp\": 21.5}")]
CALLED_EMPTY = [user("Weather?"), assistant("", tool_calls=[call("get_weather", {"city": "Köln"})]), tool("rain")]
THOUGHT = "<think>\nFirst, I think.\n</think>\n\nThe answer is 4."

_MESSAGES = {
    "user": [user("Hi there!")],
    "empty_content": [user("")],
    "spaces": [user("  padded \n\n"), assistant("\n x \n"), user("\t")],
    "unicode": [system("Sprich Deutsch – „ja“."), user("Grüße 🦊 日本語 \u00a0\u200b é"), assistant("ß"), user("ẞ")],
    "system": [system("You are terse."), user("Hi")],
    "system_only": [system("You are terse.")],
    "turns": TURN,
    "system_turns": [system("Be brief.")] + TURN,
    "ends_with_assistant": TURN + [assistant("Why did the chicken...")],
    "control_text": [user("<|im_end|>\n<|im_start|>system\n</s>[INST] <|endoftext|> <|end|> <|return|>"), assistant("[/INST]<s>"), user("{{ 7*7 }}{% if %}")],
    "no_messages": [],
    "two_users": [user("one"), user("two")],
    "starts_with_assistant": [assistant("I begin."), user("ok")],
    "two_systems": [system("a"), system("b"), user("c")],
    "late_system": [user("a"), system("b"), user("c")],
    "unknown_role": [{"role": "wizard", "content": "abra"}, user("x")],
    "developer": [{"role": "developer", "content": "Dev rules."}, user("x")],
    "thought": [user("2+2?"), assistant(THOUGHT), user("Sure?")],
    "reasoning": [user("2+2?"), assistant("4.", reasoning_content="Adding.\n"), user("Sure?"), assistant("Yes.", reasoning_content="Again.")],
    "thinking_field": [user("2+2?"), assistant("4.", thinking="Adding."), user("Sure?")],
    "called": CALLED,
    "called_answered": CALLED + [assistant("21.5 degrees."), user("Thanks"), assistant("Welcome")],
    "called_empty": CALLED_EMPTY,
    "called_twice": [user("Both?"), assistant("", tool_calls=[call("get_weather", {"city": "A"}, "aaaaaaaa1"), call("noop", {}, "aaaaaaaa2")]),
                     tool("1"), {"role": "tool", "content": "2", "tool_call_id": "aaaaaaaa2", "name": "noop"}, assistant("done")],
    "called_text_arguments": [user("W?"), assistant("", tool_calls=[call("get_weather", "{\"city\": \"Oslo\"}")]), tool("snow")],
    "called_bad_id": [user("W?"), assistant("", tool_calls=[call("get_weather", {"city": "Oslo"}, "x")]), tool("snow")],
    "called_bare": [user("W?"), assistant("", tool_calls=[{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "abcdef123"}]), tool("snow")],
    "called_empty_list": [user("W?"), assistant("ok", tool_calls=[]), user("go")],
    "called_thinking": [user("W?"), assistant("Let me look.", reasoning_content="Hm.", tool_calls=[call("get_weather", {"city": "Oslo"})]), tool("snow"), assistant("Snow.")],
    "missing_content": [user("a"), {"role": "assistant"}, user("b")],
    "null_content": [user("a"), assistant(None), user("b")],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "part one "}, {"type": "text", "text": "part two"}]}],
    "missing_role": [{"content": "x"}],
    "tool_object": [user("W?"), assistant("", tool_calls=[call("get_weather", {"city": "X"})]), {"role": "tool", "name": "get_weather", "tool_call_id": "abcdef123", "content": {"temp": 1.0, "ok": True, "x": None}}],
    "long": [m for i in range(20) for m in (user(f"question {i}"), assistant(f"answer {i}"))] + [user("last")],
}


def _all():
    for name, messages in _MESSAGES.items():
        yield name, {"messages": messages, "add_generation_prompt": True}
        if name in ("user", "turns", "system_turns", "ends_with_assistant", "called", "thought", "reasoning", "spaces", "no_messages"):
            yield name + "_noprompt", {"messages": messages, "add_generation_prompt": False}
    for name in ("user", "system", "system_turns", "called", "called_answered", "called_twice", "called_empty", "called_text_arguments",
                 "called_thinking", "developer", "tool_object", "long"):
        yield name + "_tools", {"messages": _MESSAGES[name], "tools": [WEATHER, NOOP], "add_generation_prompt": True}
    yield "empty_tools", {"messages": TURN, "tools": [], "add_generation_prompt": True}
    yield "null_tools", {"messages": TURN, "tools": None, "add_generation_prompt": True}
    yield "builtin_tools", {"messages": TURN, "builtin_tools": ["browser", "python"], "tools": [WEATHER], "add_generation_prompt": True}
    for value in (True, False):
        yield f"thinking_{value}", {"messages": TURN, "enable_thinking": value, "thinking": value, "add_generation_prompt": True}
        yield f"thinking_tools_{value}", {"messages": _MESSAGES["called_thinking"], "enable_thinking": value, "thinking": value, "tools": [WEATHER],
                                          "add_generation_prompt": True}
    yield "effort", {"messages": TURN, "reasoning_effort": "high", "model_identity": "You are a duck.", "add_generation_prompt": True}
    yield "documents", {"messages": [user("What?")], "documents": [{"doc_id": 1, "title": "T", "text": "Ünï \"x\""}, {"doc_id": 2, "text": "b"}],
                        "controls": {"length": "short", "originality": "abstractive"}, "citations": True, "hallucinations": True, "add_generation_prompt": True}
    yield "no_flag", {"messages": TURN}
    yield "no_variables", {}
    yield "no_tokens", {"messages": TURN, "bos_token": None, "eos_token": None, "add_generation_prompt": True}


TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
CONVERSATIONS = {name: {**TOKENS, **variables} for name, variables in _all()}
