/* SPDX-License-Identifier: Apache-2.0
 * The HTTP API against a stand-in for the core: what reaches the in-process API, and what its answers look like on the wire. */
#include "stand_in.h"

#include "frontends/http/api.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

/* ---- the client ---- */

static nrd_http_api *api;
static nrd_options options;
static nrd_tracer *tracer;
static nrd_front *front;

static int start_with_all(const char *const *extra, int n)
{
    char *argv[16] = {(char *)(uintptr_t) "t", (char *)(uintptr_t) "--http-port=0",
                      (char *)(uintptr_t) "--http-address=127.0.0.1",
                      (char *)(uintptr_t) "--http-thread-count=2"};
    for (int i = 0; i < n; i++) {
        argv[4 + i] = (char *)(uintptr_t)extra[i];
    }
    nrd_options_init(&options);
    nrd_error *err = nrd_options_parse(&options, 4 + n, argv);
    if (!err) {
        err = nrd_tracer_new(&tracer, &options);
    }
    if (!err) {
        err = nrd_front_new(&front, NULL, &options, tracer);
    }
    if (!err) {
        err = nrd_http_api_new(&api, front);
    }
    if (!err) {
        err = nrd_http_api_listen(api);
    }
    if (err) {
        print_error("%s\n", nrd_error_message(err));
        nrd_error_free(err);
        return -1;
    }
    return 0;
}

static int start_with(const char *extra)
{
    return start_with_all(&extra, extra ? 1 : 0);
}

static int start(void **state)
{
    (void)state;
    atomic_store(&n_cancelled, 0);
    return start_with(NULL);
}

/* Every request, response and error object must be gone: none leaks, none is freed twice. */
static int finish(void **state)
{
    const struct timespec nap = {0, 1000000};
    (void)state;
    for (int i = 0; i < 5000 && (atomic_load(&n_requests) || atomic_load(&n_responses) ||
                                 atomic_load(&n_models)); i++) {
        nanosleep(&nap, NULL);
    }
    nrd_front_stop(front);
    nrd_http_api_free(api);
    nrd_front_free(front);
    nrd_tracer_free(tracer);
    nrd_options_fini(&options);
    return atomic_load(&n_requests) || atomic_load(&n_responses) || atomic_load(&n_errors);
}

static int dial(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)nrd_http_api_port(api)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {20, 0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static nrd_str reply; /* head and body of the last call */
static char *body;    /* in reply */

/* One request on its own connection; returns the status. */
static int call_n(const char *method, const char *path, const char *fields, const char *data,
                  size_t n)
{
    nrd_str in = {0};
    char buf[65536];
    int fd = dial(), status = 0;
    nrd_str_printf(&in,
                   "%s %s HTTP/1.1\r\n%sConnection: close\r\n%sContent-Length: %zu\r\n"
                   "\r\n",
                   method, path, strstr(fields, "Host: ") ? "" : "Host: localhost\r\n", fields, n);
    nrd_str_append(&in, data, n);
    assert_int_equal(send(fd, in.data, in.len, MSG_NOSIGNAL), (ssize_t)in.len);
    nrd_str_fini(&in);
    nrd_str_clear(&reply);
    for (ssize_t r; (r = recv(fd, buf, sizeof buf, 0)) != 0;) {
        assert_true(r > 0);
        nrd_str_append(&reply, buf, (size_t)r);
    }
    close(fd);
    assert_int_equal(sscanf(reply.data, "HTTP/1.1 %d", &status), 1);
    body = strstr(reply.data, "\r\n\r\n") + 4;
    return status;
}

static int call(const char *method, const char *path, const char *data)
{
    return call_n(method, path, "", data, strlen(data));
}

static void expect(const char *method, const char *path, const char *data, int status,
                   const char *text)
{
    int got = call(method, path, data);
    if (got != status || strcmp(body, text) != 0) {
        print_error("%s %s %s\n -> %d %s\n want %d %s\n", method, path, data, got, body, status,
                    text);
    }
    assert_int_equal(got, status);
    assert_string_equal(body, text);
}

/* ---- tests ---- */

static void test_every_route_answers(void **state)
{
    (void)state;
    expect("GET", "/v2/health/live", "", 200, "");
    expect("GET", "/v2/health/ready", "", 200, "");
    expect("GET", "/v2", "", 200, "{\"name\":\"triton\"}");
    expect("GET", "/v2/models/echo/ready", "", 200, "");
    expect("GET", "/v2/models/echo/versions/2/ready", "", 400,
           "{\"error\":\"Model version not ready\"}");
    expect("GET", "/v2/models/none/ready", "", 404,
           "{\"error\":\"Request for unknown model: 'none' is not found\"}");
    expect("GET", "/v2/models/echo/config", "", 200, "{\"config\":1}");
    expect("GET", "/v2/models/echo/versions/1/config", "", 200, "{\"config\":1}");
    expect("GET", "/v2/models/stats", "", 200, "{\"stats\":\"/-1\"}");
    expect("GET", "/v2/models/ec%68o/stats", "", 200, "{\"stats\":\"echo/-1\"}");
    expect("GET", "/v2/models/echo/versions/7/stats", "", 200, "{\"stats\":\"echo/7\"}");
    expect("POST", "/v2/repository/index", "", 200, "[\"all\"]");
    expect("POST", "/v2/repository/index", "{\"ready\":true}", 200, "[\"ready\"]");
    expect("POST", "/v2/repository/models/echo/load", "", 200, "");
    expect("POST", "/v2/repository/models/echo/unload", "", 200, "");
    expect("GET", "/v2/systemsharedmemory/status", "", 200, "[]");
    expect("GET", "/v2/cudasharedmemory/status", "", 200, "[]");
    assert_int_equal(call("GET", "/v2/trace/setting", ""), 200);
    assert_int_equal(call("GET", "/v2/models/echo/trace/setting", ""), 200);
    assert_int_equal(call("GET", "/v2/logging", ""), 200);
}

static void test_unknown_routes_and_methods_are_refused(void **state)
{
    static const char *const paths[] = {"/",
                                        "/v2/",
                                        "/v1",
                                        "/v2/health",
                                        "/v2/health/x",
                                        "/v2/models",
                                        "/v2/models//infer",
                                        "/v2/models/a/b",
                                        "/v2/models/echo/versions/x/infer",
                                        "/v2/models/a%00/infer",
                                        "/v2/health/live/"};
    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        expect("GET", paths[i], "", 404, "{\"error\":\"Not Found\"}");
    }
    expect("POST", "/v2/health/live", "", 405, "{\"error\":\"Method Not Allowed\"}");
    expect("GET", "/v2/models/echo/infer", "", 405, "{\"error\":\"Method Not Allowed\"}");
    expect("DELETE", "/v2", "", 405, "{\"error\":\"Method Not Allowed\"}");
}

