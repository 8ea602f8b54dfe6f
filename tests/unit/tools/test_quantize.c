/* SPDX-License-Identifier: Apache-2.0
 * The methods of nereid quantize on small matrices, held against sums over all inputs. */
#include "tools/quantize/awq.h"
#include "tools/quantize/cache.h"
#include "tools/quantize/gptq.h"
#include "tools/quantize/lanes.c"
#include "tools/quantize/nearest.h"
#include "tools/quantize/pack.h"
#include "tools/quantize/refine.h"
#include "tools/quantize/smooth.h"
#include "tools/quantize/together.h"

#include "model/quant/quant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 24, COLS = 160, TOKENS = 200 };

static nrd_qmath *math_;
static float w[ROWS * COLS], x[TOKENS * COLS];

static void ok(nrd_error *err)
{
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
}

/* About normal, the same every time. */
static float noise(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 6; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*state >> 40) / (float)(1 << 24) - 0.5f;
    }
    return sum * 1.414f;
}

/* Inputs with a few large columns that go along with others, as in real models. */
static int setup(void **state)
{
    uint64_t seed = 7;
    (void)state;
    for (int i = 0; i < ROWS * COLS; i++) {
        w[i] = noise(&seed);
    }
    for (int t = 0; t < TOKENS; t++) {
        const float common = noise(&seed);
        for (int c = 0; c < COLS; c++) {
            x[t * COLS + c] = (noise(&seed) + common) * (c % 16 == 3 ? 20.0f : 1.0f);
        }
    }
    nrd_error *err = nrd_qmath_open(&math_, "cpu", 2, 0, 1);
    return err != NULL;
}

static int teardown(void **state)
{
    (void)state;
    nrd_qmath_close(math_);
    return 0;
}

static nrd_qinput seen(void)
{
    nrd_qinput in = {0};
    ok(nrd_qinput_add(&in, math_, x, NRD_DTYPE_F32, 150, COLS));
    ok(nrd_qinput_add(&in, math_, x + 150 * COLS, NRD_DTYPE_F32, TOKENS - 150, COLS));
    ok(nrd_qinput_finish(&in, math_));
    return in;
}

/* |x (q - w)^T|^2, token by token; the columns of q were multiplied by s, and x is not divided. */
static double off_by(const nrd_qgrid *g, const nrd_qrows *q, const float *s)
{
    double sum = 0;
    float row[COLS];
    for (int r = 0; r < ROWS; r++) {
        nrd_qgrid_row(g, q, r, row);
        for (int t = 0; t < TOKENS; t++) {
            double y = 0;
            for (int c = 0; c < COLS; c++) {
                y += (double)x[t * COLS + c] * (double)(row[c] / (s ? s[c] : 1) - w[r * COLS + c]);
            }
            sum += y * y;
        }
    }
    return sum;
}

/* Scale and zero of one group. */
static void fit(const nrd_qgrid *g, const float *v, int64_t n, const float *importance, float *scale, uint8_t *zero)
{
    nrd_qrows q;
    ok(nrd_qrows_init(&q, g, 1, n));
    assert_int_equal(q.n_groups, 1);
    nrd_qrows_round(g, v, importance, 0, 1, &q);
    *scale = q.scales[0];
    *zero = q.zeros[0];
    nrd_qrows_fini(&q);
}

static double rounded_off_by(const nrd_qgrid *g, const float *s)
{
    nrd_qrows q;
    float row[COLS];
    ok(nrd_qrows_init(&q, g, ROWS, COLS));
    for (int r = 0; r < ROWS; r++) {
        for (int c = 0; c < COLS; c++) {
            row[c] = w[r * COLS + c] * (s ? s[c] : 1);
        }
        nrd_qrows_round(g, row, NULL, r, 1, &q);
    }
    const double e = off_by(g, &q, s);
    nrd_qrows_fini(&q);
    return e;
}

static const nrd_qgrid grids[] = {
    {.bits = 4, .group = 32, .scale_dtype = NRD_DTYPE_F32},
    {.bits = 4, .symmetric = true, .group = 32, .scale_dtype = NRD_DTYPE_BF16},
    {.bits = 8, .symmetric = true, .group = NRD_QGRID_ROWS, .scale_dtype = NRD_DTYPE_F16},
};

static void numbers_are_half_a_step_away_at_most(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        const nrd_qgrid *g = &grids[i];
        nrd_qrows q;
        float row[COLS];
        ok(nrd_qrows_init(&q, g, ROWS, COLS));
        for (int r = 0; r < ROWS; r++) {
            nrd_qrows_round(g, w + r * COLS, NULL, r, 1, &q);
            nrd_qgrid_row(g, &q, r, row);
            for (int c = 0; c < COLS; c++) {
                /* the ends of a range may be cut, or moved to the next whole zero, by up to a step */
                const float scale = q.scales[r * q.n_groups + c / (COLS / q.n_groups)];
                assert_true(fabsf(row[c] - w[r * COLS + c]) <= scale * 1.01f);
            }
        }
        nrd_qrows_fini(&q);
    }
}

