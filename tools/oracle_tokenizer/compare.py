"""Compares Ferry's ids and decoded texts with the `tokenizers` package, vocabulary by vocabulary.

Usage: compare.py FOLDER DRIVER [--lines N] [--seed S] [--only NAME,NAME]
FOLDER as made by setup.sh; DRIVER is the built tests/oracle/tokenizer/tok_driver. Exit code 1 when
anything differs.
"""

import argparse
import pathlib
import struct
import subprocess
import sys
import tempfile

import tokenizers

import lines as test_lines

ADD_SPECIAL, PARSE_SPECIAL, DECODE, SKIP_SPECIAL = 1, 2, 4, 8


def ask(driver, path, lines, flags):
    """Ids and decoded bytes of every line from the driver."""
    with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as answer:
        for line in lines:
            request.write(struct.pack("<II", flags, len(line)) + line)
        request.seek(0)
        subprocess.run([driver, path], stdin=request, stdout=answer, check=True)
        answer.seek(0)
        data = answer.read()
    results = []
    at = 0
    for _ in lines:
        (count,) = struct.unpack_from("<I", data, at)
        ids = list(struct.unpack_from(f"<{count}i", data, at + 4))
        at += 4 + 4 * count
        text = b""
        if flags & DECODE:
            (size,) = struct.unpack_from("<I", data, at)
            text = data[at + 4 : at + 4 + size]
            at += 4 + size
        results.append((ids, text))
    return results


def expected(reference, lines, flags):
    """Ids and decoded text of every line from the reference package."""
    reference.encode_special_tokens = not flags & PARSE_SPECIAL
    results = []
    for begin in range(0, len(lines), 1000):
        chunk = [line.decode("utf-8", "replace") for line in lines[begin : begin + 1000]]
        ids = [e.ids for e in reference.encode_batch_fast(chunk, add_special_tokens=bool(flags & ADD_SPECIAL))]
        texts = reference.decode_batch(ids, skip_special_tokens=bool(flags & SKIP_SPECIAL))
        results += zip(ids, texts)
    return results


def compare(wanted, driver, path, lines, flags, show):
    """Number of lines whose ids and whose texts differ."""
    bad_ids = bad_texts = 0
    for line, want, got in zip(lines, wanted, ask(driver, path, lines, flags)):
        if got[0] != want[0]:
            bad_ids += 1
            if bad_ids <= show:
                print(f"    ids differ for {line!r}\n      want {want[0]}\n      got  {got[0]}")
        elif got[1].decode("utf-8", "replace") != want[1] and not same_up_to_replacement(got[1], want[1]):
            bad_texts += 1
            if bad_texts <= show:
                print(f"    text differs for {want[0]}\n      want {want[1]!r}\n      got  {got[1]!r}")
    return bad_ids, bad_texts


def same_up_to_replacement(got, wanted):
    """Byte fallback replaces each byte of an ill-formed run; elsewhere one mark stands for it."""
    squeeze = lambda s: "\ufffd".join(part for part in s.split("\ufffd") if part)
    return squeeze(got.decode("utf-8", "replace")) == squeeze(wanted)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("driver")
    parser.add_argument("--lines", type=int, default=50000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", type=int, default=3)
    options = parser.parse_args()
    lines = test_lines.make(options.lines, options.seed)
    failed = total = 0
    for path in sorted((options.folder / "vocabularies").iterdir()):
        if options.only and path.name not in options.only.split(","):
            continue
        reference = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        targets = [("tokenizer.json", path / "tokenizer.json")]
        if (path / "tokenizer.gguf").exists():
            targets.append(("GGUF", path / "tokenizer.gguf"))
        part = lines[: max(len(lines) // 5, 1)]
        parse_flags, plain_flags = PARSE_SPECIAL | DECODE, ADD_SPECIAL | DECODE | SKIP_SPECIAL
        want_parsed = expected(reference, lines, parse_flags)
        want_plain = expected(reference, part, plain_flags)
        for kind, target in targets:
            parsed = compare(want_parsed, options.driver, str(target), lines, parse_flags, options.show)
            plain = compare(want_plain, options.driver, str(target), part, plain_flags, options.show)
            bad = sum(parsed) + sum(plain)
            failed += bad > 0
            total += 1
            print(
                f"{path.name} ({kind}): {len(lines)} lines with special tokens parsed: {parsed[0]} ids, "
                f"{parsed[1]} texts differ; {len(part)} as plain text with BOS/EOS: {plain[0]} ids, {plain[1]} texts",
                flush=True,
            )
    print(f"compare: {total - failed} passed, {failed} failed")
    sys.exit(1 if failed or not total else 0)


if __name__ == "__main__":
    main()
