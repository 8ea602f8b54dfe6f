/* SPDX-License-Identifier: Apache-2.0
 * The table of compiled guides, with a compiler that waits when told to. */
#include "guided/guided.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static nrd_error *watched_guide_new(nrd_guide **out, const nrd_guide_vocab *v, const char *type,
                                    const char *text);
#define nrd_guide_new watched_guide_new
#define nrd_guides_new t_guides_new
#define nrd_guides_free t_guides_free
#define nrd_guides_get t_guides_get
#define nrd_guide_bytes watched_guide_bytes
static size_t watched_guide_bytes(const nrd_guide *g);
#include "executor/guides.c"
#undef nrd_guide_new
#undef nrd_guide_bytes

static size_t guide_bytes; /* what each guide says that it takes */

static size_t watched_guide_bytes(const nrd_guide *g)
{
    (void)g;
    return guide_bytes;
}

#include "base/file.h"
#include "base/str.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    int n_slow;      /* guarded by mu: compiles of a text with SLOW that began */
    bool may_go_on;  /* guarded by mu */
} watch = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false};

#define SLOW "slow"

static nrd_error *watched_guide_new(nrd_guide **out, const nrd_guide_vocab *v, const char *type,
                                    const char *text)
{
    pthread_mutex_lock(&watch.mu);
    if (strstr(text, SLOW)) {
        watch.n_slow++;
        pthread_cond_broadcast(&watch.changed);
        while (!watch.may_go_on) {
            pthread_cond_wait(&watch.changed, &watch.mu);
        }
    }
    pthread_mutex_unlock(&watch.mu);
    return nrd_guide_new(out, v, type, text);
}

static void wait_for_compile(void)
{
    pthread_mutex_lock(&watch.mu);
    while (watch.n_slow == 0) {
        pthread_cond_wait(&watch.changed, &watch.mu);
    }
    pthread_mutex_unlock(&watch.mu);
}

static void let_go_on(void)
{
    pthread_mutex_lock(&watch.mu);
    watch.may_go_on = true;
    pthread_cond_broadcast(&watch.changed);
    pthread_mutex_unlock(&watch.mu);
}

static char dir[] = "/tmp/nrd-guides-XXXXXX";

static int make_tokenizer(void **state)
{
    nrd_str s = {0};
    (void)state;
    nrd_str_puts(&s, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                     "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],"
                     "\"vocab\":{");
    for (int c = '!'; c <= '~'; c++) {
        nrd_str_printf(&s, c == '"' || c == '\\' ? "%s\"\\%c\":%d" : "%s\"%c\":%d", c == '!' ? "" : ",",
                       c, c - '!');
    }
    nrd_str_puts(&s, "}}}");
    assert_non_null(mkdtemp(dir));
    char *path = nrd_path_join(dir, "tokenizer.json");
    assert_null(nrd_file_write(path, s.data, s.len));
    free(path);
    nrd_str_fini(&s);
    return 0;
}

static int remove_tokenizer(void **state)
{
    (void)state;
    char *path = nrd_path_join(dir, "tokenizer.json");
    unlink(path);
    free(path);
    return rmdir(dir);
}

typedef struct job {
    pthread_t thread;
    nrd_guides *table;
    const char *text;
    nrd_guide *guide;
    char *error;
} job;

static void *get_guide(void *arg)
{
    job *j = arg;
    nrd_error *err = nrd_guides_get(j->table, "regex", j->text, &j->guide);
    if (err) {
        j->error = nrd_xstrdup(nrd_error_message(err));
        nrd_error_free(err);
    }
    return NULL;
}

static void start(job *j, nrd_guides *table, const char *text)
{
    *j = (job){.table = table, .text = text};
    assert_int_equal(pthread_create(&j->thread, NULL, get_guide, j), 0);
}

static void reset(void)
{
    watch.n_slow = 0;
    watch.may_go_on = false;
    alarm(60); /* a guide that waits for another never ends */
}

