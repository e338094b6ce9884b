/*
 * test_json_arena.c - memory of trees: a few blocks per thread, the heap where
 * they are full, nothing left behind; and trees that are kept.
 */
#include "wire/json_arena.h"

#include "wire/json.h"

#include "check.h"

#include <cjson/cJSON.h>
#include <pthread.h>

static const struct cJSON *parse(const char *text)
{
    struct roped_error err = {.text = ""};
    const struct cJSON *tree = NULL;
    if (json_parse(text, strlen(text), &tree, &err))
        CHECK_FAIL("%.60s refused: %s", text, err.text);
    return tree;
}

/* "[0,1,2,...]": every element takes a node. */
static char *numbers(int n)
{
    char *text = malloc((size_t)n * 8 + 3);
    size_t at = 0;
    text[at++] = '[';
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, 8, "%s%d", i ? "," : "", i);
    snprintf(text + at, 2, "]");
    return text;
}

static void check_numbers(const struct cJSON *tree, int n)
{
    const struct cJSON *node;
    int i = 0;
    cJSON_ArrayForEach(node, tree)
    {
        if (node->valuedouble != i++)
            CHECK_FAIL("element %d is %g", i - 1, node->valuedouble);
    }
    CHECK_INT(i, n);
}

TEST(a_tree_is_in_a_block_until_it_is_freed)
{
    CHECK_INT(json_arena_used(), 0);
    const struct cJSON *tree = parse("{\"a\":[1,2],\"b\":\"text\"}");
    size_t used = json_arena_used();
    CHECK(used > 0 && used < 1024);
    CHECK_TEXT(json_member(tree, "b")->valuestring, "text");
    json_free(tree);
    CHECK_INT(json_arena_used(), 0);
    json_free(NULL);
}

/* More than there are blocks: the rest is on the heap. */
TEST(trees_in_use_do_not_meet)
{
    enum { N = JSON_ARENA_BLOCKS + 3 };
    const struct cJSON *tree[N];
    char text[32];
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof text, "{\"a\":[%d],\"b\":\"%d\"}", i, i);
        tree[i] = parse(text);
    }
    size_t all = json_arena_used();
    for (int k = 0; k < N; k++) { /* 0, 2, 4, 6, 1, 3, 5 */
        int i = 2 * k % N;
        snprintf(text, sizeof text, "%d", i);
        CHECK_DOUBLE(json_member(tree[i], "a")->child->valuedouble, i, 0);
        CHECK_TEXT(json_member(tree[i], "b")->valuestring, text);
        json_free(tree[i]);
    }
    CHECK(all > 0);
    CHECK_INT(json_arena_used(), 0);
}

/* -------------------------------------------------------------- kept trees */

TEST(the_same_text_is_the_same_tree)
{
    static const char text[] = "{\"a\":[1,2.5],\"b\":\"text\"}";
    char copy[sizeof text];
    const struct cJSON *first = parse(text);
    memcpy(copy, text, sizeof copy);
    const struct cJSON *second = parse(copy);
    CHECK(first == second);
    json_free(first);
    CHECK_TEXT(json_member(second, "b")->valuestring, "text");
    json_free(second);
    CHECK_INT(json_arena_used(), 0);
    for (int i = 0; i < 3; i++) {
        const struct cJSON *again = parse(copy);
        CHECK(again == first);
        CHECK_DOUBLE(json_member(again, "a")->child->next->valuedouble, 2.5, 0);
        json_free(again);
    }
    copy[6] = '7';
    const struct cJSON *other = parse(copy);
    CHECK_DOUBLE(json_member(other, "a")->child->valuedouble, 7, 0);
    json_free(other);
}

/* As many as there are blocks are kept, whoever comes in between goes. */
TEST(texts_in_turns_are_kept)
{
    const struct cJSON *tree[JSON_ARENA_BLOCKS];
    char text[32];
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < JSON_ARENA_BLOCKS; i++) {
            snprintf(text, sizeof text, "[\"turn\",%d]", i);
            const struct cJSON *found = parse(text);
            if (round > 0)
                CHECK(found == tree[i]);
            tree[i] = found;
            json_free(found);
        }
    for (int i = 0; i < JSON_ARENA_BLOCKS; i++)
        json_free(parse(i % 2 ? "[\"other\"]" : "[\"and another\"]"));
    for (int i = 0; i < JSON_ARENA_BLOCKS; i++) {
        snprintf(text, sizeof text, "[\"turn\",%d]", i);
        const struct cJSON *found = parse(text);
        CHECK_DOUBLE(found->child->next->valuedouble, i, 0);
        json_free(found);
    }
}