/* Whatever texts say of a column: its input is large where none of them looked. */
static void eight_bits_cut_no_number_off(void **state)
{
    const nrd_qgrid g = {.bits = 8, .symmetric = true, .group = NRD_QGRID_ROWS, .scale_dtype = NRD_DTYPE_F16};
    float v[COLS], importance[COLS], scale;
    uint8_t zero;

    (void)state;
    for (int c = 0; c < COLS; c++) {
        v[c] = c == 7 ? 3 : 0.01f * (float)(c % 13 - 6);
        importance[c] = c == 7 ? 1e-6f : 1;
    }
    fit(&g, v, COLS, importance, &scale, &zero);
    assert_true(fabsf(127 * scale - 3) <= scale);
}

/* MXFP4, NVFP4, MXFP8: what the scale may be, and that the largest numbers keep within it. */
static void small_groups_of_floats_have_scales_of_few_bits(void **state)
{
    static const nrd_qgrid small[] = {
        {.bits = 4, .is_float = true, .symmetric = true, .group = 32, .scale_dtype = NRD_DTYPE_U8},
        {.bits = 4, .is_float = true, .symmetric = true, .group = 16, .scale_dtype = NRD_DTYPE_F8_E4M3, .scale_unit = 0.003f},
        {.bits = 8, .is_float = true, .symmetric = true, .group = 32, .scale_dtype = NRD_DTYPE_U8},
    };
    const float exact[8] = {0, 0.5f, -1, 1.5f, -2, 3, 4, -6};
    (void)state;
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        const nrd_qgrid *g = &small[i];
        const float off = g->bits == 4 ? 1.01f : 32.01f; /* half of the largest step */
        float row[COLS], scale = 0;
        uint8_t zero = 1;
        nrd_qrows q;
        ok(nrd_qrows_init(&q, g, ROWS, COLS));
        for (int r = 0; r < ROWS; r++) {
            nrd_qrows_round(g, w + r * COLS, NULL, r, 1, &q);
            nrd_qgrid_row(g, &q, r, row);
            for (int c = 0; c < COLS; c++) {
                scale = q.scales[r * q.n_groups + c / g->group];
                assert_true(fabsf(row[c] - w[r * COLS + c]) <= scale * off);
                assert_true(nrd_qgrid_scale(g, scale) == scale || g->scale_dtype == NRD_DTYPE_U8);
            }
        }
        int exponent;
        assert_true(g->scale_dtype != NRD_DTYPE_U8 || frexpf(scale, &exponent) == 0.5f);
        for (int k = 0; k < 8; k++) {
            assert_true(nrd_qgrid_number(g, nrd_qgrid_code(g, exact[k] * scale, scale, 0), scale, 0) == exact[k] * scale);
        }
        const float zeros[8] = {0};
        fit(g, zeros, 8, NULL, &scale, &zero);
        assert_true(scale > 0 && zero == 0);
        nrd_qrows_fini(&q);
    }
}

static void blocks_share_the_scale_of_their_largest_number(void **state)
{
    const nrd_qgrid block = {.bits = 8, .is_float = true, .symmetric = true, .group = 48, .row_group = 5};
    nrd_qrows q;
    (void)state;
    ok(nrd_qrows_init(&q, &block, ROWS, COLS));
    nrd_qgrid_round_blocks(&block, w, 0, nrd_qgrid_n_row_groups(&block, &q), &q);
    for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < q.n_groups; k++) {
            float most = 0;
            for (int i = r / 5 * 5; i < ROWS && i < r / 5 * 5 + 5; i++) {
                for (int c = k * 48; c < COLS && c < k * 48 + 48; c++) {
                    most = fmaxf(most, fabsf(w[i * COLS + c]));
                }
            }
            assert_true(fabsf(q.scales[r * q.n_groups + k] * 448 / most - 1) < 1e-3f);
        }
    }
    nrd_qrows_fini(&q);
}

static double fit_off_by(const nrd_qgrid *g, const float *v, int n, const float *importance, float scale, uint8_t zero)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const double d = (double)(nrd_qgrid_number(g, nrd_qgrid_code(g, v[i], scale, zero), scale, zero) - v[i]);
        sum += d * d * (double)importance[i];
    }
    return sum;
}

static void importance_only_improves_what_matters(void **state)
{
    const nrd_qgrid *g = &grids[0];
    float importance[32], scale;
    uint8_t zero;
    (void)state;
    for (int i = 0; i < 32; i++) {
        importance[i] = i % 5 == 0 ? 100 : 0.01f;
    }
    for (int r = 0; r < ROWS; r++) {
        const float *v = w + r * COLS;
        fit(g, v, 32, NULL, &scale, &zero);
        const double plain = fit_off_by(g, v, 32, importance, scale, zero);
        fit(g, v, 32, importance, &scale, &zero);
        assert_true(fit_off_by(g, v, 32, importance, scale, zero) <= plain * 1.0001);
    }
}

