/* SPDX-License-Identifier: Apache-2.0
 * How a model's files want answers to be searched for: which file counts, ranges, lengths, what is drawn. */
#include "text/generation.h"
#include "text/sampling.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/test-generation-XXXXXX";

/* text NULL: there is no such file. */
static void write_file(const char *name, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
    FILE *f = text ? fopen(path, "wb") : NULL;
    if (text) {
        assert_non_null(f);
        assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
        assert_int_equal(fclose(f), 0);
    }
}

static nrd_error *open_with(nrd_tokenizer **out, const char *generation, const char *config)
{
    write_file("tokenizer.json", "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":"
                                 "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}");
    write_file("generation_config.json", generation);
    write_file("config.json", config);
    return nrd_tokenizer_open(out, folder);
}

static nrd_generation read_files(const char *generation, const char *config)
{
    nrd_tokenizer *t = NULL;
    assert_null(open_with(&t, generation, config));
    assert_non_null(nrd_tokenizer_generation(t));
    const nrd_generation g = *nrd_tokenizer_generation(t);
    assert_int_equal(nrd_generation_beams(folder), g.do_sample ? 1 : g.num_beams);
    nrd_tokenizer_close(t);
    return g;
}

static void test_the_file_of_its_own_counts(void **state)
{
    (void)state;
    nrd_generation g = read_files("{\"num_beams\":4,\"early_stopping\":true,\"length_penalty\":0.6,\"no_repeat_ngram_size\":3}",
                            "{\"is_encoder_decoder\":true,\"num_beams\":2,\"min_length\":9,\"forced_bos_token_id\":0}");
    assert_int_equal(g.num_beams, 4);
    assert_int_equal(g.early_stopping, 1);
    assert_true(g.length_penalty > 0.59 && g.length_penalty < 0.61);
    assert_int_equal(g.no_repeat_ngram_size, 3);
    assert_int_equal(g.min_length, 0);
    assert_int_equal(g.n_begin, 2); /* the engine takes the forced token from either */

    g = read_files(NULL, "{\"is_encoder_decoder\":true,\"num_beams\":2,\"min_length\":9,\"early_stopping\":\"never\","
                   "\"forced_eos_token_id\":1,\"suppress_tokens\":[1,-1,0]}");
    assert_int_equal(g.num_beams, 2);
    assert_int_equal(g.min_length, 9);
    assert_int_equal(g.early_stopping, 2);
    assert_int_equal(g.n_begin, 1);
    assert_int_equal(g.forced_eos_id, 1);
    assert_int_equal(g.n_suppressed, 2);
}

static void test_values_out_of_their_ranges(void **state)
{
    (void)state;
    const nrd_generation g = read_files("{\"num_beams\":99,\"length_penalty\":1e9,\"no_repeat_ngram_size\":-3,\"max_length\":0,"
                                  "\"early_stopping\":3,\"forced_eos_token_id\":null}", "{\"is_encoder_decoder\":true}");
    assert_int_equal(g.num_beams, NRD_GENERATION_MAX_BEAMS);
    assert_true(g.length_penalty > 0.99 && g.length_penalty < 1.01);
    assert_int_equal(g.no_repeat_ngram_size, 0);
    assert_int_equal(g.max_length, 0);
    assert_int_equal(g.early_stopping, 0);
    assert_int_equal(g.forced_eos_id, -1);

    char many[2048] = "{\"suppress_tokens\":[0";
    for (int i = 0; i < NRD_GENERATION_MAX_SUPPRESSED; i++) {
        strcat(many, ",1");
    }
    nrd_tokenizer *t = NULL;
    nrd_error *err = open_with(&t, strcat(many, "]}"), "{\"is_encoder_decoder\":true}");
    assert_non_null(err);
    assert_non_null(strstr(nrd_error_message(err), "'suppress_tokens' has 257 tokens, at most 256"));
    nrd_error_free(err);
    assert_null(open_with(&t, many, "{}")); /* nobody looks at it there */
    nrd_tokenizer_close(t);
}

static void test_lengths_count_what_a_text_begins_with(void **state)
{
    (void)state;
    nrd_generation g = NRD_GENERATION_BARE;
    assert_int_equal(nrd_generation_max_new(&g, 1), 0);
    assert_int_equal(nrd_generation_min_new(&g, 1), 0);
    g.max_length = 20;
    g.min_length = 10;
    assert_int_equal(nrd_generation_max_new(&g, 2), 18);
    assert_int_equal(nrd_generation_min_new(&g, 2), 8);
    assert_int_equal(nrd_generation_max_new(&g, 30), 1);
    g.max_new_tokens = 7;
    g.min_new_tokens = 3;
    assert_int_equal(nrd_generation_max_new(&g, 1), 7);
    assert_int_equal(nrd_generation_max_new(&g, 2), 6); /* a forced first token is a new one */
    assert_int_equal(nrd_generation_min_new(&g, 2), 2);
}

static void test_what_is_drawn(void **state)
{
    nrd_tokenizer *t = NULL;
    (void)state;
    assert_null(open_with(&t, "{\"top_k\":5,\"repetition_penalty\":1.5}", "{\"is_encoder_decoder\":true}"));
    nrd_sampling s = nrd_tokenizer_sampling(t);
    assert_false(s.temperature > 0);
    assert_int_equal(s.top_k, 0);
    assert_true(s.repetition_penalty > 1.4);
    nrd_tokenizer_close(t);

    assert_null(open_with(&t, "{\"top_k\":5,\"do_sample\":true,\"num_beams\":3}", "{\"is_encoder_decoder\":true}"));
    s = nrd_tokenizer_sampling(t);
    assert_true(s.temperature > 0);
    assert_int_equal(s.top_k, 5);
    assert_true(nrd_tokenizer_generation(t)->do_sample);
    assert_int_equal(nrd_generation_beams(folder), 1);
    nrd_tokenizer_close(t);

    assert_null(open_with(&t, "{\"num_beams\":4}", "{}")); /* no encoder */
    assert_null(nrd_tokenizer_generation(t));
    assert_int_equal(nrd_generation_beams(folder), 1);
    nrd_tokenizer_close(t);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    write_file("tokenizer.json", NULL);
    write_file("generation_config.json", NULL);
    write_file("config.json", NULL);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_file_of_its_own_counts),
        cmocka_unit_test(test_values_out_of_their_ranges),
        cmocka_unit_test(test_lengths_count_what_a_text_begins_with),
        cmocka_unit_test(test_what_is_drawn),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