static void test_load_parameters_reach_the_core(void **state)
{
    (void)state;
    expect("POST", "/v2/repository/models/m/load",
           "{\"parameters\":{\"config\":\"{}\",\"file:1/a\":\"aGVsbG8=\"}}", 503,
           "{\"error\":\"load m config={} file:1/a=hello\"}");
    expect("POST", "/v2/repository/models/echo/unload",
           "{\"parameters\":{\"unload_dependents\":true}}", 400, "{\"error\":\"with dependents\"}");
    expect("POST", "/v2/repository/r/models/echo/load", "", 501,
           "{\"error\":\"'repository_name' specification is not supported\"}");
    assert_int_equal(call("POST", "/v2/repository/models/m/load", "{\"parameters\":{\"x\":\"y\"}}"),
                     400);
    assert_int_equal(
        call("POST", "/v2/repository/models/m/load", "{\"parameters\":{\"file:a\":\"!\"}}"), 400);
}

static void test_infer_takes_and_gives_json(void **state)
{
    (void)state;
    expect("POST", "/v2/models/echo/infer",
           "{\"id\":\"x\",\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\",\"shape\":[2,2],"
           "\"data\":[[1,2],[3,4]]},{\"name\":\"T\",\"datatype\":\"BYTES\",\"shape\":[1],\"data\":"
           "[\"a\\\"b\"]}]}",
           200,
           "{\"id\":\"x\",\"model_name\":\"echo\",\"model_version\":\"1\",\"outputs\":[{\"name\":"
           "\"IN\",\"datatype\":\"INT32\",\"shape\":[2,2],\"data\":[1,2,3,4]},{\"name\":\"T\","
           "\"datatype\":\"BYTES\",\"shape\":[1],\"data\":[\"a\\\"b\"]}]}");
    expect("POST", "/v2/models/echo/infer",
           "{\"parameters\":{\"k\":1.5},\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\","
           "\"shape\":[0],\"data\":[]}]}",
           200,
           "{\"model_name\":\"echo\",\"model_version\":\"1\",\"parameters\":{\"z_saw\":\"k=1.5\","
           "\"a_flag\":false},\"outputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\",\"shape\":[0],"
           "\"data\":[]}]}");
}

