#!/usr/bin/env python3
"""Verbs over several ranks: the bytes of one rank for every architecture, placement, number of replicas and
road; a rank that is killed or stopped changes nothing; wrong settings end with their names."""

import os
import signal
import socket
import subprocess
import threading
import time

import cli

IDS = cli.ids(150)
TCP = {"FERRY_FABRIC_NO_SHM": "1"}


def ranks_of(pid):
    """Processes `ferry rank` that were started by this one."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat") as f:
                parent = int(f.read().rsplit(")", 1)[1].split()[1])
            with open(f"/proc/{entry}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue
        if parent == pid and words[1:2] == [b"rank"]:
            found.append(int(entry))
    return found


class Group(cli.Case):
    def logits(self, model, *flags, numbers=IDS, env=None):
        out = cli.scratch("group.safetensors")
        self.good("logits", model, "--ids", cli.text_of(numbers), "--out", out, "--threads", 1,
                  *flags, env=env)
        with open(out, "rb") as f:
            data = f.read()
        os.unlink(out)
        return data

    def check(self, model, ways, numbers=IDS):
        want = self.logits(model, numbers=numbers)
        for flags, env in ways:
            self.assertEqual(self.logits(model, *flags, numbers=numbers, env=env), want,
                             f"{model} {flags} {env}")

    def test_every_architecture(self):
        """6 experts, top-2; 4 and 7 do not divide them."""
        for i, arch in enumerate(cli.ARCHS):
            with self.subTest(arch):
                self.check(cli.model(arch), (
                    (("--ranks", 2), None),
                    (("--ranks", 3), None),
                    (("--ranks", 4, "--placement", f"random:{i}"), None),
                    (("--ranks", 7, "--placement", f"random:{i}", "--replicas", 2), None),
                    (("--ranks", 3, "--placement", f"random:{i}", "--replicas", 2), TCP)))

    def test_ranks_and_chunks(self):
        model = cli.model("qwen3_moe")
        self.check(model, [(("--ranks", n, "--prefill-chunk", c), None)
                           for n, c in ((1, 7), (2, 1), (3, "all"), (7, 64))])
        self.check(model, [(("--ranks", 2), TCP)], numbers=IDS[:1])

    def test_micro_batches(self):
        """Two halves of a step overlap: over TCP by themselves, else when asked."""
        for arch in cli.ARCHS:
            self.check(cli.model(arch), [(("--ranks", 2), TCP),
                                         (("--ranks", 2, "--micro-batches", 1), TCP),
                                         (("--ranks", 3, "--micro-batches", 2), None)])
        self.check(cli.model("olmoe"), [(("--ranks", 2, "--micro-batches", 2), None)],
                   numbers=IDS[:3])

    def test_formats(self):
        """Rows travel quantised or as f32, as the experts take them."""
        for quant in ("Q8_0", "Q4_K", "MXFP4"):
            with self.subTest(quant):
                self.check(cli.model("olmoe", "gguf", quant), [
                    (("--ranks", 3), None), (("--ranks", 2, "--no-repack"), TCP)])

    def test_bf16_sums(self):
        """Other bits than f32, but the same on any number of ranks."""
        model = cli.model("mixtral")
        one = self.logits(model, "--combine", "bf16")
        self.assertNotEqual(one, self.logits(model))
        for flags in (("--ranks", 2), ("--ranks", 3, "--placement", "random:4")):
            self.assertEqual(self.logits(model, "--combine", "bf16", *flags), one, flags)

    def test_a_placement_file(self):
        path = cli.scratch("plan.json")
        layers = ", ".join('{"layer": %d, "experts": [[1], [0, 2], [2], [2], [1, 0], [0]]}' % i
                           for i in range(2))
        with open(path, "w") as f:
            f.write('{"version": 1, "layers": [%s]}' % layers)
        self.check(cli.model("qwen2_moe"), [(("--ranks", 3, "--placement", path), None)])
        done = cli.ferry("logits", cli.model("qwen2_moe"), "--ids", "1", "--out",
                         cli.scratch("x"), "--ranks", 2, "--placement", path)
        self.assertEqual(done.code, 1)
        self.assertIn("seat", done.err)

    def test_wrong_settings(self):
        model = cli.model("mixtral")
        for flags, words in ((("--ranks", "0"), "1..64"), (("--ranks", "65"), "1..64"),
                             (("--replicas", "none"), "1..64"), (("--combine", "f16"), "bf16")):
            done = cli.ferry("logits", model, "--ids", "1", "--out", cli.scratch("x"), *flags)
            self.assertEqual((done.code, words in done.err), (2, True), done.err)
        fifo = cli.scratch("key.fifo")
        os.mkfifo(fifo)
        for flags, words in (
                (("--ranks", 2, "--group-key-file", fifo), "regular file"),
                (("--ranks", 2, "--group-key-file", "/dev/zero"), "regular file"),
                (("--ranks", 2, "--replicas", 3), "--replicas 3"),
                (("--ranks", 2, "--placement", "random:x"), "random:x"),
                (("--ranks", 2, "--listen", "203.0.113.1:77"), "--group-key-file"),
                (("--listen", "127.0.0.1:0"), "--ranks N")):
            self.refused(1, words, "logits", model, "--ids", "1", "--out", cli.scratch("x"), *flags)
        done = cli.ferry("logits", model, "--ids", "1", "--out", cli.scratch("x"), "--ranks", 2,
                         "--placement", cli.scratch("none.json"))
        self.assertEqual(done.code, 1)
        self.assertIn("none.json", done.err)

    def test_mpirun(self):
        """Rank and size come from the environment; rank 0 runs the verb, the others end with it."""
        model, out = cli.model("olmoe"), cli.scratch("mpi.safetensors")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            at = f"127.0.0.1:{s.getsockname()[1]}"
        ranks = [subprocess.Popen(
            [cli.FERRY, "logits", model, "--ids", cli.text_of(IDS), "--out", out, "--threads", "1",
             "--listen", at], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=cli.environment(OMPI_COMM_WORLD_RANK=str(r), OMPI_COMM_WORLD_SIZE="3",
                                OMPI_COMM_WORLD_LOCAL_SIZE="3")) for r in range(3)]
        done = [(r.communicate(timeout=cli.TIMEOUT_S)[1], r.returncode) for r in ranks]
        self.assertEqual([code for _, code in done], [0, 0, 0], done)
        with open(out, "rb") as f:
            self.assertEqual(f.read(), self.logits(model))
        env = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
        flags = ("logits", model, "--ids", "1", "--out", out)
        self.refused(2, "--listen", *flags, env=env)
        self.good(*flags, "--ranks", 1, env=env)  # flags count more
        for rank, size in (("2", "2"), ("0", "65"), ("-1", "2"), ("", "2"), ("0", "many")):
            done = self.good(*flags, env={"OMPI_COMM_WORLD_RANK": rank,
                                          "OMPI_COMM_WORLD_SIZE": size})
            self.assertIn(f"rank '{rank}' of '{size}'", done.err)

    def test_a_joining_rank_ends_at_once(self):
        """It holds nothing that others would have to take over."""
        for number in (signal.SIGTERM, signal.SIGINT):
            rank = subprocess.Popen([cli.FERRY, "rank", cli.DEMO, "--join", "127.0.0.1:9"],
                                    stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                    env=cli.environment())
            time.sleep(0.5)
            rank.send_signal(number)
            self.assertEqual(rank.wait(timeout=5), -number)

    def test_as_the_first_process_of_a_container(self):
        """Its ranks have a parent with the number 1, which is no orphan's."""
        unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
        if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no namespace of processes can be made here")
        model, out = cli.model("olmoe"), cli.scratch("first.safetensors")
        done = subprocess.run(
            [*unshare, cli.FERRY, "logits", model, "--ids", cli.text_of(IDS), "--out", out,
             "--threads", "1", "--ranks", "2"], capture_output=True, text=True, check=False,
            env=cli.environment(), timeout=cli.TIMEOUT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(out, "rb") as f:
            self.assertEqual(f.read(), self.logits(model))

    # ---- losses ----

    def run_with_fault(self, fault, ranks=4, flags=(), tokens=400):
        """The text of a run while fault(pids of the other ranks) is at work."""
        process = subprocess.Popen(
            [cli.FERRY, "run", cli.DEMO, "-p", "def f(x):", "-n", str(tokens), "--raw", "--temp",
             "0", "--ignore-eos", "--threads", "1", "--ranks", str(ranks), *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=cli.environment())
        err = []
        reader = threading.Thread(target=lambda: err.append(process.stderr.read()))
        reader.start()
        out = process.stdout.read(1)  # the first piece: all ranks are live
        pids = ranks_of(process.pid)
        self.assertEqual(len(pids), ranks - 1)
        fault(pids)
        out += process.stdout.read()
        code = process.wait(timeout=60)
        reader.join()
        process.stdout.close()
        process.stderr.close()
        text = err[0].decode(errors="replace")
        self.assertEqual(code, 0, text)
        for pid in pids:
            self.assertFalse(os.path.exists(f"/proc/{pid}"), "a rank was left behind")
        return out, text

    def test_a_killed_rank_changes_nothing(self):
        want, _ = self.run_with_fault(lambda pids: None, ranks=2)
        for flags in ((), ("--replicas", "2"), ("--placement", "random:3")):
            for which in (0, -1):
                with self.subTest(f"{flags} {which}"):
                    got, err = self.run_with_fault(
                        lambda pids: os.kill(pids[which], signal.SIGKILL), flags=flags)
                    self.assertEqual(got, want)
                    self.assertRegex(err, "suspect|dead")

    def test_all_others_killed(self):
        want, _ = self.run_with_fault(lambda pids: None, ranks=2, tokens=1500)

        def one_by_one(pids):
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                time.sleep(0.1)
        got, _ = self.run_with_fault(one_by_one, tokens=1500)  # not over before the last kill
        self.assertEqual(got, want)

    def test_a_stopped_rank_changes_nothing(self):
        want, _ = self.run_with_fault(lambda pids: None, ranks=2, tokens=1500)

        def stop(pids):
            os.kill(pids[0], signal.SIGSTOP)
            time.sleep(1.5)
            os.kill(pids[0], signal.SIGCONT)
        got, _ = self.run_with_fault(stop, tokens=1500)
        self.assertEqual(got, want)

    def test_ctrl_c_ends_all(self):
        process = subprocess.Popen(
            [cli.FERRY, "run", cli.DEMO, "-p", "x", "-n", "4000", "--raw", "--ignore-eos",
             "--threads", "1", "--ranks", "3"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=cli.environment())
        process.stdout.read(1)
        pids = ranks_of(process.pid)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        self.assertIn(process.wait(timeout=30), (0, 130))
        process.stdout.close()
        for pid in pids:
            self.assertFalse(os.path.exists(f"/proc/{pid}"))

    def test_no_rank_outlives_its_parent(self):
        process = subprocess.Popen(
            [cli.FERRY, "run", cli.DEMO, "-p", "x", "-n", "4000", "--raw", "--ignore-eos",
             "--threads", "1", "--ranks", "3"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=cli.environment())
        process.stdout.read(1)
        pids = ranks_of(process.pid)
        process.kill()
        process.wait(timeout=10)
        process.stdout.close()
        until = time.time() + 20
        while time.time() < until and any(os.path.exists(f"/proc/{p}") for p in pids):
            time.sleep(0.05)
        self.assertFalse([p for p in pids if os.path.exists(f"/proc/{p}")])


if __name__ == "__main__":
    cli.main()
