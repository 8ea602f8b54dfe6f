/* SPDX-License-Identifier: Apache-2.0
 * tools/load/report.h - what a load has shown: as text, JSON, CSV and a page with charts.
 *
 * Purpose   One level is one load at one rate or concurrency; a report has one or several.
 * Owner     One thread. Asking for percentiles sorts a result's samples.
 * Units     Milliseconds, and numbers a second.
 */
#ifndef NRD_TOOLS_LOAD_REPORT_H
#define NRD_TOOLS_LOAD_REPORT_H

#include "tools/load/driver.h"

/* What a request must keep to count as good; 0: no limit. */
typedef struct nrd_load_limits {
    double first_ms, per_token_ms, end_ms;
} nrd_load_limits;

/* "ttft:500,tpot:50,e2el:3000", in milliseconds; commas or blanks between. */
nrd_error *nrd_load_limits_parse(nrd_load_limits *out, const char *text) NRD_MUST_USE;

typedef struct nrd_load_level {
    int32_t concurrency; /* 0: no limit */
    double rate;         /* asked for, a second; 0: closed loop or a trace */
    nrd_load_result result;
} nrd_load_level;

typedef struct nrd_load_report {
    const char *heading; /* of the page */
    const char *url, *model, *api;
    nrd_load_limits limits;
    bool streams;           /* answers came in pieces */
    nrd_load_level *levels; /* [n] */
    size_t n;
} nrd_load_report;

void nrd_load_report_text(nrd_load_report *r, size_t level, nrd_str *out);
void nrd_load_report_json(nrd_load_report *r, nrd_str *out);
/* A line for each request of each level. */
void nrd_load_report_csv(nrd_load_report *r, nrd_str *out);
/* text: what stands above the charts. */
nrd_error *nrd_load_report_page(nrd_load_report *r, const char *path,
                                const char *text) NRD_MUST_USE;

#endif