static void test_infer_takes_and_gives_binary(void **state)
{
    const char json[] = "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\",\"shape\":[2],"
                        "\"parameters\":{\"binary_data_size\":8}}],\"outputs\":[{\"name\":\"IN\","
                        "\"parameters\":{\"binary_data\":true}}]}";
    const char want[] = "{\"model_name\":\"echo\",\"model_version\":\"1\",\"outputs\":[{\"name\":"
                        "\"IN\",\"datatype\":\"INT32\",\"shape\":[2],\"parameters\":{"
                        "\"binary_data_size\":8}}]}";
    const int32_t values[2] = {7, -9};
    char field[64], data[512];
    (void)state;
    snprintf(field, sizeof field, "Inference-Header-Content-Length: %zu\r\n", sizeof json - 1);
    memcpy(data, json, sizeof json - 1);
    memcpy(data + sizeof json - 1, values, 8);
    assert_int_equal(call_n("POST", "/v2/models/echo/infer", field, data, sizeof json - 1 + 8),
                     200);
    snprintf(field, sizeof field, "\r\nInference-Header-Content-Length: %zu\r\n", sizeof want - 1);
    assert_non_null(strstr(reply.data, field));
    assert_non_null(strstr(reply.data, "Content-Type: application/octet-stream\r\n"));
    assert_memory_equal(body, want, sizeof want - 1);
    assert_memory_equal(body + sizeof want - 1, values, 8);
    assert_ptr_equal(body + sizeof want - 1 + 8, reply.data + reply.len);
}

static void test_raw_body_is_the_one_input(void **state)
{
    (void)state;
    assert_int_equal(call_n("POST", "/v2/models/echo/infer",
                            "Inference-Header-Content-Length: 0\r\n", "rawbytes", 8),
                     200);
    assert_memory_equal(reply.data + reply.len - 8, "rawbytes", 8);
}

static void test_classification_gives_the_best_of_each_row(void **state)
{
    (void)state;
    expect(
        "POST", "/v2/models/echo/infer",
        "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT8\",\"shape\":[2,3],\"data\":[-5,7,-6,0,"
        "0,-1]}],\"outputs\":[{\"name\":\"IN\",\"parameters\":{\"classification\":2}}]}",
        200,
        "{\"model_name\":\"echo\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"IN\","
        "\"datatype\":\"BYTES\",\"shape\":[2,2],\"data\":[\"7:1:one\",\"-5:0\",\"0:0\","
        "\"0:1:one\"]}]}");
    expect(
        "POST", "/v2/models/echo/infer",
        "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"FP32\",\"shape\":[1,2],\"data\":[0.25,1.5]}"
        "],\"outputs\":[{\"name\":\"IN\",\"parameters\":{\"classification\":9}}]}",
        200,
        "{\"model_name\":\"echo\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"IN\","
        "\"datatype\":\"BYTES\",\"shape\":[1,2],\"data\":[\"1.500000:1:one\",\"0.250000:0\"]}]}");
    assert_int_equal(
        call(
            "POST", "/v2/models/echo/infer",
            "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"BOOL\",\"shape\":[1,1],\"data\":[true]}],"
            "\"outputs\":[{\"name\":\"IN\",\"parameters\":{\"classification\":1}}]}"),
        400);
}

static void test_large_tensor_is_returned_unharmed(void **state)
{
    const char json[] =
        "{\"parameters\":{\"binary_data_output\":true},\"inputs\":[{\"name\":\"IN\","
        "\"datatype\":\"UINT8\",\"shape\":[8000000],\"parameters\":{"
        "\"binary_data_size\":8000000}}]}";
    char field[64];
    const size_t n = 8000000;
    char *data = malloc(sizeof json - 1 + n);
    (void)state;
    memcpy(data, json, sizeof json - 1);
    for (size_t i = 0; i < n; i++) {
        data[sizeof json - 1 + i] = (char)(i * 7 + i / 251);
    }
    snprintf(field, sizeof field, "Inference-Header-Content-Length: %zu\r\n", sizeof json - 1);
    assert_int_equal(call_n("POST", "/v2/models/echo/infer", field, data, sizeof json - 1 + n),
                     200);
    assert_memory_equal(reply.data + reply.len - n, data + sizeof json - 1, n);
    free(data);
}