/* Codes are the nearest ones, also where the last group of 16 rows is not whole. */
static void rows_together_are_as_each_alone(void **state)
{
    float importance[COLS];
    (void)state;
    for (int c = 0; c < COLS; c++) {
        importance[c] = (float)(1 + c % 7);
    }
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        const nrd_qgrid *g = &grids[i];
        nrd_qrows all, one;
        ok(nrd_qrows_init(&all, g, ROWS, COLS));
        ok(nrd_qrows_init(&one, g, ROWS, COLS));
        nrd_qrows_round(g, w, importance, 0, ROWS, &all);
        for (int r = 0; r < ROWS; r++) {
            nrd_qrows_round(g, w + r * COLS, importance, r, 1, &one);
        }
        assert_memory_equal(all.codes, one.codes, ROWS * COLS);
        assert_memory_equal(all.scales, one.scales, (size_t)(ROWS * all.n_groups) * sizeof *all.scales);
        for (int at = 0; at < ROWS * COLS; at++) {
            const int64_t k = at / COLS * all.n_groups + at % COLS / (COLS / all.n_groups);
            assert_int_equal(all.codes[at], nrd_qgrid_code(g, w[at], all.scales[k], all.zeros[k]));
        }
        nrd_qrows_fini(&all);
        nrd_qrows_fini(&one);
    }
}

static void fill_block(nrd_lane_block *b, float *corner, int64_t group)
{
    uint64_t seed = 11;
    *b = (nrd_lane_block){.width = 96, .group = group, .corner = corner};
    for (int i = 0; i < NRD_QBLOCK * NRD_QBLOCK; i++) {
        corner[i] = i / NRD_QBLOCK == i % NRD_QBLOCK ? 2 : 0.2f * noise(&seed);
    }
    for (int i = 0; i < NRD_QBLOCK; i++) {
        for (int k = 0; k < NRD_QLANES; k++) {
            b->x[i][k] = 0.1f * noise(&seed);
            b->w[i][k] = noise(&seed);
            b->codes[i][k] = (float)(i * 5 % 16);
            b->scale[i][k] = 0.125f + 0.01f * (float)k;
            b->zero[i][k] = (float)(k % 3 + 6);
        }
    }
}

/* Whatever instruction set a processor has, a folder is the same. */
static void processors_agree_to_the_bit(void **state)
{
    static float corner[NRD_QBLOCK * NRD_QBLOCK];
    static nrd_lane_block is, should;
    const nrd_lane_ops *best = nrd_lane_ops_best();
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        fill_block(&should, corner, grids[i].group);
        is = should;
        ops_any.round(&grids[i], &should);
        best->round(&grids[i], &is);
        assert_memory_equal(&is, &should, sizeof is);
        fill_block(&should, corner, grids[i].group);
        is = should;
        ops_any.move(&grids[i], &should, true);
        best->move(&grids[i], &is, true);
        assert_memory_equal(&is, &should, sizeof is);
        ops_any.move(&grids[i], &should, false);
        best->move(&grids[i], &is, false);
        assert_memory_equal(&is, &should, sizeof is);
    }
}

static void grids_of_nothing_have_a_scale(void **state)
{
    const float zeros[8] = {0};
    float scale = 0;
    uint8_t zero = 1;
    (void)state;
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        fit(&grids[i], zeros, 8, NULL, &scale, &zero);
        assert_true(scale > 0);
        assert_true(nrd_qgrid_number(&grids[i], nrd_qgrid_code(&grids[i], 0, scale, zero), scale, zero) == 0);
    }
}

static void gram_matrix_tells_the_error_of_products(void **state)
{
    nrd_qmatrix gram;
    nrd_qinput in = seen();
    nrd_qrows q;
    float off[ROWS * COLS];
    double e;
    (void)state;
    for (int i = 0; i < 5; i++) {
        double sum = 0;
        for (int t = 0; t < TOKENS; t++) {
            sum += (double)x[t * COLS + i] * (double)x[t * COLS + 19];
        }
        assert_true(fabs((double)in.gram[i * COLS + 19] - sum) < 1e-3 * (1 + fabs(sum)));
    }
    ok(nrd_qrows_init(&q, &grids[0], ROWS, COLS));
    for (int r = 0; r < ROWS; r++) {
        nrd_qrows_round(&grids[0], w + r * COLS, NULL, r, 1, &q);
        nrd_qgrid_row(&grids[0], &q, r, off + r * COLS);
    }
    for (int i = 0; i < ROWS * COLS; i++) {
        off[i] -= w[i];
    }
    ok(nrd_qmatrix_load(math_, in.gram, COLS, COLS, &gram));
    ok(nrd_qmath_error(math_, off, ROWS, &gram, &e));
    nrd_qmatrix_unload(math_, &gram);
    const double direct = off_by(&grids[0], &q, NULL);
    assert_true(fabs(e - direct) < 1e-3 * direct);
    nrd_qrows_fini(&q);
    nrd_qinput_fini(&in, math_);
}

