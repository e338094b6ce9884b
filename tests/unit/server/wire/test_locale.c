/*
 * test_locale.c - in a program with a locale of decimal commas, as desktop
 * programs have, the libraries read and write numbers with points, and leave
 * the program its locale.
 */
#include "check.h"
#include "wire/buffer.h"
#include "wire/json.h"
#include "wire/json_reader.h"

#include <roped/number.h>
#include <roped/op.h>

#include <cjson/cJSON.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct roped_error err;
static locale_t commas;

TEST(the_program_still_writes_commas)
{
    char text[16];
    snprintf(text, sizeof text, "%.1f", 0.5);
    CHECK_TEXT(text, "0,5");
}

TEST(parameters_are_read_with_points)
{
    static struct roped_call call;
    double eps;
    roped_call_init(&call, roped_op_find("rmsnorm"));
    CHECK_OK(roped_call_set_text(&call, "eps", "0.00001", &err), &err);
    memcpy(&eps, call.params, sizeof eps); /* the first of them */
    CHECK_DOUBLE(eps, 0.00001, 0);
    CHECK_INT(roped_call_set_text(&call, "weight_bias", "0,5", &err),
              ROPED_BAD_PARAMETER);
}

TEST(refusals_are_written_with_points)
{
    static struct roped_call call;
    struct roped_value value = {.kind = ROPED_VALUE_FLOAT, .number = -0.5};
    roped_call_init(&call, roped_op_find("rmsnorm"));
    CHECK_INT(roped_call_set_param(&call, "eps", &value, &err),
              ROPED_BAD_PARAMETER);
    CHECK_CONTAINS(err.text, "parameter 'eps': -0.5, expected 0 to 3.4");
}

TEST(json_is_written_with_points)
{
    struct buffer buffer;
    buffer_init(&buffer);
    buffer_double(&buffer, 0.1);
    buffer_text(&buffer, " ");
    buffer_double(&buffer, 1.0 / 3);
    buffer_text(&buffer, " ");
    buffer_float(&buffer, 0.1f);
    buffer_printf(&buffer, " %.3f", 1.5);
    CHECK_TEXT(buffer.text, "0.1 0.3333333333333333 0.1 1.500");
    buffer_fini(&buffer);
}

static double read_json(const char *text)
{
    struct json_reader reader;
    double value = 0;
    json_reader_init(&reader, text, strlen(text), 1, NULL, 0);
    CHECK(json_read_number(&reader, &value));
    return value;
}

TEST(json_is_read_with_points)
{
    char text[40];
    cJSON *number = cJSON_CreateNumber(2.5);
    CHECK_DOUBLE(read_json("0.25"), 0.25, 0);
    CHECK_DOUBLE(read_json("2.5e-1"), 0.25, 0);
    CHECK_DOUBLE(read_json("0.12345678901234567890"), 0.12345678901234567890,
                 0);
    CHECK_TEXT(json_text(number, text, sizeof text), "2.5");
    cJSON_Delete(number);
}

/* In the last thread alone. */
TEST(the_thread_still_has_its_own_locale)
{
    CHECK(!commas || uselocale((locale_t)0) == commas);
}

static void *run_all(void *unused)
{
    (void)unused;
    check_run();
    return NULL;
}

/* In a program that has another. */
static void *run_in_own_locale(void *unused)
{
    uselocale(commas);
    return run_all(unused);
}

/* Ends the program where there is no thread. */
static void run_thread(void *(*start)(void *))
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, start, NULL) ||
        pthread_join(thread, NULL))
        exit(EXIT_FAILURE);
}

int main(void)
{
    setenv("LOCPATH", ROPED_TEST_LOCALES, 1);
    if (!setlocale(LC_ALL, "de_DE.UTF-8")) {
        printf("skipped: localedef made no de_DE.UTF-8 in %s (Debian: apt-get "
               "install locales)\n",
               ROPED_TEST_LOCALES);
        return CHECK_SKIP;
    }
    run_all(NULL);
    run_thread(run_all);
    commas = duplocale(LC_GLOBAL_LOCALE); /* newlocale leaks LOCPATH */
    setlocale(LC_ALL, "C");
    run_thread(run_in_own_locale);
    freelocale(commas);
    return check_done();
}
