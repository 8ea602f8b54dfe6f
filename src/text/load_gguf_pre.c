/* SPDX-License-Identifier: Apache-2.0
 * tokenizer.ggml.pre of a GGUF file: the name of what cuts text into words before byte-level BPE. The expressions behind the names are
 * the published ones of the model families. */
#include "text/internal.h"

#include "formats/gguf.h"

#include <string.h>

/* The letters with two cases that DeepSeek's first tokenizers list one by one: those of an older Unicode, without
 * Georgian's and what came later, so that no property says the same. */
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}" \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}" \
    "\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}" \
    "\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}" \
    "\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}" \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}" \
    "\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}" \
    "\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}" \
    "\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}" \
    "\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}" \
    "\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}" \
    "\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}" \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}" \
    "\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}" \
    "\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}" \
    "\\x{1E900}-\\x{1E943}"
#define DEEPSEEK_IDEOGRAPHS "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"


#define ANY_CASE "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEFORE "[^\\r\\n\\p{L}\\p{N}]?"
#define SPACES "\\s+(?!\\S)|\\s+"
#define REST " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|" SPACES
/* Words of both cases, and what may be behind them. */
#define CASES(behind) BEFORE UPPER "*" LOWER "+" behind "|" BEFORE UPPER "+" LOWER "*" behind "|"
#define GPT4O_WORDS CASES(ANY_CASE "?")

enum {
    PRE_NFC = 1,
    PRE_WHOLE = 2,      /* a word that is a token is that token, whatever its merges */
    PRE_DIGIT = 4,      /* each digit apart, in front of the expressions */
    PRE_DIGIT_LAST = 8, /* ... behind them */
    PRE_OWN = 16,       /* ByteLevel's own expression, which is GPT-2's, behind all */
};