static void awq_scales_make_the_products_better(void **state)
{
    nrd_qinput in = seen();
    const nrd_qproducts p = {.n = 1, .w = {w}, .rows = {ROWS}, .cols = COLS};
    float s[COLS];
    double exponent = -1;
    (void)state;
    ok(nrd_awq_scales(math_, &grids[0], &p, &in, s, &exponent));
    assert_true(exponent > 0);
    assert_true(s[3] > s[4]); /* a large column is protected */
    assert_true(rounded_off_by(&grids[0], s) < 0.8 * rounded_off_by(&grids[0], NULL));
    nrd_qinput_fini(&in, math_);
}

/* To the nearest of 255 numbers whose largest is the largest of x. */
static void to_int8(const float *row, const float *by, float *out)
{
    float most = 0;
    for (int c = 0; c < COLS; c++) {
        most = fmaxf(most, fabsf(row[c] * by[c]));
    }
    for (int c = 0; c < COLS; c++) {
        out[c] = roundf(row[c] * by[c] / most * 127) * most / 127;
    }
}

/* The products of rounded x / s and rounded w s, each token by its size. */
static double both_off_by(const float *inputs, const float *s)
{
    static float rw[ROWS * COLS];
    float rx[COLS], inverse[COLS];
    double sum = 0;
    for (int c = 0; c < COLS; c++) {
        inverse[c] = 1 / s[c];
    }
    for (int r = 0; r < ROWS; r++) {
        to_int8(w + r * COLS, s, rw + r * COLS);
    }
    for (int t = 0; t < TOKENS; t++) {
        double size = 0, off = 0;
        to_int8(inputs + t * COLS, inverse, rx);
        for (int r = 0; r < ROWS; r++) {
            double d = 0;
            for (int c = 0; c < COLS; c++) {
                d += (double)rx[c] * (double)rw[r * COLS + c] - (double)inputs[t * COLS + c] * (double)w[r * COLS + c];
            }
            off += d * d;
        }
        for (int c = 0; c < COLS; c++) {
            size += (double)inputs[t * COLS + c] * (double)inputs[t * COLS + c];
        }
        sum += off / size;
    }
    return sum;
}

static nrd_qinput seen_rows(int times)
{
    nrd_qinput in = {.keeps_rows = true};
    for (int i = 0; i < times; i++) {
        ok(nrd_qinput_add(&in, math_, x, NRD_DTYPE_F32, 70, COLS));
        ok(nrd_qinput_add(&in, math_, x + 70 * COLS, NRD_DTYPE_F32, TOKENS - 70, COLS));
    }
    ok(nrd_qinput_finish(&in, math_));
    return in;
}

static void rows_are_kept_evenly(void **state)
{
    (void)state;
    for (int times = 1; times <= 11; times += 5) {
        const int step = times == 1 ? 1 : times == 6 ? 4 : 8;
        nrd_qinput in = seen_rows(times);
        assert_int_equal(in.n_rows, (times * TOKENS + step - 1) / step);
        for (int i = 0; i < in.n_rows; i++) {
            assert_memory_equal(in.rows + i * COLS, x + i * step % TOKENS * COLS, COLS * sizeof *x);
        }
        nrd_qinput_fini(&in, math_);
    }
}

/* SmoothQuant's scales follow the largest number of a column, though it may be that of one token; the search sees that other
 * tokens do not have it. */
static void searched_scales_are_better_by_as_much_as_they_say(void **state)
{
    static float few[TOKENS * COLS];
    nrd_qinput in = {.keeps_rows = true};
    const nrd_qproducts p = {.n = 2, .w = {w, w + 8 * COLS}, .rows = {8, ROWS - 8}, .cols = COLS};
    const nrd_qsmoothing how = {.gptq = false};
    float s[COLS], half[COLS];
    double share = 0;
    (void)state;
    memcpy(few, x, sizeof few);
    for (int c = 0; c < COLS / 2; c++) {
        few[(c % 8) * COLS + c] *= 40;
    }
    ok(nrd_qinput_add(&in, math_, few, NRD_DTYPE_F32, TOKENS, COLS));
    ok(nrd_qinput_finish(&in, math_));
    ok(nrd_smooth_scales(&p, &in, 0.5, half));
    ok(nrd_smooth_search(math_, &p, &in, &how, s, &share));
    const double is = both_off_by(few, s) / both_off_by(few, half);
    assert_true(share < 0.4 && is < 0.4);
    assert_true(fabs(is - share) < 0.08);
    nrd_qinput_fini(&in, math_);
}

