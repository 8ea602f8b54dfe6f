/* SPDX-License-Identifier: Apache-2.0
 * The registry of metrics and its text form. */
#include "base/metric.h"

#include "base/json.h"
#include "base/mem.h"
#include "comma_locale.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void ok(nrd_error *err)
{
    if (err) {
        print_error("%s\n", nrd_error_message(err));
        fail();
    }
}

static void refused(nrd_error *err, const char *part)
{
    assert_non_null(err);
    assert_non_null(strstr(nrd_error_message(err), part));
    nrd_error_free(err);
}

static void expect_text(nrd_metrics *r, const char *text)
{
    nrd_str s = {0};
    nrd_metrics_text(r, &s);
    assert_string_equal(nrd_str_cstr(&s), text);
    nrd_str_fini(&s);
}

static void test_labels_are_sorted_and_whole_numbers_stay_plain(void **state)
{
    (void)state;
    nrd_metrics *r = nrd_metrics_new();
    nrd_metric_family *f;
    nrd_metric *m, *same;
    const nrd_metric_label labels[] = {{"version", "1"}, {"model", "a\"b\\c\nd"}};
    const nrd_metric_label swapped[] = {{"model", "a\"b\\c\nd"}, {"version", "1"}};

    ok(nrd_metric_family_get(&f, r, NRD_METRIC_GAUGE, "nv_x", "Help text"));
    ok(nrd_metric_get(&m, f, labels, 2, NULL));
    ok(nrd_metric_get(&same, f, swapped, 2, NULL));
    assert_ptr_equal(m, same);
    ok(nrd_metric_set(m, 1700000000123456.0)); /* microseconds since 1970 */
    expect_text(r, "# HELP nv_x Help text\n# TYPE nv_x gauge\n"
                   "nv_x{model=\"a\\\"b\\\\c\\nd\",version=\"1\"} 1700000000123456\n");
    ok(nrd_metric_set(m, 0.25));
    ok(nrd_metric_add(m, -1.5));
    expect_text(r, "# HELP nv_x Help text\n# TYPE nv_x gauge\n"
                   "nv_x{model=\"a\\\"b\\\\c\\nd\",version=\"1\"} -1.25\n");
    nrd_metric_unref(same);
    nrd_metric_unref(m);
    expect_text(r, "# HELP nv_x Help text\n# TYPE nv_x gauge\n");
    nrd_metric_family_unref(f);
    expect_text(r, "");
    nrd_metrics_free(r);
}

static void test_histogram_counts_cumulatively(void **state)
{
    (void)state;
    nrd_metrics *r = nrd_metrics_new();
    nrd_metric_family *f;
    nrd_metric *m;
    const double bounds[] = {10, 50.5};
    const double bad[] = {10, 10};
    const nrd_metric_label label = {"model", "m"};
    nrd_metric_shape shape = {.buckets = bounds, .n_buckets = 2};

    ok(nrd_metric_family_get(&f, r, NRD_METRIC_HISTOGRAM, "h", "H"));
    refused(nrd_metric_get(&m, f, &label, 1, NULL), "bucket boundaries");
    refused(nrd_metric_get(&m, f, &label, 1, &(nrd_metric_shape){.buckets = bad, .n_buckets = 2}),
            "strictly rising");
    ok(nrd_metric_get(&m, f, &label, 1, &shape));
    ok(nrd_metric_observe(m, 10));
    ok(nrd_metric_observe(m, 11));
    ok(nrd_metric_observe(m, 1000));
    expect_text(r, "# HELP h H\n# TYPE h histogram\n"
                   "h_bucket{model=\"m\",le=\"10\"} 1\n"
                   "h_bucket{model=\"m\",le=\"50.5\"} 2\n"
                   "h_bucket{model=\"m\",le=\"+Inf\"} 3\n"
                   "h_sum{model=\"m\"} 1021\n"
                   "h_count{model=\"m\"} 3\n");
    refused(nrd_metric_set(m, 1), "histogram does not support Set");
    nrd_metric_unref(m);
    nrd_metric_family_unref(f);
    nrd_metrics_free(r);
}

