/* SPDX-License-Identifier: Apache-2.0
 * Places of groups of frames in a chat. */
#include "text/films.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define PLACE "<|vision_start|><|video_pad|><|vision_end|>"

static void expect(const char *chat, const nrd_film *films, size_t n, int64_t in_group, const char *want)
{
    nrd_str text = {0};
    nrd_str_puts(&text, chat);
    assert_null(nrd_films_put_times(&text, films, n, in_group));
    assert_string_equal(nrd_str_cstr(&text), want);
    nrd_str_fini(&text);
}

/* The middle of each group; an odd frame is one alone. Numbers are rounded as Python's format rounds them. */
static void test_times(void **state)
{
    (void)state;
    expect("a" PLACE "b", &(nrd_film){4, 2}, 1, 2, "a<0.2 seconds>" PLACE "<1.2 seconds>" PLACE "b");
    expect(PLACE, &(nrd_film){3, 0.5}, 1, 2, "<1.0 seconds>" PLACE "<4.0 seconds>" PLACE);
    expect(PLACE, &(nrd_film){1, 30}, 1, 2, "<0.0 seconds>" PLACE);
    expect(PLACE, &(nrd_film){5, 1}, 1, 3, "<1.0 seconds>" PLACE "<3.5 seconds>" PLACE);
}

/* Films go to places in their order; what is more on either side stays as it is. */
static void test_places_and_films(void **state)
{
    const nrd_film films[] = {{1, 1}, {2, 1}};
    (void)state;
    expect(PLACE "x" PLACE "y" PLACE, films, 2, 2, "<0.0 seconds>" PLACE "x<0.5 seconds>" PLACE "y" PLACE);
    expect("no place", films, 2, 2, "no place");
    expect("", films, 2, 2, "");
    expect("a" PLACE, films, 2, 2, "a<0.0 seconds>" PLACE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_places_and_films),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
