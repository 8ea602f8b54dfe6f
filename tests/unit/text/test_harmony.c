/* SPDX-License-Identifier: Apache-2.0
 * Answers in GPT-OSS's format: what the messages say, and that at every cut of the tokens what was told so far is the
 * beginning of what the whole answer says. */
#include "text/harmony.h"

#include "base/file.h"
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_BYTES = 256, START = N_BYTES, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN, OTHER, N_VOCAB };
static const char *const marks[] = {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>",
                                    "<|end|>",   "<|call|>",    "<|return|>",  "<|reserved|>"};
static const char tools_text[] = "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"}},"
                                 "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";
static nrd_tokenizer *tokenizer;
static nrd_harmony_ids ids;
static nrd_json_doc *tools;

/* A token for each byte, then the marks. */
static void write_tokenizer(const char *path)
{
    nrd_str o = {0};
    int next = 256;

    nrd_str_puts(&o, "{\"added_tokens\":[");
    for (int i = 0; i < 8; i++) {
        nrd_str_printf(&o, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true,\"normalized\":false}", i ? "," : "", START + i, marks[i]);
    }
    nrd_str_puts(&o, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
                     "\"decoder\":{\"type\":\"ByteLevel\"},\"post_processor\":null,\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int b = 0; b < N_BYTES; b++) { /* GPT-2's letters for bytes */
        const bool prints = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        const int letter = prints ? b : next++;
        char utf8[3] = {(char)letter, 0, 0};
        if (letter > 127) {
            utf8[0] = (char)(0xc0 | letter >> 6);
            utf8[1] = (char)(0x80 | (letter & 63));
        }
        nrd_str_puts(&o, b ? "," : "");
        nrd_json_put_cstr(&o, utf8);
        nrd_str_printf(&o, ":%d", b);
    }
    nrd_str_puts(&o, "}}}");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(o.data, 1, o.len, f), o.len);
    fclose(f);
    nrd_str_fini(&o);
}

static int open_all(void **state)
{
    char path[] = "/tmp/nereid-harmony-XXXXXX.json";
    const int fd = mkstemps(path, 5);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    write_tokenizer(path);
    nrd_error *err = nrd_tokenizer_open(&tokenizer, path);
    unlink(path);
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
    assert_null(nrd_json_parse(&tools, tools_text, sizeof tools_text - 1, NULL));
    assert_true(nrd_harmony_find(tokenizer, &ids));
    assert_int_equal(ids.constrain, CONSTRAIN);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    nrd_json_doc_free(tools);
    nrd_tokenizer_close(tokenizer);
    return 0;
}

/* Marks and text: "\1" is <|start|>, "\2" <|channel|>, and so on. Other text has no marks, whatever it looks like. */
static void put(nrd_ids *to, const char *s)
{
    for (; *s; s++) {
        nrd_ids_push(to, *s >= 1 && *s <= 8 ? START + *s - 1 : (uint8_t)*s);
    }
}

typedef struct said {
    nrd_str content, reasoning, calls; /* calls: NAME(ARGUMENTS), one behind the other */
} said;

/* Pushes tokens [0, n), and the end with `whole`. */
static void answer(const nrd_ids *prompt, const nrd_ids *tokens, size_t n, bool whole, said *out)
{
    const nrd_str *name, *arguments;
    nrd_harmony *h = nrd_harmony_new(&ids, tokenizer, nrd_json_root(tools), prompt);

    assert_non_null(h);
    *out = (said){{0}, {0}, {0}};
    for (size_t i = 0; i < n; i++) {
        nrd_harmony_push(h, tokens->ids[i], &out->content);
    }
    if (whole) {
        nrd_harmony_end(h, &out->content);
    }
    nrd_str_put(&out->reasoning, nrd_harmony_reasoning(h));
    for (size_t i = 0; i < nrd_harmony_n_calls(h); i++) {
        nrd_harmony_call(h, i, &name, &arguments);
        nrd_str_printf(&out->calls, "%s(%s)", nrd_str_cstr(name), nrd_str_cstr(arguments));
    }
    assert_false(nrd_harmony_no_memory(h));
    nrd_harmony_free(h);
}

static void said_fini(said *s)
{
    nrd_str_fini(&s->content);
    nrd_str_fini(&s->reasoning);
    nrd_str_fini(&s->calls);
}

static void expect_beginning(const nrd_str *part, const nrd_str *whole)
{
    assert_true(part->len <= whole->len);
    assert_memory_equal(nrd_str_cstr(part), nrd_str_cstr(whole), part->len);
}

static void check(const char *prompt_text, const char *text, const char *content, const char *reasoning, const char *calls)
{
    nrd_ids prompt = {0}, tokens = {0};
    said whole, part;
    size_t told = 0, thought = 0;

    put(&prompt, prompt_text);
    put(&tokens, text);
    answer(&prompt, &tokens, tokens.n, true, &whole);
    assert_string_equal(nrd_str_cstr(&whole.content), content);
    assert_string_equal(nrd_str_cstr(&whole.reasoning), reasoning);
    assert_string_equal(nrd_str_cstr(&whole.calls), calls);
    for (size_t n = 0; n <= tokens.n; n++) {
        answer(&prompt, &tokens, n, false, &part);
        expect_beginning(&part.content, &whole.content);
        expect_beginning(&part.reasoning, &whole.reasoning);
        assert_true(part.content.len >= told && part.reasoning.len >= thought);
        told = part.content.len;
        thought = part.reasoning.len;
        said_fini(&part);
    }
    said_fini(&whole);
    nrd_ids_fini(&prompt);
    nrd_ids_fini(&tokens);
}

