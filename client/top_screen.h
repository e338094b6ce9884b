/*
 * top_screen.h - the terminal while 'top' has it: the alternate screen, a frame
 * as wide and as high as that, and keys one at a time.
 */
#ifndef ROPED_CLIENT_TOP_SCREEN_H
#define ROPED_CLIENT_TOP_SCREEN_H

#include <cjson/cJSON.h>

/* Until the program ends, in whatever way. */
void screen_enter(void);

enum screen_key { KEY_NONE, KEY_LEFT = 256, KEY_RIGHT };

/* Waits for a key for so many seconds: a character, one of the above, or
 * KEY_NONE. */
int screen_read_key(double seconds);

/* Draws a document, in the place of the one before; last is the line under it.
 * Lists that are wider than the screen go on in the next line. */
void screen_draw(cJSON *document, const char *last);

#endif