/* One scale for all tokens, or for all rows: the large numbers of other tokens and rows count, too. */
static void searched_scales_know_what_shares_a_scale(void **state)
{
    nrd_qinput in = seen_rows(1);
    const nrd_qproducts p = {.n = 1, .w = {w}, .rows = {ROWS}, .cols = COLS};
    const nrd_qsmoothing ways[] = {{0}, {.one_input_scale = true}, {.one_weight_scale = true}, {.gptq = true}};
    float s[4][COLS], most_x[4] = {0}, most_w[4] = {0};
    double share;
    (void)state;
    for (int i = 0; i < 4; i++) {
        ok(nrd_smooth_search(math_, &p, &in, &ways[i], s[i], &share));
        assert_true(share <= 1);
        for (int c = 0; c < COLS; c++) {
            most_x[i] = fmaxf(most_x[i], in.max_abs[c] / s[i][c]);
            for (int r = 0; r < ROWS; r++) {
                most_w[i] = fmaxf(most_w[i], fabsf(w[r * COLS + c]) * s[i][c]);
            }
        }
    }
    assert_true(most_x[1] < 0.9f * most_x[0]);
    assert_true(most_w[2] < 0.9f * most_w[0]);
    assert_true(most_x[3] < most_x[0] && most_w[3] > most_w[0]); /* weights bear more */
    nrd_qinput_fini(&in, math_);
}

static void columns_that_share_a_maker_get_one_scale(void **state)
{
    nrd_qinput in = seen_rows(1);
    int32_t shared[COLS];
    float s[COLS];
    double exponent;
    (void)state;
    for (int c = 0; c < COLS; c++) {
        shared[c] = c % (COLS / 2);
    }
    const nrd_qproducts p = {.n = 1, .w = {w}, .rows = {ROWS}, .cols = COLS, .shared = shared, .n_shared = COLS / 2};
    ok(nrd_awq_scales(math_, &grids[0], &p, &in, s, &exponent));
    for (int c = 0; c < COLS / 2; c++) {
        assert_true(s[c] == s[c + COLS / 2]);
    }
    ok(nrd_smooth_scales(&p, &in, 0.5, s));
    for (int c = 0; c < COLS / 2; c++) {
        assert_true(s[c] == s[c + COLS / 2] && s[c] > 0);
    }
    assert_true(s[3] > 2 * s[4]);
    const nrd_qsmoothing how = {0};
    ok(nrd_smooth_search(math_, &p, &in, &how, s, &exponent));
    for (int c = 0; c < COLS / 2; c++) {
        assert_true(s[c] == s[c + COLS / 2] && s[c] > 0);
    }
    assert_true(exponent <= 1 && s[3] > 2 * s[4]);
    nrd_qinput_fini(&in, math_);
}

static void columns_without_input_do_not_move_the_others(void **state)
{
    nrd_qinput in = seen();
    const nrd_qproducts p = {.n = 1, .w = {w}, .rows = {ROWS}, .cols = COLS};
    float s[2][COLS];
    double exponent, sums[2] = {0};
    (void)state;
    for (int c = 0; c < COLS; c++) {
        in.gram[5 * COLS + c] = in.gram[c * COLS + 5] = 0;
    }
    in.sum_abs[5] = in.max_abs[5] = 0;
    ok(nrd_awq_scales(math_, &grids[0], &p, &in, s[0], &exponent));
    assert_true(exponent > 0);
    ok(nrd_smooth_scales(&p, &in, 0.5, s[1]));
    for (int i = 0; i < 2; i++) {
        for (int c = 0; c < COLS; c++) {
            assert_true(s[i][c] > 0);
            sums[i] += c == 5 ? 0 : log((double)s[i][c]);
        }
        assert_true(fabs(sums[i]) < 1e-3 * COLS);
    }
    nrd_qinput_fini(&in, math_);
}

static void gptq_factor_is_that_of_the_gram_matrix(void **state)
{
    nrd_qinput in = seen();
    nrd_gptq q;
    (void)state;
    ok(nrd_gptq_init(&q, math_, in.gram, COLS, 0.01, true));
    for (int i = 0; i < COLS; i++) {
        assert_true(i == 0 || q.importance[q.order[i]] >= q.importance[q.order[i - 1]]);
    }
    for (int i = 0; i < COLS; i++) { /* U^T U */
        for (int k = 0; k <= i; k++) {
            const double raise = i == k ? (double)q.raise[q.order[i]] : 0;
            const double want = (double)in.gram[(int64_t)q.order[i] * COLS + q.order[k]] + raise;
            double sum = 0;
            for (int r = 0; r <= k; r++) {
                sum += (double)q.factor.p[r * COLS + i] * (double)q.factor.p[r * COLS + k];
            }
            const double size = sqrt((double)q.importance[q.order[i]] * (double)q.importance[q.order[k]]);
            assert_true(fabs(sum - want) < 1e-4 * size);
        }
    }
    nrd_gptq_fini(&q, math_);
    nrd_qinput_fini(&in, math_);
}

