/*
 * output.c - the one writer. Every command makes a document, a JSON object, and
 * prints it with print_document: as it is, or as a table for people, which has
 * the same members under the same names.
 *
 * In a table a line is a member of the document. An array of objects is a row
 * for each, below the names of their members; "doc" of such an object is a line
 * of its own below its row. Cells hold no spaces, unless a text does: '-'
 * stands for none, '|' between texts. Bytes have units.
 *
 * Texts come from servers and files. They are made printable in one place for
 * each form: the document before it becomes a table, and JSON as a whole.
 */
#include "ropectl.h"

#include "number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_COLUMNS = 32,
    MAX_WIDTH = 120, /* that others of a column are filled up to */
    INDENT = 2
};

/* ------------------------------------------------------------------ colours */

bool is_terminal(FILE *out)
{
    const char *term = getenv("TERM");
    return isatty(fileno(out)) && term && strcmp(term, "dumb") != 0;
}

/* Names are bold where colours are wanted (https://no-color.org). */
static void write_name(FILE *out, const char *name, int width, bool is_bold)
{
    fprintf(out, "%s%*s%s", is_bold ? "\033[1m" : "", width, name,
            is_bold ? "\033[0m" : "");
}

/* ------------------------------------------------------------------- values */

static void replace(char **text)
{
    char *made = *text ? made_printable(*text) : NULL;
    if (!made)
        return;
    cJSON_free(*text);
    *text = made;
}

/* Every name and text of a document. */
static void make_printable(cJSON *value)
{
    cJSON *child;
    replace(&value->string);
    replace(&value->valuestring);
    cJSON_ArrayForEach(child, value) make_printable(child);
}

static void write_number(FILE *out, const char *name, double number)
{
    static const char units[] = "KMGTP";
    char text[64];
    int unit = -1;
    bool is_large = strstr(name, "bytes") && number >= 1024;
    for (; is_large && number >= 1024 && units[unit + 1]; unit++)
        number /= 1024;
    bool is_whole = number == floor(number) && fabs(number) < 1e15;
    number_write(text, sizeof text,
                 is_large   ? "%.1f"
                 : is_whole ? "%.0f"
                            : "%.5g",
                 number);
    fputs(text, out);
    if (is_large)
        fprintf(out, "%ciB", units[unit]);
}

static void write_value(FILE *out, const cJSON *value, const char *name);

/* "F32|BF16", "[4,4]", or "p50 0.1, p90 0.2" */
static void write_items(FILE *out, const cJSON *items, const char *name)
{
    const cJSON *item;
    bool is_list = cJSON_IsArray(items),
         has_text = cJSON_IsString(items->child), is_first = true;
    fputs(is_list && !has_text ? "[" : "", out);
    cJSON_ArrayForEach(item, items)
    {
        if (!is_first)
            fputs(!is_list ? ", " : has_text ? "|" : ",", out);
        is_first = false;
        if (!is_list)
            fprintf(out, "%s ", item->string);
        write_value(out, item, is_list ? name : item->string);
    }
    fputs(is_list && !has_text ? "]" : "", out);
}

static void write_value(FILE *out, const cJSON *value, const char *name)
{
    if (cJSON_IsString(value) && value->valuestring[0])
        fputs(value->valuestring, out);
    else if (cJSON_IsNumber(value))
        write_number(out, name, value->valuedouble);
    else if (cJSON_IsBool(value))
        fputs(cJSON_IsTrue(value) ? "yes" : "no", out);
    else if (cJSON_IsArray(value) || cJSON_IsObject(value))
        write_items(out, value, name);
    else
        fputc('-', out);
}

/* The same as text, to be freed. */
static char *text_of(const cJSON *value, const char *name)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = must_have(open_memstream(&text, &bytes));
    write_value(out, value, name);
    fclose(out);
    return must_have(text);
}

/* ------------------------------------------------------------------- tables */

struct columns {
    int n;
    const char *name[MAX_COLUMNS];
    int width[MAX_COLUMNS];
    bool is_number[MAX_COLUMNS];
};

static bool is_doc(const char *name)
{
    return strcmp(name, "doc") == 0;
}

/* Room for a text; where it is wider, it has no others below it. */
static int width_of(const char *text)
{
    return (int)strnlen(text, MAX_WIDTH);
}

static int column_of(struct columns *columns, const char *name)
{
    for (int i = 0; i < columns->n; i++)
        if (strcmp(columns->name[i], name) == 0)
            return i;
    if (is_doc(name) || columns->n == MAX_COLUMNS)
        return -1;
    int i = columns->n++;
    columns->name[i] = name;
    columns->width[i] = width_of(name);
    columns->is_number[i] = true;
    return i;
}