/* What one reader takes another may not. */
TEST(a_text_is_kept_for_those_who_read_it_alike)
{
    struct roped_error err;
    const struct cJSON *tree;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(json_parse_v2("[NaN]", 5, &tree, &err), &err);
        json_free(tree);
        CHECK_INT(json_parse("[NaN]", 5, &tree, &err), ROPED_INVALID);
    }
}

TEST(the_odd_number_of_a_kept_text_is_known)
{
    struct roped_error err;
    const struct cJSON *tree;
    size_t at;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(json_parse_sizes("[1,2.0]", 7, &tree, &at, &err), &err);
        CHECK_INT(at, 3);
        json_free(tree);
        CHECK_OK(json_parse_sizes("[1,2]", 5, &tree, &at, &err), &err);
        CHECK_INT(at, JSON_NOWHERE);
        json_free(tree);
    }
    CHECK_OK(json_parse("[3,4.0]", 7, &tree, &err), &err);
    json_free(tree);
    CHECK_OK(json_parse_sizes("[3,4.0]", 7, &tree, &at, &err), &err);
    CHECK_INT(at, 3);
    json_free(tree);
}

/* ------------------------------------------------------------ what is large */

/* What does not fit is on the heap: a leak would be the sanitizer's to find. */
TEST(what_does_not_fit_is_on_the_heap)
{
    enum { MANY = 5000 };
    char *text = numbers(MANY);
    for (int i = 0; i < 3; i++) {
        const struct cJSON *small = parse("[1]");
        const struct cJSON *large = parse(text);
        CHECK(json_arena_used() <= 2 * JSON_ARENA_BYTES);
        check_numbers(large, MANY);
        json_free(i % 2 ? small : large);
        CHECK(json_arena_used() > 0);
        json_free(i % 2 ? large : small);
        CHECK_INT(json_arena_used(), 0);
    }
    free(text);
}

TEST(every_length_fits_to_the_byte)
{
    for (int n = 400; n < 600; n++) { /* around the end of the block */
        char *text = numbers(n);
        const struct cJSON *tree = parse(text);
        check_numbers(tree, n);
        json_free(tree);
        free(text);
    }
    CHECK_INT(json_arena_used(), 0);
}

TEST(what_is_refused_leaves_nothing)
{
    static const char *const wrong[] = {"{\"a\":1,\"a\":2}", "[1,", "",
                                        "[1] x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct roped_error err;
        const struct cJSON *tree;
        CHECK_INT(json_parse(wrong[i], strlen(wrong[i]), &tree, &err),
                  ROPED_INVALID);
        CHECK(tree == NULL);
        CHECK_INT(json_arena_used(), 0);
    }
}

static void *parse_often(void *context)
{
    for (int i = 1; i < 300; i++) {
        char *text = numbers(i * 4);
        const struct cJSON *tree = parse(text);
        check_numbers(tree, i * 4);
        json_free(tree);
        free(text);
    }
    *(size_t *)context = json_arena_used();
    return NULL;
}

TEST(threads_do_not_meet)
{
    enum { N_THREADS = 4 };
    pthread_t thread[N_THREADS];
    size_t left[N_THREADS];
    const struct cJSON *mine = parse("{\"kept\":[1,2,3]}");
    for (int i = 0; i < N_THREADS; i++)
        pthread_create(&thread[i], NULL, parse_often, &left[i]);
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(thread[i], NULL);
        CHECK_INT(left[i], 0);
    }
    CHECK_INT(cJSON_GetArraySize(json_member(mine, "kept")), 3);
    json_free(mine);
}

int main(void)
{
    RUN(a_tree_is_in_a_block_until_it_is_freed);
    RUN(trees_in_use_do_not_meet);
    RUN(the_same_text_is_the_same_tree);
    RUN(texts_in_turns_are_kept);
    RUN(a_text_is_kept_for_those_who_read_it_alike);
    RUN(the_odd_number_of_a_kept_text_is_known);
    RUN(what_does_not_fit_is_on_the_heap);
    RUN(every_length_fits_to_the_byte);
    RUN(what_is_refused_leaves_nothing);
    RUN(threads_do_not_meet);
    return check_done();
}