static void gptq_makes_the_products_better(void **state)
{
    nrd_qinput in = seen();
    (void)state;
    for (int by_size = 0; by_size < 2; by_size++) {
        nrd_gptq q;
        nrd_qrows rows;
        ok(nrd_gptq_init(&q, math_, in.gram, COLS, 0.01, by_size));
        ok(nrd_qrows_init(&rows, &grids[1], ROWS, COLS));
        ok(nrd_gptq_round(&q, math_, &grids[1], w, ROWS, &rows));
        assert_true(off_by(&grids[1], &rows, NULL) < 0.5 * rounded_off_by(&grids[1], NULL));
        nrd_qrows_fini(&rows);
        nrd_gptq_fini(&q, math_);
    }
    nrd_qinput_fini(&in, math_);
}

/* d (G + raise) d, summed over rows: what refining makes smaller. */
static double sum_with_raise(const nrd_qgrid *g, const nrd_qrows *q, const float *raise)
{
    double sum = off_by(g, q, NULL);
    float row[COLS];
    for (int r = 0; r < ROWS; r++) {
        nrd_qgrid_row(g, q, r, row);
        for (int c = 0; c < COLS; c++) {
            const double d = (double)(row[c] - w[r * COLS + c]);
            sum += (double)raise[c] * d * d;
        }
    }
    return sum;
}

static void refining_makes_products_better_on_every_grid(void **state)
{
    static const nrd_qgrid more[] = {
        {.bits = 8, .is_float = true, .symmetric = true, .group = NRD_QGRID_ROWS, .scale_dtype = NRD_DTYPE_F32},
        {.bits = 4, .symmetric = true, .group = 64, .scale_dtype = NRD_DTYPE_F32}, /* the last group is shorter */
    };
    nrd_qinput in = seen();
    nrd_gptq f;
    (void)state;
    ok(nrd_gptq_init(&f, math_, in.gram, COLS, 0.01, true));
    assert_true(f.raise[0] > 0);
    for (size_t i = 0; i < sizeof grids / sizeof *grids + sizeof more / sizeof *more; i++) {
        const size_t n = sizeof grids / sizeof *grids;
        const nrd_qgrid *g = i < n ? &grids[i] : &more[i - n];
        nrd_qrows q;
        ok(nrd_qrows_init(&q, g, ROWS, COLS));
        ok(nrd_gptq_round(&f, math_, g, w, ROWS, &q));
        const double before = sum_with_raise(g, &q, f.raise);
        ok(nrd_qrefine(math_, g, w, in.gram, f.raise, &q));
        const double after = sum_with_raise(g, &q, f.raise);
        assert_true(after < 0.95 * before);
        /* no single code is better one step away, and no scale one per cent away, but for what five rounds leave */
        for (int r = 0; r < ROWS; r += 5) {
            float *scale = &q.scales[r * q.n_groups], was = *scale;
            for (int sign = -1; sign < 2; sign += 2) {
                *scale = was * (1 + 0.01f * (float)sign);
                assert_true(sum_with_raise(g, &q, f.raise) > after * (1 - 1e-4));
                *scale = was;
                uint8_t *code = &q.codes[r * COLS + 17];
                if (!g->is_float && (sign < 0 ? *code > 0 : *code < (1 << g->bits) - 1)) {
                    *code = (uint8_t)(*code + sign);
                    assert_true(sum_with_raise(g, &q, f.raise) > after * (1 - 1e-4));
                    *code = (uint8_t)(*code - sign);
                }
            }
        }
        nrd_qrows_fini(&q);
    }
    nrd_gptq_fini(&f, math_);
    nrd_qinput_fini(&in, math_);
}

/* 48 % of it would go if the column counted by its inputs alone. */
static void gptq_cuts_little_off_a_large_weight_whose_input_was_small(void **state)
{
    static float gram[COLS * COLS];
    float v[COLS], row[COLS];
    nrd_gptq q;
    nrd_qrows rows;

    (void)state;
    for (int c = 0; c < COLS; c++) {
        v[c] = c == 7 ? 1.2f : 0.05f * (float)(c % 13 - 6);
        gram[c * COLS + c] = c == 7 ? 1e-4f : 1;
    }
    ok(nrd_gptq_init(&q, math_, gram, COLS, 0.01, true));
    ok(nrd_qrows_init(&rows, &grids[1], 1, COLS));
    ok(nrd_gptq_round(&q, math_, &grids[1], v, 1, &rows));
    nrd_qgrid_row(&grids[1], &rows, 0, row);
    assert_true(fabsf(row[7] - v[7]) < 0.3f);
    nrd_qrows_fini(&rows);
    nrd_gptq_fini(&q, math_);
}

