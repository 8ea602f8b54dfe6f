/* SPDX-License-Identifier: Apache-2.0
 * An adapter's shares for the ranks of a model: which inputs and outputs each has, spelled out for a model of two
 * stages and two ranks each, with as many KV heads as ranks, and with fewer. */
#include "model/lora.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HIDDEN = 6, HEADS = 4, DIM = 2, INTER = 10, RANK = 3, MOST = 16 };
enum { QKV = 0, Q = 1, K = 2, V = 3, DENSE = 4, FC = 5, DOWN = 6, GATE = 7 };

static void ok(nrd_error *err)
{
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
}

static nrd_model_spec spec_of(int32_t n_kv_heads)
{
    return (nrd_model_spec){.n_layers = 4, .hidden = HIDDEN, .n_heads = HEADS, .n_kv_heads = n_kv_heads, .head_dim = DIM,
                            .inter = INTER, .gated_mlp = true, .tp_size = 2, .pp_size = 2};
}

/* A[r, i] = 1000 r + i and B[o, r] = 1000 r + 500 + o: a value says where it comes from. */
static nrd_lora *whole_adapter(const nrd_model_spec *spec, int32_t module)
{
    const nrd_lora_limits lim = {.max_rank = RANK};
    nrd_lora_pair_in pairs[4];
    float a[RANK * MOST], b[RANK * MOST];
    nrd_lora *l = NULL;
    int64_t in, out;

    assert_true(nrd_lora_module_dims(spec, 0, module, &in, &out) && in <= MOST && out <= MOST);
    for (int32_t r = 0; r < RANK; r++) {
        for (int64_t i = 0; i < in; i++) {
            a[r * in + i] = (float)(1000 * r + i);
        }
        for (int64_t o = 0; o < out; o++) {
            b[o * RANK + r] = (float)(1000 * r + 500 + o);
        }
    }
    for (int32_t layer = 0; layer < 4; layer++) {
        pairs[layer] = (nrd_lora_pair_in){.module = module, .layer = layer, .rank = RANK, .dtype = NRD_DTYPE_F32,
                                          .scale = (float)layer + 1, .in = in, .out = out, .a = a, .b = b};
    }
    ok(nrd_lora_make(&l, spec, &lim, pairs, 4));
    return l;
}

/* want: which inputs or outputs, ended by -1. */
static void assert_side(const float *x, int64_t n, int32_t base, const int32_t *want)
{
    int64_t count = 0;
    while (want[count] >= 0) {
        count++;
    }
    assert_int_equal(n, count);
    for (int32_t r = 0; r < RANK; r++) {
        for (int64_t i = 0; i < n; i++) {
            assert_int_equal((int32_t)x[r * n + i], 1000 * r + base + want[i]);
        }
    }
}

static const int32_t all_hidden[] = {0, 1, 2, 3, 4, 5, -1};

/* want: of ranks 0 and 1 of a stage. */
static void check(const nrd_model_spec *spec, int32_t module, bool of_inputs, const int32_t want[2][MOST])
{
    nrd_lora *l = whole_adapter(spec, module);

    for (int32_t rank = 0; rank < 4; rank++) {
        nrd_lora *share = NULL;
        ok(nrd_lora_cut(&share, l, spec, rank));
        assert_int_equal(share->n_rows, 2);
        assert_memory_equal(share->hash, l->hash, sizeof l->hash);
        for (int32_t i = 0; i < 2; i++) {
            const nrd_lora_row *r = &share->rows[i];
            assert_int_equal(r->layer, i);
            assert_int_equal((int32_t)r->scale, 1 + i + 2 * (rank / 2)); /* of the stage's layers */
            assert_side(r->a, r->in, 0, of_inputs ? want[rank % 2] : all_hidden);
            assert_side(r->b, r->out, 500, of_inputs ? all_hidden : want[rank % 2]);
            assert_int_equal((uintptr_t)r->a % NRD_LORA_ALIGN, 0);
            assert_int_equal((uintptr_t)r->b % NRD_LORA_ALIGN, 0);
        }
        nrd_lora_free(share);
    }
    nrd_lora_free(l);
}

static const int32_t heads[2][MOST] = {{0, 1, 2, 3, -1}, {4, 5, 6, 7, -1}};
static const int32_t columns[2][MOST] = {{0, 1, 2, 3, 4, -1}, {5, 6, 7, 8, 9, -1}};

static void test_outputs_of_heads_and_mlp_go_to_their_ranks(void **state)
{
    const nrd_model_spec spec = spec_of(2);
    const int32_t kv[2][MOST] = {{0, 1, -1}, {2, 3, -1}};
    const int32_t qkv[2][MOST] = {{0, 1, 2, 3, 8, 9, 12, 13, -1}, {4, 5, 6, 7, 10, 11, 14, 15, -1}};
    (void)state;
    check(&spec, Q, false, heads);
    check(&spec, K, false, kv);
    check(&spec, V, false, kv);
    check(&spec, QKV, false, qkv);
    check(&spec, FC, false, columns);
    check(&spec, GATE, false, columns);
}

static void test_inputs_of_the_products_that_are_summed_go_to_their_ranks(void **state)
{
    const nrd_model_spec spec = spec_of(2);
    (void)state;
    check(&spec, DENSE, true, heads);
    check(&spec, DOWN, true, columns);
}

static void test_a_kv_head_of_which_there_are_too_few_goes_to_several(void **state)
{
    const nrd_model_spec spec = spec_of(1);
    const int32_t kv[2][MOST] = {{0, 1, -1}, {0, 1, -1}};
    const int32_t qkv[2][MOST] = {{0, 1, 2, 3, 8, 9, 10, 11, -1}, {4, 5, 6, 7, 8, 9, 10, 11, -1}};
    (void)state;
    check(&spec, K, false, kv);
    check(&spec, V, false, kv);
    check(&spec, QKV, false, qkv);
}

static void test_a_stage_without_any_of_its_layers_has_no_rows(void **state)
{
    const nrd_model_spec spec = spec_of(2);
    nrd_lora *l = whole_adapter(&spec, Q), *share = NULL;
    (void)state;
    l->n_rows = 2; /* layers 0 and 1: the first stage's */
    ok(nrd_lora_cut(&share, l, &spec, 3));
    assert_int_equal(share->n_rows, 0);
    assert_int_equal(share->bytes, 0);
    nrd_lora_free(share);
    nrd_lora_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outputs_of_heads_and_mlp_go_to_their_ranks),
        cmocka_unit_test(test_inputs_of_the_products_that_are_summed_go_to_their_ranks),
        cmocka_unit_test(test_a_kv_head_of_which_there_are_too_few_goes_to_several),
        cmocka_unit_test(test_a_stage_without_any_of_its_layers_has_no_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
