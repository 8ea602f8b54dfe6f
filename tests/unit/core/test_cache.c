/* SPDX-License-Identifier: Apache-2.0
 * A response that is kept answers the request that it was made for, and no other one that has its key. The hash
 * of this program (base/siphash.h) gives the same number for everything (the Makefile wraps it), so that all keys
 * and seals are alike. */
#include "host.h"

void __wrap_nrd_siphash_end(void *h, uint64_t out[2]);
void __wrap_nrd_siphash_end(void *h, uint64_t out[2])
{
    (void)h;
    out[0] = 1;
    out[1] = 2;
}

static const char kept[] = "response_cache { enable: true }";

/* A server with two models and this cache: the local one, by its own name or, by another, as one outside of the
 * process. */
static void start(host *h, const char *name)
{
    TRITONSERVER_ServerOptions *o = host_options(h);
    char *exe = nrd_path_exe_dir(), *dir = nrd_xasprintf("%s/caches/%s", h->dir, name);
    char *from = nrd_xasprintf("%s/../../../caches/local/libtritoncache_local.so", exe);
    char *to = nrd_xasprintf("%s/libtritoncache_%s.so", dir, name), *caches = nrd_xasprintf("%s/caches", h->dir);
    char *libs = nrd_xasprintf("%s/../../../lib", exe), *beside = nrd_xasprintf("%s/lib", h->dir);

    assert_null(nrd_mkdirs(dir));
    assert_int_equal(symlink(from, to), 0);
    assert_int_equal(symlink(libs, beside), 0); /* the library looks for the server's there */
    OK(TRITONSERVER_ServerOptionsSetCacheDirectory(o, caches));
    OK(TRITONSERVER_ServerOptionsSetCacheConfig(o, name, "{\"size\":\"1000000\"}"));
    OK(TRITONSERVER_ServerOptionsSetModelControlMode(o, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
    OK(TRITONSERVER_ServerOptionsSetStartupModel(o, "one"));
    OK(TRITONSERVER_ServerOptionsSetStartupModel(o, "two"));
    host_start(h, o);
    free(exe);
    free(dir);
    free(from);
    free(to);
    free(caches);
    free(libs);
    free(beside);
}

static void ask(host *h, const char *model, const int32_t *data, int64_t n)
{
    answers a;

    answers_init(&a);
    infer(h, model, &a, data, n, false);
    assert_null(a.error);
    assert_int_equal(a.n_last, n);
    assert_memory_equal(a.last, data, (size_t)n * sizeof *data);
    answers_fini(&a);
}

static void expect_hits(host *h, const char *model, int n)
{
    char *text = metrics_text(h);
    char *want = nrd_xasprintf("nv_cache_num_hits_per_model{model=\"%s\",version=\"1\"} %d\n", model, n);
    if (!strstr(text, want)) {
        print_error("no '%s' in\n%s", want, text);
        fail();
    }
    free(want);
    free(text);
}

static void check_cache(const char *name)
{
    static const int32_t first[] = {3, 1, 4, 1, 5}, other[] = {2, 7, 1, 8, 2};
    host h;

    host_init(&h);
    add_identity(&h, "one", kept);
    add_identity(&h, "two", kept);
    start(&h, name);
    ask(&h, "one", first, 5);
    ask(&h, "one", first, 5);
    expect_hits(&h, "one", 1); /* what is kept is found */
    ask(&h, "one", other, 5);
    ask(&h, "one", first, 4);
    ask(&h, "two", first, 4);
    ask(&h, "two", other, 5);
    expect_hits(&h, "one", 1);
    expect_hits(&h, "two", 0);
    ask(&h, "one", first, 5);
    expect_hits(&h, "one", 2); /* what had its key did not take its place */
    host_end(&h);
}

static void test_one_key_of_two_requests_does_not_exchange_their_answers(void **state)
{
    (void)state;
    check_cache("local");
}

static void test_nor_does_it_in_a_cache_outside_of_the_process(void **state)
{
    (void)state;
    check_cache("outside");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_key_of_two_requests_does_not_exchange_their_answers),
        cmocka_unit_test(test_nor_does_it_in_a_cache_outside_of_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
