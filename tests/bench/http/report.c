/*
 * report.c - the table and the JSON.
 */
#include "bench/http/report.h"

#include <string.h>

static const char *verdict_of(const struct row *row)
{
    if (row->must == 0)
        return "";
    bool is_must =
        row->is_ceiling ? row->value <= row->must : row->value >= row->must;
    bool is_stretch =
        row->stretch != 0 && (row->is_ceiling ? row->value <= row->stretch
                                              : row->value >= row->stretch);
    return is_stretch ? "stretch" : is_must ? "must" : "MISSED";
}

void report_title(struct report *report, const char *text)
{
    (void)report;
    printf("\n%s\n%-40s %10s %10s %10s %9s %6s %7s %9s %-12s %6s %6s  %s\n",
           text, "row", "p50 us", "p99 us", "p99.9 us", "calls/s", "GB/s",
           "cpu us", "value", "", "must", "str.", "");
}

static void print_number(double value, int width, int digits)
{
    if (value == 0)
        printf(" %*s", width, "-");
    else
        printf(" %*.*f", width, digits, value);
}

static int digits_of(double value)
{
    return value < 10 ? 2 : value < 1000 ? 1 : 0;
}

static void print_row(const struct row *row)
{
    printf("%-40s", row->name);
    print_number(row->p50_us, 10, 1);
    print_number(row->p99_us, 10, 1);
    print_number(row->p999_us, 10, 1);
    print_number(row->calls_per_s, 9, 0);
    print_number(row->gb_per_s, 6, 2);
    print_number(row->cpu_us, 7, digits_of(row->cpu_us));
    print_number(row->value, 9, digits_of(row->value));
    printf(" %-12s", row->unit ? row->unit : "");
    print_number(row->must, 6, digits_of(row->must));
    print_number(row->stretch, 6, digits_of(row->stretch));
    printf("  %s", verdict_of(row));
    if (row->best != 0)
        printf(" (best runs %.2f)", row->best);
    if (row->note[0])
        printf(" %s", row->note);
    printf("\n");
    for (int i = 0; row->phases.is_known && i < N_PHASES; i++)
        printf("%s%s %.1f%s", i ? ", " : "    ", phase_name[i],
               row->phases.us[i], i + 1 < N_PHASES ? "" : " us\n");
    fflush(stdout);
}

/* Names, units and notes are ours: nothing in them needs an escape. */
static void write_json(const struct report *report, const struct row *row)
{
    FILE *file = report->json;
    fprintf(file, "{\"row\":\"%s\",\"backend\":\"%s\"", row->name,
            report->backend);
    if (row->p50_us != 0)
        fprintf(file, ",\"p50_us\":%.3f,\"p99_us\":%.3f,\"p999_us\":%.3f",
                row->p50_us, row->p99_us, row->p999_us);
    if (row->calls_per_s != 0)
        fprintf(file, ",\"calls_per_s\":%.1f,\"gb_per_s\":%.4f",
                row->calls_per_s, row->gb_per_s);
    if (row->cpu_us != 0)
        fprintf(file, ",\"cpu_us\":%.3f", row->cpu_us);
    if (row->unit)
        fprintf(file, ",\"value\":%.6g,\"unit\":\"%s\"", row->value, row->unit);
    if (row->best != 0)
        fprintf(file, ",\"best\":%.6g", row->best);
    if (row->must != 0)
        fprintf(file,
                ",\"must\":%g,\"stretch\":%g,\"is_ceiling\":%s,"
                "\"verdict\":\"%s\"",
                row->must, row->stretch, row->is_ceiling ? "true" : "false",
                verdict_of(row));
    for (int i = 0; row->phases.is_known && i < N_PHASES; i++)
        fprintf(file, "%s\"%s\":%.2f%s", i ? "," : ",\"stages_us\":{",
                phase_name[i], row->phases.us[i], i + 1 < N_PHASES ? "" : "}");
    if (row->note[0])
        fprintf(file, ",\"note\":\"%s\"", row->note);
    fprintf(file, "}\n");
    fflush(file);
}

void report_row(struct report *report, const struct row *row)
{
    const char *verdict = verdict_of(row);
    report->n_rows++;
    report->n_goals += row->must != 0;
    report->n_stretch += strcmp(verdict, "stretch") == 0;
    report->n_must +=
        strcmp(verdict, "must") == 0 || strcmp(verdict, "stretch") == 0;
    print_row(row);
    if (report->json)
        write_json(report, row);
}

void report_end(const struct report *report)
{
    printf("\n%d rows; of %d with a goal %d reach it, %d of them the stretch\n",
           report->n_rows, report->n_goals, report->n_must, report->n_stretch);
}
