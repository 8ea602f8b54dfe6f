/* SPDX-License-Identifier: Apache-2.0
 * The command line: forms, defaults, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "frontends/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ARGS 16

/* Parses a NULL-terminated list. NULL: success, else the message (free). */
static char *parse(nrd_options *o, const char *const *args)
{
    char *argv[MAX_ARGS] = {(char *)(uintptr_t) "tritonserver"};
    int argc = 1;
    while (*args) {
        argv[argc++] = (char *)(uintptr_t)*args++;
    }
    nrd_options_init(o);
    nrd_error *err = nrd_options_parse(o, argc, argv);
    char *text = err ? strdup(nrd_error_message(err)) : NULL;
    nrd_error_free(err);
    return text;
}

#define PARSE(o, ...) parse((o), (const char *const[]){__VA_ARGS__, NULL})

static void test_defaults_are_tritons(void **state)
{
    nrd_options o;
    (void)state;
    assert_null(PARSE(&o, "--model-repository=/m"));
    assert_int_equal(o.http_port, 8000);
    assert_int_equal(o.grpc_port, 8001);
    assert_int_equal(o.metrics_port, 8002);
    assert_int_equal(o.exit_timeout_secs, 30);
    assert_int_equal(o.pinned_pool_bytes, 268435456);
    assert_int_equal(o.http_max_input_bytes, 67108864);
    assert_string_equal(o.id, "triton");
    assert_string_equal(o.metrics_address, "0.0.0.0");
    assert_true(o.exit_on_error && o.strict_readiness && o.allow_http && o.allow_metrics);
    assert_int_equal(o.control_mode, TRITONSERVER_MODEL_CONTROL_NONE);
    assert_int_equal(o.poll_secs, 0); /* only with mode poll */
    assert_true(o.http_threads >= 1 && o.http_threads <= 8);
    assert_int_equal(o.worker_threads, 0);
    nrd_options_fini(&o);
    assert_null(PARSE(&o, "--model-repository=/m", "--worker-thread-count=12"));
    assert_int_equal(o.worker_threads, 12);
    nrd_options_fini(&o);
    char *text = PARSE(&o, "--model-repository=/m", "--worker-thread-count=65");
    assert_non_null(text);
    assert_non_null(strstr(text, "worker-thread-count"));
    free(text);
    nrd_options_fini(&o);
}

static void test_values_come_joined_or_as_the_next_word(void **state)
{
    nrd_options o;
    (void)state;
    assert_null(PARSE(&o, "--http-port=1", "--metrics-port", "2", "--log-verbose", "3",
                      "--disable-auto-complete-config", "--exit-on-error=false",
                      "--strict-readiness", "0"));
    assert_int_equal(o.http_port, 1);
    assert_int_equal(o.metrics_port, 2);
    assert_int_equal(o.log_verbose, 3);
    assert_true(o.strict_model_config);
    assert_false(o.exit_on_error);
    assert_false(o.strict_readiness);
    nrd_options_fini(&o);
}

static void test_command_of_the_launch_script_is_accepted(void **state)
{
    nrd_options o;
    (void)state;
    assert_null(PARSE(&o, "--model-repository=/repo", "--model-control-mode=explicit",
                      "--load-model=tensorrt_llm", "--load-model=b", "--load-model=b",
                      "--cuda-memory-pool-byte-size=0:5", "--cuda-memory-pool-byte-size=0:6",
                      "--pinned-memory-pool-byte-size=0", "--enable-peer-access=false",
                      "--grpc-port=11", "--http-port=12", "--metrics-port=13",
                      "--backend-config=python,shm-region-prefix-name=prefix0_"));
    assert_int_equal(o.startup_models.n, 2);
    assert_string_equal(o.startup_models.items[0].name, "tensorrt_llm");
    assert_int_equal(o.cuda_pools.n, 1);
    assert_int_equal(o.cuda_pools.items[0].size, 6);
    assert_false(o.peer_access);
    assert_string_equal(o.backend_config.items[0].name, "python");
    assert_string_equal(o.backend_config.items[0].setting, "shm-region-prefix-name");
    assert_string_equal(o.backend_config.items[0].value, "prefix0_");
    nrd_options_fini(&o);
}

