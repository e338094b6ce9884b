/*
 * test_json_arena.c - memory of trees: one block per thread, the heap where it
 * is full, nothing left behind.
 */
#include "wire/json_arena.h"

#include "wire/json.h"

#include "check.h"

#include <cjson/cJSON.h>
#include <pthread.h>

static struct cJSON *parse(const char *text)
{
    struct roped_error err = {.text = ""};
    struct cJSON *tree = NULL;
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

TEST(a_tree_is_in_the_block_until_it_is_freed)
{
    CHECK_INT(json_arena_used(), 0);
    struct cJSON *tree = parse("{\"a\":[1,2],\"b\":\"text\"}");
    size_t used = json_arena_used();
    CHECK(used > 0 && used < 1024);
    CHECK_TEXT(json_member(tree, "b")->valuestring, "text");
    json_free(tree);
    CHECK_INT(json_arena_used(), 0);
    json_free(NULL);
}

TEST(several_trees_share_the_block)
{
    struct cJSON *a = parse("{\"a\":1}");
    struct cJSON *b = parse("{\"b\":\"two\"}");
    size_t both = json_arena_used();
    json_free(a);
    CHECK_INT(json_arena_used(), both); /* b is in use */
    CHECK_TEXT(json_member(b, "b")->valuestring, "two");
    struct cJSON *c = parse("[3]");
    CHECK(json_arena_used() > both);
    CHECK_TEXT(json_member(b, "b")->valuestring, "two");
    json_free(b);
    CHECK_DOUBLE(c->child->valuedouble, 3, 0);
    json_free(c);
    CHECK_INT(json_arena_used(), 0);
}

/* What does not fit is on the heap: a leak would be the sanitizer's to find. */
TEST(what_does_not_fit_is_on_the_heap)
{
    enum { MANY = 5000 };
    char *text = numbers(MANY);
    for (int i = 0; i < 3; i++) {
        struct cJSON *small = parse("[1]");
        struct cJSON *large = parse(text);
        CHECK(json_arena_used() <= JSON_ARENA_BYTES);
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
        struct cJSON *tree = parse(text);
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
        struct cJSON *tree;
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
        struct cJSON *tree = parse(text);
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
    struct cJSON *mine = parse("{\"kept\":[1,2,3]}");
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
    RUN(a_tree_is_in_the_block_until_it_is_freed);
    RUN(several_trees_share_the_block);
    RUN(what_does_not_fit_is_on_the_heap);
    RUN(every_length_fits_to_the_byte);
    RUN(what_is_refused_leaves_nothing);
    RUN(threads_do_not_meet);
    return check_done();
}
