/* SPDX-License-Identifier: Apache-2.0
 * ModelInferRequest, however gRPC has cut it into slices: the same message, each raw content byte for
 * byte, every slice released once. What is given to the core is caught here instead. */
#include "frontends/grpc/infer.h"

#include <grpc/grpc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_RAW = 4, MB = 1 << 20 };

/* ---- what the core would get ---- */

static struct {
    uint8_t *data;
    size_t n, n_buffers;
} got;

TRITONSERVER_Error *TRITONSERVER_InferenceRequestAppendInputData(
    TRITONSERVER_InferenceRequest *request, const char *name, const void *base, size_t n,
    TRITONSERVER_MemoryType place, int64_t place_id)
{
    (void)request;
    (void)place;
    (void)place_id;
    assert_string_equal(name, "the input");
    got.data = nrd_xrealloc(got.data, got.n + n + 1);
    if (n) {
        memcpy(got.data + got.n, base, n);
    }
    got.n += n;
    got.n_buffers++;
    return NULL;
}

/* ---- messages ---- */

static uint64_t seed;

static size_t random_below(size_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (size_t)((seed >> 33) % n);
}

typedef struct text {
    uint8_t *p;
    size_t n;
} text;

static void put(text *t, const void *p, size_t n)
{
    t->p = nrd_xrealloc(t->p, t->n + n + 1);
    memcpy(t->p + t->n, p, n);
    t->n += n;
}

static void put_field(text *t, unsigned field, const void *p, size_t n)
{
    uint8_t head[12] = {(uint8_t)(field << 3 | 2)};
    size_t used = 1, v = n;
    for (; v >= 0x80; v >>= 7) {
        head[used++] = (uint8_t)(v | 0x80);
    }
    head[used++] = (uint8_t)v;
    put(t, head, used);
    put(t, p, n);
}

typedef struct sample {
    text whole;
    text raw[MAX_RAW];
    size_t n_raw;
} sample;

static sample make(const size_t *sizes, size_t n_raw)
{
    sample s = {.n_raw = n_raw};
    put_field(&s.whole, 1, "a model", 7);
    for (size_t k = 0; k < n_raw; k++) { /* other fields before, between and behind them */
        s.raw[k].n = sizes[k];
        s.raw[k].p = nrd_xmalloc(sizes[k] + 1);
        for (size_t i = 0; i < sizes[k]; i++) {
            s.raw[k].p[i] = (uint8_t)random_below(256);
        }
        put_field(&s.whole, 7, s.raw[k].p, s.raw[k].n);
        put_field(&s.whole, 5, "\x0a\x01i", 3); /* an input named i */
    }
    put_field(&s.whole, 3, "an id", 5);
    return s;
}

static void drop(sample *s)
{
    for (size_t k = 0; k < s->n_raw; k++) {
        free(s->raw[k].p);
    }
    free(s->whole.p);
}

/* ---- slices ---- */

static size_t n_alive;

static void released(void *p, size_t n)
{
    (void)n;
    n_alive--;
    free(p);
}

static grpc_byte_buffer *cut(const text *t, size_t longest)
{
    grpc_byte_buffer *b = grpc_raw_byte_buffer_create(NULL, 0);
    size_t at = 0;
    while (at < t->n) {
        size_t n = longest < t->n ? 1 + random_below(longest) : t->n;
        n = n < t->n - at ? n : t->n - at;
        uint8_t *copy = nrd_xmalloc(n);
        memcpy(copy, t->p + at, n);
        n_alive++;
        grpc_slice_buffer_add_indexed(&b->data.raw.slice_buffer,
                                      grpc_slice_new_with_len(copy, n, released));
        at += n;
    }
    return b;
}

/* ---- one inference without a server ---- */

static nrd_options options;
static nrd_grpc_service service = {.options = &options};
static nrd_grpc_call call = {.service = &service};

static void nothing(nrd_infer *i)
{
    (void)i;
}

static nrd_error *decode(nrd_grpc_infer *infer, grpc_byte_buffer *b)
{
    memset(infer, 0, sizeof *infer);
    nrd_infer_init(&infer->infer, NULL, nothing);
    infer->call = &call;
    grpc_slice_buffer_init(&infer->parts);
    nrd_error *err = nrd_grpc_infer_decode(infer, b);
    grpc_byte_buffer_destroy(b); /* as at the end of the call, which may be before the inference's */
    return err;
}