static void gptq_refuses_what_is_no_number_and_takes_what_is_nothing(void **state)
{
    float gram[4] = {1, 0, 0, NAN};
    nrd_gptq q;
    (void)state;
    nrd_error *err = nrd_gptq_init(&q, math_, gram, 2, 0.01, true);
    assert_non_null(err);
    nrd_error_free(err);
    memset(gram, 0, sizeof gram);
    ok(nrd_gptq_init(&q, math_, gram, 2, 0.01, true));
    nrd_gptq_fini(&q, math_);
}

/* Two heads of six channels, of which four turn: by halves (0 with 2, 1 with 3) or as neighbours (0 with 1, 2 with 3). */
static void cache_of(nrd_qcache *c, nrd_rope_kind kind, int32_t layer)
{
    static const float keys[2][12] = {{3, 0, 4, 1, 5, 0.5f, 6, 8, 8, 6, 0.25f, 0}, {0, -2, 0, 0, -7, 0, 0, 0, 0, 0, 0, 0}};
    static nrd_model_spec m = {.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 6, .layer_has_no_rope = {0, 1}};
    m.rope.kind = kind;
    m.rope.rotary_dim = 4;
    ok(nrd_qcache_init(c, &m, layer));
    nrd_qcache_add(c, 2, 12, keys[0], keys[0]);
}

static void a_pair_that_turns_is_as_long_as_it_ever_gets(void **state)
{
    static const float halves[12] = {5, 2, 5, 2, 7, 0.5f, 10, 10, 10, 10, 0.25f, 0};
    static const float neighbours[12] = {3, 3, 4.1231055f, 4.1231055f, 7, 0.5f, 10, 10, 10, 10, 0.25f, 0};
    static const float alone[12] = {3, 2, 4, 1, 7, 0.5f, 6, 8, 8, 6, 0.25f, 0};
    const float *const want[] = {halves, neighbours, alone, alone};
    const nrd_rope_kind kinds[] = {NRD_ROPE_NEOX, NRD_ROPE_INTERLEAVED, NRD_ROPE_NONE, NRD_ROPE_NEOX};
    (void)state;
    for (int i = 0; i < 4; i++) {
        nrd_qcache c;
        cache_of(&c, kinds[i], i == 3);
        for (int d = 0; d < 12; d++) {
            assert_float_equal(c.keys[d], want[i][d], 1e-5);
            assert_float_equal(c.values[d], alone[d], 1e-6);
        }
        nrd_qcache_fini(&c);
    }
}

static void even_channels_go_equally_far(void **state)
{
    float s[12];
    nrd_qcache c;
    (void)state;
    cache_of(&c, NRD_ROPE_NEOX, 0);
    const float before[] = {c.keys[0], c.keys[5], c.values[4], c.values[7]};
    nrd_qcache_even_keys(&c, false, s);
    for (int d = 0; d < 11; d++) {
        assert_float_equal(c.keys[d], c.keys[0], 1e-5);
    }
    assert_float_equal(c.keys[11], 0, 0); /* of a channel that is always 0 nothing is asked */
    assert_true(s[0] * c.keys[0] - before[0] < 1e-5f && s[5] * c.keys[5] - before[1] < 1e-5f && s[0] == s[2] && s[1] == s[3]);
    nrd_qcache_even_values(&c, s);
    for (int d = 0; d < 11; d++) {
        assert_float_equal(c.values[d], c.values[0], 1e-5);
    }
    assert_float_equal(s[4] * c.values[4], before[2], 1e-5);
    assert_float_equal(s[7] * c.values[7], before[3], 1e-5);
    nrd_qcache_fini(&c);
    cache_of(&c, NRD_ROPE_NEOX, 0);
    nrd_qcache_even_keys(&c, true, s); /* one number for both heads: the larger decides */
    assert_float_equal(s[0] * nrd_qcache_range(c.keys, 12), 10, 1e-4);
    assert_float_equal(c.keys[6], c.keys[4], 1e-5);
    nrd_qcache_fini(&c);
    assert_float_equal(nrd_qcache_range((const float[]){0, 0}, 2), 1, 0);
}

static void packed_words_hold_the_codes(void **state)
{
    char name[] = "m";
    const nrd_qmodule module = {.name = name};
    nrd_qresult_module y = {.module = &module, .grid = grids[0]};
    nrd_qtensor t[NRD_QTENSORS];
    int n;
    (void)state;
    y.grid.group = 4;
    ok(nrd_qrows_init(&y.rows, &y.grid, 9, 12));
    for (int i = 0; i < 9 * 12; i++) {
        y.rows.codes[i] = (uint8_t)(i * 7 % 16);
    }
    for (int i = 0; i < 9 * 3; i++) {
        y.rows.zeros[i] = (uint8_t)(i % 16);
        y.rows.scales[i] = 0.5f + (float)i;
    }
    ok(nrd_qpack(math_, &y, "pack-quantized", t, &n));
    assert_int_equal(n, 4);
    assert_string_equal(t[0].name, "m.weight_packed");
    assert_true(t[0].dims[0] == 9 && t[0].dims[1] == 2 && t[3].dims[0] == 2 && t[3].dims[1] == 3);
    for (int i = 0; i < 9 * 12; i++) {
        assert_int_equal(nrd_quant_bits(t[0].data, i / 12 * 2, 1, i % 12, 4), i * 7 % 16);
    }
    for (int i = 0; i < 9 * 3; i++) {
        assert_int_equal(nrd_quant_bits(t[3].data, i % 3, 3, i / 3, 4), i % 16);
        assert_true(((float *)t[1].data)[i] == 0.5f + (float)i);
    }
    assert_true(((int64_t *)t[2].data)[0] == 9 && ((int64_t *)t[2].data)[1] == 12);
    nrd_qtensors_fini(t, n);
    nrd_qrows_fini(&y.rows);
}

