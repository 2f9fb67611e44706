/* Pre-tokenizers that GGUF files only name. See gguf_families.h.
 *
 * Patterns are those of the families' own tokenizer.json, in Oniguruma syntax. */
#include "text/gguf_families.h"

#include <string.h>

static const char GPT2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char DIGIT[] = "\\p{N}";
static const char QWEN2[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p"
    "{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char QWEN35[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s"
    "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char LLAMA3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{"
    "L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char O200K[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}"
    "\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}"
    "\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{"
    "1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char TEKKEN[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}"
    "\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm"
    "}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|"
    "\\s+";
static const char DIGITS_3[] = "\\p{N}{1,3}";
static const char DEEPSEEK_CJK[] =
    "[\344\270\200-\351\276\245\343\201\200-\343\202\237\343\202\240-\343\203\277]+";
static const char DEEPSEEK_V3[] =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?["
    "\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
static const char LLM_LINE[] = "[\r\n]";
/* The letters stand one by one in the file; some would not survive an editor, so as bytes. */
static const char LLM_LETTERS[] =
    "\\s?[A-Za-z\302\265\303\200-\303\226\303\230-\303\266\303\270-\306\272\306\274-"
    "\306\277\307\204-\312\223\312\225-\312\257\315\260-\315\263\315\266\315\267\315"
    "\273-\315\275\315\277\316\206\316\210-\316\212\316\214\316\216-\316\241\316\243-"
    "\317\265\317\267-\322\201\322\212-\324\257\324\261-\325\226\341\202\240-\341\203"
    "\205\341\216\240-\341\217\265\341\217\270-\341\217\275\341\262\220-\341\262\272"
    "\341\262\275-\341\262\277\341\264\200-\341\264\253\341\265\253-\341\265\267\341"
    "\265\271-\341\266\232\341\270\200-\341\274\225\341\274\230-\341\274\235\341\274"
    "\240-\341\275\205\341\275\210-\341\275\215\341\275\220-\341\275\227\341\275\231"
    "\341\275\233\341\275\235\341\275\237-\341\275\275\341\276\200-\341\276\264\341\276"
    "\266-\341\276\274\341\276\276\341\277\202-\341\277\204\341\277\206-\341\277\214"
    "\341\277\220-\341\277\223\341\277\226-\341\277\233\341\277\240-\341\277\254\341"
    "\277\262-\341\277\264\341\277\266-\341\277\274\342\204\202\342\204\207\342\204\212"
    "-\342\204\223\342\204\225\342\204\231-\342\204\235\342\204\244\342\204\246\342\204"
    "\250\342\204\252-\342\204\255\342\204\257-\342\204\264\342\204\271\342\204\274-"
    "\342\204\277\342\205\205-\342\205\211\342\205\216\342\206\203\342\206\204\342\260"
    "\200-\342\261\273\342\261\276-\342\263\244\342\263\253-\342\263\256\342\263\262"
    "\342\263\263\352\231\200-\352\231\255\352\232\200-\352\232\233\352\234\242-\352"
    "\235\257\352\235\261-\352\236\207\352\236\213-\352\236\216\352\255\260-\352\256"
    "\277\357\254\200-\357\254\206\357\254\223-\357\254\227\357\274\241-\357\274\272"
    "\357\275\201-\357\275\232\360\220\220\200-\360\220\221\217\360\220\222\260-\360"
    "\220\223\223\360\220\223\230-\360\220\223\273\360\220\262\200-\360\220\262\262\360"
    "\220\263\200-\360\220\263\262\360\221\242\240-\360\221\243\237\360\236\244\200-"
    "\360\236\245\203]+";
static const char LLM_PUNCTUATION[] =
    "\\s?[!-/:-~\357\274\201-\357\274\217\357\274\232-\357\275\236\342\200\230-\342\200"
    "\237\343\200\200-\343\200\202]+";
static const char LLM_SPACES[] = "\\s+$";
static const char LLM_CJK[] =
    "[\344\270\200-\351\276\245\340\240\200-\344\270\200\352\260\200-\355\237\277]+";

static const struct gguf_family FAMILIES[] = {
    {"gpt-2", {GPT2}, .nfc = false},
    {"default", {GPT2}, .nfc = false},
    {"olmo", {GPT2}, .nfc = false},
    {"qwen2", {QWEN2}, .nfc = true},
    {"deepseek-r1-qwen", {QWEN2}, .nfc = true},
    {"qwen35", {QWEN35}, .nfc = true},
    {"refact", {DIGIT, GPT2}, .nfc = false},
    {"starcoder", {DIGIT, GPT2}, .nfc = false},
    {"llama-bpe", {LLAMA3}, .ignore_merges = true, .adds_bos = true},
    {"llama3", {LLAMA3}, .ignore_merges = true, .adds_bos = true},
    {"llama-v3", {LLAMA3}, .ignore_merges = true, .adds_bos = true},
    {"gpt-4o", {O200K}, .ignore_merges = true},
    {"llama4", {O200K}, .ignore_merges = true},
    {"tekken", {TEKKEN}, .ignore_merges = true, .adds_bos = true},
    {"deepseek-v3", {DIGITS_3, DEEPSEEK_CJK, DEEPSEEK_V3}, .nfc = false},
    {"deepseek-llm",
     {LLM_LINE, LLM_LETTERS, LLM_PUNCTUATION, LLM_SPACES, LLM_CJK, DIGIT},
     .nfc = false},
};

enum { N_FAMILIES = sizeof FAMILIES / sizeof FAMILIES[0] };

const struct gguf_family *gguf_family_find(const char *name, size_t n_bytes)
{
    for (size_t i = 0; i < N_FAMILIES; i++) {
        if (strlen(FAMILIES[i].name) == n_bytes && memcmp(FAMILIES[i].name, name, n_bytes) == 0)
            return &FAMILIES[i];
    }
    return NULL;
}

void gguf_family_list(char *text, size_t size)
{
    size_t used = 0;

    text[0] = 0;
    for (size_t i = 0; i < N_FAMILIES; i++) {
        size_t n = strlen(FAMILIES[i].name);
        if (used + n + 3 > size)
            break;
        if (i > 0) {
            memcpy(text + used, ", ", 2);
            used += 2;
        }
        memcpy(text + used, FAMILIES[i].name, n + 1);
        used += n;
    }
}
