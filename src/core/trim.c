/* SPDX-License-Identifier: Apache-2.0 */
#include "core/trim.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

#define EVERY_NS 500000000ull   /* how often the size of the process is looked at */
#define QUIET_NS 2000000000ull  /* requests that come one after the other find the memory still there */
#define LITTLE (1u << 20)       /* bytes */
#define GROWN (32u << 20)       /* bytes: less is not worth the lock */
#define MAX_AGAIN 4u            /* after twice, 4, 8 and 16 times QUIET_NS */

/* 0: not known. Takes no memory: it is asked while the server stands idle. */
static uint64_t resident_bytes(void)
{
    char text[128];
    const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    char *end;

    if (fd >= 0) {
        close(fd);
    }
    if (n <= 0) {
        return 0;
    }
    text[n] = '\0';
    (void)strtoull(text, &end, 10); /* the whole size stands before it */
    return strtoull(end, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

bool nrd_trim_look(nrd_trim *t, uint64_t now_ns, uint64_t claimed)
{
    if (claimed > LITTLE) {
        t->quiet_ns = 0;
        t->n_again = 0;
        return false;
    }
    t->quiet_ns = t->quiet_ns ? t->quiet_ns : now_ns;
    if (now_ns < t->next_ns || now_ns - t->quiet_ns < QUIET_NS) {
        return false;
    }
    t->next_ns = now_ns + EVERY_NS;
    const uint64_t resident = resident_bytes();
    if (resident == 0) {
        return false;
    }
    if (resident < t->resident) {
        t->resident = resident;
    }
    if (t->least == 0 || resident < t->least) {
        t->least = resident;
    }
    const bool again = t->n_again < MAX_AGAIN && now_ns - t->quiet_ns >= QUIET_NS << (t->n_again + 1) &&
                       resident >= t->least + GROWN;
    t->n_again += again;
    if (resident < t->resident + GROWN && !again) {
        return false;
    }
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
    t->resident = resident_bytes();
    return true;
}
