/*
 * test_rope_quantize_sweep.c - rope_quantize on one backend (argument: cpu or
 * cuda) against float64: MLA, GQA and MHA shapes, both FP8 types, both styles,
 * scales that saturate, NaN, Inf and -0 in the non-rotary parts.
 */
#include "check.h"
#include "kernel/parts_case.h"
#include "kernel/reference.h"

static struct runner runner;
static struct random_source source = {13};

static void run_case(const struct parts_case *c)
{
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    struct reference_judge judge = {0};
    char text[400];
    if (!check_takes_case())
        return;
    roped_call_init(&call, roped_op_find("rope_quantize"));
    parts_case_build(&call, &source, c);
    if (c->is_e5m2)
        case_param(&call, "output_dtype", "e5m2");
    enum roped_status status = roped_call_resolve(&call, &err);
    if (!status)
        status = runner_run(&runner, &call, &c->options, &err);
    if (!status)
        reference_judge(&call, &judge);
    if (status || judge.n_wrong)
        CHECK_FAIL("%s: %s; %lld of %lld wrong: %s",
                   parts_case_text(c, text, sizeof text), err.text,
                   (long long)judge.n_wrong, (long long)judge.n_checked,
                   judge.first);
    runner_free_outputs(&call);
    case_free(&call);
}

TEST(shapes_of_models_are_correctly_rounded)
{
    for (int i = 0; i < PARTS_MODELS; i++)
        for (int t = 0; t < 3; t++)
            for (int gptj = 0; gptj < 2; gptj++)
                for (int e5m2 = 0; e5m2 < 2; e5m2++) {
                    struct parts_case c = parts_case_model(i, t, gptj);
                    c.is_e5m2 = e5m2;
                    run_case(&c);
                }
}

TEST(random_cases_are_correctly_rounded)
{
    for (int i = 0; i < check_cases(800); i++) {
        const struct parts_case c = parts_case_random(&source);
        run_case(&c);
    }
}

int main(int argc, char **argv)
{
    if (!runner_open(&runner, argc > 1 ? argv[1] : "cpu"))
        return CHECK_SKIP;
    check_run();
    runner_close(&runner);
    return check_done();
}