static void test_infer_errors_say_what_is_wrong(void **state)
{
#define IN(rest) "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\"," rest "}]}"
    static const struct {
        const char *model, *data;
        int status;
        const char *text;
    } t[] = {
        {"none", "{}", 404, "Request for unknown model: 'none' is not found"},
        {"echo", "{\"inputs\":", 500, "failed to parse the request JSON buffer: "},
        {"echo", "[]", 500, "Unable to parse 'inputs'"},
        {"echo", "{}", 500, "Unable to parse 'inputs': attempt to access non-existing object"},
        {"echo", "{\"inputs\":[]}", 400, "expected 1 inputs but got 0"},
        {"echo", IN("\"shape\":[1]"), 400, "But no field is set"},
        {"echo", IN("\"shape\":[-1],\"data\":[1]"), 500, "Unable to parse 'shape'"},
        {"echo", IN("\"shape\":[9223372036854775807,3],\"data\":[1]"), 400, "exceed maximum size of 9223372036854775807"},
        {"echo", IN("\"shape\":[4000000000],\"data\":[1]"), 400, "--http-max-input-size"},
        {"echo", IN("\"shape\":[2],\"data\":[1]"), 500, "Shape does not match true shape"},
        {"echo", IN("\"shape\":[1],\"data\":[1.5]"), 500, "Unable to parse 'data'"},
        {"echo", IN("\"shape\":[1],\"data\":[1],\"parameters\":{\"binary_data_size\":4}"), 400,
         "But set 'data' 'binary_data_size'"},
        {"echo", IN("\"shape\":[1],\"parameters\":{\"binary_data_size\":4}"), 400,
         "unexpected size for input 'IN', expecting 4 additional bytes for model 'echo'"},
        {"echo", IN("\"shape\":[1],\"parameters\":{\"shared_memory_region\":\"r\"}"), 404,
         "Unable to find shared memory region: 'r'"},
        {"echo", "{\"id\":5,\"inputs\":[]}", 500, "Unable to parse 'id'"},
        {"echo", "{\"parameters\":{\"triton_x\":1},\"inputs\":[]}", 400, "reserved for Triton"},
        {"echo", "{\"parameters\":{\"x\":[]},\"inputs\":[]}", 400, "has invalid type"},
        {"fail", IN("\"shape\":[1],\"data\":[1]"), 500, "it \\\"failed\\\""},
        {"gen", IN("\"shape\":[1],\"data\":[1]"), 501,
         "HTTP end point doesn't support models with decoupled transaction policy"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char path[64];
        snprintf(path, sizeof path, "/v2/models/%s/infer", t[i].model);
        int got = call("POST", path, t[i].data);
        if (got != t[i].status || !strstr(body, t[i].text)) {
            print_error("%s -> %d %s\n", t[i].data, got, body);
        }
        assert_int_equal(got, t[i].status);
        assert_non_null(strstr(body, t[i].text));
        assert_memory_equal(body, "{\"error\":\"", 10);
    }
    assert_int_equal(
        call_n("POST", "/v2/models/echo/infer", "Inference-Header-Content-Length: 3\r\n", "{}", 2),
        400);
    assert_int_equal(
        call_n("POST", "/v2/models/echo/infer", "Inference-Header-Content-Length: x\r\n", "{}", 2),
        400);
}

static void test_shared_memory_carries_inputs_and_outputs(void **state)
{
    const char *key = "/nrd_test_api_shm";
    int fd = shm_open(key, O_CREAT | O_RDWR, 0600);
    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 8192), 0);
    int32_t *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    p[25] = 11; /* offset 100 */
    p[26] = 12;
    expect("POST", "/v2/systemsharedmemory/region/r/register",
           "{\"key\":\"/nrd_test_api_shm\",\"offset\":100,\"byte_size\":4000}", 200, "");
    expect("GET", "/v2/systemsharedmemory/region/r/status", "", 200,
           "[{\"name\":\"r\",\"key\":\"/nrd_test_api_shm\",\"offset\":100,\"byte_size\":4000}]");
    assert_int_equal(call("POST", "/v2/systemsharedmemory/region/r/register",
                          "{\"key\":\"/nrd_test_api_shm\",\"byte_size\":10}"),
                     400);
    assert_int_equal(call("POST", "/v2/systemsharedmemory/region/big/register",
                          "{\"key\":\"/nrd_test_api_shm\",\"byte_size\":8193}"),
                     400);
    expect("POST", "/v2/models/echo/infer",
           IN("\"shape\":[2],\"parameters\":{\"shared_memory_region\":\"r\","
              "\"shared_memory_byte_size\":8}"),
           200,
           "{\"model_name\":\"echo\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"IN\","
           "\"datatype\":\"INT32\",\"shape\":[2],\"data\":[11,12]}]}");
    assert_int_equal(
        call("POST", "/v2/models/echo/infer",
             "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\",\"shape\":[2],\"data\":[5,6]}],"
             "\"outputs\":[{\"name\":\"IN\",\"parameters\":{\"shared_memory_region\":\"r\","
             "\"shared_memory_offset\":400,\"shared_memory_byte_size\":8}}]}"),
        200);
    assert_int_equal(p[125], 5);
    assert_int_equal(p[126], 6);
    assert_int_equal(call("POST", "/v2/models/echo/infer",
                          IN("\"shape\":[2],\"parameters\":{\"shared_memory_region\":\"r\","
                             "\"shared_memory_offset\":3996,\"shared_memory_byte_size\":8}")),
                     400);
    /* a region that is cut short is an error to who uses it; the server lives */
    assert_int_equal(ftruncate(fd, 0), 0);
    expect("POST", "/v2/models/echo/infer",
           IN("\"shape\":[2],\"parameters\":{\"shared_memory_region\":\"r\","
              "\"shared_memory_byte_size\":8}"),
           400,
           "{\"error\":\"shared memory region 'r' became shorter than the 4000 bytes that were registered; "
           "unregister it\"}");
    assert_int_equal(
        call("POST", "/v2/models/echo/infer",
             "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\",\"shape\":[2],\"data\":[5,6]}],"
             "\"outputs\":[{\"name\":\"IN\",\"parameters\":{\"shared_memory_region\":\"r\","
             "\"shared_memory_offset\":400,\"shared_memory_byte_size\":8}}]}"),
        400);
    expect("POST", "/v2/systemsharedmemory/region/r/unregister", "", 200, "");
    assert_int_equal(ftruncate(fd, 8192), 0);
    p[25] = 11;
    p[26] = 12;
    expect("POST", "/v2/systemsharedmemory/region/r/register",
           "{\"key\":\"/nrd_test_api_shm\",\"offset\":100,\"byte_size\":4000}", 200, "");
    expect("POST", "/v2/models/echo/infer",
           IN("\"shape\":[2],\"parameters\":{\"shared_memory_region\":\"r\","
              "\"shared_memory_byte_size\":8}"),
           200,
           "{\"model_name\":\"echo\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"IN\","
           "\"datatype\":\"INT32\",\"shape\":[2],\"data\":[11,12]}]}");
    /* whoever has the answer may take the region back at once */
    expect("POST", "/v2/models/late/infer",
           IN("\"shape\":[2],\"parameters\":{\"shared_memory_region\":\"r\","
              "\"shared_memory_byte_size\":8}"),
           200,
           "{\"model_name\":\"late\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"IN\","
           "\"datatype\":\"INT32\",\"shape\":[2],\"data\":[11,12]}]}");
    expect("POST", "/v2/systemsharedmemory/unregister", "", 200, "");
    expect("GET", "/v2/systemsharedmemory/status", "", 200, "[]");
    munmap(p, 8192);
    close(fd);
    shm_unlink(key);
}

