"""ferry serve as a command: flags, files, addresses, signals. What it answers is in test_serve_*.py."""

import json
import os
import signal
import socket
import time

import cli
import serve


class Serve(cli.Case):
    def served(self, *flags):
        server = serve.start(self.demo(), *flags)
        self.addCleanup(server.stop)
        return server

    def test_flags(self):
        demo = self.demo()
        for flags in (["--port", "65536"], ["--port", "x"], ["--parallel", "0"], ["--drain-seconds", "-1"],
                      ["--stall-seconds", "0"], ["--keepalive-seconds", "nan"], ["--max-waiting", "0"],
                      ["--served-model-name", ""], ["--workers", "17"],
                      ["--connections-per-peer", "0"], ["--connections-per-peer", "2000"]):
            done = cli.ferry("serve", demo, *flags)
            self.assertEqual(done.code, 2, flags)
            self.assertIn(f"{flags[0]} '{flags[1]}'" if flags[1] else "empty", done.err)
        self.refused(2, "--access-log", "serve", demo, "--json")

    def test_files(self):
        demo, missing = self.demo(), os.path.join(cli.SCRATCH, "missing")
        for flag in ("--api-key-file", "--chat-template", "--access-log"):
            self.refused(1, "missing", "serve", demo, "--port", "0", flag,
                         missing if flag != "--access-log" else os.path.join(missing, "log"))
        self.refused(1, "--tls-key", "serve", demo, "--port", "0", "--tls-cert", missing)
        empty = os.path.join(cli.SCRATCH, "keys")
        with open(empty, "w", encoding="ascii") as f:
            f.write("# nobody\n\n")
        self.refused(1, "API keys", "serve", demo, "--port", "0", "--api-key-file", empty)
        self.refused(1, "missing", "serve", missing)

    def test_addresses(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.refused(1, f"port {port}", "serve", self.demo(), "--port", str(port))
        self.refused(1, "--api-key-file", "serve", self.demo(), "--port", "0", "--host", "0.0.0.0")

    def test_a_base_model_without_template_completes(self):
        """Text completion works, chat says what is missing."""
        server = self.served("--served-model-name", "house/model")
        self.assertEqual(server.get("/v1/models").json()["data"][0]["id"], "house/model")
        self.assertEqual(server.get("/v1/models/house/model").status, 200)
        self.assertEqual(server.get("/v1/models/other").status, 404)

    def test_memory_is_bounded_by_kv_tokens(self):
        server = self.served("--parallel", "4", "--kv-tokens", "2048", "--context", "2048")
        pages = [line for line in server.get("/metrics").body.decode().split("\n")
                 if line.startswith("ferry_kv_pages ")]
        self.assertEqual(pages, ["ferry_kv_pages 16"])
        self.assertNotIn("instead of", server.log())
        server = self.served("--kv-tokens", "256")  # one sequence can hold no more than all
        self.assertEqual(server.get("/v1/models").json()["data"][0]["max_model_len"], 256)
        self.assertRegex(server.log(), "256 tokens instead of 2048: --kv-tokens")

    def test_both_signals_end_it(self):
        for sig in (signal.SIGTERM, signal.SIGINT):
            server = serve.start(self.demo())
            server.process.send_signal(sig)
            self.assertEqual(server.process.wait(timeout=cli.TIMEOUT_S), 0)
            server.kill()

    def test_signals_until_the_end_change_nothing(self):
        """An impatient Ctrl-C, again and again until the process is gone: it ends with 0 all the same."""
        for round_number in range(12):
            server = serve.start(self.demo())
            with server.stream("/v1/completions", {"prompt": "a", "max_tokens": 1900, "ignore_eos": True}):
                until = time.monotonic() + cli.TIMEOUT_S
                while server.alive() and time.monotonic() < until:
                    server.process.send_signal(signal.SIGINT if round_number % 2 else signal.SIGTERM)
                    time.sleep(0.0002 * (round_number % 4))
            self.assertEqual(server.process.wait(timeout=cli.TIMEOUT_S), 0, server.log())
            server.kill()

    def test_access_log(self):
        path = os.path.join(cli.SCRATCH, "access.log")
        server = self.served("--access-log", path)
        server.post("/v1/completions", {"prompt": "secret text", "max_tokens": 3})
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "no JSON, secret"}}
        server.post("/v1/chat/completions", {"max_tokens": 1, "messages": [
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "ok", "tool_call_id": "1"}]})
        server.get("/health")
        server.stop()  # the line is written after its answer
        with open(path, encoding="utf-8") as f:
            lines = f.read().splitlines()
        self.assertEqual(len(lines), 2, lines)
        line, chat = map(json.loads, lines)
        self.assertEqual((line["route"], line["status"], line["completion_tokens"]), ("completions", 200, 3))
        self.assertNotIn("bad_arguments", line)
        self.assertEqual((chat["route"], chat["status"], chat["bad_arguments"]), ("chat", 200, 1))
        self.assertNotIn("secret", "".join(lines))

    def test_access_log_that_cannot_be_written(self):
        """A FIFO without a reader is no reason to wait; a full disk is said once."""
        path = cli.scratch("fifo")
        os.mkfifo(path)
        self.refused(1, "nobody reads this FIFO", "serve", self.demo(), "--port", "0", "--access-log", path)
        server = self.served("--access-log", "/dev/full")
        for _ in range(3):
            self.assertEqual(server.get("/v1/models").status, 200)
        server.stop()
        self.assertEqual(server.log().count("the access log loses lines: No space left on device"), 1)

    def test_few_files(self):
        """Fewer descriptors than connections: told at the start, and all of those meant are served."""
        program = cli.scratch("few-files")
        with open(program, "w", encoding="ascii") as f:
            f.write(f'#!/bin/sh\nulimit -n 100\nexec "{cli.FERRY}" "$@"\n')
        os.chmod(program, 0o755)
        server = serve.start(self.demo(), program=program)
        self.addCleanup(server.stop)
        self.assertRegex(server.log(), r"(50|51) connections at once instead of 1024: .* 100 files")
        socks = [server.connect() for _ in range(60)]
        for sock in socks[:20]:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertIn(b"200 OK", sock.recv(4096))
        for sock in socks:
            sock.close()
        self.assertEqual(server.get("/health").status, 200)

    def test_connections_per_peer(self):
        server = self.served("--connections-per-peer", "2")
        kept, until = [], time.monotonic() + 10
        while len(kept) < 2 and time.monotonic() < until:  # what asked for /ready may still be there
            sock = server.connect()
            self.addCleanup(sock.close)
            try:
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                if b"200 OK" in sock.recv(4096):
                    kept.append(sock)
            except ConnectionError:
                pass
        self.assertEqual(len(kept), 2)
        with server.connect() as third:
            try:
                self.assertEqual(third.recv(100), b"")
            except ConnectionError:
                pass  # as clear


if __name__ == "__main__":
    cli.main()