/* ---- several layers at a time ---- */

typedef struct counted {
    _Atomic int32_t done[9];
    int32_t fails;
} counted;

static nrd_error *count_one(void *user, nrd_qmath *m, int32_t i)
{
    counted *c = user;
    nrd_qmatrix part = {0};
    float y[2];

    if (nrd_qmath_threads(m) != 1) { /* half of two */
        return nrd_errorf(NRD_ERR_INTERNAL, "%d threads", nrd_qmath_threads(m));
    }
    NRD_TRY(nrd_qmatrix_load(m, w, 2, COLS, &part));
    NRD_TRY(nrd_qmatrix_times(m, &part, x, 1, y));
    nrd_qmatrix_unload(m, &part);
    c->done[i]++;
    return i >= c->fails ? nrd_errorf(NRD_ERR_INVALID_ARG, "number %d", i) : NULL;
}

static void each_layer_is_done_once(void **state)
{
    nrd_qtogether t;
    counted c = {.fails = 9};

    (void)state;
    assert_int_equal(nrd_qtogether_room(math_, nrd_qtogether_bytes(COLS), 1e12), 1); /* on a CPU one after the other */
    ok(nrd_qtogether_open(&t, "cpu", 2, 2));
    ok(nrd_qtogether_each(&t, 2, 9, count_one, &c));
    for (int i = 0; i < 9; i++) {
        assert_int_equal(c.done[i], i >= 2);
    }
    ok(nrd_qtogether_each(&t, 3, 4, count_one, &c)); /* one alone */
    nrd_qtogether_close(&t);
}

static void the_first_layer_that_fails_ends_the_others(void **state)
{
    nrd_qtogether t;
    counted c = {.fails = 4};

    (void)state;
    ok(nrd_qtogether_open(&t, "cpu", 2, 2));
    nrd_error *err = nrd_qtogether_each(&t, 0, 9, count_one, &c);
    assert_non_null(err);
    assert_string_equal(nrd_error_message(err), "number 4");
    nrd_error_free(err);
    assert_int_equal(c.done[0] + c.done[1] + c.done[2] + c.done[3] + c.done[4], 5);
    assert_int_equal(c.done[6] + c.done[7] + c.done[8], 0);
    nrd_qtogether_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_half_a_step_away_at_most),
        cmocka_unit_test(eight_bits_cut_no_number_off),
        cmocka_unit_test(small_groups_of_floats_have_scales_of_few_bits),
        cmocka_unit_test(blocks_share_the_scale_of_their_largest_number),
        cmocka_unit_test(importance_only_improves_what_matters),
        cmocka_unit_test(grids_of_nothing_have_a_scale),
        cmocka_unit_test(rows_together_are_as_each_alone),
        cmocka_unit_test(processors_agree_to_the_bit),
        cmocka_unit_test(gram_matrix_tells_the_error_of_products),
        cmocka_unit_test(awq_scales_make_the_products_better),
        cmocka_unit_test(rows_are_kept_evenly),
        cmocka_unit_test(searched_scales_are_better_by_as_much_as_they_say),
        cmocka_unit_test(searched_scales_know_what_shares_a_scale),
        cmocka_unit_test(columns_that_share_a_maker_get_one_scale),
        cmocka_unit_test(columns_without_input_do_not_move_the_others),
        cmocka_unit_test(gptq_factor_is_that_of_the_gram_matrix),
        cmocka_unit_test(gptq_makes_the_products_better),
        cmocka_unit_test(refining_makes_products_better_on_every_grid),
        cmocka_unit_test(gptq_cuts_little_off_a_large_weight_whose_input_was_small),
        cmocka_unit_test(gptq_refuses_what_is_no_number_and_takes_what_is_nothing),
        cmocka_unit_test(a_pair_that_turns_is_as_long_as_it_ever_gets),
        cmocka_unit_test(even_channels_go_equally_far),
        cmocka_unit_test(packed_words_hold_the_codes),
        cmocka_unit_test(each_layer_is_done_once),
        cmocka_unit_test(the_first_layer_that_fails_ends_the_others),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
