/* SPDX-License-Identifier: Apache-2.0
 * matmul of devices that have it, against sums in double of the same numbers. */
#include "ops/harness.h"

#include <string.h>

/* How one of the two matrices lies. */
typedef struct side {
    int64_t rows, stride, numbers;
    bool turned;
    void *data;
    float *values;
} side;

static side side_new(nrd_dtype type, int64_t rows, int64_t k, bool turned)
{
    side s = {.rows = rows, .turned = turned, .stride = (turned ? rows : k) + 8 * rnd_in(0, 3)};
    s.numbers = s.stride * (turned ? k : rows);
    s.data = host_as(type, s.numbers, 1);
    s.values = rows_of(type, s.data, NULL, 1, s.numbers);
    return s;
}

static double at(const side *s, int64_t row, int64_t k)
{
    return (double)s->values[s->turned ? k * s->stride + row : row * s->stride + k];
}

static void matmul_check(const target *t, nrd_dtype type, int way)
{
    const int64_t m = 8 * rnd_in(1, 40), n = 8 * rnd_in(1, 40), k = 8 * rnd_in(1, 40), stride = n + 4 * rnd_in(0, 3);
    side a = side_new(type, m, k, way & 1), b = side_new(type, n, k, way & 2);
    const size_t width = type == NRD_DTYPE_F32 ? 4 : 2;
    nrd_matmul_args p = {.m = m, .n = n, .k = k, .a_stride = a.stride, .b_stride = b.stride, .a_turned = a.turned, .b_turned = b.turned,
                         .dtype = type, .c_stride = stride, .alpha = way & 4 ? -1.0f : 0.5f, .add = way & 4};
    float *c = host_normal(m * stride, 1), *want = host((size_t)(m * stride) * 4), *got = host((size_t)(m * stride) * 4);

    memcpy(want, c, (size_t)(m * stride) * 4);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++) {
                sum += at(&a, i, l) * at(&b, j, l);
            }
            want[i * stride + j] = (float)((double)p.alpha * sum + (p.add ? (double)c[i * stride + j] : 0));
        }
    }
    case_name("matmul %s, %lld x %lld x %lld%s%s%s", nrd_dtype_name(type), (long long)m, (long long)n, (long long)k,
              a.turned ? ", a turned" : "", b.turned ? ", b turned" : "", p.add ? ", added" : "");
    p.a = dev_put(t, a.data, (size_t)a.numbers * width);
    p.b = dev_put(t, b.data, (size_t)b.numbers * width);
    p.c = dev_put(t, c, (size_t)(m * stride) * 4);
    ok(t->ops->matmul(t->s, &p));
    dev_get(t, got, p.c, (size_t)(m * stride) * 4);
    compare(t, "", got, want, m * stride, (limit){1e-4, 1e-5, 0});
    case_end();
}

void check_matmul(void)
{
    static const nrd_dtype types[] = {NRD_DTYPE_F32, NRD_DTYPE_BF16, NRD_DTYPE_F16};
    for (int i = 0; i < n_targets; i++) {
        for (int k = 0; targets[i].ops->matmul && k < 24; k++) {
            matmul_check(&targets[i], types[k / 8], k % 8);
        }
    }
}
