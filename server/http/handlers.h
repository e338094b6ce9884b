/*
 * handlers.h - one handler per route; each queues exactly one reply.
 */
#ifndef ROPED_HTTP_HANDLERS_H
#define ROPED_HTTP_HANDLERS_H

#include "http/request.h"
#include "wire/models.h"

/* handle_health.c */
route_handler_fn handle_root, handle_live, handle_ready, handle_metrics;

/* handle_meta.c */
route_handler_fn handle_openapi, handle_describe_all, handle_describe;
route_handler_fn handle_server, handle_model, handle_model_ready;
route_handler_fn handle_config, handle_stats, handle_stats_all, handle_index;

/* The model of the path; false with the 404 that v2 clients match on queued. */
bool find_model(struct request *request, struct model *out);

/* handle_settings.c */
route_handler_fn handle_log_get, handle_log_post;
route_handler_fn handle_trace_get, handle_trace_post;
route_handler_fn handle_load, handle_unload;

/* handle_tables.c */
route_handler_fn handle_tables, handle_table_get, handle_table_put;
route_handler_fn handle_table_delete;

/* handle_regions.c */
route_handler_fn handle_regions, handle_region_get, handle_region_put;
route_handler_fn handle_region_delete;

/* handle_shared_memory.c */
route_handler_fn handle_system_status, handle_system_register;
route_handler_fn handle_system_unregister;
route_handler_fn handle_cuda_status, handle_cuda_register;
route_handler_fn handle_cuda_unregister;

/* The header of a PUT is complete: reads it, and takes the memory. */
enum roped_status region_decode(struct request *request);

#endif