static void test_lists_with_parts_are_split(void **state)
{
    nrd_options o;
    (void)state;
    assert_null(PARSE(&o, "--backend-config=default-max-batch-size=4",
                      "--cache-config=local,size=10", "--metrics-config=histogram_latencies=true",
                      "--rate-limit-resource=R1:4:0", "--rate-limit-resource=r2:5",
                      "--host-policy=gpu_0,numa-node=1", "--model-load-gpu-limit=1:0.5",
                      "--http-restricted-api=model-config,health:admin-key=admin=1",
                      "--rate-limit=execution_count"));
    assert_string_equal(o.backend_config.items[0].name, "");
    assert_string_equal(o.cache_config.items[0].name, "local");
    assert_string_equal(o.metrics_config.items[0].setting, "histogram_latencies");
    assert_string_equal(o.rate_resources.items[0].name, "R1");
    assert_int_equal(o.rate_resources.items[0].number, 0);
    assert_int_equal(o.rate_resources.items[1].number, -1);
    assert_int_equal(o.rate_resources.items[1].size, 5);
    assert_true(o.gpu_load_limits.items[0].fraction == 0.5);
    assert_int_equal(o.http_restricted.n, 2);
    assert_string_equal(o.http_restricted.items[1].name, "health");
    assert_string_equal(o.http_restricted.items[1].setting, "admin-key");
    assert_string_equal(o.http_restricted.items[1].value, "admin=1");
    nrd_options_fini(&o);
}

static void test_wrong_options_are_refused_with_their_name(void **state)
{
    static const struct {
        const char *arg, *message;
    } t[] = {
        {"--http-port=x", "\"--http-port\""},
        {"--http-port=65536", "\"--http-port\""},
        {"--http-port=-1", "\"--http-port\""},
        {"--http-port=", "\"--http-port\""},
        {"--http-port", "a value is missing"},
        {"--exit-on-error=maybe", "invalid value for bool option: maybe"},
        {"--nonsense=1", "unrecognized option '--nonsense'"},
        {"--model-repositry=x", "did you mean '--model-repository'?"},
        {"--http-p", "a value is missing"}, /* a unique beginning stands for the option */
        {"--http-=1", "ambiguous option"},
        {"word", "Unexpected argument: word"},
        {"--", "Unexpected argument: --"},
        {"--help=1", "takes no value"},
        {"--backend-config=python", "format is '<backend name>,<setting>=<value>'"},
        {"--cache-config=size=1", "format is '<cache name>,<setting>=<value>'"},
        {"--cuda-memory-pool-byte-size=5", "expected <integer>:<integer>"},
        {"--model-control-mode=other", "invalid argument for --model-control-mode"},
        {"--load-model=m", "--model-control-mode=explicit"},
        {"--log-format=xml", "invalid argument for --log-format"},
        {"--http-restricted-api=other:a=b", "unknown restricted api 'other'"},
        {"--metrics-port=8000", "same address and port 0.0.0.0:8000"},
#ifdef NRD_HAVE_GRPC
        {"--grpc-infer-thread-count=0", "\"--grpc-infer-thread-count\""},
        {"--grpc-restricted-protocol=other:a=b", "unknown restricted protocol 'other'"},
        {"--grpc-infer-response-compression-level=max", "compression-level: max"},
#else
        {"--grpc-use-ssl=true", "without the gRPC library"},
#endif
        {"--allow-sagemaker=maybe", "invalid value for bool option: maybe"},
        {"--sagemaker-safe-port-range=5", "format is '<low>-<high>'"},
        {"--sagemaker-safe-port-range=1-2", "HTTP requests at port 8000, allowed port range is [1, 2]"},
        {"--vertex-ai-port=65536", "\"--vertex-ai-port\""},
        {"--trace-level=", "\"--trace-level\""},
        {"--metrics-interval-ms=nan", "\"--metrics-interval-ms\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        nrd_options o;
        char *text = PARSE(&o, t[i].arg);
        if (!text || !strstr(text, t[i].message)) {
            print_error("%s: %s\n", t[i].arg, text ? text : "accepted");
        }
        assert_non_null(text);
        assert_non_null(strstr(text, t[i].message));
        free(text);
        nrd_options_fini(&o);
    }
}

static void test_help_names_every_option_once_in_groups(void **state)
{
    static const char *const some[] = {"\nHTTP:\n",
                                       "\nGRPC:\n",
                                       "\nModel Repository:\n",
                                       "\nLogging:\n",
                                       "  --http-port <integer>\n",
                                       "  --cache-directory <string>\n",
                                       "\nDEPRECATED:\n"};
    nrd_str text = {0};
    (void)state;
    nrd_options_help(&text);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        const char *at = strstr(text.data, some[i]);
        assert_non_null(at);
        assert_null(strstr(at + 1, some[i]));
    }
    for (const char *line = text.data; line; line = strchr(line + 1, '\n')) {
        const char *end = strchr(line + 1, '\n');
        assert_true(!end || end - line <= 100);
    }
    nrd_str_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_tritons),
        cmocka_unit_test(test_values_come_joined_or_as_the_next_word),
        cmocka_unit_test(test_command_of_the_launch_script_is_accepted),
        cmocka_unit_test(test_lists_with_parts_are_split),
        cmocka_unit_test(test_wrong_options_are_refused_with_their_name),
        cmocka_unit_test(test_help_names_every_option_once_in_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