static void test_generate_maps_keys_and_sorts_the_answer(void **state)
{
    (void)state;
    expect("POST", "/v2/models/gen/generate",
           "{\"id\":\"i\",\"text\":\"hi\",\"n\":1,\"temperature\":0.5}", 200,
           "{\"a_flag\":false,\"id\":\"i\",\"model_name\":\"gen\",\"model_version\":\"1\","
           "\"text_output\":\"t0\",\"z_saw\":\"temperature=0.5\"}");
    expect("POST", "/v2/models/echo/generate", "{\"IN\":[1,2,3,4],\"F\":[1.5],\"parameters\":{}}",
           200, "{\"F\":1.5,\"IN\":[1,2,3,4],\"model_name\":\"echo\",\"model_version\":\"1\"}");
}

/* Bodies and answers that are long are read and written by workers, short ones on the loop. */
static void test_long_bodies_and_answers_are_the_workers(void **state)
{
    enum { N = 20000 };
    nrd_str question = {0}, want = {0};
    (void)state;
    assert_int_equal(call("POST", "/v2/models/echo/infer", IN("\"shape\":[2],\"data\":[1,2]")), 200);
    assert_int_equal(nrd_workers_look(front->workers).n_done, 0);
    nrd_str_printf(&question, "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\",\"shape\":[%d],\"data\":[",
                   N);
    nrd_str_printf(&want, "{\"model_name\":\"echo\",\"model_version\":\"1\",\"outputs\":[{\"name\":"
                          "\"IN\",\"datatype\":\"INT32\",\"shape\":[%d],\"data\":[", N);
    for (int i = 0; i < N; i++) {
        nrd_str_printf(&question, "%s%d", i ? "," : "", i * 7);
        nrd_str_printf(&want, "%s%d", i ? "," : "", i * 7);
    }
    nrd_str_puts(&question, "]}]}");
    nrd_str_puts(&want, "]}]}");
    expect("POST", "/v2/models/echo/infer", question.data, 200, want.data);
    assert_int_equal(nrd_workers_look(front->workers).n_done, 2);
    question.data[question.len - 2] = 'x'; /* found by the worker, answered by the loop */
    assert_int_equal(call("POST", "/v2/models/echo/infer", question.data), 500);
    assert_int_equal(nrd_workers_look(front->workers).n_done, 3);
    nrd_str_fini(&question);
    nrd_str_fini(&want);
}