static void test_summary_gives_quantiles(void **state)
{
    (void)state;
    nrd_metrics *r = nrd_metrics_new();
    nrd_metric_family *f;
    nrd_metric *m;
    const nrd_metric_quantile q[] = {{0.5, 0.05}, {0.99, 0.001}};

    ok(nrd_metric_family_get(&f, r, NRD_METRIC_SUMMARY, "s", "S"));
    ok(nrd_metric_get(&m, f, NULL, 0, &(nrd_metric_shape){.quantiles = q, .n_quantiles = 2}));
    for (int i = 1; i <= 100; i++) {
        ok(nrd_metric_observe(m, 101 - i));
    }
    expect_text(r, "# HELP s S\n# TYPE s summary\n"
                   "s{quantile=\"0.5\"} 50\n"
                   "s{quantile=\"0.99\"} 99\n"
                   "s_sum 5050\n"
                   "s_count 100\n");
    nrd_metric_unref(m);
    nrd_metric_family_unref(f);
    nrd_metrics_free(r);
}

static void expect_json(nrd_metrics *r, const char *text)
{
    nrd_str s = {0};
    nrd_metrics_json(r, &s);
    assert_string_equal(nrd_str_cstr(&s), text);
    nrd_str_fini(&s);
}

static void test_json_has_everything(void **state)
{
    (void)state;
    nrd_metrics *r = nrd_metrics_new();
    nrd_metric_family *g, *h, *s;
    nrd_metric *gauge, *hist, *summary;
    const double bounds[] = {1, 2.5};
    const nrd_metric_quantile q[] = {{0.5, 0.05}};
    const nrd_metric_label odd = {"a", "x\"\\\n,b=\"y"}, two[] = {{"z", ""}, {"a", "1"}};

    expect_json(r, "{}");
    ok(nrd_metric_family_get(&g, r, NRD_METRIC_GAUGE, "g", "G"));
    ok(nrd_metric_family_get(&h, r, NRD_METRIC_HISTOGRAM, "h", "H"));
    ok(nrd_metric_family_get(&s, r, NRD_METRIC_SUMMARY, "s", "S"));
    expect_json(r, "{\"g\":[],\"h\":[],\"s\":[]}");
    ok(nrd_metric_get(&gauge, g, &odd, 1, NULL));
    ok(nrd_metric_get(&hist, h, two, 2, &(nrd_metric_shape){.buckets = bounds, .n_buckets = 2}));
    ok(nrd_metric_get(&summary, s, NULL, 0, &(nrd_metric_shape){.quantiles = q, .n_quantiles = 1}));
    ok(nrd_metric_set(gauge, 1.5));
    for (int i = 4; i >= 1; i--) {
        ok(nrd_metric_observe(hist, i));
    }
    expect_json(r, "{\"g\":[{\"labels\":{\"a\":\"x\\\"\\\\\\n,b=\\\"y\"},\"value\":1.5}],"
                   "\"h\":[{\"labels\":{\"a\":\"1\",\"z\":\"\"},\"count\":4,\"sum\":10.0,"
                   "\"bounds\":[1.0,2.5],\"counts\":[1,1,2],\"recent\":[4.0,3.0,2.0,1.0],"
                   "\"window\":{\"n\":4,\"p50\":2.0,\"p90\":4.0,\"p99\":4.0}}],"
                   "\"s\":[{\"labels\":{},\"count\":0,\"sum\":0.0,"
                   "\"window\":{\"n\":0,\"p50\":null,\"p90\":null,\"p99\":null}}]}");
    nrd_metric_unref(gauge);
    nrd_metric_unref(hist);
    nrd_metric_unref(summary);
    nrd_metric_family_unref(g);
    nrd_metric_family_unref(h);
    nrd_metric_family_unref(s);
    nrd_metrics_free(r);
}

