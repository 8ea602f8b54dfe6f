/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/ranks/life.h"

#include "executor/ranks/pulse.h"

#include <stdio.h>

enum {
    SILENT_MS = 3000,   /* a worker shows life every NRD_RANK_BEAT_MS */
    STARVED_MS = 60000, /* so long may one that would show life wait for a processor */
};

bool nrd_worker_stands_still(nrd_worker_life *w, const nrd_rank_life *life, int64_t ms, char *out, size_t size)
{
    w->silent_ms = life->n_beats != w->n_beats ? 0 : w->silent_ms + ms;
    w->n_beats = life->n_beats;
    if (w->silent_ms > SILENT_MS &&
        (w->silent_ms > STARVED_MS || !nrd_pulse_would_run(life->process, life->thread))) {
        snprintf(out, size, "process %d has shown no sign of life for %.1f s", (int)life->process, (double)w->silent_ms / 1e3);
        return true;
    }
    if (life->still_ms > NRD_PULSE_HANGS_MS) {
        snprintf(out, size, "process %d hangs: none of its threads that compute has run for %.1f s", (int)life->process,
                 (double)life->still_ms / 1e3);
        return true;
    }
    return false;
}
