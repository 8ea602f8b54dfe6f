/* SPDX-License-Identifier: Apache-2.0
 * The tables and traces of `nereid bench`: what the device reads and multiplies in a second (bench
 * hw), the time of each operation beside the least time that the device needs for it (--profile),
 * and the steps as a timeline (--trace). Called by bench.c after or before the measured run. */
#include "tools/bench_profile.h"

#include "base/file.h"
#include "base/json.h"
#include "device/device.h"

#include <stdio.h>
#include <string.h>

static double per(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* ---- the machine ---- */

static nrd_error *measure(const nrd_exec_options *o, int32_t threads, nrd_device_info *info,
                          nrd_device_limits *out)
{
    nrd_device_config config = {
        .device_id = o->device_id,
        .n_threads = threads,
        .isa = o->isa ? o->isa : "",
    };
    nrd_device *dev = NULL;
    nrd_error *err = NULL;

    *out = (nrd_device_limits){0};
    *info = (nrd_device_info){0};
    NRD_TRY(nrd_device_open(&dev, o->device ? o->device : "auto", &config));
    dev->ops->get_info(dev, info);
    if (dev->ops->limits) {
        err = dev->ops->limits(dev, out);
    }
    dev->ops->close(dev);
    return err;
}

nrd_error *nrd_bench_limits(const nrd_exec_options *o, nrd_device_limits *out)
{
    nrd_device_info info;
    return measure(o, o->threads, &info, out);
}

static void put_number(nrd_str *j, const char *name, double v)
{
    nrd_str_printf(j, "\"%s\": ", name);
    nrd_json_put_double(j, v);
}

static void put_limits(nrd_str *j, const char *name, const nrd_device_limits *l)
{
    nrd_str_printf(j, ",\n  \"%s\": {", name);
    put_number(j, "read_bytes_per_s", l->read_bytes_per_s);
    nrd_str_puts(j, ", ");
    put_number(j, "eight_bit_ops_per_s", l->eight_bit_ops_per_s);
    nrd_str_puts(j, ", ");
    put_number(j, "float_ops_per_s", l->float_ops_per_s);
    if (l->bf16_ops_per_s > 0) {
        nrd_str_puts(j, ", ");
        put_number(j, "bf16_ops_per_s", l->bf16_ops_per_s);
    }
    nrd_str_putc(j, '}');
}

static void print_limit(const char *what, double all, const double *one)
{
    printf("%-26s %12.1f", what, all / 1e9);
    if (one) {
        printf(" %12.1f", *one / 1e9);
    }
    putchar('\n');
}

nrd_error *nrd_bench_hw(const nrd_exec_options *o, nrd_str *j)
{
    nrd_device_info info;
    nrd_device_limits one, all;

    NRD_TRY(measure(o, o->threads, &info, &all));
    if (all.read_bytes_per_s <= 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s does not measure its limits", info.name);
    }
    bool cpu = info.host_is_device;
    if (cpu) {
        NRD_TRY(measure(o, 1, &info, &one));
    }
    printf("%-26s %12s%s\n", info.name, cpu ? "all threads" : "", cpu ? "   one thread" : "");
    print_limit("reading, GB/s", all.read_bytes_per_s, cpu ? &one.read_bytes_per_s : NULL);
    print_limit("8-bit products, GOP/s", all.eight_bit_ops_per_s,
                cpu ? &one.eight_bit_ops_per_s : NULL);
    print_limit(cpu ? "float32, GFLOP/s" : "16-bit products, GFLOP/s", all.float_ops_per_s,
                cpu ? &one.float_ops_per_s : NULL);
    if (all.bf16_ops_per_s > 0) {
        print_limit("bfloat16, GFLOP/s", all.bf16_ops_per_s, cpu ? &one.bf16_ops_per_s : NULL);
    }
    nrd_str_puts(j, "\n  \"device\": ");
    nrd_json_put_cstr(j, info.name);
    if (cpu) {
        put_limits(j, "one_thread", &one);
    }
    put_limits(j, cpu ? "all_threads" : "all", &all);
    return NULL;
}

/* ---- operation by operation ---- */

/* Seconds below which the row cannot go; 0: not known. */
static double floor_of(const nrd_profile_row *r, const nrd_device_limits *l)
{
    double rate = r->eight_bit ? l->eight_bit_ops_per_s : l->float_ops_per_s;
    double reading = per(r->bytes, l->read_bytes_per_s), arithmetic = per(r->flops, rate);
    return reading > arithmetic ? reading : arithmetic;
}

static double a_step(const nrd_profile_row *r)
{
    return per(r->seconds, (double)r->n_steps);
}

static void put_row(nrd_str *j, const nrd_profile_row *r, double floor_s)
{
    nrd_str_printf(j, "%s\n    {\"operation\": \"%s\", \"prompts\": %s, \"steps\": %llu, "
                   "\"calls\": %llu, ",
                   nrd_str_has_suffix(nrd_str_cstr(j), "[") ? "" : ",", r->operation,
                   r->has_prompts ? "true" : "false", (unsigned long long)r->n_steps,
                   (unsigned long long)r->n_calls);
    put_number(j, "seconds", r->seconds);
    nrd_str_puts(j, ", ");
    put_number(j, "bytes", r->bytes);
    nrd_str_puts(j, ", ");
    put_number(j, "flops", r->flops);
    nrd_str_puts(j, ", ");
    put_number(j, "floor_s", floor_s);
    nrd_str_putc(j, '}');
}

/* The rows of one kind of step. The row "step" is measured against the floors of its parts. */
static void profile_kind(const nrd_profile_row *rows, int32_t n, bool has_prompts,
                         const nrd_device_limits *l, nrd_str *j)
{
    double parts = 0, floors = 0;
    bool any = false;
    for (int32_t i = 0; i < n; i++) {
        const nrd_profile_row *r = &rows[i];
        if (r->has_prompts == has_prompts) {
            parts += r->bytes > 0 ? a_step(r) : 0;
            floors += per(floor_of(r, l), (double)r->n_steps);
            any = true;
        }
    }
    if (!any) {
        return;
    }
    printf("\n%-34s %7s %7s %10s %10s %6s %8s %9s %8s\n",
           has_prompts ? "steps with prompts" : "steps of one token a sequence", "steps", "calls",
           "us/call", "us/step", "share", "GB/s", "GFLOP/s", "of floor");
    for (int32_t i = 0; i < n; i++) {
        const nrd_profile_row *r = &rows[i];
        if (r->has_prompts != has_prompts) {
            continue;
        }
        double floor_s = strcmp(r->operation, "step") ? floor_of(r, l) : floors * (double)r->n_steps;
        printf("  %-32s %7llu %7llu %10.1f %10.1f", r->operation, (unsigned long long)r->n_steps,
               (unsigned long long)r->n_calls, per(r->seconds, (double)r->n_calls) * 1e6,
               a_step(r) * 1e6);
        if (r->bytes > 0) {
            printf(" %5.1f%% %8.1f %9.0f", per(a_step(r), parts) * 100,
                   per(r->bytes, r->seconds) / 1e9, per(r->flops, r->seconds) / 1e9);
        } else if (floor_s > 0) {
            printf(" %6s %8s %9s", "", "", "");
        }
        if (floor_s > 0) {
            printf(" %7.0f%%", per(floor_s, r->seconds) * 100);
        }
        printf("\n");
        put_row(j, r, floor_s);
    }
}

nrd_error *nrd_bench_profile(nrd_exec *x, const nrd_device_limits *limits, nrd_str *j)
{
    nrd_profile_row rows[64];
    int32_t n = 0;
    NRD_TRY(nrd_exec_profile(x, rows, 64, &n, false));
    if (limits->read_bytes_per_s > 0) {
        printf("\nfloor: %.1f GB/s, %.0f GOP/s in 8 bits, %.0f GFLOP/s in floats\n",
               limits->read_bytes_per_s / 1e9, limits->eight_bit_ops_per_s / 1e9,
               limits->float_ops_per_s / 1e9);
    }
    nrd_str_puts(j, ",\n  \"profile\": [");
    profile_kind(rows, n, false, limits, j);
    profile_kind(rows, n, true, limits, j);
    nrd_str_puts(j, "\n  ]");
    return NULL;
}

/* ---- the timeline ---- */

/* Format: "Trace Event Format" of the Chromium project, complete events ("X"), microseconds. */
static void put_event(nrd_str *j, const nrd_exec_span *s)
{
    int track = s->is_host ? 1 : s->is_part ? 3 : 2;
    nrd_str_printf(j, ",\n{\"ph\": \"X\", \"pid\": 1, \"tid\": %d, \"name\": \"%s\", ", track,
                   s->operation);
    put_number(j, "ts", s->start_s * 1e6);
    nrd_str_puts(j, ", ");
    put_number(j, "dur", s->seconds * 1e6);
    nrd_str_printf(j, ", \"args\": {\"sequences\": %d, \"tokens\": %d}}", s->n_sequences,
                   s->n_tokens);
}

nrd_error *nrd_bench_trace(nrd_exec *x, const char *path)
{
    static const char *const tracks[] = {"host", "steps", "operations"};
    nrd_exec_span some[256];
    nrd_str j = {0};
    int32_t first = 0, n;

    nrd_str_puts(&j, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
                     "{\"ph\": \"M\", \"pid\": 1, \"name\": \"process_name\", "
                     "\"args\": {\"name\": \"nereid\"}}");
    for (int i = 0; i < 3; i++) {
        nrd_str_printf(&j, ",\n{\"ph\": \"M\", \"pid\": 1, \"tid\": %d, \"name\": \"thread_name\", "
                           "\"args\": {\"name\": \"%s\"}}", i + 1, tracks[i]);
    }
    while ((n = nrd_exec_spans(x, some, first, 256)) > 0) {
        for (int32_t i = 0; i < n; i++) {
            put_event(&j, &some[i]);
        }
        first += n;
    }
    nrd_str_puts(&j, "\n]}\n");
    nrd_error *err = nrd_file_write(path, j.data, j.len);
    nrd_str_fini(&j);
    return err;
}