static void test_generate_reads_a_model_once_a_load(void **state)
{
    (void)state;
    const int before = atomic_load(&n_metadata);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(call("POST", "/v2/models/gen/generate", "{\"text\":\"a\",\"n\":1}"), 200);
    }
    assert_int_equal(atomic_load(&n_metadata) - before, 1);
    atomic_fetch_add(&load_number, 1);
    assert_int_equal(call("POST", "/v2/models/gen/generate", "{\"text\":\"a\",\"n\":1}"), 200);
    assert_int_equal(atomic_load(&n_metadata) - before, 2);
    assert_int_equal(call("POST", "/v2/models/none/generate", "{}"), 404);
}

static void test_generate_errors(void **state)
{
    (void)state;
    expect("POST", "/v2/models/gen/generate", "{\"text\":[\"a\",\"b\"],\"n\":1}", 400,
           "{\"error\":\"The schema can not convert input 'text' to tensor with proper shape\"}");
    expect("POST", "/v2/models/echo/generate", "{\"IN\":[1,2,3]}", 400,
           "{\"error\":\"The schema can not convert input 'IN' to tensor with proper shape\"}");
    expect("POST", "/v2/models/gen/generate", "{\"text\":\"a\",\"n\":2}", 200,
           "{\"error\":\"generate expects model to produce exactly 1 response, use generate stream "
           "for model that generates various number of responses\"}");
    expect("POST", "/v2/models/gen/generate", "{\"x\":null,\"n\":2}", 400,
           "{\"error\":\"parameter 'x' has invalid type. It should be either 'int', 'bool', or "
           "'string'.\"}");
    expect("POST", "/v2/models/gen/generate", "{}", 400,
           "{\"error\":\"expected 1 inputs but got 0\"}");
    assert_int_equal(call("POST", "/v2/models/gen/generate", "{\"parameters\":1}"), 500);
    assert_int_equal(call("POST", "/v2/models/gen/generate", "[1]"), 500);
    assert_int_equal(call("POST", "/v2/models/none/generate", "{}"), 404);
    assert_int_equal(call("POST", "/v2/models/gen/generate", "{\"a\":"), 500);
    assert_non_null(strstr(body, "failed to parse the request JSON buffer: "));
    expect("POST", "/v2/models/fail/generate", "{\"F\":1}", 500,
           "{\"error\":\"it \\\"failed\\\"\"}");
}

#define EVENT(i)                                                                                   \
    "data: {\"model_name\":\"gen\",\"model_version\":\"1\",\"text_output\":\"t" #i "\"}\n\n"
#define CHUNK(i) "43\r\n" EVENT(i) "\r\n"

static void test_stream_sends_events_and_no_marker(void **state)
{
    (void)state;
    assert_int_equal(sizeof EVENT(0) - 1, 0x43);
    expect("POST", "/v2/models/gen/generate_stream", "{\"text\":\"a\",\"n\":3}", 200,
           CHUNK(0) CHUNK(1) CHUNK(2) "0\r\n\r\n");
    assert_non_null(strstr(reply.data, "Content-Type: text/event-stream; charset=utf-8\r\n"));
    expect("POST", "/v2/models/gen/generate_stream", "{\"text\":\"a\",\"n\":0}", 200, "0\r\n\r\n");
    expect("POST", "/v2/models/fail/generate_stream", "{\"F\":1}", 500,
           "21\r\ndata: {\"error\":\"it \\\"failed\\\"\"}\n\n\r\n0\r\n\r\n");
}

static void test_disconnect_cancels(void **state)
{
    static const char *const paths[] = {"infer", "generate", "generate_stream"};
    const char *bodies[] = {IN("\"shape\":[1],\"data\":[1]"), "{\"F\":1}", "{\"F\":1}"};
    const struct timespec nap = {0, 1000000};
    (void)state;
    for (int i = 0; i < 3; i++) {
        nrd_str in = {0};
        int fd = dial();
        nrd_str_printf(&in,
                       "POST /v2/models/hold/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n"
                       "\r\n%s",
                       paths[i], strlen(bodies[i]), bodies[i]);
        assert_int_equal(send(fd, in.data, in.len, 0), (ssize_t)in.len);
        nrd_str_fini(&in);
        for (int k = 0; k < 5000 && atomic_load(&n_requests) == 0; k++) {
            nanosleep(&nap, NULL);
        }
        assert_int_equal(atomic_load(&n_cancelled), i);
        close(fd);
        for (int k = 0; k < 5000 && atomic_load(&n_cancelled) != i + 1; k++) {
            nanosleep(&nap, NULL);
        }
        assert_int_equal(atomic_load(&n_cancelled), i + 1);
        for (int k = 0; k < 5000 && atomic_load(&n_requests) != 0; k++) {
            nanosleep(&nap, NULL);
        }
    }
}

