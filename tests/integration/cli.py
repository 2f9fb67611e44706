"""What the tests of the command share: running ferry, tiny checkpoints of every architecture in both
file formats, a reader of docs/json schemas, skips that are counted with their reason.

A test script ends with cli.main(); its first argument is the ferry binary.
"""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools", "oracle"))
import gguf_write  # noqa: E402
import weights  # noqa: E402

DEMO = os.path.join(ROOT, "models", "demo")
CORPUS = os.path.join(ROOT, "tests", "fuzz", "corpus")
ARCHS = weights.ARCHS
TIMEOUT_S = 120
FERRY = None
SCRATCH = tempfile.mkdtemp(prefix="ferry-cli-")
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)


def environment(**extra):
    """The caller's environment without any FERRY_ setting, plus `extra`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("FERRY_")}
    env.update(extra)
    return env


class Done:
    """A finished command: code, out (bytes), err (text)."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def json(self):
        return json.loads(self.out)


def ferry(*args, env=None, stdin=b"", stdout=subprocess.PIPE, timeout=TIMEOUT_S):
    done = subprocess.run(
        [FERRY, *map(str, args)], input=stdin, stdout=stdout, stderr=subprocess.PIPE,
        env=environment(**(env or {})), timeout=timeout, check=False,
    )
    return Done(done.returncode, done.stdout or b"", done.stderr.decode(errors="replace"))


def config_of(arch, hidden=64, inter=48, head_dim=16, heads=4, **changes):
    """A small config.json: 2 layers, 6 experts, top-2."""
    config = {
        "model_type": arch, "hidden_size": hidden, "num_hidden_layers": 2,
        "num_attention_heads": heads, "num_key_value_heads": 2, "vocab_size": 160,
        "intermediate_size": inter, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 1024, "hidden_act": "silu", "num_experts_per_tok": 2,
        "tie_word_embeddings": arch == "granitemoe",
    }
    config["num_local_experts" if arch in ("mixtral", "granitemoe") else "num_experts"] = 6
    if arch != "olmoe" and arch != "granitemoe":
        config["head_dim"] = head_dim
    if arch.startswith("qwen"):
        config["moe_intermediate_size"] = inter
        config["norm_topk_prob"] = arch == "qwen3_moe"
    if arch == "qwen2_moe":
        config["shared_expert_intermediate_size"] = 64
    if arch == "granitemoe":
        config.update(embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0,
                      attention_multiplier=0.25)
    config.update(changes)
    return config


_made = {}


def model(arch, form="safetensors", quant=None, **changes):
    """Path of a checkpoint, made on first use; K types need rows of 256."""
    key = (arch, form, quant, tuple(sorted(changes.items())))
    if key in _made:
        return _made[key]
    wide = {"hidden": 256, "inter": 256, "head_dim": 32, "heads": 8} if quant else {}
    case = {"config": config_of(arch, **wide, **changes), "seed": 7, "dtype": "F32", "shards": 2}
    if quant:
        case["quant"] = quant
        if arch == "qwen2_moe":
            case["config"]["shared_expert_intermediate_size"] = 256
    folder = os.path.join(SCRATCH, f"model-{len(_made)}")
    if form == "safetensors":
        case["shards"] = 1
        weights.write_checkpoint(case, folder)
        path = folder
    elif form == "sharded":
        weights.write_checkpoint(case, folder)
        path = folder
    elif form == "fused":
        case.update(shards=1, layout="fused")
        weights.write_checkpoint(case, folder)
        path = folder
    else:
        path = gguf_write.write_gguf(case, folder, form)
    _made[key] = path
    return path


def ids(n, vocab=160):
    return [(i * i * 31 + 7 * i + 3) % vocab for i in range(n)]


def text_of(numbers):
    return ",".join(map(str, numbers))


def scratch(name):
    return os.path.join(SCRATCH, name)


def check_schema(value, schema, at="$"):
    """Raises AssertionError unless `value` fits; the few keywords that docs/json uses."""
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
             "boolean": bool, "null": type(None)}
    known = {"$schema", "title", "description", "type", "required", "additionalProperties",
             "properties", "items", "enum", "minItems"}
    assert set(schema) <= known, f"{at}: keywords {set(schema) - known} are not checked"
    if "type" in schema:
        assert isinstance(value, kinds[schema["type"]]), f"{at} is no {schema['type']}: {value!r}"
        assert schema["type"] == "boolean" or not isinstance(value, bool), at
    if "enum" in schema:
        assert value in schema["enum"], f"{at}: {value!r} is none of {schema['enum']}"
    for name in schema.get("required", []):
        assert name in value, f"{at}.{name} is missing"
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for name, member in value.items():
            if name in properties:
                check_schema(member, properties[name], f"{at}.{name}")
            else:
                assert schema.get("additionalProperties", True), f"{at}.{name} is not in the schema"
    for i, item in enumerate(value if isinstance(value, list) else []):
        check_schema(item, schema.get("items", {}), f"{at}[{i}]")


class Case(unittest.TestCase):
    """Assertions about commands."""

    def good(self, *args, **how):
        done = ferry(*args, **how)
        self.assertEqual(done.code, 0, f"{args}: {done.err}")
        return done

    def refused(self, code, what, *args, **how):
        """Ends with `code`, one line on stderr that names `what`, nothing on stdout."""
        done = ferry(*args, **how)
        self.assertEqual(done.code, code, f"{args}: {done.err}")
        self.assertIn(what, done.err, f"{args}")
        lines = [line for line in done.err.splitlines() if line.startswith("ferry: error:")]
        self.assertEqual(len(lines), 1, done.err)
        self.assertEqual(done.out, b"")
        return done

    def fits(self, value, verb):
        with open(os.path.join(ROOT, "docs", "json", f"{verb}.schema.json")) as f:
            check_schema(value, json.load(f))

    def demo(self):
        if not os.path.exists(os.path.join(DEMO, "model.safetensors")):
            self.skipTest("models/demo is not in this checkout")
        return DEMO


def main():
    global FERRY
    if len(sys.argv) < 2:
        sys.exit("usage: test_NAME.py FERRY [TEST...]")
    FERRY = os.path.abspath(sys.argv[1])
    program = unittest.main(module="__main__", argv=[sys.argv[0]] + sys.argv[2:], exit=False)
    skipped = program.result.skipped
    reasons = "; ".join(sorted({reason for _, reason in skipped}))
    print(f"{program.result.testsRun} tests, {len(skipped)} skipped{': ' + reasons if skipped else ''}")
    if not program.result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if skipped and len(skipped) == program.result.testsRun else 0)
