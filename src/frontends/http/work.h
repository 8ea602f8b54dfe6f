/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/work.h - a part of a request that a worker does.
 *
 * Purpose   Takes work off the request's loop thread and comes back to it (common/worker.h).
 * Owner     Called on the request's loop thread; work(arg) runs on a worker and must not touch the
 *           request, but its head and body may be read.
 *           From a successful call on until done, arg is the worker's alone.
 * Lifetime  arg is borrowed until done(arg) was called, which happens once, on the loop thread.
 */
#ifndef NRD_FRONTENDS_HTTP_WORK_H
#define NRD_FRONTENDS_HTTP_WORK_H

#include "base/error.h"
#include "frontends/common/worker.h"
#include "frontends/http/server.h"

/* Texts that are read or written up to this size stay on the loop. Processor time to parse 64 KB of
 * JSON on an AMD EPYC: 0.1 ms of short strings, 0.5 ms of numbers with eight digits, 1.7 ms of numbers
 * with one. */
#define NRD_HTTP_LONG_TEXT (64u << 10)

/* done: ran false: the client went away before, or the server is ending. Until then the request's
 * on_gone belongs to this; afterwards it is NULL. On error nothing was begun. */
nrd_error *nrd_http_work(nrd_workers *workers, nrd_http_request *req, void (*work)(void *arg),
                         void (*done)(void *arg, bool ran), void *arg) NRD_MUST_USE;

/* The same on a worker if it is long; at once, on the loop, if it is not or no worker takes it. */
void nrd_http_work_if(bool is_long, nrd_workers *workers, nrd_http_request *req, void (*work)(void *arg),
                      void (*done)(void *arg, bool ran), void *arg);

#endif
