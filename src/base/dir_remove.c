/* SPDX-License-Identifier: Apache-2.0
 * Apart from file.c, which notes what it writes in unfinished.c, and that removes folders. */
#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Reads names with the system call: opendir takes memory, and what is left behind a load that had none has to go too. */
static void remove_folder(int at, const char *name, int levels)
{
    _Alignas(struct dirent64) char buf[4096];
    const int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (at == AT_FDCWD ? 0 : O_NOFOLLOW));
    bool again = fd >= 0;

    while (again) { /* a file system may leave names out while others go */
        again = false;
        for (ssize_t n; (n = getdents64(fd, buf, sizeof buf)) > 0;) {
            for (ssize_t i = 0; i < n;) {
                const struct dirent64 *e = (const struct dirent64 *)(void *)(buf + i);
                i += e->d_reclen;
                if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) {
                    continue;
                }
                if (unlinkat(fd, e->d_name, 0) == 0) { /* links too: what is not gone is a folder */
                    again = true;
                } else if (levels > 1) {
                    remove_folder(fd, e->d_name, levels - 1);
                }
            }
        }
        again = again && lseek(fd, 0, SEEK_SET) == 0;
    }
    if (fd >= 0) {
        close(fd);
    }
    unlinkat(at, name, AT_REMOVEDIR);
}

void nrd_dir_remove(const char *dir)
{
    remove_folder(AT_FDCWD, dir, 2);
}
