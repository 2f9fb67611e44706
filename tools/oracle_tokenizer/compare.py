"""Compares Ferry's ids and decoded texts with the `tokenizers` package, vocabulary by vocabulary.

Usage: compare.py FOLDER DRIVER [--lines N] [--seed S] [--only NAME] [--gguf]
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


def compare(reference, driver, path, lines, flags, show):
    """Number of lines whose ids and whose texts differ."""
    reference.encode_special_tokens = not flags & PARSE_SPECIAL
    texts = [line.decode("utf-8", "replace") for line in lines]
    got = ask(driver, path, lines, flags)
    bad_ids = bad_texts = 0
    for begin in range(0, len(lines), 1000):
        chunk = texts[begin : begin + 1000]
        wanted = reference.encode_batch(chunk, add_special_tokens=bool(flags & ADD_SPECIAL))
        decoded = reference.decode_batch(
            [w.ids for w in wanted], skip_special_tokens=bool(flags & SKIP_SPECIAL)
        )
        for i, want in enumerate(wanted):
            ids, text = got[begin + i]
            if ids != want.ids:
                bad_ids += 1
                if bad_ids <= show:
                    print(f"    ids differ for {lines[begin + i]!r}\n      want {want.ids}\n      got  {ids}")
            elif text.decode("utf-8", "replace") != decoded[i]:
                bad_texts += same_up_to_replacement(text, decoded[i]) is False
                if bad_texts and bad_texts <= show and not same_up_to_replacement(text, decoded[i]):
                    print(f"    text differs for {want.ids}\n      want {decoded[i]!r}\n      got  {text!r}")
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
        if options.only and options.only != path.name:
            continue
        reference = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        targets = [("tokenizer.json", path / "tokenizer.json")]
        if (path / "tokenizer.gguf").exists():
            targets.append(("GGUF", path / "tokenizer.gguf"))
        for kind, target in targets:
            parsed = compare(reference, options.driver, str(target), lines, PARSE_SPECIAL | DECODE, options.show)
            part = lines[: max(len(lines) // 5, 1)]
            plain = compare(reference, options.driver, str(target), part, ADD_SPECIAL | DECODE | SKIP_SPECIAL, options.show)
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
