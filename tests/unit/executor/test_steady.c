/* SPDX-License-Identifier: Apache-2.0
 * Steps in the middle of answers: they allocate nothing, and a profile splits them into operations. */
#include "tiny_exec.h"

#include <stdatomic.h>
#include <time.h>

/* ---- counting allocations ---- */

static atomic_int counting;
static atomic_long n_allocations;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_COUNT 1
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n)
{
    n_allocations += counting;
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    n_allocations += counting;
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    n_allocations += counting;
    return __libc_realloc(p, n);
}
#else
#define CAN_COUNT 0
#endif

/* ---- steady steps ---- */

typedef struct steps_seen {
    int32_t n, n_prompts;
    uint64_t last;         /* number of the last step */
    uint64_t first_prompt; /* of the first one with a prompt */
} steps_seen;

static void see_steps(nrd_exec *x, steps_seen *s)
{
    nrd_iter_stats st[16];
    for (int32_t got; (got = nrd_exec_take_iter_stats(x, st, 16)) > 0; s->n += got) {
        for (int32_t i = 0; i < got; i++) {
            assert_int_equal(st[i].kv_used_blocks + st[i].kv_free_blocks, st[i].kv_max_blocks);
            if (st[i].n_context > 0 && s->n_prompts == 0) {
                s->first_prompt = st[i].iteration;
            }
            s->n_prompts += st[i].n_context;
        }
        s->last = st[got - 1].iteration;
    }
}

static void wait_iterations(nrd_exec *x, int32_t n)
{
    steps_seen s = {0};
    for (see_steps(x, &s); s.n < n; see_steps(x, &s)) {
        struct timespec t = {0, 200000};
        nanosleep(&t, NULL); /* waiting for the state above, not for time */
    }
}

static void take_all(nrd_exec *x, uint64_t id)
{
    for (bool end = false; !end;) {
        nrd_exec_response *o;
        must(nrd_exec_await_id(x, id, &o, -1));
        end = o->is_final;
        nrd_exec_response_free(o);
    }
}

enum { STEADY = 150, WARM = 40, COUNTED = 95, COUNTED_MIN = 70 }; /* passes NRD_ATTN_MIN_SHARED */

/* Counts the allocations from the time when WARM answers were taken to that when COUNTED more were.
 * Gives false where the engine, which waits for nobody, was so far ahead of this thread that few steps
 * lay between the two, or that a request may have begun or ended there. */
static bool count_steady(nrd_exec *x, long *out)
{
    uint64_t ids[8];
    nrd_exec_response *o;
    steps_seen s = {0};
    see_steps(x, &s);
    s.n_prompts = 0; /* what came before was an earlier round's */
    for (int p = 0; p < 8; p++) {
        nrd_exec_request r = ask(p);
        r.n_input_ids = 8;
        r.max_new_tokens = STEADY;
        r.streaming = p == 0;
        must(nrd_exec_enqueue(x, &r, &ids[p]));
    }
    int32_t n = 0;
    for (; n < WARM; n++) {
        must(nrd_exec_await_id(x, ids[0], &o, -1));
        nrd_exec_response_free(o);
    }
    see_steps(x, &s);
    uint64_t before = s.last;
    bool all_began = s.n_prompts == 8;
    n_allocations = 0;
    counting = 1;
    for (; n < WARM + COUNTED; n++) {
        must(nrd_exec_await_id(x, ids[0], &o, -1));
        nrd_exec_response_free(o);
    }
    counting = 0;
    *out = n_allocations;
    see_steps(x, &s);
    /* A step's answers leave before the step is on record: one more than the last may have ended. */
    bool steady = all_began && s.last - before >= COUNTED_MIN &&
                  s.last + 1 < s.first_prompt + STEADY - 1;
    for (int p = 0; p < 8; p++) {
        take_all(x, ids[p]);
    }
    return steady;
}

static void test_decode_steps_allocate_nothing(void **state)
{
    nrd_exec_config c = config();
    uint64_t id;
    long n = -1;
    (void)state;
    if (!CAN_COUNT) {
        skip();
    }
    c.enable_kv_cache_reuse = true;
    nrd_exec *x = open_exec(&c);
    nrd_exec_request first = ask(0);
    first.max_new_tokens = STEADY;
    first.streaming = true;
    must(nrd_exec_enqueue(x, &first, &id));
    wait_iterations(x, STEADY); /* answers pile up: from then on there is one for every step below, */
    take_all(x, id);            /* however late this thread takes it */
    bool steady = false;
    for (int round = 0; round < 100 && !steady; round++) {
        steady = count_steady(x, &n);
    }
    assert_true(steady);
    assert_int_equal(n, 0);
    nrd_exec_close(x);
}

static const nrd_profile_row *profile_find(const nrd_profile_row *rows, int32_t n, const char *name,
                                           bool has_prompts)
{
    for (int32_t i = 0; i < n; i++) {
        if (!strcmp(rows[i].operation, name) && rows[i].has_prompts == has_prompts) {
            return &rows[i];
        }
    }
    return NULL;
}

static void test_profile_splits_steps_into_operations(void **state)
{
    nrd_exec_config c = config();
    nrd_exec_info info = {.size = sizeof info};
    nrd_profile_row rows[64];
    int32_t n = 0;
    result plain, timed;
    uint64_t id;
    (void)state;

    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(0);
    r.max_new_tokens = 60;
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &plain);
    must_fail(nrd_exec_profile(x, rows, 64, &n, false), NRD_ERR_UNSUPPORTED, "profile_every");
    nrd_exec_close(x);

    c.profile_every = 5;
    x = open_exec(&c);
    nrd_exec_get_info(x, &info);
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &timed);
    assert_int_equal(timed.n, plain.n);
    assert_memory_equal(timed.ids, plain.ids, (size_t)plain.n * sizeof *plain.ids);
    must(nrd_exec_shutdown(x, -1));

    must(nrd_exec_profile(x, rows, 64, &n, true));
    const nrd_profile_row *step = profile_find(rows, n, "step", false);
    const nrd_profile_row *attention = profile_find(rows, n, "attention", false);
    const nrd_profile_row *up = profile_find(rows, n, "up", false);
    const nrd_profile_row *prompt = profile_find(rows, n, "step", true);
    assert_non_null(step);
    assert_non_null(attention);
    assert_non_null(up);
    assert_non_null(prompt);
    assert_int_equal(prompt->n_calls, 1);
    assert_int_equal(attention->n_steps, 12); /* 60 steps, each fifth of them by operation */
    assert_int_equal(step->n_calls, 60 - 1 - 12);
    assert_int_equal(attention->n_calls, 12 * info.n_layers);
    assert_int_equal(up->n_calls, 12 * info.n_layers);
    assert_true(step->seconds > 0 && attention->seconds > 0 && up->flops > 0);
    assert_true(attention->bytes > 0 && attention->seconds < step->seconds * 60);
    must(nrd_exec_profile(x, rows, 64, &n, false));
    assert_int_equal(n, 0); /* it was reset */
    nrd_exec_close(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_steps_allocate_nothing),
        cmocka_unit_test(test_profile_splits_steps_into_operations),
    };
    return cmocka_run_group_tests(tests, tiny_exec_setup, tiny_exec_teardown);
}
