/*
 * handlers.h - one handler per route; each returns its reply.
 */
#ifndef ROPED_HTTP_HANDLERS_H
#define ROPED_HTTP_HANDLERS_H

#include "http/reply.h"
#include "wire/models.h"

/* handle_health.c */
reply_fn handle_root, handle_live, handle_ready, handle_metrics;

/* handle_page.c */
reply_fn handle_page, handle_docs;

/* handle_meta.c */
reply_fn handle_openapi, handle_describe_all, handle_describe;
reply_fn handle_server, handle_model, handle_model_ready;
reply_fn handle_config, handle_stats, handle_stats_all, handle_index;

/* The model of the path; else the ROPED_NO_OPERATOR that v2 clients match on,
 * in request->error. */
enum roped_status find_model(struct request *request, struct model *out);

/* handle_devices.c */
reply_fn handle_devices;

/* handle_settings.c */
reply_fn handle_log_get, handle_log_post;
reply_fn handle_trace_get, handle_trace_post;
reply_fn handle_load, handle_unload;

/* handle_tables.c */
reply_fn handle_tables, handle_table_get, handle_table_put;
reply_fn handle_table_delete;

/* handle_regions.c */
reply_fn handle_regions, handle_region_get, handle_region_put;
reply_fn handle_region_delete;

/* handle_shared_memory.c */
reply_fn handle_system_status, handle_system_register;
reply_fn handle_system_unregister;
reply_fn handle_cuda_status, handle_cuda_register;
reply_fn handle_cuda_unregister;

/* The header of a PUT is complete: reads it, and takes the memory. */
enum roped_status region_decode(struct request *request);

#endif
