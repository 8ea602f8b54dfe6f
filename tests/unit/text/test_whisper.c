/* SPDX-License-Identifier: Apache-2.0
 * Whisper's tokens: what a folder says, prompts, and segments as transformers cuts them. */
#include "text/whisper.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "unit/text/whisper_golden.h"

static const char *const names[] = {"<|startoftranscript|>", "<|en|>", "<|de|>", "<|haw|>", "<|transcribe|>", "<|translate|>",
                                    "<|startofprev|>", "<|notimestamps|>"};
enum { START = 10, EN, DE, HAW, TRANSCRIBE, TRANSLATE, PREVIOUS, NO_TIMES };

static char folder[] = "/tmp/test-whisper-XXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[96];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!text) {
        unlink(path);
        return;
    }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

/* Ten letters, then the tokens above. */
static nrd_tokenizer *open_tokenizer(void)
{
    nrd_tokenizer *t = NULL;
    nrd_str s = {0};
    nrd_str_puts(&s, "{\"added_tokens\":[");
    for (int i = 0; i < 8; i++) {
        nrd_str_printf(&s, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true}", i ? "," : "", START + i, names[i]);
    }
    nrd_str_puts(&s, "],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":"
                     "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"e\":4,\"f\":5,"
                     "\"g\":6,\"h\":7,\"i\":8,\"j\":9},\"merges\":[]}}");
    write_file("tokenizer.json", nrd_str_cstr(&s));
    nrd_str_fini(&s);
    assert_null(nrd_tokenizer_open(&t, folder));
    return t;
}

static nrd_whisper *open_whisper(const nrd_tokenizer *t, const char *generation, const char *features)
{
    nrd_whisper *w = NULL;
    write_file("generation_config.json", generation);
    write_file("preprocessor_config.json", features);
    nrd_error *err = nrd_whisper_open(&w, t, folder);
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
    assert_non_null(w);
    return w;
}

static void segments_are_those_of_transformers(void **state)
{
    nrd_tokenizer *t = open_tokenizer();
    /* as older tokenizers, it does not list the times */
    nrd_whisper *w = open_whisper(t, "{\"no_timestamps_token_id\":17}", NULL);
    (void)state;
    for (size_t g = 0; g < sizeof golden / sizeof *golden; g++) {
        nrd_whisper_segment out[41];
        int32_t next = 0, ids[40];
        for (size_t i = 0; i < golden[g].n; i++) { /* there the first time is 40, here 18 */
            ids[i] = golden[g].ids[i] >= 40 ? golden[g].ids[i] - 40 + NO_TIMES + 1 : golden[g].ids[i];
        }
        const size_t n = nrd_whisper_segments(w, ids, golden[g].n, golden[g].n_frames, out, &next);
        assert_int_equal(n, golden[g].n_segments);
        assert_int_equal(next, golden[g].next);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(out[i].start, golden[g].times[2 * i]);
            assert_int_equal(out[i].end, golden[g].times[2 * i + 1]);
            assert_true(out[i].from + out[i].n <= golden[g].n && (i == 0 || out[i].from == out[i - 1].from + out[i - 1].n));
        }
    }
    nrd_whisper_close(w);
    nrd_tokenizer_close(t);
}

static void suppressed_tokens_are_phrases(void **state)
{
    nrd_tokenizer *t = open_tokenizer();
    nrd_whisper *w = open_whisper(t, "{\"suppress_tokens\":[3,-1,5,99],\"begin_suppress_tokens\":[7]}", NULL);
    nrd_ids list = {0};
    (void)state;
    assert_null(nrd_whisper_bad_words(w, TRANSCRIBE, &list));
    const int32_t want[] = {3, 5, TRANSCRIBE, 7, 1, 2, 4, -1};
    assert_int_equal(list.n, 8);
    assert_memory_equal(list.ids, want, sizeof want);
    nrd_ids_fini(&list);
    nrd_whisper_close(w);
    w = NULL;
    write_file("generation_config.json", "{\"suppress_tokens\":3}");
    nrd_error *err = nrd_whisper_open(&w, t, folder);
    assert_non_null(strstr(nrd_error_message(err), "suppress_tokens must be a list"));
    nrd_error_free(err);
    nrd_tokenizer_close(t);
}

/* Whatever a model answers, the next window lies behind this one's beginning. */
static void a_window_always_ends(void **state)
{
    static const int32_t odd[][4] = {{NO_TIMES + 1, NO_TIMES + 1, NO_TIMES + 1, NO_TIMES + 1}, {NO_TIMES + 1, 1, 2, NO_TIMES + 1},
                                     {1, 1, NO_TIMES + 1, NO_TIMES + 1}, {NO_TIMES + 1501, NO_TIMES + 1501, 1, 1}};
    nrd_tokenizer *t = open_tokenizer();
    nrd_whisper *w = open_whisper(t, NULL, NULL);
    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        for (int32_t n_frames = 0; n_frames <= 3000; n_frames += 1000) {
            for (size_t n = 0; n <= 4; n++) {
                nrd_whisper_segment out[5];
                int32_t next = 0;
                assert_true(nrd_whisper_segments(w, odd[i], n, n_frames, out, &next) <= n);
                assert_true(next > 0 && (next <= n_frames || n_frames == 0));
            }
        }
    }
    nrd_whisper_close(w);
    nrd_tokenizer_close(t);
}