#define PROMPT "\1user\3Hi\5\1assistant"
#define ANALYSIS "\2analysis\3"
#define FINAL "\2final\3"
#define NEXT "\5\1assistant"

static void test_what_messages_say(void **state)
{
    (void)state;
    check(PROMPT, ANALYSIS "why" NEXT FINAL "because\7", "because", "why", "");
    check(PROMPT, FINAL "caf\xc3\xa9 \xf0\x9f\x99\x82\7", "caf\xc3\xa9 \xf0\x9f\x99\x82", "", "");
    check(PROMPT, ANALYSIS "still thinking", "", "still thinking", "");
    check(PROMPT, ANALYSIS "hm" NEXT "\2commentary to=functions.get_weather \4json\3{\"place\":\"Rome\"}\6", "", "hm",
          "get_weather({\"place\":\"Rome\"})");
    check(PROMPT, " to=functions.now\2commentary json\3{}\6", "", "", "now({})");
    check(PROMPT, ANALYSIS "a" NEXT "\2commentary\3Let me look." NEXT "\2commentary to=functions.now\3{}\6", "Let me look.", "a",
          "now({})");
    /* messages of a kind are joined */
    check(PROMPT, ANALYSIS "a" NEXT ANALYSIS "b" NEXT "\2commentary\3x" NEXT FINAL "y\7", "x\n\ny", "a\n\nb", "");
    /* functions that nobody has offered, and other recipients: what the channel says */
    check(PROMPT, "\2commentary to=functions.other\3{}\6", "{}", "", "");
    check(PROMPT, "\2analysis to=python\3print(1)\6", "", "print(1)", "");
    check(PROMPT, "\2commentary to=functions.now\3{}\5\1assistant\2commentary to=functions.get_weather\3[]\6", "", "",
          "now({})get_weather([])");
}

static void test_what_only_looks_like_a_mark_is_text(void **state)
{
    (void)state;
    check(PROMPT, FINAL "write <|end|> and <|start|>assistant<|channel|>analysis<|message|>x\7",
          "write <|end|> and <|start|>assistant<|channel|>analysis<|message|>x", "", "");
    check(PROMPT, ANALYSIS "to=functions.now" NEXT FINAL "to=functions.now\7", "to=functions.now", "to=functions.now", "");
}

static void test_answers_without_marks_are_content(void **state)
{
    (void)state;
    check(PROMPT, "{\"a\": 1}", "{\"a\": 1}", "", "");
    check(PROMPT, " to be", " to be", "", "");
    check(PROMPT, "to", "to", "", "");
    check(PROMPT, "", "", "", "");
    check("", "assist me", "assist me", "", "");
    check("no mark", "text\7", "text", "", "");
}

static void test_a_prompt_may_end_within_a_message(void **state)
{
    (void)state;
    check(PROMPT FINAL, "{}\7", "{}", "", "");
    check(PROMPT FINAL "Once", " upon\7", " upon", "", "");
    check(PROMPT ANALYSIS "I", " see" NEXT FINAL "so\7", "so", " see", "");
    check(PROMPT "\2comm", "entary to=functions.now\3{}\6", "", "", "now({})");
}

static void test_headers_that_are_wrong(void **state)
{
    (void)state;
    check(PROMPT, "\3plain\7", "plain", "", "");
    check(PROMPT, "\2\3plain\7", "plain", "", "");
    check(PROMPT, ANALYSIS "a\2final\3b\7", "b", "a", "");              /* no <|end|><|start|> */
    check(PROMPT, ANALYSIS "a\5between\1assistant" FINAL "b", "b", "a", ""); /* text of no message */
    check(PROMPT, FINAL "a\3b\10c\7", "abc", "", "");                   /* marks that mean nothing here */
    check(PROMPT, "\2commentary to=\3x\6", "x", "", "");
    check(PROMPT, "\2commentary to=functions.\3x\6", "x", "", "");
}

static uint32_t drawn = 2463534242u;

static uint32_t draw(uint32_t n)
{
    drawn ^= drawn << 13;
    drawn ^= drawn >> 17;
    drawn ^= drawn << 5;
    return drawn % n;
}

/* Any tokens at all. */
static void test_every_cut_tells_a_beginning(void **state)
{
    static const char *const words[] = {"assistant", " to=functions.now", "analysis", "final", "commentary", "json", " ", "\xc3\xa9",
                                        "\xf0\x9f\x99\x82", "x", "<|end|>", "to=", "\n", "\xe6\xbc", "functions.get_weather"};
    (void)state;
    for (int round = 0; round < 400; round++) {
        nrd_ids prompt = {0}, tokens = {0};
        said whole, part;
        put(&prompt, draw(2) ? PROMPT : "\1assistant\2");
        for (uint32_t n = draw(40); n > 0; n--) {
            if (draw(2)) {
                nrd_ids_push(&tokens, (int32_t)(START + draw(8)));
            } else {
                put(&tokens, words[draw(sizeof words / sizeof *words)]);
            }
        }
        answer(&prompt, &tokens, tokens.n, true, &whole);
        for (size_t n = 0; n <= tokens.n; n++) {
            answer(&prompt, &tokens, n, false, &part);
            expect_beginning(&part.content, &whole.content);
            expect_beginning(&part.reasoning, &whole.reasoning);
            said_fini(&part);
        }
        said_fini(&whole);
        nrd_ids_fini(&prompt);
        nrd_ids_fini(&tokens);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_messages_say),
        cmocka_unit_test(test_what_only_looks_like_a_mark_is_text),
        cmocka_unit_test(test_answers_without_marks_are_content),
        cmocka_unit_test(test_a_prompt_may_end_within_a_message),
        cmocka_unit_test(test_headers_that_are_wrong),
        cmocka_unit_test(test_every_cut_tells_a_beginning),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
