/* SPDX-License-Identifier: Apache-2.0
 * The table of compiled guides, with a compiler that waits when told to. */
#include "guided/guided.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static nrd_error *watched_guide_new(nrd_guide **out, const nrd_guide_vocab *v, const char *type,
                                    const char *text, const atomic_bool *stop);
#define nrd_guide_new_unless watched_guide_new
#define nrd_guides_new t_guides_new
#define nrd_guides_free t_guides_free
#define nrd_guides_want t_guides_want
#define nrd_guides_leave t_guides_leave
#define nrd_guides_forget t_guides_forget
#define nrd_guide_bytes watched_guide_bytes
static size_t watched_guide_bytes(const nrd_guide *g);
#include "executor/guides.c"
#undef nrd_guide_new_unless
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
                                    const char *text, const atomic_bool *stop)
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
    return nrd_guide_new_unless(out, v, type, text, stop);
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
    nrd_guide_waiter wait;
    nrd_guides *table;
    bool is_done; /* guarded by watch.mu, as below */
    nrd_guide *guide;
    nrd_error *error;
} job;

static void on_done(void *user, nrd_guide *guide, nrd_error *err)
{
    job *j = user;
    pthread_mutex_lock(&watch.mu);
    assert_false(j->is_done);
    j->is_done = true;
    j->guide = guide;
    j->error = err;
    pthread_cond_broadcast(&watch.changed);
    pthread_mutex_unlock(&watch.mu);
}

static void start(job *j, nrd_guides *table, const char *text)
{
    nrd_guide *there = NULL;
    *j = (job){.table = table, .wait = {.done = on_done, .user = j}};
    assert_null(nrd_guides_want(table, "regex", text, &j->wait, &there));
    if (there) {
        on_done(j, there, NULL);
    }
}

static void finish(job *j)
{
    pthread_mutex_lock(&watch.mu);
    while (!j->is_done) {
        pthread_cond_wait(&watch.changed, &watch.mu);
    }
    pthread_mutex_unlock(&watch.mu);
}

static nrd_error *get(nrd_guides *table, const char *text, nrd_guide **out)
{
    job j;
    start(&j, table, text);
    finish(&j);
    *out = j.guide;
    return j.error;
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
    assert_null(get(table, "fast", &fast));
    start(&slow[1], table, SLOW);
    let_go_on();
    for (int i = 0; i < 2; i++) {
        finish(&slow[i]);
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
        finish(&slow[i]);
        assert_null(slow[i].guide);
        assert_non_null(strstr(nrd_error_message(slow[i].error), "guided_decoding_guide: "));
        nrd_error_free(slow[i].error);
    }
    int before = watch.n_slow;
    nrd_error *err = get(table, SLOW "(", &g);
    assert_non_null(err);
    nrd_error_free(err);
    assert_int_equal(watch.n_slow, before + 1);
    nrd_guides_free(table);
}

/* Both workers are busy and a third guide waits in the queue; the last one who leaves ends a compile. */
static void test_nobody_waits_and_the_compile_ends(void **state)
{
    enum { N = 3 };
    static const char *const texts[N] = {SLOW "1", SLOW "2", SLOW "3"};
    job jobs[N], again, last;
    (void)state;
    reset();
    nrd_guides *table = nrd_guides_new(dir);
    for (int i = 0; i < N; i++) {
        start(&jobs[i], table, texts[i]);
    }
    start(&again, table, texts[0]);
    wait_for_compile();
    assert_true(nrd_guides_leave(table, &jobs[0].wait));
    assert_false(nrd_guides_leave(table, &jobs[0].wait));
    assert_true(nrd_guides_leave(table, &jobs[2].wait));
    assert_true(nrd_guides_leave(table, &again.wait)); /* now nobody waits for the first and the third */
    start(&last, table, texts[0]);                     /* compiled anew, not with the one that ends */
    let_go_on();
    finish(&jobs[1]);
    finish(&last);
    assert_null(jobs[1].error);
    assert_null(last.error);
    assert_false(nrd_guides_leave(table, &last.wait));
    assert_false(jobs[0].is_done || jobs[2].is_done || again.is_done);
    nrd_guide_unref(jobs[1].guide);
    nrd_guide_unref(last.guide);
    nrd_guides_free(table);
    assert_false(jobs[0].is_done || jobs[2].is_done || again.is_done);
}

/* limits: GUIDES_KEPT */
static void test_the_longest_unused_guide_makes_room(void **state)
{
    nrd_guide *first = NULL, *g = NULL, *again = NULL;
    char text[16];
    (void)state;
    reset();
    nrd_guides *table = nrd_guides_new(dir);
    assert_null(get(table, "kept", &first));
    for (int i = 0; i < 2 * NRD_LIMIT_GUIDES_KEPT; i++) {
        snprintf(text, sizeof text, "a%d", i);
        assert_null(get(table, text, &g));
        nrd_guide_unref(g);
        assert_null(get(table, "kept", &again));
        assert_ptr_equal(again, first);
        nrd_guide_unref(again);
    }
    assert_int_equal(table->n_entries, NRD_LIMIT_GUIDES_KEPT);
    nrd_guide_unref(first);
    nrd_guides_free(table);
}

/* limits: GUIDES_KEPT_BYTES */
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
        assert_null(get(table, text, &g));
        nrd_guide_unref(g);
        assert_int_equal(table->n_entries, i < FIT ? i + 1 : FIT);
    }
    guide_bytes = (size_t)NRD_LIMIT_GUIDES_KEPT_BYTES + 1; /* the one in use goes last, and may go too */
    assert_null(get(table, text, &g));
    assert_int_equal(table->n_entries, 0);
    nrd_guide_unref(g);
    guide_bytes = 0;
    nrd_guides_free(table);
}

static void test_a_forgotten_guide_is_made_again(void **state)
{
    nrd_guide *first = NULL, *again = NULL;
    (void)state;
    reset();
    nrd_guides *table = nrd_guides_new(dir);
    assert_null(get(table, "forgotten", &first));
    nrd_guides_forget(table, first);
    nrd_guides_forget(table, first); /* each of a request's sequences may say so */
    assert_int_equal(table->n_entries, 0);
    assert_null(get(table, "forgotten", &again));
    assert_ptr_not_equal(again, first);
    nrd_guide_unref(first);
    nrd_guide_unref(again);
    nrd_guides_free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_slow_guide_holds_up_nobody_else),
        cmocka_unit_test(test_a_wrong_guide_fails_for_all_who_wait_and_is_tried_again),
        cmocka_unit_test(test_nobody_waits_and_the_compile_ends),
        cmocka_unit_test(test_a_forgotten_guide_is_made_again),
        cmocka_unit_test(test_the_longest_unused_guide_makes_room),
        cmocka_unit_test(test_guides_are_kept_by_their_bytes),
    };
    return cmocka_run_group_tests(tests, make_tokenizer, remove_tokenizer);
}
