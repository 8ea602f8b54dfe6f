/* SPDX-License-Identifier: Apache-2.0
 * A locale whose decimal sign is a comma, for this thread, on machines that have none installed. */
#ifndef TESTS_COMMA_LOCALE_H
#define TESTS_COMMA_LOCALE_H

#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

/* LC_NUMERIC of the GNU C library: magic number, number of fields, their places, then the decimal
 * sign, the sign between thousands, the groups, both signs as wide characters, the character set. */
static const unsigned char comma_numeric[] =
    "\x14\x11\x03\x20\x06\0\0\0\x20\0\0\0\x22\0\0\0\x24\0\0\0\x28\0\0\0\x2c\0\0\0\x30\0\0\0"
    ",\0.\0\x03\x03\0\0,\0\0\0.\0\0\0UTF-8\0";

/* false: this thread's numbers still have a point. Ended by comma_locale_end. */
static inline bool comma_locale_begin(void)
{
    char folder[] = "/tmp/nereid-locale-XXXXXX", path[80], text[8] = "";
    if (!mkdtemp(folder)) {
        return false;
    }
    snprintf(path, sizeof path, "%s/xx_COMMA", folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/xx_COMMA/LC_NUMERIC", folder);
    FILE *f = fopen(path, "wb");
    if (f) {
        fwrite(comma_numeric, 1, sizeof comma_numeric - 1, f);
        fclose(f);
    }
    setenv("LOCPATH", folder, 1);
#ifdef __SANITIZE_ADDRESS__
    __lsan_disable(); /* the C library keeps the path that it took from LOCPATH */
#endif
    const locale_t comma = newlocale(LC_NUMERIC_MASK, "xx_COMMA", (locale_t)0);
#ifdef __SANITIZE_ADDRESS__
    __lsan_enable();
#endif
    unsetenv("LOCPATH");
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
    rmdir(folder);
    if (comma) {
        uselocale(comma);
    }
    snprintf(text, sizeof text, "%.1f", 0.5);
    return strcmp(text, "0,5") == 0;
}

static inline void comma_locale_end(void)
{
    const locale_t comma = uselocale(LC_GLOBAL_LOCALE);
    if (comma != LC_GLOBAL_LOCALE) {
        freelocale(comma);
    }
}

/* As setup and teardown of a group of tests. */
static inline int comma_locale_setup(void **state)
{
    (void)state;
    return comma_locale_begin() ? 0 : -1;
}

static inline int comma_locale_teardown(void **state)
{
    (void)state;
    comma_locale_end();
    return 0;
}

#endif
