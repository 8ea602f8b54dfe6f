/* SPDX-License-Identifier: Apache-2.0
 * Places of groups of frames in a chat. */
#include "text/video_times.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define PLACE "<|vision_start|><|video_pad|><|vision_end|>"

static void expect(const char *chat, const nrd_video_time *times, size_t n, int64_t in_group, const char *want)
{
    nrd_str text = {0};
    nrd_str_puts(&text, chat);
    assert_null(nrd_video_put_times(&text, times, n, in_group));
    assert_string_equal(nrd_str_cstr(&text), want);
    nrd_str_fini(&text);
}

/* The middle of each group; an odd frame is one alone. Numbers are rounded as Python's format rounds them. */
static void test_times(void **state)
{
    (void)state;
    expect("a" PLACE "b", &(nrd_video_time){4, 2}, 1, 2, "a<0.2 seconds>" PLACE "<1.2 seconds>" PLACE "b");
    expect(PLACE, &(nrd_video_time){3, 0.5}, 1, 2, "<1.0 seconds>" PLACE "<4.0 seconds>" PLACE);
    expect(PLACE, &(nrd_video_time){1, 30}, 1, 2, "<0.0 seconds>" PLACE);
    expect(PLACE, &(nrd_video_time){5, 1}, 1, 3, "<1.0 seconds>" PLACE "<3.5 seconds>" PLACE);
}

/* Films go to places in their order; what is more on either side stays as it is. */
static void test_places_and_videos(void **state)
{
    const nrd_video_time times[] = {{1, 1}, {2, 1}};
    (void)state;
    expect(PLACE "x" PLACE "y" PLACE, times, 2, 2, "<0.0 seconds>" PLACE "x<0.5 seconds>" PLACE "y" PLACE);
    expect("no place", times, 2, 2, "no place");
    expect("", times, 2, 2, "");
    expect("a" PLACE, times, 2, 2, "a<0.0 seconds>" PLACE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_places_and_videos),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