static void test_recent_values_are_the_newest_in_order(void **state)
{
    (void)state;
    nrd_metrics *r = nrd_metrics_new();
    nrd_metric_family *h;
    nrd_metric *m;
    nrd_str text = {0};
    nrd_json_doc *doc = NULL;

    ok(nrd_metric_family_get(&h, r, NRD_METRIC_HISTOGRAM, "h", "H"));
    ok(nrd_metric_get(&m, h, NULL, 0, &(nrd_metric_shape){.n_buckets = 0}));
    for (int i = 0; i < 3 * NRD_METRIC_RECENT + 7; i++) {
        ok(nrd_metric_observe(m, i));
    }
    nrd_metrics_json(r, &text);
    ok(nrd_json_parse(&doc, text.data, text.len, NULL));
    const nrd_json *one = nrd_json_at(nrd_json_get(nrd_json_root(doc), "h"), 0);
    const nrd_json *recent = nrd_json_get(one, "recent");
    assert_int_equal(nrd_json_get_int(one, "count", 0), 3 * NRD_METRIC_RECENT + 7);
    assert_int_equal(nrd_json_len(recent), NRD_METRIC_RECENT);
    for (size_t i = 0; i < NRD_METRIC_RECENT; i++) {
        assert_int_equal(nrd_json_int(nrd_json_at(recent, i), -1), 2 * NRD_METRIC_RECENT + 7 + i);
    }
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
    nrd_metric_unref(m);
    nrd_metric_family_unref(h);
    nrd_metrics_free(r);
}

static void test_wrong_use_is_refused(void **state)
{
    (void)state;
    nrd_metrics *r = nrd_metrics_new();
    nrd_metric_family *f, *g;
    nrd_metric *m;
    const nrd_metric_label twice[] = {{"a", "1"}, {"a", "2"}}, bad = {"1a", "x"};

    refused(nrd_metric_family_get(&f, r, NRD_METRIC_COUNTER, "no spaces", "H"),
            "invalid metric name");
    ok(nrd_metric_family_get(&f, r, NRD_METRIC_COUNTER, "c", "H"));
    refused(nrd_metric_family_get(&g, r, NRD_METRIC_GAUGE, "c", "H"), "exists with another kind");
    refused(nrd_metric_get(&m, f, twice, 2, NULL), "given twice");
    refused(nrd_metric_get(&m, f, &bad, 1, NULL), "invalid metric label");
    ok(nrd_metric_get(&m, f, NULL, 0, NULL));
    refused(nrd_metric_add(m, -1), "negative");
    refused(nrd_metric_set(m, 1), "counter does not support Set");
    refused(nrd_metric_observe(m, 1), "counter does not support Observe");
    nrd_metric_unref(m);
    nrd_metric_family_unref(f);
    nrd_metrics_free(r);
}

static void *add_many(void *arg)
{
    for (int i = 0; i < 20000; i++) {
        nrd_metric_bump(arg, 1);
    }
    return NULL;
}

static void test_threads_lose_no_increments(void **state)
{
    (void)state;
    nrd_metrics *r = nrd_metrics_new();
    nrd_metric_family *f;
    nrd_metric *m;
    pthread_t t[4];
    double v;

    ok(nrd_metric_family_get(&f, r, NRD_METRIC_COUNTER, "c", "H"));
    ok(nrd_metric_get(&m, f, NULL, 0, NULL));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&t[i], NULL, add_many, m), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
    }
    ok(nrd_metric_value(m, &v));
    assert_true(v == 80000);
    nrd_metric_unref(m);
    nrd_metric_family_unref(f);
    nrd_metrics_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_labels_are_sorted_and_whole_numbers_stay_plain),
        cmocka_unit_test(test_histogram_counts_cumulatively),
        cmocka_unit_test(test_summary_gives_quantiles),
        cmocka_unit_test(test_json_has_everything),
        cmocka_unit_test(test_recent_values_are_the_newest_in_order),
        cmocka_unit_test(test_wrong_use_is_refused),
        cmocka_unit_test(test_threads_lose_no_increments),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed + cmocka_run_group_tests_name("with a decimal comma", tests, comma_locale_setup,
                                                comma_locale_teardown);
}