static void test_compressed_bodies_are_unpacked_and_replies_packed(void **state)
{
    const char *json = IN("\"shape\":[1],\"data\":[1]");
    unsigned char packed[512], plain[512];
    uLongf n = sizeof packed, plain_n = sizeof plain;
    (void)state;
    assert_int_equal(compress(packed, &n, (const Bytef *)json, strlen(json)), Z_OK);
    assert_int_equal(call_n("POST", "/v2/models/echo/infer",
                            "Content-Encoding: deflate\r\nAccept-Encoding: gzip;q=0.1, deflate\r\n",
                            (char *)packed, n),
                     200);
    assert_non_null(strstr(reply.data, "Content-Encoding: deflate\r\n"));
    assert_int_equal(
        uncompress(plain, &plain_n, (Bytef *)body, (uLong)(reply.data + reply.len - body)), Z_OK);
    assert_memory_equal(plain, "{\"model_name\":\"echo\"", 20);
    assert_int_equal(
        call_n("POST", "/v2/models/echo/infer", "Content-Encoding: gzip\r\n", (char *)packed, n),
        400);
    assert_int_equal(call_n("POST", "/v2/models/echo/infer", "Content-Encoding: br\r\n", "x", 1),
                     501);
    assert_non_null(strstr(reply.data, "Accept-Encoding: gzip, deflate\r\n"));
    assert_int_equal(call_n("POST", "/v2/models/echo/infer", "Content-Encoding: deflate\r\n",
                            (char *)packed, n - 6),
                     400);
}

static void test_log_settings_are_read_and_written(void **state)
{
    (void)state;
    expect("POST", "/v2/logging",
           "{\"log_verbose_level\":2,\"log_warning\":false,\"log_format\":\"ISO8601\"}", 200,
           "{\"log_file\":\"\",\"log_info\":true,\"log_warning\":false,\"log_error\":true,"
           "\"log_verbose_level\":2,\"log_format\":\"ISO8601\"}");
    expect("POST", "/v2/logging",
           "{\"log_verbose_level\":0,\"log_warning\":true,\"log_format\":\"default\"}", 200,
           "{\"log_file\":\"\",\"log_info\":true,\"log_warning\":true,\"log_error\":true,"
           "\"log_verbose_level\":0,\"log_format\":\"default\"}");
    assert_int_equal(call("POST", "/v2/logging", "{\"log_file\":\"x\"}"), 501);
    assert_int_equal(call("POST", "/v2/logging", "{\"log_info\":1}"), 500);
    assert_int_equal(call("POST", "/v2/logging", "{\"log_verbose_level\":-1}"), 500);
    assert_int_equal(call("POST", "/v2/logging", "{\"log_format\":\"x\"}"), 503);
    assert_int_equal(call("POST", "/v2/logging", "{"), 500);
}

static int start_restricted(void **state)
{
    (void)state;
    return start_with("--http-restricted-api=health,inference:admin-key=secret");
}

static void test_restricted_apis_ask_for_their_header(void **state)
{
    (void)state;
    expect("GET", "/v2/health/live", "", 403,
           "{\"error\":\"This API is restricted, expecting header 'admin-key'\"}");
    assert_int_equal(call_n("GET", "/v2/health/live", "Admin-Key: wrong\r\n", "", 0), 403);
    assert_int_equal(call_n("GET", "/v2/health/live", "Admin-Key: secret\r\n", "", 0), 200);
    assert_int_equal(call("POST", "/v2/models/echo/infer", "{}"), 403);
    assert_int_equal(call("GET", "/v2", ""), 200);
}

static int start_local(void **state)
{
    (void)state;
    static const char *const extra[] = {"--cors-origin=*", "--cors-origin=http://app.example",
                                        "--allowed-host=gpu.example"};
    return start_with_all(extra, sizeof extra / sizeof *extra);
}

