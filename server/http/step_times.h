/*
 * step_times.h - timing=steps: how long each step of a run takes. The answer's
 * header, which is written before the run, has room for it: a text of fixed
 * length in the metadata, under "step_us".
 */
#ifndef ROPED_HTTP_STEP_TIMES_H
#define ROPED_HTTP_STEP_TIMES_H

#include "http/call.h"

/* Takes the memory for so many steps; the lane fills call->steps.ns. */
ROPED_MUST_CHECK enum roped_status step_times_take(struct call *call, int n);

/* What the header says as long as they are not known; NULL: they are not
 * wanted. */
const char *step_times_text(const struct call *call);

/* They are known: writes them into the answer's header. */
void step_times_fill(const struct call *call);

#endif
