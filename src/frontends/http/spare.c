/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/http/spare.h"

#include <fcntl.h>
#include <unistd.h>

void nrd_http_spare_keep(nrd_http_spare *s)
{
    while (s->n < NRD_HTTP_SPARE_FDS) {
        const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            break;
        }
        s->fds[s->n++] = fd;
    }
}

bool nrd_http_spare_give(nrd_http_spare *s)
{
    if (s->n == 0) {
        return false;
    }
    close(s->fds[--s->n]);
    return true;
}

void nrd_http_spare_close(nrd_http_spare *s)
{
    while (nrd_http_spare_give(s)) {
    }
}
