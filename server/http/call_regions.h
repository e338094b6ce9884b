/*
 * call_regions.h - the regions that a call names: found, held, checked.
 */
#ifndef ROPED_HTTP_CALL_REGIONS_H
#define ROPED_HTTP_CALL_REGIONS_H

#include "http/call.h"
#include "wire/region_refs.h"

/* Takes every region that refs name for the request's job, a call or a run;
 * they are given back when the job ends, or with the request. */
ROPED_MUST_CHECK enum roped_status
call_take_regions(struct call *call, const struct region_refs *refs);

/* v1: binds the inputs among them, with the shape and the type that the query
 * or else the region says. */
ROPED_MUST_CHECK enum roped_status
call_bind_regions(struct call *call, const struct region_refs *refs);

#endif
