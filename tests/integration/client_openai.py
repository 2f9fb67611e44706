"""What a program with the `openai` package sees of `ferry serve`. Run by test_serve_clients.py with
the interpreter that has the package:  client_openai.py URL KEY  prints "ok" or fails.
"""

import asyncio
import sys

import openai

URL, KEY = sys.argv[1], sys.argv[2]
MODEL = "demo"
MESSAGES = [{"role": "user", "content": "def read_lines(path):"}]


def make(key=KEY, **how):
    return openai.OpenAI(base_url=URL + "/v1", api_key=key, max_retries=0, timeout=120, **how)


client = make()


def check_models():
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def check_chat():
    how = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "seed": 7, "temperature": 1.0}
    whole = client.chat.completions.create(**how)
    assert whole.object == "chat.completion" and whole.system_fingerprint.startswith("ferry-")
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.usage.prompt_tokens_details.cached_tokens >= 0
    again = client.chat.completions.create(**how)
    assert again.choices[0].message.content == choice.message.content, "the seed does not hold"
    text, finish, usage, ids = "", None, None, set()
    for chunk in client.chat.completions.create(**how, stream=True,
                                                stream_options={"include_usage": True}):
        ids.add(chunk.id)
        usage = chunk.usage or usage
        for part in chunk.choices:
            text += part.delta.content or ""
            finish = part.finish_reason or finish
    assert (text, finish) == (choice.message.content, choice.finish_reason)
    assert len(ids) == 1 and usage.completion_tokens == whole.usage.completion_tokens


def check_n_and_stop():
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=16,
                                           n=3, seed=1, temperature=1.2)
    texts = [c.message.content for c in sorted(whole.choices, key=lambda c: c.index)]
    assert len(texts) == 3 and len(set(texts)) > 1, texts
    stream, parts = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=16, n=3, seed=1, temperature=1.2,
        stream=True), ["", "", ""]
    for chunk in stream:
        for part in chunk.choices:
            parts[part.index] += part.delta.content or ""
    assert parts == texts
    stop = texts[0][3:6]
    cut = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=16,
                                         n=3, seed=1, temperature=1.2, stop=[stop, "never seen"])
    first = min(cut.choices, key=lambda c: c.index)
    assert first.message.content == texts[0][: texts[0].index(stop)], (stop, first)
    assert first.finish_reason == "stop"


def check_logprobs():
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=6, temperature=0,
                                           logprobs=True, top_logprobs=4)
    content = whole.choices[0].logprobs.content
    assert "".join(e.token for e in content) == whole.choices[0].message.content
    for e in content:
        assert len(e.top_logprobs) == 4 and e.top_logprobs[0].token == e.token  # greedy: the best
        assert bytes(e.bytes).decode() == e.token and e.logprob <= 0
    old = client.completions.create(model=MODEL, prompt="def f(", max_tokens=6, temperature=0,
                                    logprobs=3)
    parts = old.choices[0].logprobs
    assert "".join(parts.tokens) == old.choices[0].text
    assert all(len(t) >= 3 for t in parts.top_logprobs)
    assert parts.text_offset[0] == 0 and parts.text_offset[1] == len(parts.tokens[0])


def check_completions():
    one = client.completions.create(model=MODEL, prompt="The", max_tokens=12, temperature=0)
    text = "".join(c.choices[0].text for c in client.completions.create(
        model=MODEL, prompt="The", max_tokens=12, temperature=0, stream=True))
    assert text == one.choices[0].text
    echo = client.completions.create(model=MODEL, prompt="The", max_tokens=2, temperature=0, echo=True)
    assert echo.choices[0].text.startswith("The")
    two = client.completions.create(model=MODEL, prompt=["The", "A"], max_tokens=4, temperature=0, n=2)
    assert [c.index for c in two.choices] == [0, 1, 2, 3]
    assert two.choices[0].text == one.choices[0].text[: len(two.choices[0].text)]
    biased = client.completions.create(model=MODEL, prompt="The", max_tokens=3, temperature=0,
                                       logit_bias={"64": 100})
    assert biased.choices[0].text == "aaa", biased
    raw = client.completions.with_raw_response.create(model=MODEL, prompt="The", max_tokens=1,
                                                      extra_body={"unheard_of": 1})
    assert raw.headers["x-ignored-params"] == "unheard_of" and raw.headers["x-request-id"]


def raises(kind, act, code=None, param=None):
    try:
        act()
    except kind as exc:
        assert type(exc) is kind, exc
        assert code is None or exc.code == code, exc
        assert param is None or exc.param == param, exc
        return exc
    raise AssertionError(f"no {kind.__name__}")


def check_errors():
    def ask(who=client, **how):
        return lambda: who.chat.completions.create(**{"model": MODEL, "messages": MESSAGES,
                                                      "max_tokens": 1, **how})
    raises(openai.BadRequestError, ask(top_p=3), param="top_p")
    raises(openai.BadRequestError, ask(messages=[]), param="messages")
    raises(openai.BadRequestError, ask(messages=[{"role": "user", "content": "a " * 9000}]),
           code="context_length_exceeded")
    raises(openai.BadRequestError, ask(response_format={"type": "json_object"}),
           code="unsupported_parameter")
    raises(openai.AuthenticationError, ask(make("wrong-key")))
    raises(openai.NotFoundError, ask(model="gpt-4"), code="model_not_found")
    raises(openai.NotFoundError, lambda: client.embeddings.create(model=MODEL, input="a"))


def check_rate_limit():
    """The server takes four answers at once and lets four wait."""
    long = {"model": MODEL, "prompt": "a", "max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    streams = [client.completions.create(**long, stream=True) for _ in range(8)]
    next(iter(streams[0]))
    exc = raises(openai.RateLimitError, lambda: client.completions.create(**long), code="queue_full")
    assert int(exc.response.headers["retry-after"]) >= 1
    for stream in streams:
        stream.close()
    # The package's own retries, by Retry-After, get through.
    patient = make().with_options(max_retries=5)
    patient.completions.create(model=MODEL, prompt="a", max_tokens=1)


async def check_async():
    """Many at once, some cancelled."""
    async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY, timeout=120,
                                  max_retries=20) as many:
        async def ask(i):
            stream = await many.completions.create(model=MODEL, prompt=f"{i}", max_tokens=20,
                                                   temperature=0, stream=True)
            text = ""
            async for chunk in stream:
                text += chunk.choices[0].text
                if i % 5 == 0:
                    await stream.close()
                    return None
            return text

        got = await asyncio.gather(*(ask(i) for i in range(12)))
    for i, text in enumerate(got):
        alone = client.with_options(max_retries=5).completions.create(
            model=MODEL, prompt=f"{i}", max_tokens=20, temperature=0).choices[0].text
        assert text in (None, alone) and (text is None) == (i % 5 == 0), (i, text, alone)


for check in (check_models, check_chat, check_n_and_stop, check_logprobs, check_completions,
              check_errors, check_rate_limit):
    check()
asyncio.run(check_async())
print("ok")