static void test_pages_of_other_origins_give_no_orders(void **state)
{
    static const char *const orders[] = {"/v2/repository/models/echo/load", "/v2/repository/models/echo/unload",
                                         "/v2/logging", "/v2/trace/setting",
                                         "/v2/systemsharedmemory/unregister"};
    (void)state;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        assert_int_equal(call_n("POST", orders[i], "Origin: http://evil.example\r\n", "{}", 2), 403);
        assert_int_equal(call_n("POST", orders[i], "Origin: null\r\n", "{}", 2), 403);
        assert_int_equal(call_n("POST", orders[i], "Origin: http://localhost:1\r\n", "{}", 2), 403);
        assert_int_not_equal(call_n("POST", orders[i], "", "{}", 2), 403);
        assert_int_not_equal(call_n("POST", orders[i], "Origin: http://app.example\r\n", "{}", 2), 403);
        assert_int_not_equal(
            call_n("POST", orders[i], "Host: gpu.example:80\r\nOrigin: https://gpu.example:80\r\n", "{}", 2),
            403);
    }
    assert_int_equal(call_n("GET", "/v2/logging", "Origin: http://evil.example\r\n", "", 0), 200);
}

static void test_a_local_server_answers_to_its_own_names(void **state)
{
    static const char *const ours[] = {"localhost", "LocalHost:8000", "a.localhost.", "127.0.0.1", "127.8.0.1:1",
                                       "[::1]",     "[::1]:8000",     "gpu.example"};
    static const char *const others[] = {"evil.example", "localhost.evil.example:80", "10.0.0.1", "[::2]", "[",
                                         "notlocalhost", "127.0.0.1.evil.example"};
    char field[64];
    (void)state;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        snprintf(field, sizeof field, "Host: %s\r\n", ours[i]);
        assert_int_equal(call_n("GET", "/v2", field, "", 0), 200);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(field, sizeof field, "Host: %s\r\n", others[i]);
        assert_int_equal(call_n("GET", "/v2", field, "", 0), 403);
        assert_int_equal(call_n("GET", "/v2/health/live", field, "", 0), 200);
    }
}

static int start_forward(void **state)
{
    (void)state;
    return start_with("--http-header-forward-pattern=^x-my-.*");
}

static void test_matching_headers_become_parameters(void **state)
{
    (void)state;
    assert_int_equal(
        call_n("POST", "/v2/models/echo/generate", "X-My-Key: v\r\nX-Other: w\r\n", "{\"F\":1}", 7),
        200);
    assert_non_null(strstr(body, "\"z_saw\":\"X-My-Key=v\""));
}

static int start_forward_all(void **state)
{
    (void)state;
    return start_with("--http-header-forward-pattern=.*");
}

static void test_headers_with_names_of_other_parameters_are_refused(void **state)
{
    static const char *const names[] = {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output",
                                        "triton_flow", "Triton_Lora_Dir"};
    char field[64], want[128];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(field, sizeof field, "%s: 1\r\n", names[i]);
        snprintf(want, sizeof want, "Header '%s' is reserved for Triton usage and cannot be forwarded.", names[i]);
        assert_int_equal(call_n("POST", "/v2/models/echo/generate", field, "{\"F\":1}", 7), 400);
        assert_non_null(strstr(body, want));
    }
    assert_int_equal(call_n("POST", "/v2/models/echo/generate", "X-Priority: 1\r\n", "{\"F\":1}", 7), 200);
}

#define T(f) cmocka_unit_test_setup_teardown(f, start, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_every_route_answers),
        T(test_unknown_routes_and_methods_are_refused),
        T(test_load_parameters_reach_the_core),
        T(test_infer_takes_and_gives_json),
        T(test_infer_takes_and_gives_binary),
        T(test_raw_body_is_the_one_input),
        T(test_classification_gives_the_best_of_each_row),
        T(test_large_tensor_is_returned_unharmed),
        T(test_infer_errors_say_what_is_wrong),
        T(test_shared_memory_carries_inputs_and_outputs),
        T(test_generate_maps_keys_and_sorts_the_answer),
        T(test_long_bodies_and_answers_are_the_workers),
        T(test_generate_reads_a_model_once_a_load),
        T(test_generate_errors),
        T(test_stream_sends_events_and_no_marker),
        T(test_disconnect_cancels),
        T(test_compressed_bodies_are_unpacked_and_replies_packed),
        T(test_log_settings_are_read_and_written),
        cmocka_unit_test_setup_teardown(test_pages_of_other_origins_give_no_orders, start_local, finish),
        cmocka_unit_test_setup_teardown(test_a_local_server_answers_to_its_own_names, start_local, finish),
        cmocka_unit_test_setup_teardown(test_restricted_apis_ask_for_their_header, start_restricted,
                                        finish),
        cmocka_unit_test_setup_teardown(test_matching_headers_become_parameters, start_forward,
                                        finish),
        cmocka_unit_test_setup_teardown(test_headers_with_names_of_other_parameters_are_refused, start_forward_all, finish),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    nrd_str_fini(&reply);
    return rc;
}
