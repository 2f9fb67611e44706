"""Writes tests/oracle/tokenizer/pieces.txt: how the reference cuts lines by each family's patterns.

One line of text in hexadecimal, then for each family the lengths of its pieces in bytes. Read by
tests/unit/text/test_gguf_families.c, so that the comparison runs without the reference.

Usage: FOLDER/venv/bin/python golden_pieces.py
"""

import pathlib

import families as f
import lines as test_lines
import tokenizers
from tokenizers import Regex, pre_tokenizers

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/oracle/tokenizer/pieces.txt"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
FAMILIES = {
    "gpt-2": [GPT2], "refact": [r"\p{N}", GPT2], "qwen2": [f.QWEN2], "qwen35": [f.QWEN35],
    "llama-bpe": [f.LLAMA3], "gpt-4o": [f.O200K], "tekken": [f.TEKKEN],
    "deepseek-v3": f.DEEPSEEK_V3, "deepseek-llm": f.DEEPSEEK_LLM,
}
COUNT, BYTES_MAX, SEED = 260, 160, 99


def main():
    steps = {
        name: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])
        for name, patterns in FAMILIES.items()
    }
    out = [f"# tools/oracle_tokenizer/golden_pieces.py, tokenizers {tokenizers.__version__}, seed {SEED}"]
    texts = [line.decode("utf-8", "replace") for line in test_lines.make(4 * COUNT, SEED)]
    texts = [t for t in texts if 0 < len(t.encode()) <= BYTES_MAX][:COUNT]
    for text in texts:
        out.append(text.encode().hex())
        for name, step in steps.items():
            sizes = [len(piece.encode()) for piece, _ in step.pre_tokenize_str(text)]
            out.append(f"{name} " + " ".join(map(str, sizes)))
    OUT.write_text("\n".join(out) + "\n")
    print(f"{len(texts)} lines, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