static void test_a_slow_guide_holds_up_nobody_else(void **state)
{
    nrd_guide *fast = NULL;
    job slow[2];
    (void)state;
    reset();
    nrd_guides *table = nrd_guides_new(dir);
    start(&slow[0], table, SLOW);
    wait_for_compile();
    assert_null(nrd_guides_get(table, "regex", "fast", &fast));
    start(&slow[1], table, SLOW);
    let_go_on();
    for (int i = 0; i < 2; i++) {
        pthread_join(slow[i].thread, NULL);
        assert_null(slow[i].error);
    }
    assert_ptr_equal(slow[0].guide, slow[1].guide);
    assert_int_equal(watch.n_slow, 1);
    nrd_guide_unref(fast);
    nrd_guide_unref(slow[0].guide);
    nrd_guide_unref(slow[1].guide);
    nrd_guides_free(table);
}

static void test_a_wrong_guide_fails_for_all_who_wait_and_is_tried_again(void **state)
{
    job slow[3];
    nrd_guide *g;
    (void)state;
    reset();
    nrd_guides *table = nrd_guides_new(dir);
    for (int i = 0; i < 3; i++) {
        start(&slow[i], table, SLOW "(");
    }
    wait_for_compile();
    let_go_on();
    for (int i = 0; i < 3; i++) {
        pthread_join(slow[i].thread, NULL);
        assert_null(slow[i].guide);
        assert_non_null(strstr(slow[i].error, "guided_decoding_guide: "));
        free(slow[i].error);
    }
    int before = watch.n_slow;
    nrd_error *err = nrd_guides_get(table, "regex", SLOW "(", &g);
    assert_non_null(err);
    nrd_error_free(err);
    assert_int_equal(watch.n_slow, before + 1);
    nrd_guides_free(table);
}

static void test_the_longest_unused_guide_makes_room(void **state)
{
    nrd_guide *first = NULL, *g = NULL, *again = NULL;
    char text[16];
    (void)state;
    reset();
    nrd_guides *table = nrd_guides_new(dir);
    assert_null(nrd_guides_get(table, "regex", "kept", &first));
    for (int i = 0; i < 2 * NRD_LIMIT_GUIDES_KEPT; i++) {
        snprintf(text, sizeof text, "a%d", i);
        assert_null(nrd_guides_get(table, "regex", text, &g));
        nrd_guide_unref(g);
        assert_null(nrd_guides_get(table, "regex", "kept", &again));
        assert_ptr_equal(again, first);
        nrd_guide_unref(again);
    }
    assert_int_equal(table->n_entries, NRD_LIMIT_GUIDES_KEPT);
    nrd_guide_unref(first);
    nrd_guides_free(table);
}

static void test_guides_are_kept_by_their_bytes(void **state)
{
    enum { FIT = 5 };
    nrd_guide *g = NULL;
    char text[16];
    (void)state;
    reset();
    nrd_guides *table = nrd_guides_new(dir);
    guide_bytes = NRD_LIMIT_GUIDES_KEPT_BYTES / FIT;
    for (int i = 0; i < 2 * FIT; i++) {
        snprintf(text, sizeof text, "b%d", i);
        assert_null(nrd_guides_get(table, "regex", text, &g));
        nrd_guide_unref(g);
        assert_int_equal(table->n_entries, i < FIT ? i + 1 : FIT);
    }
    guide_bytes = (size_t)NRD_LIMIT_GUIDES_KEPT_BYTES + 1; /* the one in use goes last, and may go too */
    assert_null(nrd_guides_get(table, "regex", text, &g));
    assert_int_equal(table->n_entries, 0);
    nrd_guide_unref(g);
    guide_bytes = 0;
    nrd_guides_free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_slow_guide_holds_up_nobody_else),
        cmocka_unit_test(test_a_wrong_guide_fails_for_all_who_wait_and_is_tried_again),
        cmocka_unit_test(test_the_longest_unused_guide_makes_room),
        cmocka_unit_test(test_guides_are_kept_by_their_bytes),
    };
    return cmocka_run_group_tests(tests, make_tokenizer, remove_tokenizer);
}
