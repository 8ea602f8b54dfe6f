/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda/gemm_plans.cuh"

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include <unistd.h>

enum { MAX_PLANS = 4096, MAX_LINE = 512 };

static const char format[] = "nereid timing cache 3, ";

/* One line's key and kernel; false: not a plan. */
static bool parse(const char *line, plan_key *key, cublasLtMatmulAlgo_t *algo)
{
    int64_t m, k, n, ldy;
    int in, out, used = 0;

    if (sscanf(line, "%" SCNd64 " %" SCNd64 " %" SCNd64 " %d %d %" SCNd64 "%n", &m, &k, &n, &in, &out, &ldy,
               &used) != 6) {
        return false;
    }
    *key = plan_key(m, k, n, in, out, ldy);
    for (uint64_t &word : algo->data) {
        int more = 0;
        if (sscanf(line + used, " %" SCNx64 "%n", &word, &more) != 1) {
            return false;
        }
        used += more;
    }
    return true;
}

void nrd_cuda_plans_read(plan_table *plans, const std::string &path, const std::string &machine)
{
    char line[MAX_LINE];
    FILE *f = path.empty() ? NULL : fopen(path.c_str(), "re");

    if (!f) {
        return;
    }
    const std::string head = format + machine + "\n";
    if (fgets(line, sizeof line, f) && head == line) {
        while (plans->size() < MAX_PLANS && fgets(line, sizeof line, f)) {
            plan_key key;
            cublasLtMatmulAlgo_t algo = {};
            if (parse(line, &key, &algo)) {
                (*plans)[key] = algo;
            }
        }
    }
    (void)fclose(f);
}

/* Written beside its place and moved there, so that nobody reads half of it. */
void nrd_cuda_plans_write(const plan_table &plans, const std::string &path, const std::string &machine)
{
    const std::string temporary = path + "." + std::to_string((long)getpid());
    FILE *f = fopen(temporary.c_str(), "we");

    if (!f) {
        return;
    }
    bool ok = fprintf(f, "%s%s\n", format, machine.c_str()) > 0;
    for (const auto &[key, algo] : plans) {
        const auto [m, k, n, in, out, ldy] = key;
        ok = ok && fprintf(f, "%" PRId64 " %" PRId64 " %" PRId64 " %d %d %" PRId64, m, k, n, in, out, ldy) > 0;
        for (uint64_t word : algo.data) {
            ok = ok && fprintf(f, " %" PRIx64, word) > 0;
        }
        ok = ok && fputc('\n', f) != EOF;
    }
    ok = fclose(f) == 0 && ok;
    if (!ok || rename(temporary.c_str(), path.c_str()) != 0) {
        (void)unlink(temporary.c_str());
    }
}