static const struct {
    const char *names; /* '|' between two */
    int flags;
    const char *patterns[5]; /* each cuts what the one before has left */
} rules[] = {
    {"gpt-2|gpt2|phi-2|mpt|olmo|jais|exaone4|gigachat|a.x-4.0|mellum|trillion|granite-docling|modern-bert|jina-es|jina-de|jina-v2-es|jina-v2-de", PRE_OWN, {NULL}},
    {"smollm|starcoder|refact|command-r|cohere2_moe|codeshell|exaone|minerva-7b|mellum2", PRE_OWN | PRE_DIGIT, {NULL}},
    {"llama-bpe|llama3|llama-v3|falcon3|falcon-h1|pixtral|midm-2.0|lfm2", PRE_WHOLE, {nrd_pattern_text_llama3}},
    {"dbrx|smaug-bpe|glm4|chatglm-bpe", 0, {nrd_pattern_text_llama3}},
    {"qwen2|deepseek-r1-qwen|megrez|stablelm2|hunyuan|kormo", PRE_NFC, {nrd_pattern_text_qwen2}},
    {"solar-open|grok-2", 0, {nrd_pattern_text_qwen2}},
    {"qwen35", PRE_NFC,
     {ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" SPACES}},
    {"deepseek-v3|deepseek3|hunyuan-dense|joyai-llm", 0, {nrd_pattern_text_digits3, nrd_pattern_text_cjk, nrd_pattern_text_deepseek}},
    {"deepseek-llm", PRE_DIGIT_LAST,
     {"[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+",
      "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+", "\\s+$", DEEPSEEK_IDEOGRAPHS}},
    {"deepseek-coder", PRE_DIGIT_LAST, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_IDEOGRAPHS}},
    {"tekken", PRE_WHOLE, {CASES("") "\\p{N}|" REST}},
    {"gpt-4o|llama4|minimax-m2|kanana2", 0, {GPT4O_WORDS "\\p{N}{1,3}|" REST}},
    {"kimi-k2", 0, {nrd_pattern_text_kimi}},
    {"youtu", PRE_WHOLE,
     {"[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}\\x{2014}\\x{FF1A}\\x{FF1B}"
      "\\x{FF0C}\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+|[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
      GPT4O_WORDS "\\p{N}|" REST}},
    {"seed-coder", 0, {ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|" SPACES}},
    {"bailingmoe|bailingmoe2|llada-moe", 0,
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|" SPACES}},
    {"exaone-moe", 0,
     {ANY_CASE "|" BEFORE "(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|" SPACES}},
    /* Digits by three from the right: what is too much stands in front. */
    {"afmoe", 0,
     {"(?<!\\p{N})\\p{N}{1,2}(?=(?:\\p{N}{3})*+(?!\\p{N}))", nrd_pattern_text_digits3,
      "[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{F900}-\\x{FAFF}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}\\x{FF65}-\\x{FF9F}\\x{2F00}-\\x{2FDF}"
      "\\x{E40}-\\x{E7F}\\x{E80}-\\x{EFF}\\x{1780}-\\x{17FF}\\x{1000}-\\x{109F}\\x{AA60}-\\x{AA7F}\\x{A9E0}-\\x{A9FF}\\x{AC00}-\\x{D7AF}"
      "\\x{1100}-\\x{11FF}]+",
      nrd_pattern_text_deepseek}},
    {"falcon", 0, {"[\\p{P}\\$\\+<=>\\^~\\|`]+", nrd_pattern_text_gpt2, "[0-9][0-9][0-9]"}},
    {"bloom|poro-chat|gpt3-finnish", 0, {" ?[^(\\s|.,!?…。，、।۔،)]+"}},
    {"viking", 0, {" ?[^(\\s|.,!?…。，、।۔،)]+", "\\p{N}"}},
    {"default", 0, {"[\\p{P}\\$\\+<=>\\^~\\|]+", nrd_pattern_text_gpt2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

static bool is_one_of(const char *names, const nrd_gguf_span *s)
{
    for (const char *at = names; *at;) {
        const size_t n = strcspn(at, "|");
        if (n == s->n && !memcmp(at, s->data, n)) {
            return true;
        }
        at += n + (at[n] == '|');
    }
    return false;
}

static nrd_error *split_digits(nrd_tokenizer *t)
{
    nrd_tok_pre_step *step = NULL;
    NRD_TRY(nrd_tok_new_pre(t, PRE_DIGITS, &step));
    step->individual = true;
    return NULL;
}

nrd_error *nrd_tok_load_gguf_pre(nrd_tokenizer *t, const nrd_gguf *g)
{
    nrd_gguf_span pre = {"default", 7}, family = {"", 0};
    nrd_tok_norm_step *norm = NULL;
    size_t i = 0;

    nrd_gguf_str(g, "general.architecture", &family);
    if (family.n > 7 && !memcmp(family.data, "bitnet-", 7)) { /* bitnet.cpp's files name nothing; the vocabulary is Llama 3's */
        pre = (nrd_gguf_span){"llama-bpe", 9};
    }
    nrd_gguf_str(g, "tokenizer.ggml.pre", &pre);
    while (i < sizeof rules / sizeof *rules && !is_one_of(rules[i].names, &pre)) {
        i++;
    }
    if (i == sizeof rules / sizeof *rules) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tokenizer.ggml.pre '%.*s' is not implemented",
                          (int)(pre.n < 64 ? pre.n : 64), pre.data);
    }
    const int flags = rules[i].flags;
    t->ignore_merges = flags & PRE_WHOLE;
    if ((flags & PRE_NFC) && nrd_uni_has_forms()) {
        NRD_TRY(nrd_tok_new_norm(t, NORM_FORM, &norm));
        norm->form = NRD_UNI_NFC;
    }
    NRD_TRY(flags & PRE_DIGIT ? split_digits(t) : NULL);
    for (int k = 0; k < 5 && rules[i].patterns[k]; k++) {
        NRD_TRY(nrd_tok_add_split(t, true, rules[i].patterns[k], strlen(rules[i].patterns[k]), SPLIT_ISOLATED, false));
    }
    NRD_TRY(flags & PRE_DIGIT_LAST ? split_digits(t) : NULL);
    return nrd_tok_add_byte_level(t, false, flags & PRE_OWN);
}