static void measure(struct columns *columns, const cJSON *rows)
{
    const cJSON *row, *cell;
    cJSON_ArrayForEach(row, rows) cJSON_ArrayForEach(cell, row)
    {
        int i = column_of(columns, cell->string);
        if (i < 0)
            continue;
        char *text = text_of(cell, cell->string);
        int width = width_of(text);
        free(text);
        if (width > columns->width[i])
            columns->width[i] = width;
        columns->is_number[i] &= cJSON_IsNumber(cell) || cJSON_IsNull(cell);
    }
}

/* Numbers to the right, texts to the left, the last of which needs no room. */
static int field_width(const struct columns *columns, int i)
{
    if (columns->is_number[i])
        return columns->width[i];
    return i + 1 < columns->n ? -columns->width[i] : 0;
}

static void write_row(FILE *out, const struct columns *columns,
                      const cJSON *row, int indent)
{
    const cJSON *doc = cJSON_GetObjectItemCaseSensitive(row, "doc");
    for (int i = 0; i < columns->n; i++) {
        const char *name = columns->name[i];
        char *text = text_of(cJSON_GetObjectItemCaseSensitive(row, name), name);
        fprintf(out, "%*s%*s", i ? INDENT : indent, "", field_width(columns, i),
                text);
        free(text);
    }
    fputc('\n', out);
    if (doc) {
        fprintf(out, "%*s", indent + 2 * INDENT, "");
        write_value(out, doc, "doc");
        fputc('\n', out);
    }
}

static void write_table(FILE *out, const cJSON *rows, int indent, bool is_bold)
{
    struct columns columns = {.n = 0};
    const cJSON *row;
    measure(&columns, rows);
    for (int i = 0; i < columns.n; i++) {
        fprintf(out, "%*s", i ? INDENT : indent, "");
        write_name(out, columns.name[i], field_width(&columns, i), is_bold);
    }
    fputc('\n', out);
    cJSON_ArrayForEach(row, rows) write_row(out, &columns, row, indent);
}

static bool is_table(const cJSON *value)
{
    const cJSON *row;
    if (!cJSON_IsArray(value) || !value->child)
        return false;
    cJSON_ArrayForEach(row, value) if (!cJSON_IsObject(row)) return false;
    return true;
}

void write_tables(FILE *out, cJSON *document, bool is_bold)
{
    const cJSON *member;
    bool is_alone = cJSON_GetArraySize(document) == 1;
    int width = 0;
    make_printable(document);
    cJSON_ArrayForEach(member, document) if (!is_table(member) &&
                                             width_of(member->string) > width)
        width = width_of(member->string);
    cJSON_ArrayForEach(member, document)
    {
        if (!is_table(member) || !is_alone)
            write_name(out, member->string, is_table(member) ? 0 : -width,
                       is_bold);
        if (is_table(member)) {
            fputs(is_alone ? "" : "\n", out);
            write_table(out, member, is_alone ? 0 : INDENT, is_bold);
            continue;
        }
        fputs("  ", out);
        if (cJSON_IsArray(member) && !member->child)
            fputs("none", out);
        else
            write_value(out, member, member->string);
        fputc('\n', out);
    }
}

/* ---------------------------------------------------------------- documents */

void write_document(const struct ropectl *ctl, FILE *out, cJSON *document)
{
    if (ctl->is_json) {
        char *text = must_have(cJSON_PrintUnformatted(document));
        write_text(out, text);
        fputc('\n', out);
        cJSON_free(text);
    } else {
        write_tables(out, document, is_terminal(out) && !getenv("NO_COLOR"));
    }
    cJSON_Delete(document);
}

int print_document(const struct ropectl *ctl, cJSON *document)
{
    write_document(ctl, stdout, document);
    if (fflush(stdout) == 0)
        return EXIT_SUCCESS;
    return fail_text("cannot write standard output");
}

cJSON *add_row(cJSON *array)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddItemToArray(array, object);
    return object;
}

void add_timing(cJSON *object, const char *name,
                const struct roped_client_timing *timing, double n_calls)
{
    cJSON *phases = cJSON_AddObjectToObject(object, name);
#define PHASE(id, name, ...)                                                   \
    cJSON_AddNumberToObject(phases, #name, timing->name * 1e3 / n_calls);
#define BODY_PHASE(...) PHASE(__VA_ARGS__)
#include "phase.def"
    cJSON_AddNumberToObject(phases, "wall", timing->wall * 1e3 / n_calls);
}
