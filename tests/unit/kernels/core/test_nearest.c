/*
 * test_nearest.c - which of several words was meant.
 */
#include <roped/nearest.h>

#include "check.h"

static const char *nearest(const char *word)
{
    static const char *const known[] = {"eps", "theta", "factor",
                                        "mscale_all_dim", "mscale"};
    static char text[96];
    struct roped_nearest found = {.word = word};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        roped_nearest_offer(&found, known[i]);
    return roped_nearest_text(&found, text, sizeof text);
}

TEST(changed_missing_and_added_letters_are_near)
{
    CHECK_TEXT(nearest("epz"), "; did you mean 'eps'?");
    CHECK_TEXT(nearest("esp"), "; did you mean 'eps'?"); /* swapped */
    CHECK_TEXT(nearest("thta"), "; did you mean 'theta'?");
    CHECK_TEXT(nearest("factorr"), "; did you mean 'factor'?");
    CHECK_TEXT(nearest("mscal"), "; did you mean 'mscale'?");
    CHECK_TEXT(nearest("mscale_al_dim"), "; did you mean 'mscale_all_dim'?");
}

TEST(names_of_other_libraries_are_known)
{
    CHECK_TEXT(nearest("epsilon"), "; did you mean 'eps'?");
    CHECK_TEXT(nearest("rope_theta"), "; did you mean 'theta'?");
    CHECK_TEXT(nearest("base"), "; did you mean 'theta'?");
    CHECK_TEXT(nearest("is_neox"), ""); /* none offered that it could be */
}

TEST(other_words_are_not)
{
    CHECK_TEXT(nearest("head_dim"), "");
    CHECK_TEXT(nearest(""), "");
    CHECK_TEXT(nearest("x"), "");
    CHECK_TEXT(nearest("opt"), "");   /* two of three letters from "eps" */
    CHECK_TEXT(nearest("these"), ""); /* two of five from "theta" */
    CHECK_TEXT(nearest("a_word_of_more_than_sixty_three_letters_that_nobody_"
                       "could_have_meant"),
               "");
}