static void end(nrd_grpc_infer *infer)
{
    nrd_arena_fini(&infer->infer.arena);
    grpc_slice_buffer_destroy(&infer->parts);
    assert_int_equal(n_alive, 0);
}

static void expect(nrd_grpc_infer *infer, const sample *s, size_t k, TRITONSERVER_DataType type)
{
    got.n = got.n_buffers = 0;
    assert_null(nrd_grpc_infer_append_raw(infer, "the input", type, k));
    assert_int_equal(got.n, s->raw[k].n);
    assert_memory_equal(got.data, s->raw[k].p, s->raw[k].n);
}

static void check(const sample *s, size_t longest, bool in_one)
{
    nrd_grpc_infer infer;
    assert_null(decode(&infer, cut(&s->whole, longest)));
    const Inference__ModelInferRequest *m = infer.message;
    assert_string_equal(m->model_name, "a model");
    assert_string_equal(m->id, "an id");
    assert_int_equal(m->n_inputs, s->n_raw);
    assert_int_equal(m->n_raw_input_contents, s->n_raw);
    for (size_t k = 0; k < s->n_raw; k++) {
        expect(&infer, s, k, TRITONSERVER_TYPE_BYTES);
        assert_int_equal(got.n_buffers, 1);
        expect(&infer, s, k, TRITONSERVER_TYPE_FP32);
        if (in_one || s->raw[k].n <= MB) {
            assert_int_equal(got.n_buffers, 1);
        } else {
            assert_true(got.n_buffers > 1);
        }
    }
    end(&infer);
}

static void test_short_and_long_contents_in_slices_of_any_length(void **state)
{
    const size_t sizes[][MAX_RAW] = {{5, 0, 70000, 0}, {33000, 1, MB, MB + 1}, {2 * MB, 3 * MB, 0, 9}};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        sample s = make(sizes[i], MAX_RAW);
        check(&s, s.whole.n, true); /* one slice */
        check(&s, 100000, false);
        check(&s, 16384, false);
        check(&s, 12000, false);
        check(&s, 3000, true); /* small ones are put together first */
        drop(&s);
    }
}

static void test_typed_contents_are_read_as_ever(void **state)
{
    nrd_grpc_infer infer;
    text t = {0}, input = {0}, contents = {0};
    uint8_t *values = nrd_xcalloc(1, 4 * 20000);
    (void)state;
    values[4 * 19999] = 1;
    put_field(&contents, 6, values, 4 * 20000); /* fp32_contents */
    put_field(&input, 1, "x", 1);
    put_field(&input, 5, contents.p, contents.n);
    put_field(&t, 1, "a model", 7);
    put_field(&t, 5, input.p, input.n);
    assert_null(decode(&infer, cut(&t, 16384)));
    assert_int_equal(infer.message->n_raw_input_contents, 0);
    assert_int_equal(infer.message->inputs[0]->contents->n_fp32_contents, 20000);
    assert_true(infer.message->inputs[0]->contents->fp32_contents[19999] > 0);
    end(&infer);
    free(values);
    free(contents.p);
    free(input.p);
    free(t.p);
}

/* Cut off at any byte of its heads, or with a length that goes beyond the end. */
static void test_what_is_no_message_is_refused(void **state)
{
    const size_t sizes[] = {40000, 30000};
    sample s = make(sizes, 2);
    nrd_grpc_infer infer;
    (void)state;
    for (size_t less = 1; less < 12; less++) {
        text shorter = {s.whole.p, s.whole.n - less};
        nrd_error *err = decode(&infer, cut(&shorter, 16384));
        if (less != 7) { /* 7: just without its last field */
            assert_non_null(err);
            assert_null(infer.message);
        }
        nrd_error_free(err);
        end(&infer);
    }
    drop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_and_long_contents_in_slices_of_any_length),
        cmocka_unit_test(test_typed_contents_are_read_as_ever),
        cmocka_unit_test(test_what_is_no_message_is_refused),
    };
    grpc_init();
    options.grpc_max_message_bytes = 64 * MB;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(got.data);
    grpc_shutdown();
    return failed;
}
