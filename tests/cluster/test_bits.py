#!/usr/bin/env python3
"""Two hosts of two ranks each give the bytes of one rank: logits of every architecture, placements,
replicas, rows by shared memory inside a host, by TCP between them, and passed on; greedy and sampled
answers.

What: `ferry logits` and `ferry run` on host A with one `ferry rank` there and two on host B, against
      the same verb alone.
Why here: tests/integration has no second host, test_survival.py is about faults.
Must not know: how a group is made beyond its flags.

    test_bits.py FERRY

Exit 0: same bytes, 1: not, 77: cannot run here. Needs root.
"""

import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "integration")]
import cli  # noqa: E402
import hosts  # noqa: E402

PORT = 7100
IDS = cli.ids(90)


class TwoHosts(cli.Case):
    @classmethod
    def setUpClass(cls):
        why = hosts.reason("tbf")
        if why is not None:
            raise cli.unittest.SkipTest(why)
        cls.net = hosts.Hosts(2, "tbf", 1000)
        cls.key = cli.scratch("group.key")
        with open(cls.key, "w", encoding="ascii") as f:
            f.write("0123456789abcdef0123456789abcdef\n")
        cls.port = PORT

    @classmethod
    def tearDownClass(cls):
        cls.net.close()

    def on_both(self, verb, model, *flags, shared=()):
        """The verb on host A, three more ranks; the front rank's process when all have ended well."""
        type(self).port += 1
        at = f"{self.net.address('A')}:{self.port}"
        shared = ("--threads", 1, "--group-key-file", self.key, "--bundle-bytes", 1, *shared)
        front = self.net.start("A", [cli.FERRY, verb, model, "--ranks", 4, "--listen", at,
                                     *shared, *flags], name=verb)
        ranks = [self.net.start(host, [cli.FERRY, "rank", model, "--join", at, *shared],
                                name="rank") for host in "ABB"]
        code = front.wait(60)
        for rank in ranks:
            rank.terminate()
        for rank in ranks:
            rank.wait(30)
        self.assertEqual(code, 0, front.log())
        return front

    def logits(self, model, *placing):
        out = [cli.scratch("alone.safetensors"), cli.scratch("hosts.safetensors")]
        ids = ("--ids", cli.text_of(IDS))
        self.good("logits", model, *ids, "--out", out[0], "--threads", 1)
        self.on_both("logits", model, *ids, "--out", out[1], shared=placing)
        data = []
        for path in out:
            with open(path, "rb") as f:
                data.append(f.read())
            os.unlink(path)
        self.assertGreater(len(data[0]), len(IDS) * 160 * 4)
        self.assertEqual(data[0], data[1], f"{model} {placing}")

    def test_every_architecture(self):
        for i, arch in enumerate(cli.ARCHS):
            with self.subTest(arch):
                self.logits(cli.model(arch),
                            *(("--placement", f"random:{i}") if i % 2 else ()))

    def test_replicas(self):
        self.logits(cli.model("olmoe"), "--replicas", 2)
        self.logits(cli.model("mixtral"), "--replicas", 2, "--placement", "random:9")

    def test_quantised_rows(self):
        self.logits(cli.model("qwen3_moe", "gguf", "Q4_K"))

    def test_answers(self):
        for sampling in (("--temp", "0"), ("--temp", "0.9", "--top-p", "0.95", "--seed", "7")):
            flags = ("-p", "def f(x):", "-n", "40", "--raw", "--ignore-eos", *sampling)
            alone = self.good("run", cli.DEMO, *flags, "--threads", 1)
            front = self.on_both("run", cli.DEMO, *flags)
            self.assertIn(alone.out.decode().strip(), front.log())


if __name__ == "__main__":
    cli.main()
