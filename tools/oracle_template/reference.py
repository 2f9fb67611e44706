"""jinja2 in the settings in which transformers renders chat templates.

What: one function that renders a source with variables, or says in which stage it failed.
Why here: all generators of this folder must mean the same by "what Python gives". Written against
the documentation of transformers (chat templating: sandbox, trim_blocks, lstrip_blocks, loop
controls, tojson without HTML escapes, raise_exception, strftime_now, generation tags).
Must not know: the interpreter in src/text.
"""

import datetime
import json

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1764547200  # 2025-12-01 00:00:00


class Raised(Exception):
    """What raise_exception of a template throws."""


class Generation(Extension):
    """{% generation %}: plain output; transformers notes its place for training masks."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return CallBlock(self.call_method("_plain"), [], [], body).set_lineno(line)

    def _plain(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def raise_exception(message):
    raise Raised(message)


def environment(now=NOW):
    moment = datetime.datetime.fromtimestamp(now, datetime.timezone.utc).replace(tzinfo=None)
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = moment.strftime
    return env


def outcome(source, variables, now=NOW):
    """{"want": text} or {"error": stage} with "message" for what the template itself raised."""
    try:
        template = environment(now).from_string(source)
    except Exception:  # also SyntaxError: break outside of a loop is found by Python
        return {"error": "create"}
    try:
        return {"want": template.render(**variables)}
    except Raised as error:
        # Ferry's messages are one line: what is not printable becomes '?'.
        message = "".join(c if c >= " " and c != "\x7f" else "?" for c in str(error))
        return {"error": "render", "message": message[:200]}
    except Exception:  # whatever Python raises in an expression
        return {"error": "render"}


def versions():
    return f"jinja2 {jinja2.__version__}"
