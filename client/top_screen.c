/*
 * top_screen.c - what a terminal needs to be told so that a frame fits it, and
 * so that it is afterwards as it was before.
 */
#include "top_screen.h"

#include "ropectl.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* The alternate screen, no cursor, no wrapping; and back. */
static const char enter[] = "\033[?1049h\033[?25l\033[?7l\033[H",
                  leave[] = "\033[?7h\033[?25h\033[?1049l";

static struct termios cooked, raw;
static bool has_keys; /* standard input is a terminal */

static void write_all(const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(STDOUT_FILENO, text, bytes);
        if (n <= 0)
            return;
        text += n;
        bytes -= (size_t)n;
    }
}

static void leave_screen(void)
{
    if (has_keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &cooked);
    write_all(leave, sizeof leave - 1);
}

static void take_screen(void)
{
    if (has_keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    write_all(enter, sizeof enter - 1);
}

/* Ends or stops as without a handler, but leaves the screen first. */
static void on_signal(int number)
{
    sigset_t set;
    leave_screen();
    if (number != SIGTSTP) {
        signal(number, SIG_DFL);
        sigemptyset(&set);
        sigaddset(&set, number);
        sigprocmask(SIG_UNBLOCK, &set, NULL);
    }
    raise(number == SIGTSTP ? SIGSTOP : number);
    take_screen(); /* continued */
}

/* Ctrl-C and Ctrl-Z stay signals. A program in the background, which may not
 * change its terminal, has no keys. */
void screen_enter(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};
    struct sigaction action = {.sa_handler = on_signal};
    has_keys = tcgetpgrp(STDIN_FILENO) == getpgrp() &&
               tcgetattr(STDIN_FILENO, &cooked) == 0;
    raw = cooked;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL);
    atexit(leave_screen);
    take_screen();
}

/* ---------------------------------------------------------------------- keys
 */

int screen_read_key(double seconds)
{
    char bytes[8] = "";
    struct pollfd in = {has_keys ? STDIN_FILENO : -1, POLLIN, 0};
    int ms = seconds > 0 ? (int)ceil(fmin(seconds * 1e3, 1e6)) : 0;
    if (poll(&in, 1, ms) <= 0)
        return KEY_NONE;
    ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes - 1);
    if (n <= 0) /* nobody is there any more */
        has_keys = false;
    if (strncmp(bytes, "\033[D", 3) == 0 || strncmp(bytes, "\033OD", 3) == 0)
        return KEY_LEFT;
    if (strncmp(bytes, "\033[C", 3) == 0 || strncmp(bytes, "\033OC", 3) == 0)
        return KEY_RIGHT;
    return n > 0 ? (unsigned char)bytes[0] : KEY_NONE;
}

/* ------------------------------------------------------------------- drawing
 */

/* Cells that the first bytes of a line take: neither escape sequences, which
 * end in 'm', nor the later bytes of a character. */
static int cells_of(const char *line, size_t bytes)
{
    int n = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (line[i] == '\033')
            while (i < bytes && line[i] != 'm')
                i++;
        else
            n += ((unsigned char)line[i] & 0xC0) != 0x80;
    }
    return n;
}

/* Bytes up to the last comma that fits into so many cells, with it; all where
 * the line fits, or has no comma there. */
static size_t bytes_that_fit(const char *line, int width)
{
    size_t fit = 0, bytes = strlen(line);
    if (cells_of(line, bytes) <= width)
        return bytes;
    for (const char *at = line; (at = strstr(at, ", ")); at++)
        if (cells_of(line, (size_t)(at + 1 - line)) <= width)
            fit = (size_t)(at + 1 - line);
    return fit ? fit : bytes;
}

/* Writes one line on as many rows as it takes, at most so many; their number.
 */
static int write_line(FILE *out, const char *line, int width, int rows)
{
    enum { INDENT = 12 };
    int n = 0;
    while (n < rows && (*line || n == 0)) {
        int indent = n ? INDENT : 0;
        size_t bytes = bytes_that_fit(line, width - indent);
        fprintf(out, "%*s%.*s\033[K\r\n", indent, "", (int)bytes, line);
        line += bytes;
        line += *line == ' ';
        n++;
    }
    return n;
}

void screen_draw(cJSON *document, const char *last)
{
    struct winsize size = {.ws_row = 0};
    char *text = NULL, *frame = NULL, *rest, *line;
    size_t bytes;
    FILE *out = must_have(open_memstream(&text, &bytes));
    write_tables(out, document, !getenv("NO_COLOR"));
    fclose(out);
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0)
        size = (struct winsize){.ws_row = 24, .ws_col = 80};
    int rows = size.ws_row - 2, width = size.ws_col ? size.ws_col : 80;
    out = must_have(open_memstream(&frame, &bytes));
    fputs("\033[H", out);
    rest = must_have(text);
    while (rows > 0 && (line = strsep(&rest, "\n")) && (line[0] || rest))
        rows -= write_line(out, line, width, rows);
    fprintf(out, "%.*s\033[K\r\n\033[J", width, last);
    fclose(out);
    write_all(must_have(frame), bytes);
    free(frame);
    free(text);
}