static void check_prompt(const nrd_whisper *w, nrd_whisper_ask ask, const int32_t *want, size_t n)
{
    nrd_ids out = {0};
    assert_null(nrd_whisper_prompt(w, &ask, &out));
    assert_int_equal(out.n, n);
    assert_memory_equal(out.ids, want, n * sizeof *want);
    nrd_ids_fini(&out);
}

#define PROMPT(w, ask, ...) check_prompt(w, ask, (const int32_t[]){__VA_ARGS__}, sizeof (const int32_t[]){__VA_ARGS__} / 4)

static void prompts_name_language_task_and_times(void **state)
{
    static const int32_t before[] = {1, 2, 3, 4, 5, 6};
    nrd_tokenizer *t = open_tokenizer();
    nrd_whisper *w = open_whisper(t, "{\"max_length\":10}", NULL);
    const int de = nrd_whisper_find_language(w, "German");
    (void)state;
    assert_int_equal(nrd_whisper_find_language(w, "DE"), de);
    assert_int_equal(nrd_whisper_find_language(w, "fr"), -1); /* this model has no token for it */
    assert_int_equal(nrd_whisper_language_of(w, DE), de);
    assert_int_equal(nrd_whisper_language_of(w, TRANSCRIBE), -1);
    assert_string_equal(nrd_whisper_language_at(de)->name, "german");
    PROMPT(w, ((nrd_whisper_ask){.language = -1}), START);
    PROMPT(w, ((nrd_whisper_ask){.language = de}), START, DE, TRANSCRIBE, NO_TIMES);
    PROMPT(w, ((nrd_whisper_ask){.language = de, .translate = true, .times = true}), START, DE, TRANSLATE);
    PROMPT(w, ((nrd_whisper_ask){before, 2, de, false, true}), PREVIOUS, 1, 2, START, DE, TRANSCRIBE);
    PROMPT(w, ((nrd_whisper_ask){before, 6, de, false, true}), PREVIOUS, 3, 4, 5, 6, START, DE, TRANSCRIBE);
    nrd_whisper_close(w);
    w = open_whisper(t, "{\"is_multilingual\":false}", NULL);
    PROMPT(w, ((nrd_whisper_ask){.language = -1}), START, NO_TIMES);
    nrd_whisper_close(w);
    nrd_tokenizer_close(t);
}

static void files_say_what_the_model_hears(void **state)
{
    nrd_tokenizer *t = open_tokenizer();
    nrd_whisper *w = open_whisper(t, NULL, NULL);
    (void)state;
    assert_int_equal(nrd_whisper_n_mels(w), 80);
    assert_int_equal(nrd_whisper_max_tokens(w), 448);
    assert_int_equal(nrd_whisper_max_first_time(w), -1);
    assert_int_equal(nrd_whisper_no_times_token(w), NO_TIMES);
    assert_int_equal(nrd_whisper_no_speech_token(w), NO_TIMES - 1);
    assert_true(nrd_whisper_is_time(w, NO_TIMES + 1) && nrd_whisper_is_time(w, NO_TIMES + 1501));
    assert_true(!nrd_whisper_is_time(w, NO_TIMES) && !nrd_whisper_is_time(w, NO_TIMES + 1502));
    nrd_whisper_close(w);
    w = open_whisper(t, NULL, "{\"feature_size\":128,\"sampling_rate\":16000}");
    assert_int_equal(nrd_whisper_n_mels(w), 128);
    nrd_whisper_close(w);
    static const char *const wrong[][2] = {{"{\"feature_size\":0}", "feature_size must be a whole number from 1 to 256"},
                                           {"{\"hop_length\":100}", "hop_length is 100; features are made with 160"}};
    for (size_t i = 0; i < 2; i++) {
        write_file("preprocessor_config.json", wrong[i][0]);
        nrd_error *err = nrd_whisper_open(&w, t, folder);
        assert_non_null(err);
        assert_non_null(strstr(nrd_error_message(err), wrong[i][1]));
        assert_null(w);
        nrd_error_free(err);
    }
    write_file("preprocessor_config.json", NULL);
    nrd_tokenizer_close(t);
}

static int begin(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    write_file("tokenizer.json", NULL);
    write_file("generation_config.json", NULL);
    write_file("preprocessor_config.json", NULL);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_are_those_of_transformers),
        cmocka_unit_test(suppressed_tokens_are_phrases),
        cmocka_unit_test(a_window_always_ends),
        cmocka_unit_test(prompts_name_language_task_and_times),
        cmocka_unit_test(files_say_what_the_model_hears),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
