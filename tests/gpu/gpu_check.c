/* SPDX-License-Identifier: Apache-2.0
 * gpu_check - every operation of a device plug-in against plain loops in double.
 *
 *   gpu_check build/lib/nereid_cuda.so [small] [SECTION]
 * Fresh random data for every case; outputs are filled with NaN bits before each call, so that an
 * element nobody wrote is an error. Tolerances: relative error of the whole result (root of sums of
 * squares), from the rounding of the output type: bf16 2^-9, fp16 2^-12, F8 2^-4, each times about 2.
 * `small` leaves out the large shapes (for memory checkers).
 */
#include "gpu_check.h"

int failures, cases;
bool small_only;

void verdict(const char *name, double err, double limit)
{
    cases++;
    if (!(err <= limit)) { /* NaN fails */
        failures++;
        printf("  FAIL %s: error %.3g, limit %.3g\n", name, err, limit);
    }
}

static const char *only; /* one section; NULL: all */

static bool wanted(const char *name)
{
    return !only || strcmp(only, name) == 0;
}

static void section(const char *name, int *seen_cases, int *seen_failures)
{
    printf("%-12s %5d checks, %d failed\n", name, cases - *seen_cases, failures - *seen_failures);
    fflush(stdout);
    *seen_cases = cases;
    *seen_failures = failures;
}

int main(int argc, char **argv)
{
    int c = 0, f = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: gpu_check nereid_cuda.so [small] [SECTION]\n");
        return 2;
    }
    small_only = argc > 2 && strcmp(argv[2], "small") == 0;
    only = argc > 2 + small_only ? argv[2 + small_only] : NULL;
    gpu_open(argv[1]);
    if (wanted("formats")) {
        check_formats();
    }
    section("formats", &c, &f);
    for (int i = 0; i < 12 && wanted("embed"); i++) {
        static const nrd_dtype t[] = {NRD_DTYPE_BF16, NRD_DTYPE_F8_E4M3, NRD_DTYPE_F32, NRD_DTYPE_I8};
        const int hidden = i % 3 ? 8 * rnd(1, 300) : rnd(1, 700);
        check_embed(t[i % 4], i % 3 == 0 ? NRD_DTYPE_F32 : NRD_DTYPE_BF16, rnd(1, 40), rnd(5, 999), hidden,
                    i % 2);
    }
    section("embed", &c, &f);
    if (wanted("norm")) {
        all_norm();
    }
    section("norm", &c, &f);
    if (wanted("act")) {
        all_act();
    }
    section("act", &c, &f);
    for (int i = 0; i < (small_only ? 3 : 12) && wanted("sample"); i++) {
        static const int vocabs[] = {128256, 1000, 33, 151936, 5003, 50257};
        check_sample(i % 6 == 3 ? 9 : 24, small_only ? vocabs[i % 3 + 1] % 9000 : vocabs[i % 6], i);
        /* few: many blocks a row */
        check_sample(rnd(1, 8), small_only ? 4099 + 5 * i : vocabs[i % 6] + 4096, i);
    }
    section("sample", &c, &f);
    if (wanted("copy_blocks")) {
        check_copy_blocks();
    }
    section("copy_blocks", &c, &f);
    if (wanted("linear")) {
        all_linear();
        check_deterministic(NRD_DTYPE_BF16);
    }
    section("linear", &c, &f);
    if (wanted("quantized")) {
        check_deterministic(NRD_DTYPE_Q4_0);
        check_deterministic(NRD_DTYPE_Q4_K);
        check_deterministic(NRD_DTYPE_Q6_K);
        check_deterministic(NRD_DTYPE_I8);
        all_quantized();
    }
    section("quantized", &c, &f);
    if (wanted("attention")) {
        all_attention();
        few_tokens();
        many_pairs();
        long_prompts();
    }
    section("attention", &c, &f);
    if (wanted("ring")) {
        ring();
    }
    section("ring", &c, &f);
    if (wanted("lora")) {
        all_lora();
    }
    section("lora", &c, &f);
    if (wanted("graph")) {
        check_graph();
    }
    section("graph", &c, &f);
    dev->ops->stream_free(st);
    dev->ops->close(dev);
    printf("%s: %d checks, %d failed\n", failures ? "FAILED" : "ok", cases, failures);
    return failures != 0;
}
