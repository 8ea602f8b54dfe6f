/* SPDX-License-Identifier: Apache-2.0
 * Which times Whisper may tell next, as transformers' WhisperTimeStampLogitsProcessor says. */
#include "engine/decode/decode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { END = 10, NO_TIMES = 19, FIRST = 20, VOCAB = 100 };

static void rules(void **state)
{
    static const struct {
        const char *what;
        int32_t ids[4], n, most;
        nrd_sample_times want;
    } table[] = {
        {"a text begins with a time", {0}, 0, -1, {FIRST, FIRST, NO_TIMES, FIRST, VOCAB}},
        {"an early one", {0}, 0, 5, {FIRST, FIRST, NO_TIMES, FIRST, FIRST + 6}},
        {"where there are so many", {0}, 0, 500, {FIRST, FIRST, NO_TIMES, FIRST, VOCAB}},
        {"behind the first one there is text", {25}, 1, 5, {FIRST, 0, NO_TIMES, 26, 26}},
        {"then more of it, or a later time", {25, 3}, 2, 5, {FIRST, 0, NO_TIMES, 26, VOCAB}},
        {"an end has a beginning behind it, or the end", {25, 3, 40}, 3, 5, {FIRST, END, NO_TIMES, 40, VOCAB}},
        {"behind a pair there is text", {3, 40, 41}, 3, 5, {FIRST, 0, NO_TIMES, 42, 42}},
        {"text without a time allows all", {3}, 1, 5, {FIRST, 0, NO_TIMES, FIRST, VOCAB}},
        {"the last time there is", {25, 3, 99}, 3, 5, {FIRST, END, NO_TIMES, 99, VOCAB}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const nrd_seq q = {.req = {.first_time = FIRST, .max_first_time = table[i].most, .end_id = END}};
        const nrd_sample_times got = nrd_decode_times(&q, table[i].ids, table[i].n, VOCAB);
        if (memcmp(&got, &table[i].want, sizeof got) != 0) {
            fail_msg("%s: text %d to %d, times %d to %d", table[i].what, got.text_from, got.text_end, got.time_from, got.time_end);
        }
    }
}

static void without_an_end_token_no_text_stands_in_a_pair(void **state)
{
    const nrd_seq q = {.req = {.first_time = FIRST, .max_first_time = -1, .end_id = -1}};
    const int32_t ids[] = {25, 3, 40};
    (void)state;
    assert_int_equal(nrd_decode_times(&q, ids, 3, VOCAB).text_from, FIRST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rules), cmocka_unit_test(without_an_end_token_no_text_stands_in_a_pair)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
